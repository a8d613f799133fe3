"""The daemon is killed at any moment: containers live on, and the next daemon finds or cleans up everything."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import podkeep.runtime
from podkeep.base.errors import Internal, PodkeepError, Unavailable
from podkeep.base.ids import ContainerID, SandboxID
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.network import netlink
from podkeep.kernel.process import procfs
from podkeep.runtime.model.layout import veth_name
from support import processes
from support.cri import BLOCK, SLEEP, Pods, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.waiting import wait_for

PODS = 20
FAILPOINTS = (
    "sandbox.files", "sandbox.pinned", "sandbox.namespaces", "sandbox.cgroups", "sandbox.infra",
    "container.launched", "container.rootfs", "container.staged", "container.bundle", "container.created",
)  # fmt: skip


def block(number: int) -> tuple[int, int, int]:
    """Return the block of IDs of a test's pod."""
    return (0, 65536 * (number + 1), 65536)


def all_options(number: int) -> api.NamespaceOption:
    """Return options that differ from pod to pod: with and without user namespace and shared PID namespace."""
    user = block(number) if number % 2 else None
    return namespaces(user=user, pid=api.POD if number % 3 == 0 else api.CONTAINER)


Flow = Callable[[CriClient, int], Coroutine[Any, Any, None]]


def kill_in_the_middle(daemon: Daemon, flow: Flow, now: Callable[[], bool]) -> None:
    """Run ``flow`` for all pods at the same time and kill the daemon as soon as ``now`` says so."""

    async def run() -> None:
        async with CriClient(daemon.socket) as client:
            tasks = [asyncio.create_task(flow(client, number)) for number in range(PODS)]
            deadline = time.monotonic() + 60
            while not now() and not all(task.done() for task in tasks):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.001)
            daemon.kill()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert outcome is None or isinstance(outcome, PodkeepError), outcome

    asyncio.run(run())


def entries(directory: Path) -> int:
    """Return how many entries a directory has."""
    return len(list(directory.iterdir())) if directory.exists() else 0


class Answers:
    """What the client was told before the daemon was killed."""

    def __init__(self, pods: Pods) -> None:
        self._pods = pods
        self.sandboxes: set[str] = set()
        self.containers: set[str] = set()
        self.started: set[str] = set()

    async def make_pod(self, client: CriClient, number: int) -> None:
        """Make a pod with a container that runs."""
        config = pod(f"pod{number}", options=all_options(number))
        run = await client.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=config))
        self.sandboxes.add(run.pod_sandbox_id)
        self._pods.adopt(run.pod_sandbox_id, config)
        created = await client.runtime.CreateContainer(self._pods.create_request(run.pod_sandbox_id, *SLEEP))
        self.containers.add(created.container_id)
        await client.runtime.StartContainer(api.StartContainerRequest(container_id=created.container_id))
        self.started.add(created.container_id)


@pytest.mark.parametrize("point", ["sandboxes/1", "sandboxes/12", "sandboxes/20", "containers/1", "containers/12"])
def test_killed_while_pods_are_made(mortal: Mortal, point: str) -> None:
    daemon = mortal.daemon
    pods = mortal.start()
    before = daemon.resources()
    answers = Answers(pods)
    name, _, count = point.partition("/")
    kill_in_the_middle(daemon, answers.make_pod, lambda: entries(daemon.layout.root / name) >= int(count))
    again = mortal.start()
    assert answers.sandboxes <= {item.id for item in again.sandboxes()}
    shown = {item.id: item.state for item in again.containers()}
    assert answers.containers <= set(shown)
    assert {shown[container] for container in answers.started} <= {api.CONTAINER_RUNNING}
    for sandbox in again.sandboxes():
        again.remove(sandbox.id)
    assert daemon.resources() == before
    assert again.status(again.launch(again.run())).state == api.CONTAINER_RUNNING


def test_killed_while_pods_are_removed(mortal: Mortal) -> None:
    daemon = mortal.daemon
    pods = mortal.start()
    before = daemon.resources()
    answers = Answers(pods)

    async def make_all() -> None:
        async with CriClient(daemon.socket) as client:
            await asyncio.gather(*(answers.make_pod(client, number) for number in range(PODS)))

    asyncio.run(make_all())
    sandboxes = sorted(answers.sandboxes)

    async def remove(client: CriClient, number: int) -> None:
        await client.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandboxes[number]))

    kill_in_the_middle(daemon, remove, lambda: entries(daemon.layout.root / "containers") <= PODS // 2)
    again = mortal.start()
    left = again.sandboxes()
    assert len(left) < PODS
    for sandbox in left:
        again.remove(sandbox.id)
    assert daemon.resources() == before


def test_all_failpoints_are_tried() -> None:
    source = Path(podkeep.runtime.__file__).parent
    found = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r'failpoints\.reach\("([^"]+)"\)', path.read_text())
    }
    assert set(FAILPOINTS) <= found
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in sorted(found) if not re.search(f'"{re.escape(name)}["=]', tests)] == []


def _pod_up(pods: Pods) -> str:
    config = pod(options=namespaces(user=BLOCK, pid=api.POD))
    return pods.launch(pods.run(config))


@pytest.mark.parametrize("name", FAILPOINTS)
def test_killed_at_a_failpoint(mortal: Mortal, name: str) -> None:
    pods = mortal.start(failpoints=f"{name}=kill")
    daemon, before = mortal.daemon, mortal.daemon.resources()
    error_of(lambda: _pod_up(pods), Unavailable)
    assert daemon.process is not None
    assert daemon.process.wait(timeout=60) == -signal.SIGKILL
    again = mortal.start()
    assert again.containers() == []
    assert len(again.sandboxes()) == name.startswith("container.")
    for sandbox in again.sandboxes():
        again.remove(sandbox.id)
    assert daemon.resources() == before
    assert again.status(_pod_up(again)).state == api.CONTAINER_RUNNING


def test_killed_after_a_program_started_and_before_it_is_noted(mortal: Mortal) -> None:
    pods = mortal.start(failpoints="container.started=kill")
    container = pods.create(pods.run())
    process = pods.host_pid(container)
    error_of(lambda: pods.start(container), Unavailable)
    assert mortal.daemon.process is not None
    assert mortal.daemon.process.wait(timeout=60) == -signal.SIGKILL
    again = mortal.start()
    again.start(container)
    assert again.status(container).state == api.CONTAINER_RUNNING
    assert again.host_pid(container) == process


@pytest.mark.parametrize("name", ["handlers.probe", "handlers.probe-read-only"])
def test_killed_while_handlers_are_probed(mortal: Mortal, name: str) -> None:
    daemon = mortal.daemon
    mortal.start()
    before = daemon.resources()
    daemon.kill()
    daemon.environment = {"PODKEEP_FAILPOINTS": f"{name}=kill"}
    with pytest.raises(AssertionError, match="the runtime ended with -9"):
        daemon.start()
    pods = mortal.start()
    assert daemon.resources() == before
    assert pods.call("Status", api.StatusRequest()).runtime_handlers[0].features.user_namespaces


@pytest.mark.parametrize("name", FAILPOINTS)
def test_error_at_a_failpoint(mortal: Mortal, name: str) -> None:
    pods = mortal.start(failpoints=f"{name}=error")
    before = mortal.daemon.resources()
    for _ in range(2):
        message = error_of(lambda: _pod_up(pods), Internal)
        assert message == f"failpoint {name} reached"
        assert pods.containers() == []
        assert len(pods.sandboxes()) == name.startswith("container.")
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    assert mortal.daemon.resources() == before


def test_containers_run_on_and_are_found_again(mortal: Mortal, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    pods = mortal.start()
    script = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done"
    sandboxes, containers = [], []
    for number in range(3):
        config = pod(f"pod{number}", options=all_options(number), log_directory=str(tmp_path / str(number)))
        sandboxes.append(pods.run(config))
        containers.append(pods.launch(sandboxes[-1], "sh", "-c", script, log_path="0.log"))
    created = pods.create(sandboxes[0], name="created")
    shown = [pods.status(item) for item in containers]
    pids = [pods.host_pid(item) for item in containers]
    resources = mortal.daemon.resources()
    mortal.daemon.kill()
    for number in range(3):
        log = tmp_path / str(number) / "0.log"
        lines = len(log.read_text().splitlines())
        wait_for(lambda: len(log.read_text().splitlines()) > lines + 2, "output without a daemon")  # noqa: B023
    again = mortal.start()
    assert mortal.daemon.resources() == resources.after_a_restart()
    assert [again.status(item) for item in containers] == shown
    assert [again.host_pid(item) for item in containers] == pids
    assert {item.id for item in again.sandboxes()} == set(sandboxes)
    assert {item.state for item in again.sandboxes()} == {api.SANDBOX_READY}
    assert again.read(containers[1], "cat /proc/self/uid_map").split() == ["0", "131072", "65536"]
    assert again.status(again.launch(sandboxes[0], name="new")).state == api.CONTAINER_RUNNING
    assert again.status(again.start(created)).state == api.CONTAINER_RUNNING
    again.stop(containers[0])
    assert again.status(containers[0]).exit_code == 137
    log = tmp_path / "1/0.log"
    log.rename(tmp_path / "1/old.log")
    again.call("ReopenContainerLog", api.ReopenContainerLogRequest(container_id=containers[1]))
    wait_for(lambda: log.read_text(), "output in the new log")


@pytest.mark.parametrize("pid", [api.CONTAINER, api.POD])
def test_exits_while_no_daemon_runs_are_reaped(mortal: Mortal, tmp_path: Path, pid: api.NamespaceMode) -> None:
    pods = mortal.start()
    sandbox = pods.run(pod(options=namespaces(pid=pid)))
    script = "sleep 1000 & while ! test -e /volume/go; do sleep 0.01; done; exit 7"
    container = pods.launch(sandbox, "sh", "-c", script, mounts=[bind(tmp_path, "/volume")])
    mortal.daemon.kill()
    earliest = time.time_ns()
    (tmp_path / "go").touch()
    wait_for(mortal.daemon.layout.exit_file(ContainerID(container)).exists, "the end of the container")
    latest = time.time_ns()
    again = mortal.start()
    status = again.status(container)
    assert (status.state, status.exit_code, status.reason) == (api.CONTAINER_EXITED, 7, "Error")
    # The time stamp of a file is as coarse as the timer interrupt.
    assert earliest - 20_000_000 <= status.finished_at <= latest
    cgroup = f"{mortal.daemon.cgroup_parent}/pod-{sandbox}/{container}"
    assert Cgroups().processes(cgroup, recursive=True) == []
    again.remove_container(container)
    assert again.status(again.launch(sandbox)).state == api.CONTAINER_RUNNING


def _conmon(daemon: Daemon, container: str) -> procfs.ProcessId:
    path = daemon.layout.bundle(ContainerID(container)) / "conmon.pid"
    return procfs.identify(int(path.read_text()))


@pytest.mark.parametrize("daemon_is_up", [True, False])
def test_exit_code_is_unknown_without_conmon(mortal: Mortal, daemon_is_up: bool) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    container = pods.launch(sandbox)
    process, conmon = procfs.identify(pods.host_pid(container)), _conmon(mortal.daemon, container)
    if not daemon_is_up:
        mortal.daemon.kill()
    assert procfs.kill(conmon, signal.SIGKILL)
    wait_for(lambda: not procfs.alive(conmon), "the end of conmon")
    assert procfs.alive(process)
    if daemon_is_up:
        assert pods.status(container).state == api.CONTAINER_RUNNING
        assert pods.read(container, "echo hello") == "hello"
    assert procfs.kill(process, signal.SIGKILL)
    wait_for(lambda: not procfs.alive(process), "the end of the container")
    if not daemon_is_up:
        pods = mortal.start()
    status = pods.exited(container)
    assert (status.exit_code, status.reason) == (255, "ContainerStatusUnknown")
    assert status.finished_at >= status.started_at > 0
    pods.remove_container(container)
    assert pods.status(pods.launch(sandbox)).state == api.CONTAINER_RUNNING


def test_container_whose_conmon_died_can_be_stopped(mortal: Mortal) -> None:
    pods = mortal.start()
    container = pods.launch(pods.run())
    conmon = _conmon(mortal.daemon, container)
    assert procfs.kill(conmon, signal.SIGKILL)
    wait_for(lambda: not procfs.alive(conmon), "the end of conmon")
    pods.stop(container)
    assert pods.status(container).state == api.CONTAINER_EXITED


def test_stopped_daemon_leaves_pods_running(mortal: Mortal) -> None:
    pods = mortal.start()
    container = pods.launch(pods.run())
    process = procfs.identify(pods.host_pid(container))
    wait_for(lambda: "crun" not in mortal.daemon.resources().processes, "the container's program")
    resources = mortal.daemon.resources()
    assert mortal.daemon.stop() == 0
    assert procfs.alive(process)
    assert not Path(mortal.daemon.socket).exists()
    again = mortal.start()
    assert mortal.daemon.resources() == resources.after_a_restart()
    assert again.host_pid(container) == process.pid


def test_addresses_are_not_given_out_twice_after_a_crash(mortal: Mortal) -> None:
    pods = mortal.start()
    taken = [pods.address(pods.run(pod(f"pod{number}"))) for number in range(3)]
    mortal.daemon.kill()
    again = mortal.start()
    assert {again.address(item.id) for item in again.sandboxes()} == set(taken)
    new = [again.address(again.run(pod(f"new{number}"))) for number in range(3)]
    assert len({*taken, *new}) == 6


def test_request_repeated_after_a_crash_finds_its_sandbox(mortal: Mortal) -> None:
    pods = mortal.start()
    config = pod(labels={"a": "b"}, options=namespaces(user=BLOCK))
    sandbox = pods.run(config)
    container = pods.create(sandbox)
    mortal.daemon.kill()
    again = mortal.start()
    assert again.run(config) == sandbox
    assert again.create(sandbox) == container


def test_dead_namespace_helper_is_replaced(mortal: Mortal) -> None:
    pods = mortal.start()
    assert mortal.daemon.process is not None
    helper = processes.namespace_helper(mortal.daemon.process.pid)
    assert procfs.kill(helper, signal.SIGKILL)
    wait_for(lambda: not procfs.alive(helper), "the end of the helper")
    assert pods.status(_pod_up(pods)).state == api.CONTAINER_RUNNING


def test_killed_init_of_a_shared_pid_namespace(mortal: Mortal) -> None:
    """Its end takes every container with it; the sandbox can be stopped and removed, and a new one be made."""
    pods = mortal.start()
    before = mortal.daemon.resources()
    sandbox = pods.run(pod(options=namespaces(pid=api.POD)))
    container = pods.launch(sandbox)
    init = next(
        pid
        for pid in Cgroups().processes(f"{mortal.daemon.cgroup_parent}/pod-{sandbox}", recursive=True)
        if Path(f"/proc/{pid}/comm").read_text().strip() == "catatonit"
    )
    assert procfs.kill(procfs.identify(init), signal.SIGKILL)
    assert pods.exited(container).exit_code == 137
    with pytest.raises(PodkeepError):
        pods.launch(sandbox, name="late")
    pods.remove(sandbox)
    assert mortal.daemon.resources() == before


def test_after_a_reboot_pods_are_shown_ended_and_can_be_removed(mortal: Mortal) -> None:
    pods = mortal.start()
    sandbox = pods.run(pod(options=namespaces(user=BLOCK, pid=api.POD)))
    container = pods.launch(sandbox)
    daemon = mortal.daemon
    daemon.kill()
    _as_after_a_reboot(daemon, sandbox)
    again = mortal.start()
    assert [item.state for item in again.sandboxes()] == [api.SANDBOX_NOTREADY]
    status = again.status(container)
    assert (status.state, status.reason) == (api.CONTAINER_EXITED, "ContainerStatusUnknown")
    again.remove(sandbox)
    assert (daemon.resources().data_directories, daemon.resources().records) == ((), ())
    assert again.status(_pod_up(again)).state == api.CONTAINER_RUNNING


def _as_after_a_reboot(daemon: Daemon, sandbox: str) -> None:
    """End every process of the daemon's pod, and remove its run directory, links and cgroups, as a reboot does."""
    cgroups = Cgroups()
    monitors = processes.find_by_argument(f"{daemon.layout.run}/")
    for process in monitors:
        procfs.kill(process, signal.SIGKILL)
    cgroups.kill(daemon.cgroup_parent)
    for process in monitors:
        assert procfs.wait(process, 10)
    cgroups.remove(daemon.cgroup_parent)
    for name in (f"pkt{daemon.token}", veth_name(SandboxID(sandbox))):
        netlink.delete_link(name)
    for entry in mountinfo.under(daemon.layout.run):
        mounts.unmount(entry.mount_point, lazy=True)
    shutil.rmtree(daemon.layout.run)
