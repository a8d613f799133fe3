"""Starting and ending the daemon: what it refuses to start on, and what is left when it ends."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from podkeep.base.errors import PodkeepError
from podkeep.cli.core.output import EXIT_CONFIGURATION
from podkeep.cli.main import EXIT_FAILED
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from podkeep.cri.v1 import podkeep_pb2 as node
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.network import netlink
from podkeep.kernel.process import procfs
from podkeep.mountns.pin import pinned
from support import forked, processes
from support.cri import Pods, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.waiting import TIMEOUT_S, wait_for


def refusal(daemon: Daemon) -> str:
    """Run a daemon that must not start, and return the one line it says; it leaves the machine as it was."""
    before = machine(daemon)
    done = daemon.run("runtime", "--log-level", "error")
    assert done.returncode in {EXIT_FAILED, EXIT_CONFIGURATION}, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("hint: ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("podkeep: ")
    assert machine(daemon) == before
    return lines[0]


def machine(daemon: Daemon) -> tuple[object, ...]:
    """Return what a daemon changes on its machine while it serves: mounts, links, its cgroup, firewall tables."""
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    return mountinfo.read(), sorted(netlink.links()), Cgroups().exists(daemon.cgroup_parent), tables


@pytest.fixture
def nothing_of(own_daemon: Daemon) -> Iterator[Daemon]:
    """A daemon that must have left nothing on the machine, with no process, when the test ends."""
    before = machine(own_daemon)
    yield own_daemon
    assert not own_daemon.layout.run.exists()
    assert processes.find_by_argument(f"{own_daemon.layout.run}/") == []
    assert machine(own_daemon) == before


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "Shutdown", "podkeep runtime stop"])
def test_daemon_without_sandboxes_leaves_nothing_behind(nothing_of: Daemon, image: str, how: str) -> None:
    daemon = nothing_of.start()
    assert daemon.process is not None
    assert bool(pinned(daemon.base / "mountns/mnt")) is daemon.hides
    assert Cgroups().exists(daemon.cgroup_parent)
    with Pods(daemon.socket, image) as pods:
        pods.pull()
        pods.launch(pods.run())
    if how == "podkeep runtime stop":
        daemon.run("runtime", "stop", check=True)
    elif how == "Shutdown":
        with Pods(daemon.socket, image) as pods:
            pods.call("Shutdown", node.ShutdownRequest(), service="node")
    else:
        daemon.process.send_signal(signal.Signals[how])
    assert daemon.process.wait(timeout=TIMEOUT_S) == 0
    assert daemon.layout.state.exists()
    assert f"stopping: told by {how if how.startswith('SIG') else 'Shutdown'}" in daemon.log.read_text()
    assert daemon.log.read_text().splitlines()[-1].endswith("stopped; no pod is left")


def test_runtime_stop_with_pods_leaves_them_running(mortal: Mortal) -> None:
    pods = mortal.start()
    container = pods.launch(pods.run())
    process = procfs.identify(pods.host_pid(container))
    mortal.daemon.run("runtime", "stop", check=True)
    assert mortal.daemon.process is not None
    assert mortal.daemon.process.wait(timeout=TIMEOUT_S) == 0
    assert mortal.daemon.log.read_text().splitlines()[-1].endswith("stopped; pod sandboxes that stay as they are: 1")
    assert procfs.alive(process)
    assert bool(pinned(mortal.daemon.base / "mountns/mnt")) is mortal.daemon.hides
    assert mortal.start().host_pid(container) == process.pid


def test_runtime_stop_without_a_runtime(own_daemon: Daemon) -> None:
    done = own_daemon.run("runtime", "stop")
    assert done.returncode == 1
    assert f"no runtime answers on {own_daemon.socket}" in done.stderr


def test_second_daemon_on_the_same_directories(mortal: Mortal) -> None:
    pods = mortal.start()
    container = pods.launch(pods.run())
    line = refusal(mortal.daemon)
    assert f"{mortal.daemon.layout.run} is in use by another process" in line
    assert pods.read(container, "echo hello") == "hello"


def test_daemon_without_a_sandbox_ends_when_it_is_idle(nothing_of: Daemon) -> None:
    started = time.monotonic()
    done = nothing_of.run("runtime", "--idle-exit", "1", timeout=30)
    assert done.returncode == 0
    assert time.monotonic() - started >= 1
    assert "stopping: idle for 1 s" in done.stderr


def test_daemon_with_a_sandbox_or_requests_is_not_idle(nothing_of: Daemon, image: str) -> None:
    log = nothing_of.log.open("wb")
    with log, forked.Popen(nothing_of.command("runtime", "--idle-exit", "1"), stdout=log, stderr=log) as process:
        wait_for(nothing_of.listens, "the daemon")
        with Pods(nothing_of.socket, image) as pods:
            pods.run()
            deadline = time.monotonic() + 2
            wait_for(lambda: time.monotonic() > deadline or process.poll() is not None, "twice the idle time")
            assert process.poll() is None
            assert len(pods.sandboxes()) == 1
        assert process.wait(timeout=TIMEOUT_S) == 0


def test_daemon_that_serves_a_request_is_not_idle(nothing_of: Daemon, image: str) -> None:
    log = nothing_of.log.open("wb")
    with log, forked.Popen(nothing_of.command("runtime", "--idle-exit", "1"), stdout=log, stderr=log) as process:
        wait_for(nothing_of.listens, "the daemon")
        with Pods(nothing_of.socket, image) as pods:

            async def follow() -> None:
                async with CriClient(nothing_of.socket) as client:
                    async for _ in client.node.WatchPulls(node.WatchPullsRequest()):
                        raise AssertionError("nothing is pulled")

            with pytest.raises(TimeoutError):
                pods.wait(asyncio.wait_for(follow(), 2.5))
            assert process.poll() is None
        assert process.wait(timeout=TIMEOUT_S) == 0


def test_daemon_ends_while_a_command_runs_in_a_container(mortal: Mortal) -> None:
    pods = mortal.start()
    container = pods.launch(pods.run())
    # Somebody else on the machine may sleep as well.
    seconds = str(3_600_000 + os.getpid())
    request = api.ExecSyncRequest(container_id=container, cmd=["sleep", seconds])

    async def run_and_stop() -> None:
        async with CriClient(mortal.daemon.socket) as client:
            running = asyncio.ensure_future(client.runtime.ExecSync(request))
            await asyncio.to_thread(wait_for, lambda: processes.find_by_argument(f"sleep\0{seconds}"), "the command")
            assert await asyncio.to_thread(mortal.daemon.stop) == 0
            with pytest.raises(PodkeepError):
                await running

    asyncio.run(run_and_stop())
    assert processes.find_by_argument(f"sleep\0{seconds}") == []
    assert mortal.start().status(container).state == api.CONTAINER_RUNNING


@pytest.mark.parametrize("content", [b"this is no database", b"SQLite format 3\0" + b"\xff" * 4000, b"\0" * 8192])
def test_corrupt_state_is_refused_and_left_as_it_is(own_daemon: Daemon, content: bytes) -> None:
    own_daemon.layout.root.mkdir(parents=True)
    own_daemon.layout.state.write_bytes(content)
    line = refusal(own_daemon)
    assert f"the state file {own_daemon.layout.state} cannot be read: " in line
    assert own_daemon.layout.state.read_bytes() == content


def test_state_of_a_newer_version_is_refused(own_daemon: Daemon) -> None:
    own_daemon.layout.root.mkdir(parents=True)
    with closing(sqlite3.connect(own_daemon.layout.state)) as database:
        database.execute("PRAGMA user_version = 999")
    assert "has version 999" in refusal(own_daemon)


def test_record_that_cannot_be_read_is_refused(mortal: Mortal) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    mortal.daemon.kill()
    state = mortal.daemon.layout.state
    with closing(sqlite3.connect(state)) as database, database:
        (good,) = database.execute("SELECT record FROM sandboxes").fetchone()
        database.execute("UPDATE sandboxes SET record = ?", (b"{",))
    assert f"the state file {state} cannot be read: " in refusal(mortal.daemon)
    with closing(sqlite3.connect(state)) as database, database:
        database.execute("UPDATE sandboxes SET record = ?", (good,))
    assert [item.id for item in mortal.start().sandboxes()] == [sandbox]


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("[nonsense]\na = 1\n", "nonsense"),
        ("[images]\nparallel_layers = 'three'\n", "parallel_layers"),
        ("[images\n", "config.toml"),
    ],
)
def test_wrong_configuration_is_refused(own_daemon: Daemon, extra: str, told: str) -> None:
    own_daemon.config.write_text(own_daemon.config.read_text() + extra)
    assert told in refusal(own_daemon)
    assert not own_daemon.layout.run.exists()


def _replace(daemon: Daemon, old: str, new: str) -> None:
    text = daemon.config.read_text()
    assert old in text
    daemon.config.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[runtime]\n", '[runtime]\ndefault_handler = "kata"\n', "runtime.default_handler: 'kata'"),
        ("/24", "/33", "network.subnet"),
        ("/24", "/31", "network.subnet"),
        ('bridge = "pkt', 'bridge = "a-name-that-is-too-long-', "a-name-that-is-too-long-"),
        ('cgroup_parent = "/', 'cgroup_parent = "', "cgroup"),
        ("[runtime]\n", '[runtime]\ndefault_rlimits = { nofile = "9:1" }\n', "runtime.default_rlimits.nofile"),
        ("[network]\n", '[registries.r]\nmirrors = ["http://"]\n[network]\n', 'registries."r".mirrors'),
    ],
)
def test_configuration_that_makes_no_sense_is_refused(own_daemon: Daemon, old: str, new: str, told: str) -> None:
    _replace(own_daemon, old, new)
    assert told in refusal(own_daemon)


def test_socket_that_is_something_else_is_refused(own_daemon: Daemon) -> None:
    own_daemon.layout.run.mkdir(parents=True)
    Path(own_daemon.socket).write_text("precious")
    assert "exists and is not a socket" in refusal(own_daemon)
    assert Path(own_daemon.socket).read_text() == "precious"


def test_socket_is_for_root_alone(shared_daemon: Daemon) -> None:
    status = os.stat(shared_daemon.socket)
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o600)


def test_daemon_may_have_as_many_descriptors_as_it_is_allowed(own_daemon: Daemon) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        own_daemon.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert own_daemon.process is not None
    assert resource.prlimit(own_daemon.process.pid, resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)


def test_daemon_without_conmon_says_what_is_missing(own_daemon: Daemon, image: str) -> None:
    _replace(own_daemon, "[runtime]\n", '[runtime]\nconmon = "/no/such/conmon"\n')
    own_daemon.start()
    before = own_daemon.resources()
    with Pods(own_daemon.socket, image) as pods:
        pods.pull()
        sandbox = pods.run(pod())
        with pytest.raises(Exception, match="/no/such/conmon") as caught:
            pods.create(sandbox)
        assert "podkeep doctor" in str(caught.value)
        assert pods.containers() == []
    assert own_daemon.resources() == before


def test_subnet_that_is_full(own_daemon: Daemon, image: str) -> None:
    """A /29 has eight addresses: the network's, the gateway's, the broadcast's and five for pods."""
    _replace(own_daemon, "/24", "/29")
    own_daemon.start()
    before = own_daemon.resources()
    with Pods(own_daemon.socket, image) as pods:
        for number in range(5):
            pods.run(pod(f"pod{number}"))
        with pytest.raises(Exception, match=r"no address of .* is free: 5 are in use"):
            pods.run(pod("one too many"))
        assert len(pods.sandboxes()) == 5
        pods.remove(pods.sandboxes()[0].id)
        pods.run(pod("fits"))
    assert own_daemon.resources() == before
