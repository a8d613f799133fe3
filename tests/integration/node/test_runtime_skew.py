"""A node whose runtime is not podkeep's: older than what pods ask for, hanging, or answering what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import pod
from google.protobuf.message import Message

from podkeep.base.errors import Internal
from podkeep.cri.v1 import api_pb2 as api
from support.running_node import RunningNode, own_base
from support.stub_runtime import StubDaemon, StubRuntime

USERNS = "Failed to create pod sandbox: user namespaces is not supported by the runtime"
NO_CLASSES = "the runtime reports no class resources at all"
ODD = 7


@pytest.fixture
def node(open_directory: Path) -> Iterator[RunningNode]:
    """A node on a stub, that gives up calls after a second; whatever happened, its pods can be deleted."""
    daemon = StubDaemon(own_base(open_directory))
    settings = (
        "agent.runtime_request_timeout=1",
        "agent.enable_server=false",
        "agent.node_status_update_frequency=1",
        "agent.crash_loop_back_off.max_container_restart_period=1",
    )
    with RunningNode(daemon, settings=settings) as running:
        yield running
        for item in running.ask("GET", "/api/v1/pods")["items"]:
            if "deletionTimestamp" not in item["metadata"]:
                running.delete(item["metadata"]["name"])
        running.until(lambda: not running.ask("GET", "/api/v1/pods")["items"], "all pods gone")
        running.until(lambda: running.left_behind() == [], f"nothing left: {running.left_behind()}")
        assert daemon.stub.holds == []
    assert "Traceback" not in "".join(running.log)


@pytest.fixture
def stub(node: RunningNode) -> StubRuntime:
    """The runtime of the node."""
    assert isinstance(node.daemon, StubDaemon)
    return node.daemon.stub


def web(name: str = "web", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.test/image:1"} | spec.pop("container", {})
    return pod(container, name=name, restartPolicy="Always", **spec)


def restarted(found: dict[str, Any]) -> bool:
    (status,) = found["status"].get("containerStatuses", ()) or ({},)
    return bool(status.get("restartCount", 0) >= 1 and "running" in status["state"])


def waiting_reason(found: dict[str, Any]) -> str:
    (status,) = found["status"].get("containerStatuses", ()) or ({},)
    return str(status.get("state", {}).get("waiting", {}).get("reason", ""))


def reasons(node: RunningNode, name: str = "web") -> list[str]:
    return [event["reason"] for event in node.events(name)]


def ready_message(node: RunningNode) -> str:
    conditions = node.ask("GET", f"/api/v1/nodes/{node.name}")["status"].get("conditions", ())
    return next((item["message"] for item in conditions if item["type"] == "Ready"), "")


def refused(node: RunningNode, name: str) -> bool:
    return any(
        event["reason"] == "FailedCreatePodSandBox" and event["message"] == USERNS for event in node.events(name)
    )


def handler(name: str, *, user_namespaces: bool) -> api.RuntimeHandler:
    return api.RuntimeHandler(name=name, features=api.RuntimeHandlerFeatures(user_namespaces=user_namespaces))


# ---------------------------------------------------------------------------------------------------- older runtimes


def test_a_runtime_of_the_first_cri_v1_runs_pods(node: RunningNode, stub: StubRuntime) -> None:
    """Without events, features and statistics: what ends is seen and started again."""
    node.apply(web())
    status = node.running("web")["status"]
    assert (status["podIP"], status["containerStatuses"][0]["imageID"]) == ("10.9.9.9", "registry.test/image:1")
    stub.exit("main", 1)
    node.pod("web", restarted, "started again")
    about = node.ask("GET", f"/api/v1/nodes/{node.name}")["status"]
    assert about["nodeInfo"]["containerRuntimeVersion"] == "stub://1"
    assert not {"runtimeHandlers", "features", "podClassResources", "containerClassResources"} & about.keys()


def test_pods_wait_for_the_network_of_the_runtime(node: RunningNode, stub: StubRuntime) -> None:
    """In a kubelet's words, and the runtime is not asked for a sandbox; one with the node's network does not wait."""
    (network,) = [item for item in stub.status.status.conditions if item.type == "NetworkReady"]
    network.status, network.reason, network.message = False, "NetworkPluginNotReady", "cni plugin not initialized"
    # What the runtime said last counts for a while, so the node has to know it first.
    node.until(lambda: "network not ready" in ready_message(node), "the node without a network")
    node.apply(web(), web("host", hostNetwork=True))

    def waits() -> dict[str, Any] | None:
        return next((event for event in node.events("web") if event["reason"] == "NetworkNotReady"), None)

    node.until(waits, "the event")
    event = waits()
    assert event is not None
    assert (event["type"], event["message"]) == (
        "Warning",
        "network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
        "message:cni plugin not initialized",
    )
    node.running("host")
    assert [request.config.metadata.name for request in stub.of(api.RunPodSandboxRequest)] == ["host"]
    found = node.get("web") or {}
    assert (found["status"]["phase"], waiting_reason(found)) == ("Pending", "ContainerCreating")
    network.status = True
    node.running("web")


def test_a_pod_with_devices_of_claims_is_not_run_without_them(node: RunningNode, stub: StubRuntime) -> None:
    """No driver of dynamic resources registers with this node; a kubelet without one says so, too."""
    claims = [{"name": "gpu", "resourceClaimName": "gpu"}]
    node.apply(web(resourceClaims=claims, container={"resources": {"claims": [{"name": "gpu"}]}}), web("plain"))
    node.running("plain")
    node.until(lambda: "FailedPrepareDynamicResources" in reasons(node), "the event")
    (event,) = [item for item in node.events("web") if item["reason"] == "FailedPrepareDynamicResources"]
    assert event["message"] == (
        "Failed to prepare dynamic resources: claims gpu: this node has no drivers of dynamic resources"
    )
    assert [request.config.metadata.name for request in stub.of(api.RunPodSandboxRequest)] == ["plain"]


@pytest.mark.requirement("U96", "U98")
@pytest.mark.parametrize(
    "handlers",
    [
        (),
        (handler("", user_namespaces=False),),
        (handler("", user_namespaces=False), handler("other", user_namespaces=True)),
        (api.RuntimeHandler(name=""),),
    ],
)
def test_a_user_namespace_is_asked_for_only_where_the_handler_says_that_it_can(
    node: RunningNode, stub: StubRuntime, handlers: tuple[api.RuntimeHandler, ...]
) -> None:
    """Also a runtime that would ignore the field is not asked; when the runtime is a newer one, the pod runs."""
    stub.status.runtime_handlers.extend(handlers)
    node.apply(web(hostUsers=False), web("plain"))

    def failed() -> dict[str, Any] | None:
        return next((event for event in node.events("web") if event["reason"] == "FailedCreatePodSandBox"), None)

    node.until(lambda: (found := failed()) and found["count"] >= 2, "tried again, and counted")
    event = failed()
    assert event is not None
    assert (event["type"], event["message"]) == ("Warning", USERNS)
    (waiting,) = [item["state"]["waiting"] for item in (node.get("web") or {})["status"]["containerStatuses"]]
    assert waiting["reason"] == "ContainerCreating"
    node.running("plain")
    assert [request.config.metadata.name for request in stub.of(api.RunPodSandboxRequest)] == ["plain"]
    del stub.status.runtime_handlers[:]
    stub.status.runtime_handlers.append(handler("", user_namespaces=True))
    node.running("web")
    options = stub.of(api.RunPodSandboxRequest)[-1].config.linux.security_context.namespace_options.userns_options
    assert options.mode == api.POD


@pytest.mark.requirement("U96", "U98")
def test_a_runtime_without_user_namespaces_that_takes_the_place_of_one_gets_no_pod_that_has_one(
    node: RunningNode, stub: StubRuntime
) -> None:
    """Neither the pods that ran, nor those that come: in another sandbox their root would be root of the node."""
    stub.status.runtime_handlers.append(handler("", user_namespaces=True))
    node.apply(web(hostUsers=False))
    node.running("web")
    stub.__exit__()
    node.until(lambda: "no runtime answers" in "".join(node.log), "the agent sees that it is away")
    del stub.status.runtime_handlers[:]
    stub.end_sandboxes()
    stub.__enter__()
    node.apply(web("new", hostUsers=False), web("plain"))
    for name in ("web", "new"):
        node.until(partial(refused, node, name), f"{name} is refused")
    node.running("plain")
    assert [request.config.metadata.name for request in stub.of(api.RunPodSandboxRequest)] == ["web", "plain"]
    stub.status.runtime_handlers.append(handler("", user_namespaces=True))
    node.pod("web", restarted, "runs again")
    node.running("new")


def test_a_sandbox_that_cannot_be_made_again_is_told_of_when_it_is_tried(node: RunningNode, stub: StubRuntime) -> None:
    """Not at each look in between: the events of a pod are limited, and why it fails must stay among them."""

    def count(reason: str) -> int:
        return sum(event["count"] for event in node.events("web") if event["reason"] == reason)

    node.apply(web())
    node.running("web")
    with stub.bent(RunPodSandbox=Internal("no room")):
        stub.end_sandboxes()
        node.until(lambda: count("FailedCreatePodSandBox") >= 2, "tried again, and counted")
        assert 1 <= count("SandboxChanged") <= count("FailedCreatePodSandBox") + 1
    node.pod("web", restarted, "runs again")


@pytest.mark.requirement("Q32", "Q86")
@pytest.mark.parametrize(
    "asked",
    [
        {"container": {"resources": {"classes": {"qos": "Burstable"}}}},
        {"resources": {"classes": {"share": "big"}}},
        {"container": {"resources": {"classes": {"share": "big"}}}, "hostUsers": False},
    ],
)
def test_a_pod_that_asks_a_runtime_for_a_class_it_does_not_know_of_never_runs(
    node: RunningNode, stub: StubRuntime, asked: dict[str, Any]
) -> None:
    """The runtime would ignore the field; a pod that asks for none runs, and its requests name none."""
    node.apply(web(**asked), web("plain"))
    status = node.phase("web", "Failed")["status"]
    assert status["reason"] == "ClassResourceUnavailable"
    assert NO_CLASSES in status["message"]
    node.running("plain")
    (sandbox,) = stub.of(api.RunPodSandboxRequest)
    (container,) = stub.of(api.CreateContainerRequest)
    assert sandbox.config.metadata.name == "plain"
    assert not sandbox.config.HasField("class_resources")
    assert not container.config.HasField("class_resources")


@pytest.mark.requirement("V47")
@pytest.mark.parametrize(
    "said", ['failed to stat "": no such file or directory', "mount.HostPath is empty"], ids=["containerd", "CRI-O"]
)
def test_a_runtime_that_does_not_know_image_volumes_runs_no_pod_that_has_one(
    node: RunningNode, stub: StubRuntime, said: str
) -> None:
    """The field is unknown to it, and there is no path that it could mount instead: the pod waits, and is told why."""

    def older(request: api.CreateContainerRequest, answer: Any) -> Any:
        for mount in request.config.mounts:
            mount.ClearField("image")  # as a runtime sees it that was made before it
            if not mount.host_path:
                raise Internal(said)
        return answer

    volume = {"volumes": [{"name": "v", "image": {"reference": "registry.test/data:1"}}]}
    with stub.bent(CreateContainer=older):
        node.apply(web(container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, **volume), web("plain"))
        node.running("plain")

        def failed() -> list[str]:
            return [event["message"] for event in node.events("web") if event["reason"] == "Failed"]

        node.until(failed, "the event")
        assert failed()[0].startswith("Error: image volumes are not supported by the runtime: ")
        node.pod("web", lambda found: waiting_reason(found) == "CreateContainerError", "waiting")
        asked = [item for item in stub.of(api.CreateContainerRequest) if item.sandbox_config.metadata.name == "web"]
        assert asked
        mounts = [mount for item in asked for mount in item.config.mounts if mount.container_path == "/v"]
        assert len(mounts) == len(asked)
        assert {mount.host_path for mount in mounts} == {""}, "nothing else is mounted in its place"
        assert stub.calls["StartContainer"] == 1, "that of the other pod"


# --------------------------------------------------------------------------------------------------- calls that hang


@pytest.mark.parametrize(
    "rpc",
    [
        "Status",
        "ListPodSandbox",
        "ListContainers",
        "RunPodSandbox",
        "PodSandboxStatus",
        "ImageStatus",
        "CreateContainer",
        "StartContainer",
        "ContainerStatus",
    ],
)
def test_a_call_that_hangs_is_given_up_and_made_again(node: RunningNode, stub: StubRuntime, rpc: str) -> None:
    node.apply(web("before"))
    node.running("before")
    with stub.hung(rpc):
        before = stub.calls[rpc]
        node.apply(web())
        node.until(lambda: stub.calls[rpc] > before + 1, f"{rpc} asked again")
    node.running("web")
    node.running("before")
    assert len(stub.of(api.RunPodSandboxRequest)) <= 2 + (rpc in {"RunPodSandbox", "PodSandboxStatus"})


@pytest.mark.parametrize("rpc", ["StopContainer", "StopPodSandbox", "RemovePodSandbox", "ListPodSandbox"])
def test_an_end_that_hangs_is_tried_until_it_is_one(node: RunningNode, stub: StubRuntime, rpc: str) -> None:
    node.apply(web())
    node.running("web")
    # Removing a sandbox ends it, whether it could be stopped or not.
    with stub.hung(rpc, "RemovePodSandbox"):
        before = stub.calls[rpc]
        node.delete("web")
        node.until(lambda: stub.calls[rpc] > before + 1, f"{rpc} asked again")
        assert node.get("web") is not None
    node.gone("web")
    assert stub.holds == []


# ------------------------------------------------------------------------------------- errors, and what cannot be so


def set_(**fields: Any) -> Callable[[Any, Any], Any]:
    """Return what gives the ``status`` of an answer other values."""

    def bend(_request: Any, answer: Any) -> Any:
        lie = type(answer)()
        lie.CopyFrom(answer)
        for name, value in fields.items():
            if value is None:
                lie.status.ClearField(name)
            elif isinstance(value, Message):
                getattr(lie.status, name).CopyFrom(value)
            else:
                setattr(lie.status, name, value)
        return lie

    return bend


@pytest.mark.parametrize("rpc", ["ListPodSandbox", "ListContainers", "ContainerStatus", "PodSandboxStatus", "Status"])
def test_a_pod_is_looked_at_again_after_any_error(node: RunningNode, stub: StubRuntime, rpc: str) -> None:
    """containerd answers with UNKNOWN what others call by a name: that says nothing about the pod."""
    node.apply(web())
    node.running("web")
    with stub.bent(**{rpc: Internal("something went wrong")}):
        before = stub.calls[rpc]
        stub.exit("main", 1)
        node.apply(web("second"))
        node.until(lambda: stub.calls[rpc] > before, f"{rpc} asked")
    node.pod("web", restarted, "started again")
    node.running("second")


def test_a_container_that_cannot_be_started_has_ended(node: RunningNode, stub: StubRuntime) -> None:
    """It is no less an end than another one: the restart policy says what comes of it, and its attempts are counted."""
    with stub.bent(StartContainer=stub.fails_to_start("no such program")):
        node.apply(web("again"), pod({"name": "main", "image": "registry.test/image:1"}, name="never"))
        never = node.phase("never", "Failed")
        again = node.pod("again", lambda it: it["status"]["containerStatuses"][0]["restartCount"] >= 2, "counted")
    (status,) = never["status"]["containerStatuses"]
    ended = status["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"], status["restartCount"]) == ("StartError", 128, 0)
    (status,) = again["status"]["containerStatuses"]
    waiting = status["state"]["waiting"]
    assert (waiting["reason"], waiting["message"]) == ("RunContainerError", "no such program")
    assert status["lastState"]["terminated"]["reason"] == "StartError"
    assert "Failed" in reasons(node, "again")
    # This attempt and the one before it, and of the other pod the only one.
    assert len(stub.containers) <= 3
    node.running("again")


def test_a_container_is_killed_after_its_hook_before_older_attempts_are_removed(
    node: RunningNode, stub: StubRuntime
) -> None:
    """What failed must not run on while the runtime is asked for something else."""
    calls: list[str] = []

    def noted(name: str) -> Callable[[Any, Any], Any]:
        def bend(_: Any, answer: Any) -> Any:
            calls.append(name)
            return answer

        return bend

    nobody = {"httpGet": {"host": "127.0.0.1", "port": 1}}
    names = ("StartContainer", "StopContainer", "RemoveContainer")
    with stub.bent(**{name: noted(name) for name in names}):
        node.apply(web(container={"lifecycle": {"postStart": nobody}}, terminationGracePeriodSeconds=1))
        node.until(lambda: "RemoveContainer" in calls, "an older attempt removed")
    assert calls[calls.index("RemoveContainer") - 2 :][:2] == ["StartContainer", "StopContainer"]


@pytest.mark.parametrize("rpc", ["StopPodSandbox", "RemovePodSandbox", "StopContainer"])
def test_a_step_that_fails_is_taken_again(node: RunningNode, stub: StubRuntime, rpc: str) -> None:
    node.apply(web())
    node.running("web")
    with stub.bent(**{rpc: Internal("device or resource busy")}):
        before = stub.calls[rpc]
        node.delete("web")
        node.until(lambda: stub.calls[rpc] > before, f"{rpc} asked")
    node.gone("web")


def test_a_sandbox_that_ended_and_cannot_be_stopped_is_replaced_once_it_can(
    node: RunningNode, stub: StubRuntime
) -> None:
    """A step that fails ends the work on the pod for a while, not for good."""
    node.apply(web())
    node.running("web")
    with stub.bent(StopPodSandbox=Internal("device or resource busy")):
        before = stub.calls["StopPodSandbox"]
        stub.end_sandboxes()
        node.until(lambda: stub.calls["StopPodSandbox"] > before + 2, "asked again")
        assert len(stub.of(api.RunPodSandboxRequest)) == 1
    node.pod("web", restarted, "started again")
    assert [request.config.metadata.attempt for request in stub.of(api.RunPodSandboxRequest)] == [0, 1]


@pytest.mark.parametrize(
    ("rpc", "bend"),
    [
        ("ContainerStatus", set_(state=ODD)),
        ("ContainerStatus", set_(stop_signal=400)),
        ("ContainerStatus", set_(started_at=2**63 - 1, created_at=-(2**63))),
        ("ContainerStatus", set_(metadata=None, labels=None, annotations=None)),
        ("ContainerStatus", set_(id="", image_ref="")),
        ("ContainerStatus", set_(reason="x" * (5 << 20))),
        ("ContainerStatus", set_(metadata=api.ContainerMetadata(name="main", attempt=(1 << 32) - 1))),
        ("ContainerStatus", lambda *_: api.ContainerStatusResponse()),
        ("PodSandboxStatus", lambda *_: api.PodSandboxStatusResponse()),
        ("PodSandboxStatus", set_(network=None)),
        ("RunPodSandbox", lambda *_: api.RunPodSandboxResponse()),
        ("CreateContainer", lambda *_: api.CreateContainerResponse()),
        ("ImageStatus", lambda *_: api.ImageStatusResponse(image=api.Image())),
        ("PullImage", lambda *_: api.PullImageResponse()),
        ("Status", lambda *_: api.StatusResponse()),
    ],
)
def test_an_answer_that_cannot_be_so_ends_nothing(
    node: RunningNode, stub: StubRuntime, rpc: str, bend: Callable[[Any, Any], Any]
) -> None:
    """While the runtime answers so, the pod may wait; when it answers as it should, the pod runs."""
    with stub.bent(**{rpc: bend}):
        before = stub.calls[rpc]
        node.apply(web())
        node.until(lambda: stub.calls[rpc] > before, f"{rpc} asked")
        node.until(lambda: stub.calls["ListPodSandbox"] > 3, "looked at")
    node.running("web")
    stub.exit("main", 1)
    node.pod("web", restarted, "started again")


def test_addresses_that_are_none_are_left_out(node: RunningNode, stub: StubRuntime) -> None:
    def bend(_request: Any, answer: Any) -> Any:
        lie = api.PodSandboxStatusResponse()
        lie.CopyFrom(answer)
        lie.status.network.ip = "no address"
        lie.status.network.additional_ips.add(ip="fd00::9")
        lie.status.network.additional_ips.add(ip="10.9.9.9\nevil")
        return lie

    with stub.bent(PodSandboxStatus=bend):
        node.apply(web())
        status = node.running("web")["status"]
    assert status["podIPs"] == [{"ip": "fd00::9"}]


def test_a_runtime_that_does_not_filter_shows_and_removes_no_other_pod(node: RunningNode, stub: StubRuntime) -> None:
    """The lists hold everything, whatever was asked for."""
    node.apply(web(), web("other"))
    node.running("web")
    kept = node.running("other")
    with stub.bent(ListPodSandbox=stub.unfiltered("ListPodSandbox"), ListContainers=stub.unfiltered("ListContainers")):
        node.delete("web")
        node.gone("web")
        assert node.running("other")["status"]["containerStatuses"] == kept["status"]["containerStatuses"]
    assert [request.config.metadata.name for request in stub.of(api.RunPodSandboxRequest)] in (
        ["web", "other"],
        ["other", "web"],
    )
