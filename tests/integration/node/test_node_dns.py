"""The node's own name servers: none on purpose, and a file that cannot be read."""

from __future__ import annotations

from typing import Any

from agent.manifests import pod, shell

from support.running_node import RunningNode

LOOK = "cat /etc/resolv.conf"


def test_a_node_without_name_servers(own_node: RunningNode, image: str) -> None:
    """Names are looked up nowhere, as on a kubelet with ``resolvConf: ""``."""
    own_node.settings = ('agent.resolv_conf=""',)
    with own_node as node:
        node.apply(pod(shell(image, LOOK)))
        node.phase("web", "Succeeded")
        assert set(node.written("web").split("\n")) == {"search .", "nameserver 127.0.0.1"}


def test_name_servers_that_cannot_be_read(own_node: RunningNode, image: str) -> None:
    """The pod says why it waits, whether it has a sandbox already or not, and runs when they can be read again."""
    file = own_node.daemon.base / "resolv.conf"
    own_node.settings = (f"agent.resolv_conf={file}",)
    with own_node as node:
        node.apply(pod(shell(image, "exit 1"), name="again", restartPolicy="OnFailure"))
        node.pod("again", lambda found: restarts(found) > 0, "started again")
        node.end_agent()
        file.mkdir()
        node.start_agent()
        node.apply(pod(shell(image, LOOK)))
        why = f"agent.resolv_conf: {file} cannot be read: Is a directory"
        said = f"Failed to create pod sandbox: {why}"
        node.until(lambda: any(event["message"] == said for event in node.events("web")), "why it waits")
        error = f"Error: {why}"
        node.until(lambda: any(event["message"] == error for event in node.events("again")), "why it is not started")
        file.rmdir()
        file.write_text("nameserver 192.0.2.1\n")
        node.phase("web", "Succeeded")
        assert node.written("web") == "nameserver 192.0.2.1"


def restarts(found: dict[str, Any]) -> int:
    """Return how often the pod's container was started again."""
    statuses = found["status"].get("containerStatuses") or [{}]
    return int(statuses[0].get("restartCount", 0))
