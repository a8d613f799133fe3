"""A pod with classes on its way to a runtime: what is asked, what is sent, and in which words it fails."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from podkeep.agent.convert.names import CONTAINER_NAME
from podkeep.agent.events import Event, PodRejected, StepFailed
from podkeep.agent.node import Node, this_node
from podkeep.agent.objects.sources import Sources, StaticObjects
from podkeep.agent.observed import Observed, SandboxView
from podkeep.agent.pod.actions import StartContainer
from podkeep.agent.pod.admission import Admitted, admit, with_identity
from podkeep.agent.pod.starter import Starter
from podkeep.agent.pod.status.pod_status import rejected
from podkeep.agent.pod.worker import PodWorker
from podkeep.agent.runtime_status import RuntimeStatus
from podkeep.api import manifest
from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus
from podkeep.base.config import AgentConfig, Config, RuntimeConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, PodkeepError
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.cgroup.cgroups import Cgroups
from unit.cri.cri_endpoint import run, serving

RDT = "rdt.resources.alpha.kubernetes.io"
SANDBOX = SandboxView(id="sandbox", ready=True, attempt=0, created_at=1)
QOS = ("BestEffort", "Burstable", "Guaranteed")
UNKNOWN = 'class resource rdt: this node has no class "gold" for containers, it has silver (container main)'


def infos(offered: Mapping[str, Sequence[str]]) -> list[api_pb2.ClassResourceInfo]:
    return [
        api_pb2.ClassResourceInfo(Name=name, classes=[api_pb2.ClassResourceClassInfo(Name=item) for item in classes])
        for name, classes in offered.items()
    ]


class Runtime:
    """A runtime that says what it was told to say, and remembers what it was asked for.

    :param offered: classes of containers by type; None: it reports no resources, as runtimes that know of none.
    :param failure: what RunPodSandbox and CreateContainer fail with.
    """

    def __init__(self, offered: Mapping[str, Sequence[str]] | None, failure: PodkeepError | None = None) -> None:
        self.offered = offered
        self.failure = failure
        self.calls: list[str] = []
        self.sandboxes: list[api_pb2.PodSandboxConfig] = []
        self.containers: list[api_pb2.CreateContainerRequest] = []

    @asynccontextmanager
    async def at(self, socket: Path) -> AsyncIterator[CriClient]:
        """Serve, and yield a client."""
        async with serving(socket, runtime=self.rpcs(), images=self.images()), CriClient(str(socket)) as client:
            yield client

    def rpcs(self) -> dict[str, Any]:
        answers: dict[str, Callable[[Any], Any]] = {
            "Status": lambda _: self._status(),
            "ListPodSandbox": lambda _: api_pb2.ListPodSandboxResponse(),
            "ListContainers": lambda _: api_pb2.ListContainersResponse(),
            "RunPodSandbox": self._run,
            "CreateContainer": self._create,
            "StartContainer": lambda _: api_pb2.StartContainerResponse(),
        }
        return {name: self._noting(name, answer) for name, answer in answers.items()}

    def images(self) -> dict[str, Any]:
        image = api_pb2.Image(id="sha256:1", repo_tags=["i:1"])
        return {"ImageStatus": self._noting("ImageStatus", lambda _: api_pb2.ImageStatusResponse(image=image))}

    def _noting(self, name: str, answer: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
        async def handler(request: Any) -> Any:
            self.calls.append(name)
            return answer(request)

        return handler

    def _status(self) -> api_pb2.StatusResponse:
        resources = None
        if self.offered is not None:
            resources = api_pb2.ResourcesInfo(
                pod_class_resources=infos({"qos": QOS}), container_class_resources=infos(self.offered)
            )
        return api_pb2.StatusResponse(status=api_pb2.RuntimeStatus(resources=resources))

    def _run(self, request: api_pb2.RunPodSandboxRequest) -> api_pb2.RunPodSandboxResponse:
        self.sandboxes.append(request.config)
        if self.failure is not None:
            raise self.failure
        return api_pb2.RunPodSandboxResponse(pod_sandbox_id=SANDBOX.id)

    def _create(self, request: api_pb2.CreateContainerRequest) -> api_pb2.CreateContainerResponse:
        self.containers.append(request)
        if self.failure is not None:
            raise self.failure
        return api_pb2.CreateContainerResponse(container_id=request.config.metadata.name)


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)

    def waiting(self, container: str, reason: str, message: str) -> None:
        raise AssertionError(f"{container} waits: {reason}")

    def started(self, container: str, attempt: int, log: Path) -> None:
        assert container


def make(
    annotations: Mapping[str, str] | None = None,
    classes: Mapping[str, str] | None = None,
    pod_classes: Mapping[str, str] | None = None,
) -> Pod:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": dict(annotations or {})},
        "spec": {
            "initContainers": [{"name": "proxy", "image": "i:1", "restartPolicy": "Always"}],
            "containers": [{"name": "main", "image": "i:1", "resources": {"classes": dict(classes or {})}}],
            "resources": {"classes": dict(pod_classes or {})},
        },
    }
    return with_identity(manifest.parse(yaml.safe_dump(document), source="f").pods[0])


@pytest.fixture
def node_of(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes the node behind a client; what it made for pods is removed at the end."""
    parent, cgroups = f"/pktest-{os.urandom(4).hex()}", Cgroups()
    cgroups.create(parent)

    def make_node(client: CriClient, *, gate: bool = True) -> Node:
        agent = AgentConfig(
            root=str(tmp_path / "kubelet"),
            pod_logs=str(tmp_path / "logs"),
            feature_gates={} if gate else {"ClassResources": False},
        )
        return this_node(client, Config(agent=agent, runtime=RuntimeConfig(cgroup_parent=parent)))

    yield make_node
    cgroups.remove(parent)


async def start(pod: Pod, node: Node, heard: Heard, admitted: Admitted | None = None) -> None:
    """Take ``pod`` on, unless it is, and make its sandbox and its containers."""
    admitted = admitted or await admit(pod, node)
    try:
        starter = Starter(pod=pod, objects=StaticObjects(Sources()), node=node, listener=heard)
        await starter.create_sandbox(0, admitted)
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            action = StartContainer(container=container, attempt=0)
            await starter.start_container(action, Observed(sandboxes=(SANDBOX,)), admitted)
    finally:
        admitted.release()


def created(runtime: Runtime) -> dict[str, dict[str, str] | None]:
    """Return the classes of each container that was asked for; None if the request had no such field."""
    return {
        request.config.labels[CONTAINER_NAME]: dict(request.config.class_resources.classes)
        if request.config.HasField("class_resources")
        else None
        for request in runtime.containers
    }


@pytest.mark.requirement("Q19", "Q20", "Q24", "Q51", "Q53", "Q76", "Q90")
def test_what_the_runtime_is_told(tmp_path: Path, node_of: Callable[..., Node]) -> None:
    runtime = Runtime({"rdt": ("gold", "silver"), "demo": ("a",)})
    pod = make({f"{RDT}/default": "silver", f"{RDT}/container.main": "gold"}, {"demo": "a"})

    async def work() -> None:
        async with runtime.at(tmp_path / "s") as client:
            await start(pod, node_of(client), Heard())

    run(work())
    assert created(runtime) == {"proxy": {"rdt": "silver"}, "main": {"rdt": "gold", "demo": "a"}}
    (sandbox,) = runtime.sandboxes
    assert dict(getattr(sandbox.class_resources, "class")) == {"qos": "BestEffort"}
    # The configuration of the sandbox is the same in every request (CRI: CreateContainerRequest).
    assert all(request.sandbox_config == sandbox for request in runtime.containers)


@pytest.mark.requirement("Q25", "Q82", "Q81", "Q88", "Q90")
def test_the_gate_decides_what_is_sent_and_nothing_else(tmp_path: Path, node_of: Callable[..., Node]) -> None:
    pod = make({f"{RDT}/default": "gold"})
    calls, sandboxes = [], []
    for gate in (True, False):
        runtime = Runtime({"rdt": ("gold",)})

        async def work(runtime: Runtime = runtime, gate: bool = gate) -> None:
            async with runtime.at(tmp_path / "s") as client:
                await start(pod, node_of(client, gate=gate), Heard())

        run(work())
        (tmp_path / "s").unlink(missing_ok=True)
        assert created(runtime) == dict.fromkeys(("proxy", "main"), {"rdt": "gold"} if gate else None)
        for request in runtime.containers:
            request.config.ClearField("class_resources")
        calls.append(runtime.calls)
        (sandbox,) = runtime.sandboxes
        assert sandbox.HasField("class_resources") is gate
        sandbox.ClearField("class_resources")
        sandboxes.append(sandbox)
    with_gate, without = calls
    assert with_gate.count("Status") == 3  # when it is taken on, and before each container that is in a class
    assert without.count("Status") == 1  # whether there is a network
    first, second = ([call for call in some if call != "Status"] for some in calls)
    assert first == second
    assert sandboxes[0] == sandboxes[1]


@pytest.mark.requirement("Q26", "Q82")
def test_annotations_are_read_again_for_every_container(tmp_path: Path, node_of: Callable[..., Node]) -> None:
    runtime = Runtime({"rdt": ("gold",)})
    pod = make({f"{RDT}/default": "gold"})

    async def work() -> None:
        async with runtime.at(tmp_path / "s") as client:
            admitted = await admit(pod, node_of(client))
            for attempt, gate in enumerate((True, False, True)):
                node = node_of(client, gate=gate)
                starter = Starter(pod=pod, objects=StaticObjects(Sources()), node=node, listener=Heard())
                action = StartContainer(container=pod.spec.containers[0], attempt=attempt)
                await starter.start_container(action, Observed(sandboxes=(SANDBOX,)), admitted)
            admitted.release()

    run(work())
    classes = [dict(request.config.class_resources.classes) for request in runtime.containers]
    assert classes == [{"rdt": "gold"}, {}, {"rdt": "gold"}]


@pytest.mark.requirement("Q61")
def test_a_field_and_no_gate_any_more_fail_the_container(tmp_path: Path, node_of: Callable[..., Node]) -> None:
    runtime = Runtime({"rdt": ("gold",)})
    pod = make(classes={"rdt": "gold"})

    async def work() -> StepFailed:
        async with runtime.at(tmp_path / "s") as client:
            admitted = await admit(pod, node_of(client))
            with pytest.raises(StepFailed) as caught:
                await start(pod, node_of(client, gate=False), Heard(), admitted)
            with pytest.raises(PodRejected, match="the feature gate ClassResources is off"):
                await admit(renamed(pod), node_of(client, gate=False))
            return caught.value

    failure = run(work())
    assert (failure.reason, failure.waiting, failure.container) == ("Failed", "CreateContainerConfigError", "main")
    assert failure.message == (
        "Error: class resource rdt: class gold is asked for, and the feature gate ClassResources is off"
    )
    assert created(runtime) == {"proxy": None}


def rejection(
    socket: Path, node_of: Callable[..., Node], runtime: Runtime, pod: Pod
) -> tuple[PodRejected, list[Event], PodStatus]:
    """Return how ``runtime``'s node refuses ``pod``."""

    async def work() -> tuple[PodRejected, list[Event], PodStatus]:
        async with runtime.at(socket) as client:
            heard = Heard()
            worker = PodWorker(pod=pod, sources=Sources(), node=node_of(client), listener=heard, retry=True)
            with pytest.raises(PodRejected) as caught:
                await worker.run()
            await worker.tear_down()
            return caught.value, heard.events, rejected(pod, caught.value, 1_700_000_000.0)

    return run(work())


@pytest.mark.requirement("Q29", "Q30", "Q90")
@pytest.mark.parametrize("pod", [make(classes={"rdt": "gold"}), make({f"{RDT}/container.main": "gold"})])
def test_a_pod_that_asks_for_what_is_not_there_is_failed_before_it_has_a_sandbox(
    tmp_path: Path, node_of: Callable[..., Node], pod: Pod
) -> None:
    runtime = Runtime({"rdt": ("silver",)})
    failure, events, status = rejection(tmp_path / "s", node_of, runtime, pod)
    assert events == [Event(type="Warning", reason="ClassResourceUnavailable", message=UNKNOWN)]
    assert status == PodStatus(
        start_time="2023-11-14T22:13:20Z",
        phase="Failed",
        reason="ClassResourceUnavailable",
        message=f"Pod was rejected: {UNKNOWN}",
        qos_class="BestEffort",
    )
    assert failure.hint == "`podkeep classes` shows what this node offers"
    assert runtime.calls == ["Status"]
    assert not (tmp_path / "kubelet").exists()


@pytest.mark.requirement("Q32", "Q86")
def test_a_runtime_that_reports_nothing_runs_no_pod_that_asks_for_a_class(
    tmp_path: Path, node_of: Callable[..., Node]
) -> None:
    runtime = Runtime(None)
    failure, _, status = rejection(tmp_path / "s", node_of, runtime, make({f"{RDT}/default": "gold"}))
    text = "class resource rdt: the runtime reports no class resources at all"
    assert (status.phase, status.message) == ("Failed", f"Pod was rejected: {text}")
    assert failure.hint.startswith("it would run the pod without its classes")
    assert runtime.sandboxes == []


@pytest.mark.requirement("Q76", "Q86")
def test_a_runtime_that_reports_nothing_is_sent_no_class_at_all(tmp_path: Path, node_of: Callable[..., Node]) -> None:
    runtime = Runtime(None)

    async def work() -> None:
        async with runtime.at(tmp_path / "s") as client:
            await start(make(), node_of(client), Heard())

    run(work())
    assert runtime.calls.count("Status") == 1
    assert created(runtime) == {"proxy": None, "main": None}
    assert not runtime.sandboxes[0].HasField("class_resources")


@pytest.mark.requirement("Q29")
def test_admission_sees_what_came_with_the_last_reload(tmp_path: Path, node_of: Callable[..., Node]) -> None:
    runtime = Runtime({"rdt": ("silver",)})

    async def work() -> None:
        async with runtime.at(tmp_path / "s") as client:
            node = node_of(client)
            with pytest.raises(PodRejected):
                await admit(make(classes={"rdt": "gold"}), node)
            runtime.offered = {"rdt": ("gold",)}
            (await admit(make(classes={"rdt": "gold"}), node)).release()

    run(work())


@pytest.mark.requirement("Q29", "Q88")
def test_the_runtime_is_not_asked_again_for_every_container(tmp_path: Path) -> None:
    runtime = Runtime({"rdt": ("silver",)})

    async def work() -> None:
        async with runtime.at(tmp_path / "s") as client:
            status = RuntimeStatus(client)
            first = await status.offers()
            runtime.offered = {"rdt": ("gold",)}
            assert await status.offers() is first
            assert (await status.offers(fresh=True)).container["rdt"].classes == ("gold",)
            assert (await status.offers()).container["rdt"].classes == ("gold",)

    run(work())
    assert runtime.calls == ["Status", "Status"]


@pytest.mark.requirement("Q33")
def test_a_class_that_vanishes_is_asked_for_no_more_once_a_pod_is_taken_on(
    tmp_path: Path, node_of: Callable[..., Node]
) -> None:
    """What runs is not judged again: only the runtime can refuse a container that is made anew."""
    runtime = Runtime({"rdt": ("gold",)})
    pod = make(classes={"rdt": "gold"})

    async def work() -> None:
        async with runtime.at(tmp_path / "s") as client:
            admitted = await admit(pod, node_of(client))
            runtime.offered = {}
            await start(pod, node_of(client), Heard(), admitted)

    run(work())
    assert created(runtime) == {"proxy": None, "main": {"rdt": "gold"}}


@pytest.mark.requirement("Q28", "Q57", "Q83", "Q85")
@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (InvalidArgument("class resource rdt: no class gold; offered: silver"), "rdt: no class gold; offered: silver"),
        (FailedPrecondition("class resource rdt: RDT is disabled"), "rdt: RDT is disabled"),
    ],
)
def test_what_the_runtime_refuses_is_a_failure_that_can_be_searched_for(
    tmp_path: Path, node_of: Callable[..., Node], failure: PodkeepError, text: str
) -> None:
    pod = make(classes={"rdt": "gold"}, pod_classes={"demo": "x"})

    async def work() -> list[Event]:
        runtime = Runtime({"rdt": ("gold",)}, failure)
        async with runtime.at(tmp_path / "s") as client:
            admitted = await admit(make(), node_of(client))
            starter = Starter(pod=pod, objects=StaticObjects(Sources()), node=node_of(client), listener=Heard())
            with pytest.raises(StepFailed) as sandbox:
                await starter.create_sandbox(0, admitted)
            action = StartContainer(container=pod.spec.containers[0], attempt=0)
            with pytest.raises(StepFailed) as container:
                await starter.start_container(action, Observed(sandboxes=(SANDBOX,)), admitted)
            admitted.release()
            assert container.value.waiting == "CreateContainerError"
            return [sandbox.value.event(), container.value.event()]

    assert run(work()) == [
        Event(
            type="Warning",
            reason="FailedCreatePodSandBox",
            message=f"Failed to create pod sandbox: class resource {text}",
        ),
        Event(type="Warning", reason="Failed", message=f"Error: class resource {text}", container="main"),
    ]


def renamed(pod: Pod) -> Pod:
    metadata = msgspec.structs.replace(pod.metadata, name="other", uid="other")
    return msgspec.structs.replace(pod, metadata=metadata)
