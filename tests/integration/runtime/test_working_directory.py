"""Working directories that lead out of the container, by links that a pod may put anywhere, also while it runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from support import streams
from support.cri import Pods, bind, namespaces, pod
from support.daemon import Daemon
from support.registry import Registry
from support.waiting import wait_for

PROGRAM = "#!/bin/sh\npwd\n"
PROGRAMS = Path(__file__).parent / "programs"
ATTEMPTS = 10
"""Of which each let the container beside it out, more often than not."""


@pytest.fixture
def volume(daemon: Daemon, tmp_path: Path) -> Path:
    """A directory that every user may write to."""
    path = tmp_path / "volume"
    path.mkdir()
    path.chmod(0o777)
    path.parent.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def by_runc(open_directory: Path, registry: Registry) -> Iterator[Daemon]:
    """A daemon whose OCI runtime is runc."""
    base = open_directory / f"runc-{os.urandom(3).hex()}"
    base.mkdir()
    handlers = '[runtime.handlers.crun]\npath = "/usr/bin/crun"\n[runtime.handlers.runc]\npath = "/usr/sbin/runc"\n'
    with Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n{handlers}') as daemon:
        yield daemon


@pytest.fixture
def runc(by_runc: Daemon, image: str) -> Iterator[Pods]:
    """A client of it; afterwards it holds what it held before."""
    before = by_runc.resources()
    with Pods(by_runc.socket, image) as client:
        client.pull()
        yield client
    assert by_runc.resources() == before


def sharing(pods: Pods, name: str = "pod") -> str:
    """Run a sandbox whose containers see each other's processes, and the sandbox's own as number 1."""
    return pods.run(pod(name, options=namespaces(pid=api.POD)))


@pytest.mark.parametrize("path", ["/proc/1/root", "/v/out"])
def test_a_container_is_not_created_outside_of_itself(path: str, pods: Pods, volume: Path) -> None:
    (volume / "out").symlink_to("/proc/1/root")
    with pytest.raises(FailedPrecondition, match="working directory"):
        pods.launch(sharing(pods), "sleep", "1000", mounts=[bind(volume, "/v")], working_dir=path)


def test_a_command_does_not_start_outside_of_its_container(pods: Pods, volume: Path) -> None:
    """While crun has another container of the pod created, a link there led to the root of the machine."""
    (volume / "here").mkdir()
    mounts = [bind(volume, "/v")]
    container = pods.launch(sharing(pods), "sleep", "1000", mounts=mounts, working_dir="/v/here")
    assert pods.exec(container, "pwd").stdout == b"/v/here\n"
    (volume / "here").rmdir()
    (volume / "here").symlink_to("/proc/1/root")
    with pytest.raises(FailedPrecondition, match="the command's working directory leads out of the container"):
        pods.exec(container, "touch", "/v/ran")
    assert not (volume / "ran").exists(), "not one instruction of it ran"
    # Other links are followed as before, and as the container sees them.
    (volume / "here").unlink()
    (volume / "there").mkdir()
    (volume / "here").symlink_to("/v/there")
    assert pods.exec(container, "pwd", "-P").stdout == b"/v/there\n"


def test_nor_does_it_let_a_container_beside_it_out(pods: Pods, volume: Path) -> None:
    """Once the command's program has started its user may open /proc/PID/cwd, which was the root of the machine."""
    (volume / "here").mkdir()
    sandbox = sharing(pods)
    container = pods.launch(sandbox, "sleep", "1000", mounts=[bind(volume, "/v")], working_dir="/v/here")
    reading = [bind(path, path, readonly=True) for path in ("/usr", "/lib", "/lib64", str(PROGRAMS))]
    look = ("/usr/bin/python3", str(PROGRAMS / "looking_out.py"), "/v")
    pods.launch(sandbox, *look, name="looking", mounts=[bind(volume, "/v"), *reading])
    wait_for((volume / "ready").exists, "the container beside it")
    (volume / "here").rmdir()
    (volume / "here").symlink_to("/proc/1/root")
    for _ in range(ATTEMPTS):
        with pytest.raises(FailedPrecondition, match="the command's working directory leads out of the container"):
            pods.exec(container, "true")
    (volume / "stop").touch()
    assert not (volume / "found").exists()


@pytest.mark.parametrize("transport", streams.TRANSPORTS)
@pytest.mark.parametrize("tty", [False, True])
def test_nor_does_one_with_streams(pods: Pods, volume: Path, transport: streams.Transport, tty: bool) -> None:
    (volume / "here").mkdir()
    container = pods.launch(sharing(pods), "sleep", "1000", mounts=[bind(volume, "/v")], working_dir="/v/here")

    async def run(*command: str) -> bytes:
        request = api.ExecRequest(container_id=container, cmd=command, stdin=tty, stdout=True, stderr=not tty, tty=tty)
        url = str((await pods._client.runtime.Exec(request)).url)
        client = await streams.connect(transport, url, stdin=tty, tty=tty)
        if tty:
            await client.resize(132, 43)
        return (await streams.collect(client))[0]

    shown = pods.wait(run("sh", "-c", "pwd; stty size 2>/dev/null || true"))
    assert shown.split() == ([b"/v/here", b"43", b"132"] if tty else [b"/v/here"])
    (volume / "here").rmdir()
    (volume / "here").symlink_to("/proc/1/root")
    pods.wait(run("touch", "/v/ran"))
    assert not (volume / "ran").exists()
    (volume / "here").unlink()
    (volume / "here").mkdir()
    pods.wait(run("touch", "/v/ran"))
    assert (volume / "ran").exists()


@pytest.mark.parametrize("length", [13, 64])
def test_nor_does_one_in_a_container_that_another_was_made_beside(pods: Pods, volume: Path, length: int) -> None:
    """As ``kubectl debug --target`` does; the target is named by its ID, or the beginning of it."""
    (volume / "here").mkdir()
    sandbox = pods.run()
    mounts = [bind(volume, "/v")]
    target = pods.launch(sandbox, "sleep", "1000", name="target", mounts=mounts, working_dir="/v/here")
    options = api.NamespaceOption(pid=api.TARGET, target_id=target[:length])
    pods.launch(sandbox, "sleep", "2000", name="debug", options=options)
    pids = wait_for(lambda: set(pods.exec(target, "pidof", "sleep").stdout.split()) - {b"1"}, "the program beside it")
    (volume / "here").rmdir()
    (volume / "here").symlink_to(f"/proc/{int(pids.pop())}/root")
    with pytest.raises(FailedPrecondition, match="the command's working directory leads out of the container"):
        pods.exec(target, "true")


def test_nor_does_one_beside_a_container_whose_target_is_gone(pods: Pods, volume: Path) -> None:
    """That was made beside the first one, and is not there any more to tell whose processes are in sight."""
    (volume / "here").mkdir()
    sandbox = pods.run()
    first = pods.launch(sandbox, "sleep", "1000", name="first", mounts=[bind(volume, "/v")], working_dir="/v/here")

    def beside(target: str, name: str) -> str:
        options = api.NamespaceOption(pid=api.TARGET, target_id=target)
        return pods.launch(sandbox, "sleep", "2000", name=name, options=options)

    second = beside(first, "second")
    beside(second, "third")
    pods.stop(second)
    pods.remove_container(second)
    pids = wait_for(lambda: set(pods.exec(first, "pidof", "sleep").stdout.split()) - {b"1"}, "the program beside it")
    (volume / "here").rmdir()
    (volume / "here").symlink_to(f"/proc/{int(pids.pop())}/root")
    with pytest.raises(FailedPrecondition, match="the command's working directory leads out of the container"):
        pods.exec(first, "true")


STOPPING = """
while :; do
    stopped=
    while [ -z "$stopped" ]; do for path in /proc/[0-9]*; do
        pid=${path#/proc/}; [ $pid = 1 ] || { kill -STOP $pid && stopped="$stopped $pid"; }
    done; done 2>/dev/null
    : >/v/stopped; until [ -e /v/go ]; do :; done; rm /v/stopped /v/go; kill -KILL $stopped
    for pid in $stopped; do while [ -e /proc/$pid ]; do :; done; done
done
"""
"""Stops one process after the other, as soon as it is in sight, until there is ``go``."""


def test_no_container_is_made_beside_a_command_that_has_not_started(pods: Pods, volume: Path) -> None:
    """It would be led to the root of the machine, by way of the process that sets up the container; nobody looks."""
    sandbox = pods.run()
    target = pods.launch(sandbox, "sh", "-c", STOPPING, name="target", mounts=[bind(volume, "/v")], working_dir="/v")
    options = api.NamespaceOption(pid=api.TARGET, target_id=target)

    stopped = volume / "stopped"

    def is_over(command: asyncio.Future[api.ExecSyncResponse]) -> bool:
        return stopped.exists() or command.done()

    async def stopped_command() -> asyncio.Future[api.ExecSyncResponse]:
        while True:
            request = api.ExecSyncRequest(container_id=target, cmd=["true"])
            running = asyncio.ensure_future(pods._client.runtime.ExecSync(request))
            await asyncio.to_thread(wait_for, partial(is_over, running), "a command is stopped, or ends unseen")
            if not running.done():
                return running
            await at_its_end(running)

    async def at_its_end(running: asyncio.Future[api.ExecSyncResponse]) -> api.ExecSyncResponse | BaseException:
        """Let go on what stands still until the command is over: what was stopped may have been of the one before."""
        while stopped.exists() or not running.done():
            if stopped.exists():
                (volume / "go").touch()
                await asyncio.to_thread(wait_for, lambda: not (volume / "go").exists(), "the next turn")
            await asyncio.to_thread(wait_for, partial(is_over, running), "the end of the command, or the next stop")
        (ended,) = await asyncio.gather(running, return_exceptions=True)
        return ended

    async def made_beside_a_stopped_command(attempt: int) -> BaseException | None:
        running = await stopped_command()
        beside = pods.create_request(sandbox, name="beside", attempt=attempt, options=options)
        (made,) = await asyncio.gather(pods._client.runtime.CreateContainer(beside), return_exceptions=True)
        ended = await at_its_end(running)
        if not isinstance(made, BaseException):
            return None
        assert isinstance(ended, BaseException) or ended.exit_code != 0  # it was killed
        return made

    # Now and then it is stopped too late, when its program has started.
    found = filter(None, (pods.wait(made_beside_a_stopped_command(attempt)) for attempt in range(ATTEMPTS)))
    refused = next(found, None)
    assert isinstance(refused, FailedPrecondition), refused
    assert "did not start" in str(refused)


def test_a_command_has_its_directory_and_nothing_more(pods: Pods, volume: Path) -> None:
    (volume / "program").write_text(PROGRAM)
    (volume / "program").chmod(0o755)
    mounts = [bind(volume, "/v")]
    container = pods.launch(sharing(pods), "sleep", "1000", mounts=mounts, working_dir="/v")
    assert pods.exec(container, "./program").stdout == b"/v\n"
    assert pods.exec(container, "sh", "-c", "ls /proc/$$/fd; true").stdout.split() == [b"0", b"1", b"2"]
    # Also where the first process went elsewhere: a command starts where the mount namespace has its root.
    move = "mkdir /v/bin && cp /bin/busybox /v/bin/sleep && exec chroot /v sleep 1000"
    moved = pods.launch(sharing(pods, "moved"), "sh", "-c", move, mounts=mounts, working_dir="/home")
    wait_for(lambda: pods.exec(moved, "pidof", "sleep").stdout, "the program behind chroot(2)")
    assert pods.exec(moved, "pwd").stdout == b"/home\n"


@pytest.mark.parametrize("path", ["{out}", "/v/out", "/v/in"])
def test_no_directory_is_made_where_a_link_to_another_process_leads(
    path: str, volume: Path, runc: Pods, by_runc: Daemon
) -> None:
    """runc makes a working directory that is missing as root, also on the machine: by the root of another process."""
    outside = volume.parent / "outside"
    outside.mkdir()
    (volume / "in").mkdir()
    out = f"/proc/{by_runc.pid}/root{outside}"
    (volume / "out").symlink_to(out)
    sandbox = runc.run(pod("pod", options=namespaces(pid=api.NODE)), handler="runc")
    with pytest.raises(InvalidArgument, match="working directory"):
        runc.launch(sandbox, "true", mounts=[bind(volume, "/v")], working_dir=f"{path.format(out=out)}/new")
    assert [*outside.iterdir(), *(volume / "in").iterdir()] == []


@pytest.mark.parametrize("path", ["/", "/v", "/new/directory"])
def test_other_working_directories_are_had_by_runc(path: str, volume: Path, runc: Pods) -> None:
    sandbox = runc.run(pod("pod", options=namespaces(pid=api.NODE)), handler="runc")
    container = runc.launch(sandbox, "sleep", "1000", mounts=[bind(volume, "/v")], working_dir=path)
    assert runc.exec(container, "pwd").stdout == f"{path}\n".encode()


def test_alone_with_its_processes_a_container_has_any_directory_of_a_volume(volume: Path, runc: Pods) -> None:
    sandbox = runc.run(pod("pod"), handler="runc")
    container = runc.launch(sandbox, "sleep", "1000", mounts=[bind(volume, "/v")], working_dir="/v/new")
    assert runc.exec(container, "pwd").stdout == b"/v/new\n"
