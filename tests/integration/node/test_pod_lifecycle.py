"""A pod of the API on a node: it runs, says so, and leaves nothing."""

from __future__ import annotations

from agent.manifests import pod, shell

from support.running_node import RunningNode


def test_pod_runs_until_it_is_deleted(node: RunningNode, image: str) -> None:
    """A pod that is applied is Running with an address; deleted, nothing of it is left anywhere."""
    before = node.daemon.resources()
    node.apply(pod(shell(image, "sleep 1000"), restartPolicy="Always"))
    running = node.running("web")
    assert running["status"]["podIP"]
    assert running["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    node.delete("web")
    node.gone("web")
    assert node.left_behind() == []
    assert node.daemon.resources().after_a_restart() == before.after_a_restart()
