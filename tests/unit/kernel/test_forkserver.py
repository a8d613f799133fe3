"""The fork server: what a copy has and has not, how its end is told, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import Internal, NotFound
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import procfs
from podkeep.kernel.process.forkserver import FIRST, Copy, ForkServer
from support.processes import children
from support.waiting import wait_for

MODULE = "kernel.programs.copying"


@pytest.fixture
def server() -> Iterator[ForkServer]:
    """A server that has not been started."""
    server = ForkServer(MODULE)
    yield server
    server.let_go()()


class Run:
    """A copy, with pipes for what it says on standard output and on standard error."""

    def __init__(self, server: ForkServer, program: str, *more: int) -> None:
        self.output, written = os.pipe()
        self.errors, complained = os.pipe()
        with Path(os.devnull).open("rb") as null:
            self.copy: Copy = server.start(program, [null.fileno(), written, complained, *more])
        os.close(written)
        os.close(complained)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.copy.close()
        os.close(self.output)
        os.close(self.errors)

    def said(self) -> bytes:
        """Return what it said, to its end."""
        return b"".join(iter(lambda: os.read(self.output, 1 << 16), b""))

    def pid(self) -> int:
        """Return the process that says its number and waits."""
        return int(os.read(self.output, 16))


def kill_server() -> int:
    """Kill the server, and return its number when it has ended."""
    (forks,) = children(os.getpid())
    process = procfs.identify(forks)
    os.kill(forks, signal.SIGKILL)
    wait_for(lambda: not procfs.alive(process), "its end")  # what it is asked for meanwhile ends with it
    return forks


def told(server: ForkServer, program: str, *more: int) -> dict[str, Any]:
    with Run(server, program, *more) as run:
        found: dict[str, Any] = json.loads(run.said())
        assert run.copy.wait() == 0
    return found


@pytest.mark.slow
def test_a_copy_has_the_descriptors_that_it_is_given_and_no_others(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order they were opened; and the environment of now, of any length."""
    more = []
    for number in range(3):
        path = tmp_path / str(number)
        path.write_bytes(b"")
        more.append(os.open(path, os.O_RDONLY))
    long = "x" * (100 << 10)
    for number in range(4):
        monkeypatch.setenv(f"PODKEEP_LONG_{number}", long)
    for given in (more, list(reversed(more))):
        found = told(server, "tell", *given)
        # The first that is free is the directory that it lists.
        assert found["descriptors"] == [*range(FIRST + 3)]
        assert found["targets"]["0"] == os.devnull
        assert found["targets"][str(FIRST)] == os.readlink(f"/proc/self/fd/{given[0]}")
        assert found["environment"] == dict.fromkeys((f"PODKEEP_LONG_{number}" for number in range(4)), long)
        assert found["leads"]
    monkeypatch.setenv("PODKEEP_ODD", os.fsdecode(b"\xff="))
    for number in range(4):
        monkeypatch.delenv(f"PODKEEP_LONG_{number}")
    assert told(server, "tell", more[0])["environment"] == {"PODKEEP_ODD": os.fsdecode(b"\xff=")}
    for fd in more:
        os.close(fd)


@pytest.mark.slow
def test_each_of_several_is_the_first_of_a_pid_namespace_of_its_own(server: ForkServer) -> None:
    with Path(os.devnull).open("rb") as null:
        assert [told(server, "first", null.fileno())["pid"] for _ in range(3)] == [1, 1, 1]
        assert told(server, "tell", null.fileno())["pid"] > 1


def test_how_a_copy_ended_is_told(server: ForkServer) -> None:
    with Run(server, "fail") as failed, Run(server, "wait") as killed, Run(server, "wait") as ended:
        assert failed.copy.wait() == 1
        assert b"SystemExit: it failed" in os.read(failed.errors, 1 << 16)
        killed.pid()
        killed.copy.kill()
        assert killed.copy.wait() == -signal.SIGKILL
        os.kill(ended.pid(), signal.SIGTERM)
        assert ended.copy.wait() == -signal.SIGTERM


def test_what_nobody_wants_any_more_is_killed(server: ForkServer) -> None:
    with Run(server, "wait") as run:
        process = procfs.identify(run.pid())
    wait_for(lambda: not procfs.alive(process), "its end")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "server killed", "let go"])
def test_a_copy_takes_those_along_that_it_asked_for(server: ForkServer, how: str) -> None:
    with Run(server, "ask") as run:
        (forks,) = children(os.getpid())
        wait_for(lambda: len(children(forks)) == 2, "both")
        both = [procfs.identify(pid) for pid in children(forks)]
        if how == "killed":
            run.copy.kill()
        elif how == "let go":
            server.let_go()()
        else:
            os.kill(forks, signal.SIGKILL)
        assert run.copy.wait() == -signal.SIGKILL
        wait_for(lambda: not any(map(procfs.alive, both)), "the end of both")


@pytest.mark.slow
def test_a_server_that_was_killed_is_started_again(server: ForkServer) -> None:
    with Run(server, "wait") as run:
        run.pid()
        forks = kill_server()
        assert run.copy.wait() == -signal.SIGKILL
    with Path(os.devnull).open("rb") as null:
        assert told(server, "tell", null.fileno())["pid"] not in (0, forks)


@pytest.mark.slow
def test_a_machine_without_a_further_process_fails_that_copy_alone(server: ForkServer) -> None:
    cgroups, path = Cgroups(), f"/podkeep-test-{uuid.uuid4().hex[:8]}"
    cgroups.create(path)
    try:
        with Run(server, "wait") as first:
            first.pid()
            (forks,) = children(os.getpid())
            cgroups.add(path, forks)
            cgroups.write(path, "pids.max", "1")
            with Run(server, "wait") as second, pytest.raises(Internal, match="cannot start a process: Resource temp"):
                second.copy.wait()
            cgroups.write(path, "pids.max", "max")
            with Run(server, "wait") as third:
                assert third.pid() not in (0, forks)
            first.copy.kill()
            assert first.copy.wait() == -signal.SIGKILL
    finally:
        server.let_go()()
        cgroups.remove(path)


@pytest.mark.slow
def test_a_machine_without_a_further_pid_namespace_fails_that_copy_alone() -> None:
    """As many as a user may have is counted with those that pods make."""
    # In a user namespace: it has a number of its own.
    script = (
        "import os, pathlib; from podkeep.base.errors import Internal;"
        f"from podkeep.kernel.process.forkserver import ForkServer; server = ForkServer({MODULE!r});"
        "first = server.start('wait', [0, 1, 2]); pathlib.Path('/proc/sys/user/max_pid_namespaces').write_text('0')\n"
        "try: server.start('first', [0, 1, 2]).wait()\n"
        "except Internal as error: os.write(2, str(error).encode())\n"
        "server.start('fail', [0, 1, 2]).wait(); first.kill(); first.wait(); server.let_go()()"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=60,
    )
    assert done.stderr.startswith("cannot start a process: No space left on device")  # unshare(2)
    assert done.stderr.endswith("SystemExit: it failed\n")


@pytest.mark.slow
def test_a_server_without_a_further_descriptor_fails_that_copy_alone(server: ForkServer) -> None:
    with Run(server, "wait") as first:
        first.pid()
        (forks,) = children(os.getpid())
        had = len(os.listdir(f"/proc/{forks}/fd"))
        _, hard = resource.prlimit(forks, resource.RLIMIT_NOFILE)
        refused: list[str] = []
        for program in ("tell", "first", "ask"):
            for more in range(14):
                resource.prlimit(forks, resource.RLIMIT_NOFILE, (had + more, hard))
                try:
                    with Run(server, program) as run:
                        run.copy.kill()
                        run.copy.wait()
                except Internal as error:
                    refused.append(str(error))
        resource.prlimit(forks, resource.RLIMIT_NOFILE, (hard, hard))
        assert set(refused) == {"cannot start a process: Too many open files"}
        assert len(refused) > 6
        with Run(server, "wait") as last:
            assert last.pid()
            assert children(os.getpid()) == {forks}
            wait_for(lambda: len(children(forks)) == 2, "the end of all others")
        first.copy.kill()
        assert first.copy.wait() == -signal.SIGKILL
        wait_for(lambda: len(os.listdir(f"/proc/{forks}/fd")) == had - 2, "all of them closed")


@pytest.mark.slow
def test_a_server_that_could_not_be_started_again_is_so_later(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run(server, "wait") as run:
        run.pid()
        forks = kill_server()
        assert run.copy.wait() == -signal.SIGKILL
    with Path(os.devnull).open("rb") as null:
        with monkeypatch.context() as changed:
            changed.setattr(sys, "executable", "/nowhere")
            with pytest.raises(NotFound):
                server.start("tell", [null.fileno()] * FIRST)
        assert told(server, "tell", null.fileno())["pid"] not in (0, forks)


@pytest.mark.slow
def test_an_owner_that_is_killed_takes_everything_along() -> None:
    script = (
        "import os, sys; from podkeep.kernel.process.forkserver import ForkServer;"
        f"server = ForkServer({MODULE!r}); server.start('ask', [0, 1, 2]).wait()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        wait_for(lambda: [pid for child in children(owner.pid) for pid in children(child)][1:], "both copies")
        (forks,) = children(owner.pid)
        everything = [procfs.identify(pid) for pid in (forks, *children(forks))]
    finally:
        owner.kill()
        owner.wait()
        assert owner.stdout is not None
        owner.stdout.close()
    wait_for(lambda: not any(map(procfs.alive, everything)), "the end of all")
