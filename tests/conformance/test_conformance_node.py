"""A node on whichever runtime there is: ``podkeep agent`` runs the pods of an API, knowing it by CRI alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.endpoint import Attached, Endpoint, Node
from support.running_node import RunningNode

FOREVER = "trap 'exit 0' TERM; sleep 99999 & wait"
VOLUME = [{"name": "shared", "mountPath": "/shared"}]


def shell(node: Node, script: str, name: str = "main", **more: Any) -> dict[str, Any]:
    """Return a container that runs ``script``."""
    return {"name": name, "image": node.image, "command": ["sh", "-c", script]} | more


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a pod, which is named ``web``."""
    base = {"terminationGracePeriodSeconds": 5, "containers": list(containers)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": base | spec}


def restarts(found: dict[str, Any]) -> int:
    """Return how often the first container was started again."""
    count: int = found["status"]["containerStatuses"][0]["restartCount"]
    return count


@pytest.fixture
def machine(node: Node, endpoint: Endpoint, host_directory: Path) -> Iterator[RunningNode]:
    """A node whose runtime is the endpoint; when its pods are deleted, nothing of them may be left."""
    host_directory.chmod(0o711)
    with RunningNode(Attached(endpoint, host_directory)) as running:
        yield running
        for item in running.ask("GET", "/api/v1/pods")["items"]:
            running.delete(item["metadata"]["name"])
        running.until(lambda: not running.ask("GET", "/api/v1/pods")["items"], "all pods gone")
        running.until(lambda: running.left_behind() == [], f"nothing left: {running.left_behind()}")
        assert node.sandboxes() == []


def test_a_pod_with_an_init_container_a_sidecar_and_probes(machine: RunningNode, node: Node) -> None:
    """Applied, it is ready when its probes say so; logs and commands reach it; deleted, it is gone, sidecar last."""
    first = shell(node, "echo page >/shared/index.html", "first", volumeMounts=VOLUME)
    started = {"exec": {"command": ["test", "-e", "/shared/up"]}, "periodSeconds": 1}
    leave = "trap 'cat /shared/last; exit 0' TERM; touch /shared/up; sleep 99999 & wait"
    sidecar = shell(node, leave, "side", restartPolicy="Always", startupProbe=started, volumeMounts=VOLUME)
    serve = "trap 'echo bye >/shared/last; exit 0' TERM; test -e /shared/up && echo serving; httpd -p 8080 -h /shared; "
    main = shell(
        node,
        f"{serve}sleep 99999 & wait",
        volumeMounts=VOLUME,
        readinessProbe={"httpGet": {"port": 8080, "path": "/index.html"}, "periodSeconds": 1},
        livenessProbe={"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    )
    machine.apply(pod(main, initContainers=[first, sidecar], volumes=[{"name": "shared", "emptyDir": {}}]))
    status = machine.running("web")["status"]
    assert status["podIP"]
    ended, beside = status["initContainerStatuses"]
    assert (ended["state"]["terminated"]["exitCode"], beside["started"], restarts({"status": status})) == (0, True, 0)
    kubectl = machine.api.kubectl
    assert kubectl("logs", "web", "-c", "main") == "serving\n"
    assert kubectl("exec", "web", "-c", "main", "--", "wget", "-qO-", "127.0.0.1:8080") == "page\n"
    assert kubectl("exec", "-i", "web", "-c", "side", "--", "cat", stdin="through\n") == "through\n"
    assert "exit code 7" in kubectl("exec", "web", "-c", "main", "--", "sh", "-c", "exit 7", status=7)
    machine.delete("web")
    (log,) = (machine.daemon.base / "logs").glob("default_web_*/side/0.log")
    with log.open() as held:  # the file goes with the pod
        machine.gone("web")
        assert "bye" in held.read()


def test_a_container_that_ends_is_started_again(machine: RunningNode, node: Node) -> None:
    machine.apply(pod(shell(node, f"echo this is attempt $(cat /proc/sys/kernel/random/uuid); {FOREVER}")))
    before = machine.running("web")
    said = machine.api.kubectl("logs", "web")
    # With the container's first process this one ends, in whichever way it is by then.
    machine.api.kubectl("exec", "web", "--", "sh", "-c", "kill -TERM 1", status=None)
    machine.pod("web", lambda found: restarts(found) == 1 and found["status"]["phase"] == "Running", "started again")
    after = machine.running("web")
    (last,) = (item["lastState"]["terminated"] for item in after["status"]["containerStatuses"])
    assert (last["exitCode"], after["status"]["podIP"]) == (0, before["status"]["podIP"])
    assert machine.api.kubectl("logs", "web", "--previous") == said
    assert machine.api.kubectl("logs", "web") != said


def test_a_container_that_is_not_alive_is_started_again(machine: RunningNode, node: Node) -> None:
    alive = {"exec": {"command": ["test", "!", "-e", "/tmp/dead"]}, "periodSeconds": 1, "failureThreshold": 1}
    machine.apply(pod(shell(node, f"mkdir -p /tmp; {FOREVER}", livenessProbe=alive)))
    machine.running("web")
    machine.api.kubectl("exec", "web", "--", "touch", "/tmp/dead")
    machine.pod("web", lambda found: restarts(found) == 1, "started again")
    machine.running("web")
    assert "Unhealthy" in [event["reason"] for event in machine.events("web")]


def test_a_pod_that_ends_says_how(machine: RunningNode, node: Node) -> None:
    document = pod(shell(node, "echo why >/dev/termination-log; exit 3"), restartPolicy="Never")
    machine.apply(document)
    failed = machine.phase("web", "Failed")
    ended = failed["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "why\n")


def test_pods_outlive_their_agent(machine: RunningNode, node: Node) -> None:
    machine.apply(pod(shell(node, FOREVER)))
    before = machine.running("web")["status"]["containerStatuses"]
    machine.end_agent(signal.SIGKILL)
    machine.start_agent()
    machine.patch("web", {"metadata": {"labels": {"seen": "again"}}})
    assert machine.running("web")["status"]["containerStatuses"] == before
    machine.delete("web")
    machine.gone("web")


def test_a_node_shows_what_its_runtime_can(machine: RunningNode, endpoint: Endpoint) -> None:
    """A runtime without handlers, features and classes has a node without them."""
    found = machine.ask("GET", f"/api/v1/nodes/{machine.name}")
    status = found["status"]
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith(f"{endpoint.name}://")
    shown = [key for key in ("runtimeHandlers", "features", "containerClassResources") if status.get(key)]
    assert shown == ([] if endpoint.is_reference else ["runtimeHandlers", "features", "containerClassResources"])


def test_a_user_namespace_is_given_or_the_pod_waits(machine: RunningNode, node: Node, endpoint: Endpoint) -> None:
    machine.apply(pod(shell(node, f"cat /proc/self/uid_map; {FOREVER}"), hostUsers=False))
    if not endpoint.is_reference:
        machine.running("web")
        assert machine.api.kubectl("logs", "web").split()[:2] != ["0", "0"]
        return
    text = "Failed to create pod sandbox: user namespaces is not supported by the runtime"

    def failed() -> list[dict[str, Any]]:
        return [event for event in machine.events("web") if event["reason"] == "FailedCreatePodSandBox"]

    machine.until(lambda: failed() and failed()[0]["count"] > 1, "tried again, and counted")
    (event,) = failed()
    assert (event["type"], event["message"]) == ("Warning", text)
    assert "ContainerCreating" in machine.api.kubectl("get", "pod", "web")
    assert node.sandboxes() == []


def test_a_class_is_given_or_the_pod_fails(machine: RunningNode, node: Node, endpoint: Endpoint) -> None:
    """A runtime that knows of no classes would run the pod without a word (KEP-3008, Dependencies)."""
    asked = {"resources": {"classes": {"qos": "BestEffort"}}}
    machine.apply(pod(shell(node, "true", **asked), restartPolicy="Never"))
    if endpoint.is_reference:
        status = machine.phase("web", "Failed")["status"]
        assert status["reason"] == "ClassResourceUnavailable"
        assert "the runtime reports no class resources at all" in status["message"]
        assert node.sandboxes() == []
    else:
        assert machine.phase("web", "Succeeded")["status"]["qosClass"] == "BestEffort"


def test_an_image_volume_is_there_or_the_pod_waits(machine: RunningNode, node: Node, endpoint: Endpoint) -> None:
    volume = {"name": "shared", "image": {"reference": node.image}}
    machine.apply(
        pod(shell(node, "ls /shared/bin/busybox", volumeMounts=VOLUME), volumes=[volume], restartPolicy="Never")
    )
    if endpoint.is_reference:
        found = machine.pod(
            "web",
            lambda found: (
                [
                    item["state"]["waiting"]["reason"]
                    for item in found["status"].get("containerStatuses", ())
                    if "waiting" in item["state"]
                ]
                == ["CreateContainerError"]
            ),
            "not created",
        )
        (status,) = found["status"]["containerStatuses"]
        assert status["state"]["waiting"]["message"].startswith("image volumes are not supported by the runtime: ")
    else:
        machine.phase("web", "Succeeded")
        assert machine.api.kubectl("logs", "web") == "/shared/bin/busybox\n"
