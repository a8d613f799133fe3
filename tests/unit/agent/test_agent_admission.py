"""Taking pods on against runtimes that are not podkeep's: what they cannot do is refused before anything is made."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from podkeep.agent.convert import names
from podkeep.agent.events import Event, PodRejected, StepFailed
from podkeep.agent.manager.orphans import Orphans
from podkeep.agent.node import this_node
from podkeep.agent.objects.sources import Sources, StaticObjects
from podkeep.agent.observed import Observed, SandboxView
from podkeep.agent.pod.actions import StartContainer
from podkeep.agent.pod.admission import FAILED_SANDBOX, admit, with_identity
from podkeep.agent.pod.starter import Starter
from podkeep.agent.pod.teardown import remove_pod_state
from podkeep.agent.pod.worker import PodWorker
from podkeep.agent.poddirs import PodIdentity
from podkeep.agent.volumes.pod_volumes import kept_mounts
from podkeep.api import manifest
from podkeep.api.containers import Container, EphemeralContainer
from podkeep.api.pod import Pod, PodSpec
from podkeep.base.config import AgentConfig, Config, RuntimeConfig
from podkeep.base.errors import AlreadyExists, FailedPrecondition
from podkeep.base.ids import parse_pod_uid
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2, podkeep_pb2
from podkeep.kernel.cgroup.cgroups import Cgroups
from unit.cri.cri_endpoint import serving


def make(**spec: Any) -> Pod:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "c", "image": "i"}]} | spec,
    }
    return with_identity(manifest.parse(yaml.safe_dump(document), source="f").pods[0])


def handler(name: str, *, user_namespaces: bool) -> api_pb2.RuntimeHandler:
    features = api_pb2.RuntimeHandlerFeatures(user_namespaces=user_namespaces)
    return api_pb2.RuntimeHandler(name=name, features=features)


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.waits: list[tuple[str, str, str]] = []

    def event(self, event: Event) -> None:
        self.events.append(event)

    def waiting(self, container: str, reason: str, message: str) -> None:
        self.waits.append((container, reason, message))

    def started(self, container: str, attempt: int, log: Path) -> None:
        raise AssertionError(f"{container} was started")


@pytest.fixture
def cgroup() -> Iterator[str]:
    """A cgroup for the pods of a test, as a runtime has made it; fails a test that leaves something in it."""
    path = f"/pktest-{os.urandom(4).hex()}"
    cgroups = Cgroups()
    cgroups.create(path)
    yield path
    left = cgroups.children(path)
    cgroups.remove(path)
    assert left == []


def configuration(tmp_path: Path, cgroup: str, gates: dict[str, bool] | None = None) -> Config:
    return Config(
        agent=AgentConfig(
            root=str(tmp_path / "kubelet"), pod_logs=str(tmp_path / "logs"), feature_gates=dict(gates or {})
        ),
        runtime=RuntimeConfig(cgroup_parent=cgroup),
    )


def refused(
    tmp_path: Path,
    cgroup: str,
    pod: Pod,
    handlers: list[api_pb2.RuntimeHandler],
    gates: dict[str, bool] | None = None,
) -> tuple[StepFailed, list[Event]]:
    """Return how ``pod`` fails on a runtime that answers Status with ``handlers`` and can do nothing else."""

    async def status(request: api_pb2.StatusRequest) -> api_pb2.StatusResponse:
        return api_pb2.StatusResponse(runtime_handlers=handlers)

    async def no_sandboxes(request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse()

    async def no_containers(request: api_pb2.ListContainersRequest) -> api_pb2.ListContainersResponse:
        return api_pb2.ListContainersResponse()

    async def run() -> tuple[StepFailed, list[Event]]:
        socket = tmp_path / "s"
        rpcs = {"Status": status, "ListPodSandbox": no_sandboxes, "ListContainers": no_containers}
        async with serving(socket, runtime=rpcs, images={}), CriClient(str(socket)) as client:
            heard = Heard()
            node = this_node(client, configuration(tmp_path, cgroup, gates))
            worker = PodWorker(pod=pod, sources=Sources(), node=node, listener=heard, retry=False)
            with pytest.raises(StepFailed) as caught:
                await worker.run()
            await worker.tear_down()
            return caught.value, heard.events

    return asyncio.run(run())


@pytest.mark.requirement("U85", "U96", "U97", "U98")
@pytest.mark.parametrize(
    ("handlers", "spec", "hint"),
    [
        ([], {}, "the default runtime handler cannot run pods in user namespaces"),
        ([], {"runtimeClassName": "kata"}, "the runtime handler 'kata' (runtimeClassName) cannot run pods in user"),
        ([handler("", user_namespaces=False)], {}, "the default runtime handler cannot run pods in user namespaces"),
        (
            [handler("", user_namespaces=True), handler("kata", user_namespaces=False)],
            {"runtimeClassName": "kata"},
            "the runtime handler 'kata' (runtimeClassName) cannot run pods in user namespaces: `podkeep doctor`",
        ),
        (
            [handler(name, user_namespaces=True) for name in ("", "runc", "crun")],
            {"runtimeClassName": "unknown"},
            "runtime handler 'unknown' is not configured; configured: crun, runc",
        ),
    ],
)
def test_a_runtime_without_user_namespaces_is_not_asked_for_one(
    tmp_path: Path, cgroup: str, handlers: list[api_pb2.RuntimeHandler], spec: dict[str, Any], hint: str
) -> None:
    failure, events = refused(tmp_path, cgroup, make(hostUsers=False, **spec), handlers)
    assert failure.hint.startswith(hint)
    message = "Failed to create pod sandbox: user namespaces is not supported by the runtime"
    assert failure.message == message
    assert events == [Event(type="Warning", reason=FAILED_SANDBOX, message=message)]
    assert not (tmp_path / "kubelet").exists()


@pytest.mark.slow
@pytest.mark.requirement("U104")
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("spec", [{}, {"hostUsers": True}, {"hostUsers": False}])
def test_the_gate_of_the_agent(tmp_path: Path, cgroup: str, spec: dict[str, bool], enabled: bool) -> None:
    """Only a pod that asks for a user namespace is refused, before the runtime is asked for anything."""
    gates = {"UserNamespacesSupport": enabled}
    failure, _ = refused(tmp_path, cgroup, make(**spec), [handler("", user_namespaces=True)], gates)
    why = 'the feature gate "UserNamespacesSupport" is disabled: can\'t set spec.HostUsers'
    is_off = f"Failed to create pod sandbox: {why}"
    assert (failure.message == is_off) == (not enabled and spec == {"hostUsers": False})
    assert (tmp_path / "kubelet").exists() == (failure.message != is_off)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["initContainers", "containers"])
@pytest.mark.parametrize(("count", "rejected"), [(1022, False), (1023, True)])
def test_more_mounts_than_the_runtime_takes(tmp_path: Path, cgroup: str, kind: str, count: int, rejected: bool) -> None:
    """Each is counted with the two that the agent adds; a runtime would refuse such a container as often as asked."""
    mounts = [{"name": "v", "mountPath": f"/{number}"} for number in range(count)]
    many = {"name": "many", "image": "i", "volumeMounts": mounts}
    pod = make(
        volumes=[{"name": "v", "emptyDir": {}}], **({"containers": [{"name": "c", "image": "i"}]} | {kind: [many]})
    )
    failure, events = refused(tmp_path, cgroup, pod, [])
    assert (failure.reason == "TooManyVolumeMounts") == rejected
    if rejected:
        message = "container many has 1023 volumeMounts; a container on this node has at most 1022"
        assert isinstance(failure, PodRejected)
        assert failure.detail == message
        assert events == [Event(type="Warning", reason="TooManyVolumeMounts", message=message)]
        assert not (tmp_path / "kubelet").exists()


def halved(mounts: list[dict[str, Any]], volumes: list[dict[str, Any]]) -> Pod:
    """Return a pod with two containers that have one half of the mounts each."""
    middle = len(mounts) // 2
    containers = [
        {"name": name, "image": "i", "volumeMounts": half}
        for name, half in (("one", mounts[:middle]), ("two", mounts[middle:]))
    ]
    spec = msgspec.convert({"containers": containers, "volumes": volumes}, PodSpec)
    return msgspec.structs.replace(make(), spec=spec)


def of_volumes(count: int, **source: Any) -> Pod:
    """Return a pod that mounts so many volumes."""
    mounts = [{"name": f"v{number}", "mountPath": f"/{number}"} for number in range(count)]
    return halved(mounts, [{"name": f"v{number}"} | source for number in range(count)])


def of_parts(count: int) -> Pod:
    """Return a pod that mounts so many parts of a volume."""
    mounts = [{"name": "v", "mountPath": f"/{number}", "subPath": f"{number}"} for number in range(count)]
    return halved(mounts, [{"name": "v", "emptyDir": {}}])


@pytest.mark.slow
@pytest.mark.parametrize("made", [partial(of_volumes, secret={"secretName": "s"}), of_parts])
@pytest.mark.parametrize(("count", "rejected"), [(512, False), (513, True)])
def test_more_mounts_than_a_pod_may_keep_on_the_node(
    tmp_path: Path, cgroup: str, made: Callable[[int], Pod], count: int, rejected: bool
) -> None:
    """The kernel has 100,000 for all pods: eight of a megabyte each took them, and no other pod got one."""
    failure, _ = refused(tmp_path, cgroup, made(count), [])
    assert (failure.reason == "TooManyVolumeMounts") == rejected
    if rejected:
        message = "the volumes of the pod keep 513 mounts on the node; a pod on this node has at most 512"
        assert isinstance(failure, PodRejected)
        assert failure.detail == message
        assert not (tmp_path / "kubelet").exists()


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ({"emptyDir": {}}, 0),
        ({"hostPath": {"path": "/"}}, 0),
        ({"configMap": {"name": "m"}}, 0),
        ({"image": {"reference": "i"}}, 0),
        ({"emptyDir": {"medium": "Memory"}}, 1),
        ({"secret": {"secretName": "s"}}, 1),
        ({"projected": {"sources": []}}, 1),
        ({"persistentVolumeClaim": {"claimName": "c"}}, 1),
    ],
)
def test_which_volumes_keep_mounts_on_the_node(source: dict[str, Any], kept: int) -> None:
    pod = of_volumes(3, **source)
    assert kept_mounts(pod) == 3 * kept
    unused = msgspec.structs.replace(pod.spec, containers=pod.spec.containers[:1])
    assert kept_mounts(msgspec.structs.replace(pod, spec=unused)) == kept


def refused_beside(
    tmp_path: Path,
    cgroup: str,
    others: list[dict[str, Any]],
    debugger: dict[str, Any],
    kind: str = "ephemeral container",
) -> StepFailed:
    """Return how an ephemeral container fails that comes to a running pod, beside others that have come before it.

    The runtime, which can do nothing here, is not asked for it or for its image.
    """
    pod = make()
    ephemeral = msgspec.convert([*others, debugger], tuple[EphemeralContainer, ...])
    grown = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, ephemeral_containers=ephemeral))
    action = StartContainer(container=msgspec.convert(debugger, Container), attempt=0, kind=kind)
    observed = Observed(sandboxes=(SandboxView(id="s", ready=True, attempt=0, created_at=1),))

    async def no_sandboxes(request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse()

    async def run() -> StepFailed:
        rpcs = {"ListPodSandbox": no_sandboxes}
        async with serving(tmp_path / "s", runtime=rpcs, images={}), CriClient(str(tmp_path / "s")) as client:
            node = this_node(client, configuration(tmp_path, cgroup))
            admitted = await admit(pod, node)
            starter = Starter(pod=grown, objects=StaticObjects(Sources()), node=node, listener=Heard())
            try:
                with pytest.raises(StepFailed) as caught:
                    await starter.start_container(action, observed, admitted)
            finally:
                admitted.release()
                await remove_pod_state(node.client, node.dirs, node.config, admitted.uid)
            return caught.value

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ephemeral container", "container"])
@pytest.mark.parametrize(
    ("field", "where", "most"), [("volumeMounts", "mountPath", 1022), ("volumeDevices", "devicePath", 256)]
)
def test_a_container_with_more_mounts_than_the_runtime_takes_is_not_created(
    tmp_path: Path, cgroup: str, field: str, where: str, most: int, kind: str
) -> None:
    """An ephemeral one comes when the pod runs, and a pod that an earlier agent has begun is not judged again."""
    many = [{"name": "v", where: f"/{number}"} for number in range(most + 1)]
    failure = refused_beside(tmp_path, cgroup, [], {"name": "debugger", "image": "i", field: many}, kind)
    message = f"container debugger has {most + 1} {field}; a container on this node has at most {most}"
    assert (failure.waiting, failure.detail) == ("TooManyVolumeMounts", message)
    assert failure.event() == Event(type="Warning", reason="Failed", message=f"Error: {message}", container="debugger")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["initContainers", "containers"])
@pytest.mark.parametrize(("count", "rejected"), [(255, False), (256, True)])
def test_more_containers_than_a_pod_may_have(
    tmp_path: Path, cgroup: str, kind: str, count: int, rejected: bool
) -> None:
    """Each has a process on the node that is not in the pod's cgroup."""
    many = [{"name": f"c{number}", "image": "i"} for number in range(count)]
    (one,) = {"initContainers", "containers"} - {kind}
    failure, events = refused(tmp_path, cgroup, make(**{kind: many, one: [{"name": "one", "image": "i"}]}), [])
    assert (failure.reason == "TooManyContainers") == rejected
    if rejected:
        message = "the pod has 257 containers; a pod on this node has at most 256"
        assert isinstance(failure, PodRejected)
        assert events == [Event(type="Warning", reason="TooManyContainers", message=message)]
        assert not (tmp_path / "kubelet").exists()


def test_more_ephemeral_containers_than_a_pod_may_have(tmp_path: Path, cgroup: str) -> None:
    """Nothing takes them away from a pod again, and each stays on the node."""
    others = [{"name": f"d{number}", "image": "i"} for number in range(255)]
    failure = refused_beside(tmp_path, cgroup, others, {"name": "debugger", "image": "i"})
    message = "the pod has 257 containers; a pod on this node has at most 256"
    assert (failure.waiting, failure.detail) == ("TooManyContainers", message)
    many = [{"name": "v", "mountPath": f"/{number}"} for number in range(1023)]
    failure = refused_beside(tmp_path, cgroup, others[1:], {"name": "debugger", "image": "i", "volumeMounts": many})
    assert failure.waiting == "TooManyVolumeMounts", "the last one that may be there is refused for its mounts alone"


@pytest.mark.requirement("U85")
def test_a_sandbox_that_cannot_be_made_is_an_event_and_leaves_nothing(tmp_path: Path, cgroup: str) -> None:
    failure, events = refused(tmp_path, cgroup, make(hostUsers=False), [handler("", user_namespaces=True)])
    assert failure.reason == FAILED_SANDBOX
    assert failure.message.startswith("Failed to create pod sandbox: ")
    assert [event.reason for event in events] == [FAILED_SANDBOX]
    assert os.listdir(tmp_path / "kubelet" / "pods") == []


@pytest.mark.requirement("U35")
def test_admission_holds_the_pods_lock_and_reclaims_what_nobody_holds(tmp_path: Path, cgroup: str) -> None:
    async def no_sandboxes(request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse()

    async def run() -> None:
        socket = tmp_path / "s"
        async with serving(socket, runtime={"ListPodSandbox": no_sandboxes}), CriClient(str(socket)) as client:
            node = this_node(client, configuration(tmp_path, cgroup))
            first = await admit(make(), node)
            assert node.dirs.orphans(set()) == []
            with pytest.raises(AlreadyExists, match="pod default/web already exists"):
                await admit(make(), node)
            first.release()
            assert node.dirs.orphans(set()) == [first.uid]
            second = await admit(make(), node)
            assert node.dirs.all() == [second.uid]
            second.release()
            await remove_pod_state(node.client, node.dirs, node.config, second.uid)
            assert node.dirs.all() == []

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.requirement("U35")
def test_a_pod_whose_sandbox_is_being_made_keeps_its_directory_and_its_ids(tmp_path: Path, cgroup: str) -> None:
    async def user_namespaces(request: api_pb2.StatusRequest) -> api_pb2.StatusResponse:
        return api_pb2.StatusResponse(runtime_handlers=[handler("", user_namespaces=True)])

    async def no_sandboxes(request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse()

    held: set[str] = set()
    asked = asyncio.Event()

    async def pods(request: podkeep_pb2.ListPodUIDsRequest) -> podkeep_pb2.ListPodUIDsResponse:
        asked.set()
        return podkeep_pb2.ListPodUIDsResponse(uids=held)

    async def run() -> None:
        socket = tmp_path / "s"
        rpcs = {"Status": user_namespaces, "ListPodSandbox": no_sandboxes}
        async with serving(socket, runtime=rpcs, node={"ListPodUIDs": pods}), CriClient(str(socket)) as client:
            node = this_node(client, configuration(tmp_path, cgroup))
            first = await admit(make(hostUsers=False), node)
            held.add(first.uid)
            first.release()  # as when its process is killed while it waits for RunPodSandbox
            second = await admit(renamed(make(hostUsers=False)), node)
            assert node.dirs.all() == sorted([first.uid, second.uid])
            assert first.user_namespace != second.user_namespace
            removal = asyncio.ensure_future(remove_pod_state(node.client, node.dirs, node.config, first.uid))
            for _ in range(2):
                asked.clear()
                await asked.wait()
            assert not removal.done()
            assert first.directory.path.exists()
            held.clear()
            await removal
            second.release()
            await remove_pod_state(node.client, node.dirs, node.config, second.uid)
            assert node.dirs.all() == []

    asyncio.run(run())


@pytest.mark.requirement("U35")
@pytest.mark.parametrize("moment", ["waiting for the lock", "preparing"])
def test_an_admission_that_is_cancelled_holds_and_leaves_nothing(tmp_path: Path, cgroup: str, moment: str) -> None:
    async def no_sandboxes(request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse()

    async def run() -> None:
        socket = tmp_path / "s"
        async with serving(socket, runtime={"ListPodSandbox": no_sandboxes}), CriClient(str(socket)) as client:
            node = this_node(client, configuration(tmp_path, cgroup))
            pod = make()
            with node.dirs.locked() if moment == "waiting for the lock" else nullcontext():
                admission = asyncio.ensure_future(admit(pod, node))
                while not node.dirs.pods.exists() or (moment == "preparing" and not node.dirs.all()):  # noqa: ASYNC110 - the file system sends no event
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                admission.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await admission
            lock = node.dirs.try_lock()
            assert lock is not None
            os.close(lock)
            assert node.dirs.all() == []

    asyncio.run(run())


@pytest.mark.parametrize("who", ["worker", "orphans"])
def test_a_removal_that_is_cancelled_keeps_no_lock(tmp_path: Path, cgroup: str, who: str) -> None:
    async def never(request: Any) -> Any:
        await asyncio.Event().wait()

    async def run() -> None:
        socket = tmp_path / "s"
        rpcs = {"ListPodSandbox": never, "ListContainers": never}
        async with serving(socket, runtime=rpcs), CriClient(str(socket)) as client:
            node = this_node(client, configuration(tmp_path, cgroup))
            pod = make()
            uid = parse_pod_uid(pod.metadata.uid)
            os.close(node.dirs.own(uid))
            node.dirs.identify(uid, PodIdentity(namespace="default", name="web"), managed=True)
            place = str(node.dirs.directory(uid).path)

            def is_open() -> bool:
                for entry in os.listdir("/proc/self/fd"):
                    with suppress(FileNotFoundError):  # closed meanwhile
                        if os.readlink(f"/proc/self/fd/{entry}") == place:
                            return True
                return False

            if who == "worker":
                worker = PodWorker(pod=pod, sources=Sources(), node=node, listener=Heard(), retry=True)
                removal: asyncio.Future[object] = asyncio.ensure_future(worker.remove())
            else:
                orphans = Orphans(
                    client=client,
                    dirs=node.dirs,
                    config=node.config,
                    metrics=node.metrics,
                    is_wanted=lambda _: False,
                )
                removal = asyncio.ensure_future(orphans._remove(uid))
            await asyncio.sleep(0)
            # The event loop stands still, so that the removal does not go on before it is cancelled.
            while not is_open():
                pass
            removal.cancel()
            with pytest.raises(asyncio.CancelledError):
                await removal
            assert not is_open()

    asyncio.run(run())


@pytest.mark.slow
def test_an_orphan_is_removed_alone_whatever_the_runtime_lists_beside_it(tmp_path: Path, cgroup: str) -> None:
    def sandbox(identity: str, uid: str) -> api_pb2.PodSandbox:
        return api_pb2.PodSandbox(
            id=identity,
            metadata=api_pb2.PodSandboxMetadata(uid=uid),
            labels={names.POD_UID: uid},
            annotations={names.CONFIG_SOURCE: "api"},
        )

    stopped: list[str] = []
    there = {"s1": sandbox("s1", "../u1"), "s2": sandbox("s2", "u2"), "s3": sandbox("s3", "")}

    async def list_sandboxes(_: Any) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse(items=there.values())

    async def list_containers(_: Any) -> api_pb2.ListContainersResponse:
        # Whatever is asked for: this one of another pod must not be stopped.
        other = api_pb2.Container(id="c", state=api_pb2.CONTAINER_RUNNING, labels={names.POD_UID: "u9"})
        return api_pb2.ListContainersResponse(containers=[other])

    async def stop_container(request: api_pb2.StopContainerRequest) -> api_pb2.StopContainerResponse:
        stopped.append(request.container_id)
        return api_pb2.StopContainerResponse()

    async def stop(_: Any) -> api_pb2.StopPodSandboxResponse:
        return api_pb2.StopPodSandboxResponse()

    async def remove(request: api_pb2.RemovePodSandboxRequest) -> api_pb2.RemovePodSandboxResponse:
        del there[request.pod_sandbox_id]
        return api_pb2.RemovePodSandboxResponse()

    async def run() -> None:
        rpcs = {
            "ListPodSandbox": list_sandboxes,
            "ListContainers": list_containers,
            "StopContainer": stop_container,
            "StopPodSandbox": stop,
            "RemovePodSandbox": remove,
        }
        async with serving(tmp_path / "s", runtime=rpcs), CriClient(str(tmp_path / "s")) as client:
            node = this_node(client, configuration(tmp_path, cgroup))
            orphans = Orphans(
                client=client,
                dirs=node.dirs,
                config=node.config,
                metrics=node.metrics,
                is_wanted=lambda _: False,
            )
            await orphans.look()

    asyncio.run(run())
    assert (sorted(there), stopped) == (["s1", "s3"], [])


@pytest.mark.slow
def test_a_step_that_failed_is_not_tried_again_before_its_pause_is_over(tmp_path: Path, cgroup: str) -> None:
    looks: list[float] = []
    attempts: list[str] = []

    async def run() -> None:
        looked = asyncio.Event()

        async def no_sandboxes(request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
            if attempts:
                looks.append(asyncio.get_running_loop().time())
                looked.set()
            return api_pb2.ListPodSandboxResponse()

        async def no_containers(request: api_pb2.ListContainersRequest) -> api_pb2.ListContainersResponse:
            return api_pb2.ListContainersResponse()

        async def fail(request: api_pb2.RunPodSandboxRequest) -> api_pb2.RunPodSandboxResponse:
            attempts.append(request.config.metadata.name)
            raise FailedPrecondition("no")

        async def status(request: api_pb2.StatusRequest) -> api_pb2.StatusResponse:
            return api_pb2.StatusResponse()

        looking = {"Status": status, "ListPodSandbox": no_sandboxes, "ListContainers": no_containers}
        rpcs = looking | {"RunPodSandbox": fail}
        socket = tmp_path / "s"
        async with serving(socket, runtime=rpcs), CriClient(str(socket)) as client:
            node = this_node(client, configuration(tmp_path, cgroup))
            worker = PodWorker(pod=make(), sources=Sources(), node=node, listener=Heard(), retry=True)
            running = asyncio.ensure_future(worker.run())
            while len(looks) < 3:
                looked.clear()
                await looked.wait()
            worker.stop(0)
            await running
            await worker.tear_down()

    asyncio.run(run())
    assert attempts == ["web"]
    assert looks[2] - looks[1] > 0.5


def renamed(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, name="other"))


def test_pod_for_another_node_is_rejected_with_what_this_one_is(tmp_path: Path, cgroup: str) -> None:
    failure, _ = refused(tmp_path, cgroup, make(nodeSelector={"kubernetes.io/os": "linux", "disk": "ssd"}), [])
    assert (failure.reason, failure.detail) == (
        "NodeAffinity",
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
    )
    assert "kubernetes.io/os=linux" in failure.hint
    failure, _ = refused(tmp_path, cgroup, make(nodeName="elsewhere.example"), [])
    assert (failure.reason, "leave nodeName out" in failure.hint) == ("NodeName", True)


def test_pod_for_this_node_is_taken_on(tmp_path: Path, cgroup: str) -> None:
    name = os.uname().nodename.lower()
    pod = make(nodeName=name, nodeSelector={"kubernetes.io/os": "linux", "kubernetes.io/hostname": name})
    failure, _ = refused(tmp_path, cgroup, pod, [])
    assert failure.reason == FAILED_SANDBOX  # this runtime can do nothing else


def test_a_sandbox_has_the_name_servers_that_the_node_has_by_now(tmp_path: Path, cgroup: str) -> None:
    """A machine gets others (DHCP, a VPN) while the agent runs; of a sandbox that is there they stay what they were."""
    resolv, served = tmp_path / "resolv.conf", []

    async def run_sandbox(request: api_pb2.RunPodSandboxRequest) -> api_pb2.RunPodSandboxResponse:
        served.append(list(request.config.dns_config.servers))
        return api_pb2.RunPodSandboxResponse(pod_sandbox_id="s")

    async def no_sandboxes(request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse()

    async def status(request: api_pb2.StatusRequest) -> api_pb2.StatusResponse:
        return api_pb2.StatusResponse()

    async def run() -> None:
        socket, pod = tmp_path / "s", make()
        rpcs = {"ListPodSandbox": no_sandboxes, "RunPodSandbox": run_sandbox, "Status": status}
        async with serving(socket, runtime=rpcs), CriClient(str(socket)) as client:
            config = configuration(tmp_path, cgroup)
            config = msgspec.structs.replace(
                config, agent=msgspec.structs.replace(config.agent, resolv_conf=str(resolv))
            )
            resolv.write_text("nameserver 10.0.0.1\n")
            node = this_node(client, config)
            admitted = await admit(pod, node)
            starter = Starter(pod=pod, objects=StaticObjects(Sources()), node=node, listener=Heard())
            await starter.create_sandbox(0, admitted)
            resolv.write_text("nameserver 10.0.0.2\n")
            await starter.create_sandbox(1, admitted)
            admitted.release()
            await remove_pod_state(node.client, node.dirs, node.config, admitted.uid)

    asyncio.run(run())
    assert served == [["10.0.0.1"], ["10.0.0.2"]]
