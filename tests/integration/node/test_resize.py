"""Resources of pods on a node: cgroups, in-place resize, what waits until there is room."""

from __future__ import annotations

from typing import Any

from agent.manifests import FOREVER, pod, shell

from podkeep.kernel.cgroup.cgroups import Cgroups
from support.running_node import RunningNode
from support.waiting import TIMEOUT_S


def asking(image: str, name: str = "web", policy: tuple[str, ...] = (), **resources: Any) -> dict[str, Any]:
    """Return a pod that runs until it is deleted; ``policy``: resources whose change restarts it."""
    container = shell(image, FOREVER) | {
        "resources": resources,
        "resizePolicy": [{"resourceName": item, "restartPolicy": "RestartContainer"} for item in policy],
    }
    return pod(container, name=name, restartPolicy="Always")


def resize(node: RunningNode, name: str, **resources: Any) -> None:
    """Ask for other resources of the container ``main``."""
    change = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    node.patch(name, change, subresource="resize")


def status(found: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = found["status"]["containerStatuses"][0]
    return value


def condition(found: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((item for item in found["status"].get("conditions", ()) if item["type"] == kind), None)


def read(node: RunningNode, uid: str, level: str, name: str) -> str:
    """Return a file of the cgroup of a pod."""
    path = f"{node.daemon.cgroup_parent}{level}/pod{uid}"
    return (Cgroups().read(path, name) or "").strip()


def has(found: dict[str, Any], kind: str, name: str, text: str) -> bool:
    """Return whether a pod's container has a resource, as its status says, and nothing is being changed."""
    resources = status(found).get("resources", {}).get(kind, {})
    return resources.get(name) == text and condition(found, "PodResizeInProgress") is None


def test_the_cgroup_of_a_pod_has_its_limits(node: RunningNode, image: str) -> None:
    """CPU, memory and shares of a pod are those of its containers; the class of Burstable pods weighs what they do."""
    node.apply(
        asking(image, "one", limits={"cpu": "500m", "memory": "64Mi"}),
        asking(image, "two", requests={"cpu": "250m"}),
        asking(image, "three", requests={"cpu": "500m"}),
    )
    uids = {name: node.running(name)["metadata"]["uid"] for name in ("one", "two", "three")}

    assert read(node, uids["one"], "", "cpu.shares") == "512"
    assert read(node, uids["one"], "", "cpu.cfs_quota_us") == "50000"
    assert read(node, uids["one"], "", "memory.limit_in_bytes") == str(64 << 20)
    assert read(node, uids["two"], "/burstable", "cpu.cfs_quota_us") == "-1"
    level = f"{node.daemon.cgroup_parent}/burstable"
    assert (Cgroups().read(level, "cpu.shares") or "").strip() == str(256 + 512)


def test_a_pod_whose_agent_was_killed_before_its_cgroup_had_limits_gets_them(node: RunningNode, image: str) -> None:
    node.end_agent()
    node.environment = {"PODKEEP_FAILPOINTS": "agent.cgroup.made=kill"}
    node.start_agent()
    node.apply(asking(image, limits={"cpu": "100m", "memory": "64Mi"}))
    assert node.agent is not None
    node.agent.wait(TIMEOUT_S)
    node.end_agent()
    node.environment = {}

    node.start_agent()

    uid = node.running("web")["metadata"]["uid"]
    assert read(node, uid, "", "memory.limit_in_bytes") == str(64 << 20)


def test_a_resize_changes_a_container_that_runs(node: RunningNode, image: str) -> None:
    """More CPU and less memory are given to the same container, and the status follows."""
    node.apply(asking(image, requests={"cpu": "100m", "memory": "32Mi"}, limits={"cpu": "200m", "memory": "128Mi"}))
    before = node.running("web")

    resize(node, "web", requests={"cpu": "300m", "memory": "32Mi"}, limits={"cpu": "400m", "memory": "64Mi"})

    after = node.pod("web", lambda found: has(found, "limits", "cpu", "400m"), "resized")
    assert status(after)["containerID"] == status(before)["containerID"]
    assert status(after)["resources"]["limits"] == {"cpu": "400m", "memory": "64Mi"}
    assert status(after)["allocatedResources"] == {"cpu": "300m", "memory": "32Mi"}
    uid = after["metadata"]["uid"]
    assert read(node, uid, "/burstable", "cpu.cfs_quota_us") == "40000"
    assert read(node, uid, "/burstable", "memory.limit_in_bytes") == str(64 << 20)
    node.until(lambda: {"ResizeStarted", "ResizeCompleted"} <= reasons(node, "web"), "events of the resize")


def reasons(node: RunningNode, name: str) -> set[str]:
    return {event["reason"] for event in node.events(name)}


def test_a_resize_restarts_a_container_that_asks_for_it(node: RunningNode, image: str) -> None:
    """With ``resizePolicy: RestartContainer`` the container is started anew with what it was granted."""
    node.apply(asking(image, policy=("memory",), requests={"memory": "32Mi"}))
    before = node.running("web")

    resize(node, "web", requests={"memory": "48Mi"})

    after = node.pod("web", lambda found: status(found)["restartCount"] == 1, "restarted")
    assert status(after)["containerID"] != status(before)["containerID"]
    node.pod("web", lambda found: has(found, "requests", "memory", "48Mi"), "resized")


def test_a_resize_that_comes_while_a_container_starts_is_not_lost(node: RunningNode, image: str) -> None:
    """A container runs while its postStart hook does, with what it was created with."""
    until_told = {"exec": {"command": ["sh", "-c", "until test -e /go; do sleep 0.05; done"]}}
    requests = {"cpu": "50m", "memory": "32Mi"}
    manifest = asking(image, requests=requests, limits={"cpu": "100m", "memory": "128Mi"})
    manifest["spec"]["containers"][0]["lifecycle"] = {"postStart": until_told}
    node.apply(manifest)
    node.until(lambda: "Started" in reasons(node, "web"), "the container that has not started yet")

    resize(node, "web", requests=requests, limits={"cpu": "100m", "memory": "64Mi"})
    node.until(lambda: "ResizeStarted" in reasons(node, "web"), "the resize")
    assert node.daemon.run("exec", "web", "--", "touch", "/go").returncode == 0

    node.until(lambda: "ResizeCompleted" in reasons(node, "web"), "the end of the resize")
    after = node.pod("web", lambda found: has(found, "limits", "memory", "64Mi"), "resized")
    assert status(after)["restartCount"] == 0
    assert read(node, after["metadata"]["uid"], "/burstable", "memory.limit_in_bytes") == str(64 << 20)


def test_what_there_is_no_room_for_waits_until_there_is(node: RunningNode, image: str) -> None:
    """A resize beyond the node is deferred, kept over a restart of the agent, and granted when another pod ends."""
    node.apply(asking(image, requests={"cpu": "100m"}), asking(image, "other", requests={"cpu": "1"}))
    node.running("web")
    node.running("other")

    resize(node, "web", requests={"cpu": "1500m"})

    waiting = node.pod("web", lambda found: condition(found, "PodResizePending"), "deferred")
    said = condition(waiting, "PodResizePending")
    assert said is not None
    assert said["reason"] == "Deferred"
    assert said["message"].startswith("Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: ")
    assert status(waiting)["allocatedResources"] == {"cpu": "100m"}

    node.end_agent()
    node.start_agent()
    again = node.pod("web", lambda found: condition(found, "PodResizePending"), "deferred still")
    assert status(again)["allocatedResources"] == {"cpu": "100m"}

    node.delete("other")
    granted = node.pod("web", lambda found: has(found, "requests", "cpu", "1500m"), "granted")
    assert condition(granted, "PodResizePending") is None


def test_what_waits_is_granted_when_another_pod_asks_for_less(node: RunningNode, image: str) -> None:
    node.apply(asking(image, requests={"cpu": "100m"}), asking(image, "other", requests={"cpu": "1"}))
    node.running("web")
    node.running("other")
    resize(node, "web", requests={"cpu": "1500m"})
    node.pod("web", lambda found: condition(found, "PodResizePending"), "deferred")

    resize(node, "other", requests={"cpu": "100m"})

    granted = node.pod("web", lambda found: has(found, "requests", "cpu", "1500m"), "granted")
    assert condition(granted, "PodResizePending") is None


def test_what_the_node_never_has_is_infeasible(node: RunningNode, image: str) -> None:
    node.apply(asking(image, requests={"cpu": "100m"}))
    node.running("web")
    resize(node, "web", requests={"cpu": "1000"})
    said = condition(node.pod("web", lambda found: condition(found, "PodResizePending"), "refused"), "PodResizePending")
    assert said is not None
    assert said["reason"] == "Infeasible"
    assert said["message"].startswith("Node didn't have enough capacity: cpu, requested: 1000000, capacity: ")
    resize(node, "web", requests={"cpu": "200m"})
    node.pod("web", lambda found: has(found, "requests", "cpu", "200m"), "granted")


def test_a_pod_that_asks_for_more_than_there_is_fails(node: RunningNode, image: str) -> None:
    """A pod that is bound to the node and does not fit is Failed, with a kubelet's reason."""
    node.apply(asking(image, requests={"cpu": "1000"}))

    failed = node.phase("web", "Failed")

    assert failed["status"]["reason"] == "OutOfcpu"
    assert failed["status"]["message"].startswith("Pod was rejected: Node didn't have enough resource: cpu, requested")
    assert failed["status"]["startTime"] >= failed["metadata"]["creationTimestamp"]
    # A kubelet says nothing else of it, and takes back that it was scheduled (mergePodStatus).
    assert "conditions" not in failed["status"]


def test_a_resize_of_a_container_that_has_ended_is_completed(node: RunningNode, image: str) -> None:
    """It does not run, so there is nothing to be changed, and the pod does not stay in progress for ever."""
    amounts = {"requests": {"cpu": "10m", "memory": "16Mi"}}
    done = shell(image, "true") | {"name": "done", "resources": amounts}
    manifest = pod(shell(image, FOREVER) | {"resources": amounts}, restartPolicy="Never")
    manifest["spec"]["containers"].append(done)
    node.apply(manifest)
    node.pod("web", has_ended("done"), "the end of one container")

    change = {"containers": [{"name": "done", "resources": {"requests": {"cpu": "20m", "memory": "16Mi"}}}]}
    node.patch("web", {"spec": change}, subresource="resize")

    node.until(lambda: {"ResizeStarted", "ResizeCompleted"} <= reasons(node, "web"), "the end of the resize")
    node.pod("web", lambda found: condition(found, "PodResizeInProgress") is None, "told to be over")


def has_ended(name: str) -> Any:
    def ended(found: dict[str, Any]) -> bool:
        return any(
            item["name"] == name and "terminated" in item["state"]
            for item in found["status"].get("containerStatuses", ())
        )

    return ended


def test_a_resize_changes_an_init_container_that_runs(node: RunningNode, image: str) -> None:
    amounts = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}
    manifest = asking(image, **amounts)
    manifest["spec"]["initContainers"] = [shell(image, FOREVER, name="first", resources=amounts)]
    node.apply(manifest)
    node.until(lambda: "Started" in reasons(node, "web"), "the init container")

    more = amounts | {"limits": {"cpu": "100m", "memory": "48Mi"}}
    node.patch("web", {"spec": {"initContainers": [{"name": "first", "resources": more}]}}, subresource="resize")

    node.until(lambda: {"ResizeStarted", "ResizeCompleted"} <= reasons(node, "web"), "the end of the resize")

    def limit(found: dict[str, Any]) -> bool:
        (first,) = found["status"]["initContainerStatuses"]
        return bool(first["resources"]["limits"]["memory"] == "48Mi" and first["restartCount"] == 0)

    node.pod("web", limit, "told as resized")


def test_an_init_container_is_granted_no_more_than_the_node_has(node: RunningNode, image: str) -> None:
    """Also after its end, when it counts for what the pod asks for: other pods would find no room."""
    first = shell(image, "true") | {"name": "first", "resources": {"requests": {"cpu": "10m"}}}
    manifest = asking(image, requests={"cpu": "10m"})
    manifest["spec"]["initContainers"] = [first]
    node.apply(manifest)
    node.running("web")

    change = {"initContainers": [{"name": "first", "resources": {"requests": {"cpu": "5000"}}}]}
    node.patch("web", {"spec": change}, subresource="resize")

    node.pod("web", lambda found: (condition(found, "PodResizePending") or {}).get("reason") == "Infeasible", "refused")
    node.apply(asking(image, name="other", requests={"cpu": "10m"}))
    node.running("other")
