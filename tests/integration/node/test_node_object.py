"""The Node object of a node that runs: what is in it, what keeps it, and what happens to it."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from agent.manifests import FOREVER, pod, shell

from support.running_node import RunningNode


def the_node(node: RunningNode) -> dict[str, Any]:
    found: dict[str, Any] = node.ask("GET", f"/api/v1/nodes/{node.name}")
    return found


def reasons(node: RunningNode) -> list[str]:
    """Return the reasons of the events about the node."""
    events = node.ask("GET", f"/api/v1/events?fieldSelector=involvedObject.kind=Node,involvedObject.name={node.name}")
    return [event["reason"] for event in events["items"]]


def uids(node: RunningNode) -> list[str]:
    return [item["metadata"]["uid"] for item in node.ask("GET", "/api/v1/nodes")["items"]]


def ready(node: RunningNode) -> bool:
    conditions = {item["type"]: item["status"] for item in the_node(node)["status"].get("conditions", ())}
    return conditions == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}


def test_the_node_says_what_it_is(node: RunningNode) -> None:
    """A node registers with its labels, and reports everything that a kubelet does."""
    node.until(lambda: ready(node), "ready")
    found = the_node(node)
    assert (
        found["metadata"]["labels"] | {"kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux"}
        == (found["metadata"]["labels"])
    )
    status = found["status"]
    assert {"cpu", "memory", "pods", "ephemeral-storage"} <= status["capacity"].keys()
    assert status["capacity"]["pods"] == "110"
    info = status["nodeInfo"]
    assert info["kernelVersion"] == os.uname().release
    assert info["kubeletVersion"].startswith("v1.36.0+podkeep-")
    assert info["containerRuntimeVersion"].startswith("podkeep://")
    assert info["bootID"]
    assert "" in [handler["name"] for handler in status["runtimeHandlers"]]
    assert status["features"] == {"supplementalGroupsPolicy": True}
    assert "RestartAllContainersOnContainerExits" in status["declaredFeatures"]
    assert {"type": "Hostname", "address": node.name} in status["addresses"]
    node.until(lambda: {"Starting", "NodeHasSufficientMemory"} <= set(reasons(node)), "events")


def test_the_lease_is_the_nodes(node: RunningNode) -> None:
    """The lease belongs to the Node and is renewed."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    path = f"{leases}/{node.name}"
    node.until(lambda: node.ask("GET", leases)["items"], "there")  # the agent writes it when it knows the Node
    lease = node.ask("GET", path)
    assert lease["spec"]["holderIdentity"] == node.name
    assert lease["spec"]["leaseDurationSeconds"] == 40
    (owner,) = lease["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", the_node(node)["metadata"]["uid"])
    renewed = lease["spec"]["renewTime"]
    node.until(lambda: node.ask("GET", path)["spec"]["renewTime"] > renewed, "renewed")


def test_what_others_do_to_the_node(node: RunningNode) -> None:
    """Who takes it for lost is corrected, who cordons it is told, and a Node that is deleted is made again."""
    node.until(lambda: ready(node), "ready")
    path = f"/api/v1/nodes/{node.name}"
    lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
    node.ask("PATCH", f"{path}/status", lost, media="application/strategic-merge-patch+json")
    node.until(lambda: ready(node), "ready again")
    node.until(lambda: "NodeReady" in reasons(node), "it says so")
    node.ask("PATCH", path, {"spec": {"unschedulable": True}}, media="application/merge-patch+json")
    node.until(lambda: "NodeNotSchedulable" in reasons(node), "it says so")
    uid = the_node(node)["metadata"]["uid"]
    node.ask("DELETE", path)
    node.until(lambda: uids(node) not in ([], [uid]), "made again")
    node.until(lambda: ready(node), "ready")


def test_the_node_has_the_address_that_the_machine_has_by_now(node: RunningNode, image: str) -> None:
    """A network gives it another one (DHCP): the Node tells it, and who asks there for logs finds the kubelet."""
    node.apply(pod(shell(image, f"echo hello; {FOREVER}")))
    node.running("web")

    def addresses() -> list[str]:
        return [item["address"] for item in the_node(node)["status"]["addresses"] if item["type"] == "InternalIP"]

    def log() -> int:
        client = node.connection()
        try:
            return client.ask("GET", "/api/v1/namespaces/default/pods/web/log").status
        finally:
            client.close()

    before = addresses()
    for command in (
        "link add moved0 type veth peer name moved1",
        "link set moved1 up",
        "link set moved0 up",
        "address add 192.0.2.50/24 dev moved0",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    try:
        node.until(lambda: addresses() == ["192.0.2.50"], "the new address")
        node.until(lambda: log() == 200, "logs from the new address")
    finally:
        subprocess.run(["ip", "link", "del", "moved0"], check=True)
    assert before != ["192.0.2.50"]
