"""The life of sandboxes and containers over CRI: states, exit codes, reasons, lists, and requests made twice."""

from __future__ import annotations

import fcntl
import signal
import time
from pathlib import Path

import pytest

from podkeep.base.errors import AlreadyExists, FailedPrecondition, Internal, InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.mount import mounts
from podkeep.kernel.process import procfs
from support import container_mounts
from support.container_mounts import ContainerMounts
from support.cri import HOUR_S, SLEEP, Pods, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.images import busybox_layout
from support.registry import Registry
from support.waiting import wait_for


def test_container_goes_through_its_states(pods: Pods) -> None:
    sandbox = pods.run()
    container = pods.create(sandbox, *SLEEP, labels={"a": "b"}, annotations={"c": "d"})
    created = pods.status(container)
    assert (created.state, created.started_at, created.finished_at) == (api.CONTAINER_CREATED, 0, 0)
    pods.start(container)
    running = pods.status(container)
    assert running.state == api.CONTAINER_RUNNING
    assert created.created_at == running.created_at <= running.started_at <= time.time_ns()
    pods.stop(container)
    ended = pods.status(container)
    assert (ended.state, ended.exit_code, ended.reason) == (api.CONTAINER_EXITED, 137, "Error")
    # The end is told by a file, whose times are as old as the kernel's last tick.
    assert running.started_at <= ended.finished_at <= time.time_ns()
    assert (dict(ended.labels), dict(ended.annotations)) == ({"a": "b"}, {"c": "d"})
    assert (ended.image.image, ended.image_id) == (pods.image, pods.pull())
    assert ended.image_ref.startswith(f"{pods.image.partition(':1')[0]}@sha256:")
    pods.remove_container(container)
    assert "not found" in error_of(lambda: pods.status(container), NotFound)


def test_the_oci_runtime_is_executed_from_a_copy_that_no_container_can_change(pods: Pods) -> None:
    container = pods.create(pods.run(), *SLEEP)
    program = Path(f"/proc/{pods.host_pid(container)}/exe")
    assert str(program.readlink()).startswith("/memfd:crun")
    with program.open("rb") as file:
        assert fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
    pods.start(container)
    # crun answers once its child may go on, which executes the container's program then.
    wait_for(lambda: "memfd" not in str(program.readlink()), "the container's program to run")


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 0", 0, "Completed"),
        ("exit 1", 1, "Error"),
        ("exit 255", 255, "Error"),
        ("kill -9 $$", 137, "Error"),
        ("kill -15 $$", 143, "Error"),
    ],
)
def test_exit_code_and_reason(pods: Pods, script: str, code: int, reason: str) -> None:
    # In a PID namespace of its own the shell would be the init, which signals from inside do not kill.
    sandbox = pods.run(pod(options=namespaces(pid=api.POD)))
    status = pods.exited(pods.launch(sandbox, "sh", "-c", script))
    assert (status.exit_code, status.reason) == (code, reason)


def test_a_container_that_runs_out_of_memory_says_so(pods: Pods, daemon: Daemon) -> None:
    resources = api.LinuxContainerResources(memory_limit_in_bytes=16 << 20)
    script = "x=0123456789abcdef; while :; do x=$x$x; done"
    status = pods.exited(pods.launch(pods.run(), "sh", "-c", script, resources=resources))
    assert (status.exit_code, status.reason) == (137, "OOMKilled")
    assert daemon.process is not None
    assert not Path(f"/proc/{daemon.process.pid}/cwd/oom").exists(), "conmon's note is not where the daemon runs"


def test_stop_ends_as_soon_as_the_container_does(pods: Pods) -> None:
    container = pods.launch(pods.run(), "sh", "-c", "trap 'exit 7' TERM; touch /ready; while :; do sleep 0.01; done")
    wait_for(lambda: pods.exec(container, "test", "-e", "/ready").exit_code == 0, "the trap")
    pods.stop(container, timeout=HOUR_S)
    assert pods.status(container).exit_code == 7


def test_stop_kills_what_ignores_it(pods: Pods) -> None:
    container = pods.launch(pods.run(), "sh", "-c", "trap '' TERM; while :; do sleep 0.01; done")
    started = time.monotonic()
    pods.stop(container, timeout=1)
    assert time.monotonic() - started >= 1
    assert pods.status(container).exit_code == 137


def test_stop_signal_of_the_container(pods: Pods) -> None:
    script = "trap 'exit 8' USR1; touch /ready; while :; do sleep 0.01; done"
    container = pods.launch(pods.run(), "sh", "-c", script, stop_signal=api.SIGUSR1)
    wait_for(lambda: pods.exec(container, "test", "-e", "/ready").exit_code == 0, "the trap")
    pods.stop(container, timeout=30)
    assert pods.status(container).exit_code == 8


@pytest.mark.parametrize("pid", [api.POD, api.CONTAINER])
def test_stop_in_any_pid_namespace_takes_no_longer_than_the_program(pods: Pods, pid: api.NamespaceMode) -> None:
    sandbox = pods.run(pod(options=namespaces(pid=pid)))
    script = "trap 'exit 0' TERM; sleep 1000 & touch /ready; wait"
    for attempt in range(5):
        container = pods.launch(sandbox, "sh", "-c", script, attempt=attempt)
        wait_for(lambda: pods.exec(container, "test", "-e", "/ready").exit_code == 0, "the trap")  # noqa: B023
        pods.stop(container, timeout=HOUR_S)
        assert pods.status(container).exit_code == 0


def test_nothing_of_a_container_outlives_its_first_process(pods: Pods, daemon: Daemon) -> None:
    """In a shared PID namespace the kernel does not end the others with the first one; the runtime must."""
    sandbox = pods.run(pod(options=namespaces(pid=api.POD)))
    status = pods.exited(pods.launch(sandbox, "sh", "-c", "sleep 1000 & sleep 1000 & exit 3"))
    assert status.exit_code == 3
    cgroup = f"{daemon.cgroup_parent}/pod-{sandbox}/{status.id}"
    wait_for(lambda: not Cgroups().processes(cgroup, recursive=True), "the end of the container's other processes")
    watcher = pods.launch(sandbox, name="watcher")
    assert pods.read(watcher, "pidof sleep | wc -w") == "1"


def test_stop_and_remove_can_be_repeated(pods: Pods) -> None:
    sandbox = pods.run()
    container = pods.launch(sandbox)
    for _ in range(2):
        pods.stop(container)
        assert pods.status(container).state == api.CONTAINER_EXITED
    for _ in range(2):
        pods.remove_container(container)
        pods.stop(container)
        assert pods.containers() == []
    for _ in range(2):
        pods.stop_pod(sandbox)
        assert pods.pod_status(sandbox).status.state == api.SANDBOX_NOTREADY
    for _ in range(2):
        pods.remove(sandbox)
        assert pods.sandboxes() == []


def test_removing_a_running_pod_removes_its_containers(pods: Pods) -> None:
    sandbox = pods.run()
    containers = [pods.launch(sandbox, name=f"c{number}") for number in range(2)]
    pids = [pods.host_pid(container) for container in containers]
    pods.call("RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert (pods.sandboxes(), pods.containers()) == ([], [])
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.parametrize("kind", ["containers", "sandboxes"])
def test_what_could_not_be_removed_is_still_listed(pods: Pods, daemon: Daemon, kind: str) -> None:
    sandbox = pods.run()
    container = pods.launch(sandbox, "true")
    pods.exited(container)
    name, remove = (container, pods.remove_container) if kind == "containers" else (sandbox, pods.remove)
    # What is mounted below belongs to somebody else; it appears in the daemon's mount namespace, too.
    blocked = daemon.layout.root / kind / name / "somebody"
    blocked.mkdir()
    mounts.tmpfs(blocked, "size=4k")
    try:
        assert "somebody" in error_of(lambda: remove(name), FailedPrecondition)
        listed = [item.id for item in (pods.containers() if kind == "containers" else pods.sandboxes())]
        assert listed == [name]
    finally:
        mounts.unmount(blocked)
    remove(name)
    assert name not in [item.id for item in (*pods.containers(), *pods.sandboxes())]


def test_stopping_a_pod_ends_its_containers_and_keeps_their_exit_codes(pods: Pods) -> None:
    sandbox = pods.run()
    done, running = pods.launch(sandbox, "sh", "-c", "exit 4", name="done"), pods.launch(sandbox, name="running")
    pods.exited(done)
    pods.stop_pod(sandbox)
    assert [pods.status(item).exit_code for item in (done, running)] == [4, 137]
    assert "notready" in error_of(lambda: pods.create(sandbox, name="late"), FailedPrecondition)


def test_sandbox_asked_for_twice_is_made_once(pods: Pods) -> None:
    config = pod(labels={"a": "b"})
    assert pods.run(config) == pods.run(config)
    other = pod(labels={"a": "c"})
    assert "exists as" in error_of(lambda: pods.run(other), AlreadyExists)
    assert len(pods.sandboxes()) == 1
    assert pods.run(pod(labels={"a": "b"}, attempt=1)) != pods.run(config)


def test_sandbox_asked_for_many_times_at_once_is_made_once(pods: Pods) -> None:
    config = pod()
    answers = pods.call_all([("RunPodSandbox", api.RunPodSandboxRequest(config=config))] * 10)
    assert len({answer.pod_sandbox_id for answer in answers}) == 1
    pods.adopt(answers[0].pod_sandbox_id, config)


def test_container_asked_for_twice_is_made_once(pods: Pods) -> None:
    sandbox = pods.run()
    request = pods.create_request(sandbox)
    answers = [*pods.call_all([("CreateContainer", request)] * 5), pods.call("CreateContainer", request)]
    (container,) = {answer.container_id for answer in answers}
    assert [item.id for item in pods.containers()] == [container]
    assert "exists as" in error_of(lambda: pods.create(sandbox, "true"), AlreadyExists)
    pods.start(container)
    assert "running, not created" in error_of(lambda: pods.start(container), FailedPrecondition)


def test_stopped_sandbox_is_not_reused(pods: Pods) -> None:
    sandbox = pods.run()
    pods.stop_pod(sandbox)
    assert "attempt" in error_of(pods.run, AlreadyExists)


def test_program_that_does_not_exist(pods: Pods) -> None:
    sandbox = pods.run()
    # crun looks for the program when it creates the container, runc when it starts it.
    message = error_of(lambda: pods.launch(sandbox, "/no/such/program"), InvalidArgument)
    assert "OCI runtime create failed" in message
    assert "/no/such/program" in message
    assert "o such file or directory" in message
    assert pods.containers() == []


def test_program_that_cannot_be_executed_says_so_in_the_log(pods: Pods, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("no program at all")
    program.chmod(0o755)
    sandbox = pods.run(pod(log_directory=str(tmp_path)))
    status = pods.exited(pods.launch(sandbox, "/program", mounts=[bind(program, "/program")], log_path="main.log"))
    assert (status.exit_code, status.reason) == (1, "Error")
    assert "Exec format error" in (tmp_path / "main.log").read_text()


def test_start_that_the_oci_runtime_refuses_is_noted(pods: Pods, daemon: Daemon) -> None:
    container = pods.create(pods.run())
    # What crun waits for before it runs the program, lost by accident.
    (daemon.layout.run / "handlers/crun" / container / "exec.fifo").unlink()
    message = error_of(lambda: pods.start(container), Internal)
    assert "OCI runtime start failed: " in message
    status = pods.exited(container)
    assert (status.exit_code, status.reason, status.message) == (128, "StartError", message)
    assert "exited, not created" in error_of(lambda: pods.start(container), FailedPrecondition)


@pytest.mark.parametrize("program", ["/etc/passwd", "/etc"])
def test_program_that_may_not_be_executed(pods: Pods, program: str) -> None:
    sandbox = pods.run()
    message = error_of(lambda: pods.launch(sandbox, program), InvalidArgument)
    assert "OCI runtime create failed: open executable: " in message
    assert pods.containers() == []


def test_lists_are_filtered(pods: Pods) -> None:
    first = pods.run(pod("first", labels={"app": "a", "tier": "x"}))
    second = pods.run(pod("second", labels={"app": "b", "tier": "x"}))
    pods.stop_pod(second)

    def names(**chosen: object) -> list[str]:
        return sorted(item.metadata.name for item in pods.sandboxes(**chosen))

    assert names() == ["first", "second"]
    assert names(id=first) == names(id=first[:8]) == ["first"]
    assert names(state=api.PodSandboxStateValue(state=api.SANDBOX_READY)) == ["first"]
    assert names(state=api.PodSandboxStateValue(state=api.SANDBOX_NOTREADY)) == ["second"]
    assert names(label_selector={"tier": "x"}) == ["first", "second"]
    assert names(label_selector={"tier": "x", "app": "b"}) == ["second"]
    assert names(label_selector={"tier": "y"}) == []
    running, created = pods.launch(first, name="running", labels={"n": "1"}), pods.create(first, name="created")

    def ids(**chosen: object) -> set[str]:
        return {item.id for item in pods.containers(**chosen)}

    assert ids() == ids(pod_sandbox_id=first) == {running, created}
    assert ids(pod_sandbox_id=second) == set()
    assert ids(id=created[:10]) == {created}
    assert (
        ids(state=api.ContainerStateValue(state=api.CONTAINER_RUNNING)) == ids(label_selector={"n": "1"}) == {running}
    )


def test_pod_status_lists_its_containers(pods: Pods) -> None:
    sandbox = pods.run(pod(labels={"k": "v"}, annotations={"x": "y"}))
    attempts = [pods.create(sandbox, attempt=attempt) for attempt in range(3)]
    answer = pods.pod_status(sandbox, verbose=True)
    assert (dict(answer.status.labels), dict(answer.status.annotations)) == ({"k": "v"}, {"x": "y"})
    # With events the kubelet takes the first one of a name for the last attempt.
    assert [item.id for item in answer.containers_statuses] == attempts[::-1]
    assert answer.info["info"]


def test_ids_may_be_shortened(pods: Pods) -> None:
    sandbox = pods.run()
    container = pods.launch(sandbox)
    assert pods.pod_status(sandbox[:12]).status.id == sandbox
    assert pods.status(container[:12]).id == container
    pods.remove_container(container[:12])
    assert pods.containers() == []


def test_image_volume_path_and_user(pods: Pods, registry: Registry, tmp_path: Path) -> None:
    config = {
        "User": "app", "WorkingDir": "/home/app", "Env": ["PATH=/bin", "GREETING=hello"],
        "Entrypoint": ["sh", "-c"], "Cmd": ["exit 9"], "StopSignal": "SIGUSR2", "Volumes": {"/data": {}},
    }  # fmt: skip
    reference = registry.push(busybox_layout(tmp_path / "image", config=config), "configured:1")
    pods.pull(reference)
    sandbox = pods.run()
    assert pods.exited(_from_image(pods, sandbox, reference, name="default")).exit_code == 9
    script = "trap 'exit 5' USR2; touch /tmp/ready; while :; do sleep 0.01; done"
    container = _from_image(pods, sandbox, reference, name="args", args=[script])
    wait_for(lambda: pods.exec(container, "test", "-e", "/tmp/ready").exit_code == 0, "the trap")
    assert pods.read(container, "id -u; id -g; pwd; echo $GREETING $HOME") == "1000\n1000\n/home/app\nhello /home/app"
    user = pods.status(container).user.linux
    assert (user.uid, user.gid, sorted(user.supplemental_groups)) == (1000, 1000, [50, 1000])
    assert pods.status(container).stop_signal == api.SIGUSR2
    pods.stop(container, timeout=30)
    assert pods.status(container).exit_code == 5
    pods.remove(sandbox)
    pods.remove_image(reference)


def _from_image(pods: Pods, sandbox: str, reference: str, **fields: object) -> str:
    request = pods.create_request(sandbox, image=reference, **fields)
    del request.config.command[:]
    return pods.start(str(pods.call("CreateContainer", request).container_id))


def test_image_in_use_is_not_removed(pods: Pods) -> None:
    container = pods.create(pods.run())
    request = api.RemoveImageRequest(image=api.ImageSpec(image=pods.image))
    message = error_of(lambda: pods.call("RemoveImage", request, service="images"), FailedPrecondition)
    assert container in message
    assert pods.start(container) == container


def test_version_and_status(pods: Pods) -> None:
    version = pods.call("Version", api.VersionRequest())
    assert (version.runtime_name, version.runtime_api_version) == ("podkeep", "v1")
    status = pods.call("Status", api.StatusRequest(verbose=True))
    wanted = ["RuntimeReady", "NetworkReady"]
    if container_mounts.of_run() is ContainerMounts.HIDDEN:
        wanted.append("MountNamespaceInSync")
    assert {item.type: item.status for item in status.status.conditions} == dict.fromkeys(wanted, True)
    assert "mountNamespace" in status.info
    config = pods.call("RuntimeConfig", api.RuntimeConfigRequest())
    assert config.linux.cgroup_driver == api.CGROUPFS


def test_limits_reach_the_cgroup(pods: Pods, daemon: Daemon) -> None:
    resources = api.LinuxContainerResources(memory_limit_in_bytes=64 << 20, cpu_quota=50_000, cpu_period=100_000)
    sandbox = pods.run()
    container = pods.launch(sandbox, resources=resources)
    assert pods.status(container).resources.linux == resources
    texts = {
        path.name: path.read_text().strip()
        for directory in Cgroups().directories(f"{daemon.cgroup_parent}/pod-{sandbox}/{container}")
        for name in ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max")
        if (path := directory / name).exists()
    }
    assert texts in (
        {"memory.limit_in_bytes": str(64 << 20), "cpu.cfs_quota_us": "50000"},
        {"memory.max": str(64 << 20), "cpu.max": "50000 100000"},
    )


def test_cgroup_parent_of_the_request(pods: Pods, daemon: Daemon) -> None:
    parent = f"{daemon.cgroup_parent}-burstable/poduid"
    sandbox = pods.run(pod(cgroup_parent=parent))
    container = pods.launch(sandbox)
    assert Cgroups().processes(f"{parent}/pod-{sandbox}/{container}") == [pods.host_pid(container)]
    pods.remove(sandbox)
    assert not Cgroups().exists(f"{daemon.cgroup_parent}-burstable")


def test_signal_numbers_are_those_of_the_shell(pods: Pods) -> None:
    """A signal from outside ends the init of a PID namespace as well."""
    container = pods.launch(pods.run())
    assert procfs.kill(procfs.identify(pods.host_pid(container)), signal.SIGKILL)
    assert pods.exited(container).exit_code == 128 + signal.SIGKILL


def test_container_with_a_very_deep_tree_is_removed(pods: Pods) -> None:
    container = pods.launch(pods.run(), "sh", "-c", "i=0; while [ $i -lt 1500 ]; do mkdir d && cd d; i=$((i+1)); done")
    assert pods.exited(container).exit_code == 0
    pods.remove_container(container)
    assert pods.containers() == []
