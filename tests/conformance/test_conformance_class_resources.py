"""QoS-class resources on the wire: runtimes and clients that were built without them notice nothing (KEP-3008).

Against the reference these tests show how a runtime without the additions takes them, which is why a client has to
look at what ``Status`` reports before it trusts a runtime with a class.
"""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.base.errors import InvalidArgument, Unimplemented
from podkeep.cri.v1 import api_pb2 as api
from support.class_types import container_classes, in_force, pod_classes
from support.cri import pod
from support.endpoint import Node
from support.stock_client import StockClient

POD_CLASS = pod_classes(qos="Burstable")
CONTAINER_CLASS = container_classes(qos="Burstable")


def with_class(name: str = "pod") -> api.PodSandboxConfig:
    config = pod(name)
    config.class_resources.CopyFrom(POD_CLASS)
    return config


@pytest.fixture
def stock(node: Node) -> StockClient:
    """A client that knows no addition, of the same runtime."""
    return StockClient(node.endpoint.socket)


@pytest.mark.requirement("Q7", "Q10", "Q11", "Q86")
def test_a_client_without_the_additions_runs_a_pod(node: Node, stock: StockClient) -> None:
    """It works beside a client that uses them: what it sees of the other's pods is what it always saw."""
    theirs = node.launch(node.run(with_class("other")), class_resources=CONTAINER_CLASS)
    config = pod("stock")
    config.linux.cgroup_parent = node.endpoint.cgroup_parent
    request = stock.make("RunPodSandboxRequest", config=stock.like(config))
    sandbox = node.adopt(stock.call("RunPodSandbox", request).pod_sandbox_id, config)
    create = stock.like(node.create_request(sandbox, resources=api.LinuxContainerResources(cpu_shares=512)))
    container = stock.call("CreateContainer", create).container_id
    stock.call("StartContainer", stock.make("StartContainerRequest", container_id=container))
    update = stock.make("UpdateContainerResourcesRequest", container_id=container, linux={"cpu_shares": 256})
    stock.call("UpdateContainerResources", update)
    for identity in (container, theirs):
        status = stock.call(
            "ContainerStatus", stock.make("ContainerStatusRequest", container_id=identity, verbose=True)
        )
        assert status.status.state == api.CONTAINER_RUNNING
        assert _without_unknown_fields(status)
    listed = stock.call("ListContainers", stock.make("ListContainersRequest"))
    assert {container, theirs} <= {item.id for item in listed.containers}
    sandboxes = stock.call("ListPodSandbox", stock.make("ListPodSandboxRequest"))
    assert sandbox in {item.id for item in sandboxes.items}
    stock.call("StopPodSandbox", stock.make("StopPodSandboxRequest", pod_sandbox_id=sandbox))
    stock.call("RemovePodSandbox", stock.make("RemovePodSandboxRequest", pod_sandbox_id=sandbox))
    node.forget(sandbox)


def _without_unknown_fields(message: Any) -> bool:
    before = message.SerializeToString()
    message.DiscardUnknownFields()
    return bool(message.SerializeToString() == before)


@pytest.mark.requirement("Q11", "Q86")
def test_a_client_without_the_additions_reads_the_status(node: Node, stock: StockClient) -> None:
    status = stock.call("Status", stock.make("StatusRequest", verbose=True))
    assert {item.type: item.status for item in status.status.conditions}["RuntimeReady"]
    again = api.StatusResponse.FromString(status.SerializeToString())
    # What it does not know it passes on, if it passes on the answer.
    assert again.status.resources == node.runtime_status().status.resources


@pytest.mark.requirement("Q7", "Q8", "Q10", "Q86")
def test_classes_in_requests_do_no_harm(node: Node) -> None:
    """A runtime without the additions loses them without a word; one that has them takes them."""
    sandbox = node.run(with_class())
    container = node.launch(sandbox, class_resources=CONTAINER_CLASS)
    request = api.UpdateContainerResourcesRequest(
        container_id=container, linux=api.LinuxContainerResources(cpu_shares=512), class_resources=CONTAINER_CLASS
    )
    node.call("UpdateContainerResources", request)
    assert node.status(container).state == api.CONTAINER_RUNNING
    assert node.read(container, "echo runs") == "runs"
    if not node.endpoint.is_reference:
        assert in_force(node, container=container) == {"qos": "Burstable"}
        assert in_force(node, sandbox=sandbox) == {"qos": "Burstable"}


@pytest.mark.requirement("Q5", "Q86")
@pytest.mark.reference(differs="a class that nobody knows is lost, and the container runs without it")
def test_a_class_that_nobody_knows_is_refused(node: Node) -> None:
    sandbox = node.run()
    wrong = container_classes(nosuch="gold")
    message = node.refused(lambda: node.create(sandbox, class_resources=wrong), InvalidArgument)
    assert message.startswith("class resource nosuch: ")


@pytest.mark.requirement("Q11", "Q86")
def test_discovery_tells_whether_classes_mean_anything(node: Node) -> None:
    """Without this a pod would run outside its class, and nobody would know."""
    status = node.runtime_status().status
    assert status.HasField("resources") != node.endpoint.is_reference
    offered = {item.Name for item in status.resources.container_class_resources}
    assert ("qos" in offered) != node.endpoint.is_reference


@pytest.mark.requirement("Q17", "Q86")
def test_an_update_of_a_pods_classes_where_there_are_none(node: Node) -> None:
    sandbox = node.run()
    request = api.UpdatePodSandboxConfigRequest(pod_sandbox_id=sandbox)
    request.config.class_resources.CopyFrom(POD_CLASS)
    if node.endpoint.is_reference:
        with pytest.raises(Unimplemented):
            node.call("UpdatePodSandboxConfig", request)
    else:
        node.call("UpdatePodSandboxConfig", request)
        assert in_force(node, sandbox=sandbox) == {"qos": "Burstable"}
    assert node.pod_status(sandbox).status.state == api.SANDBOX_READY
