"""PodDisruptionBudgets of pods that run: what ``kubectl drain`` may do, and what it is told."""

from __future__ import annotations

from agent.manifests import FOREVER, pod, shell

from support.running_node import RunningNode


def test_a_budget_lets_kubectl_drain_as_many_pods_as_it_may(node: RunningNode, image: str) -> None:
    """One of two goes, the other when the budget does not need it any more."""
    for name in ("one", "two"):
        node.apply(pod(shell(image, FOREVER), name=name, restartPolicy="Always"))
        node.running(name)
    node.api.kubectl("label", "pods", "one", "two", "app=web")
    node.api.kubectl("create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=1")
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web"
    node.until(lambda: node.ask("GET", path)["status"]["disruptionsAllowed"] == 1, "one may go")
    try:
        refused = drain(node, "5s", status=1)
        assert "Cannot evict pod as it would violate the pod's disruption budget." in refused
        (left,) = node.api.kubectl("get", "pods", "-o", "name").split()
        status = node.ask("GET", path)["status"]
        numbers = [status[name] for name in ("expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed")]
        assert numbers == [1, 1, 1, 0]
        node.api.kubectl("patch", "poddisruptionbudget", "web", "-p", '{"spec": {"minAvailable": 0}}')
        assert f"{left} evicted" in drain(node, "100s")
        assert node.api.kubectl("get", "pods", "-o", "name") == ""
    finally:
        node.api.kubectl("uncordon", node.name)
        node.api.kubectl("delete", "poddisruptionbudget", "web")


def drain(node: RunningNode, timeout: str, status: int = 0) -> str:
    """Run ``kubectl drain``, and return what it said: the pods have no controller, so that it must be told to go on."""
    return node.api.kubectl("drain", node.name, "--force", f"--timeout={timeout}", status=status)
