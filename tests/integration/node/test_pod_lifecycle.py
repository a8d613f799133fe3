"""Pods of the API on a node: they run, say so, and leave nothing, whatever ends in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from agent.manifests import FOREVER, mount, pod, shell

from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from support.images import Layout
from support.node_client import is_ready
from support.registry import Registry
from support.running_node import RunningNode


def container_id(found: dict[str, Any], index: int = 0) -> str:
    """Return the ID of a container that a pod's status has."""
    value: str = found["status"]["containerStatuses"][index]["containerID"]
    return value


def conditions(found: dict[str, Any]) -> dict[str, str]:
    """Return what the conditions of a pod are."""
    return {item["type"]: item["status"] for item in found["status"].get("conditions", ())}


def is_settled(found: dict[str, Any]) -> bool:
    """Return whether a pod has ended and its sandbox was stopped."""
    return bool(found["status"].get("phase") == "Failed" and conditions(found)["PodReadyToStartContainers"] == "False")


def forever(image: str, name: str = "web", **spec: Any) -> dict[str, Any]:
    """Return a pod that runs until it is deleted."""
    return pod(shell(image, FOREVER), name=name, restartPolicy="Always", **spec)


def running_containers(node: RunningNode, name: str) -> set[str]:
    """Return the IDs of the containers of a pod that run, as the runtime says."""
    rows = json.loads(node.daemon.run("ps", "-o", "json", check=True).stdout)
    found = [item for row in rows if row["name"] == name for item in row["containers"]]
    return {item["id"] for item in found if item["state"] == "running"}


def test_pod_runs_until_it_is_deleted(node: RunningNode, image: str) -> None:
    """A pod that is applied is Running with an address; deleted, nothing of it is left anywhere."""
    before = node.daemon.resources()
    node.apply(forever(image))
    running = node.running("web")
    assert running["status"]["podIP"]
    assert running["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    assert container_id(running).startswith("podkeep://")
    node.delete("web")
    node.gone("web")
    assert node.left_behind() == []
    assert node.daemon.resources().after_a_restart() == before.after_a_restart()


def test_conditions_say_when_they_changed(node: RunningNode, image: str) -> None:
    """A condition's time is that of its change, which a Deployment counts its ``minReadySeconds`` from."""
    node.apply(forever(image, initContainers=[shell(image, "sleep 2", name="first")]))
    status = node.pod("web", is_ready, "ready")["status"]
    changed = {item["type"]: item["lastTransitionTime"] for item in status["conditions"]}
    prepared = status["initContainerStatuses"][0]["state"]["terminated"]["finishedAt"]
    started = status["containerStatuses"][0]["state"]["running"]["startedAt"]
    assert changed["PodReadyToStartContainers"] < prepared <= changed["Initialized"]
    assert started <= min(changed["ContainersReady"], changed["Ready"])


def test_a_pod_that_ends_is_kept_as_it_ended(node: RunningNode, image: str) -> None:
    """A pod that has ended keeps its phase, its message and its log, also after a restart of the agent."""
    node.apply(pod(shell(image, "echo said; echo why >/dev/termination-log; exit 3")))
    failed = node.pod("web", is_settled, "settled")
    ended = failed["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (3, "why\n")
    node.end_agent()
    node.start_agent()
    node.apply(forever(image, "other"))
    node.running("other")
    again = node.get("web")
    assert again is not None
    assert again["status"] == failed["status"]
    (log,) = (node.daemon.base / "logs").glob("default_web_*/main/0.log")
    assert "said" in log.read_text()


def test_a_termination_message_in_a_volume_of_the_pods_own(node: RunningNode, image: str) -> None:
    """What a pod mounts of an emptyDir right at its terminationMessagePath is read, and stays what it said; what may be
    others' is not: it is read as root."""
    secret = node.daemon.base / "secret"
    secret.write_text("nobody's")
    secret.chmod(0o600)
    containers = [
        shell(image, "echo sub >/log; exit 3", "sub", volumeMounts=[mount("/log", "v", subPath="log")]),
        shell(image, "exit 3", "host", volumeMounts=[mount("/log", "host")]),
    ]
    volumes = [{"name": "v", "emptyDir": {}}, {"name": "host", "hostPath": {"path": str(secret)}}]
    make = shell(image, "touch /v/log", "make", volumeMounts=[mount("/v", "v")])
    named = [item | {"terminationMessagePath": "/log"} for item in containers]
    node.apply(pod(*named, initContainers=[make], volumes=volumes))
    failed = node.pod("web", is_settled, "settled")

    messages = {
        item["name"]: item["state"]["terminated"].get("message", "") for item in failed["status"]["containerStatuses"]
    }
    assert messages == {"sub": "sub\n", "host": ""}

    node.end_agent()
    node.start_agent()
    node.apply(forever(image, "other"))
    node.running("other")
    again = node.get("web")
    assert again is not None
    assert again["status"] == failed["status"]


def test_orphaned_pods_end_together(node: RunningNode, image: str) -> None:
    """Deleted by force while no agent ran: none waits for the end of another, which takes half a minute at most."""
    told = node.daemon.base / "told"
    told.mkdir()
    names = ("one", "other")
    volumes = [{"name": "told", "hostPath": {"path": str(told)}}]
    for own, another in (names, names[::-1]):
        end = f"touch /told/{own}; until test -e /told/{another}; do sleep 0.1; done; touch /told/{own}-met; exit 0"
        script = f"trap '{end}' TERM; sleep 99999 & wait"
        main = shell(image, script, volumeMounts=[mount("/told", "told")])
        node.apply(pod(main, name=own, volumes=volumes, restartPolicy="Always"))
    for name in names:
        node.running(name)
    node.end_agent()
    for name in names:
        node.delete(name, gracePeriodSeconds=0)
    node.start_agent()
    node.until(lambda: not node.pods_with_processes(), "the end of both")
    assert sorted(path.name for path in told.iterdir()) == ["one", "one-met", "other", "other-met"]


def test_an_agent_that_is_killed_finds_its_pods_again(node: RunningNode, image: str) -> None:
    """Killed and started again, the agent goes on with the same containers, and nothing is mounted twice."""
    node.apply(forever(image, volumes=[{"name": "v", "emptyDir": {}}]), forever(image, "second"))
    before = [container_id(node.running(name)) for name in ("web", "second")]
    held = node.daemon.resources()
    node.end_agent(signal.SIGKILL)
    node.start_agent()
    node.patch("web", {"metadata": {"labels": {"seen": "again"}}})
    node.apply(forever(image, "third"))
    node.running("third")
    assert [container_id(node.running(name)) for name in ("web", "second")] == before
    node.delete("third")
    node.gone("third")
    assert node.daemon.resources() == held
    node.delete("web")
    node.gone("web")


def test_pods_that_are_deleted_while_no_agent_runs_are_removed(node: RunningNode, image: str) -> None:
    """Whether the object is there with a deletion timestamp or gone: the next agent removes the pod."""
    node.apply(forever(image), forever(image, "forced"))
    node.running("web")
    node.running("forced")
    node.end_agent(signal.SIGKILL)
    node.delete("web")
    node.delete("forced", gracePeriodSeconds=0)
    node.start_agent()
    node.gone("web")
    node.until(lambda: node.left_behind() == [], "nothing left")
    assert node.get("forced") is None


def test_a_pod_does_not_wait_for_one_that_was_deleted_by_force(node: RunningNode, image: str, tmp_path: Path) -> None:
    """The next pod of its name runs while the first is about to end, and takes its resources, as with a kubelet."""
    cpus = node.ask("GET", f"/api/v1/nodes/{node.name}")["status"]["allocatable"]["cpu"]
    resources = {"requests": {"cpu": f"{int(cpus) * 600}m"}}
    trap = "trap 'until [ -e /host/go ]; do sleep 0.05; done; exit 0' TERM"
    slow = f"{trap}; touch /host/up; sleep 99999 & wait"
    volume = {"name": "host", "hostPath": {"path": str(tmp_path)}}
    first = shell(image, slow, resources=resources, volumeMounts=[{"name": "host", "mountPath": "/host"}])
    node.apply(pod(first, restartPolicy="Always", terminationGracePeriodSeconds=600, volumes=[volume]))
    uid = node.running("web")["metadata"]["uid"]
    node.until((tmp_path / "up").exists, "the trap set")
    node.delete("web", gracePeriodSeconds=0)
    node.apply(pod(shell(image, "exec sleep 1000", resources=resources), terminationGracePeriodSeconds=1))
    second = node.running("web")["metadata"]["uid"]
    pods = node.daemon.base / "kubelet" / "pods"
    assert {path.name for path in pods.iterdir()} == {uid, second}
    (tmp_path / "go").touch()
    node.until(lambda: [path.name for path in pods.iterdir()] == [second], "the first gone")
    node.running("web")


def test_a_changed_image_restarts_that_container_alone(
    node: RunningNode, image: str, registry: Registry, busybox: Layout
) -> None:
    """kubectl set image: the container is started again with the new image, the others go on."""
    node.apply(pod(shell(image, FOREVER), shell(image, FOREVER, "other"), restartPolicy="Always"))
    before = node.running("web")
    newer = registry.push(busybox, "busybox:2")
    node.patch("web", {"spec": {"containers": [{"name": "main", "image": newer}]}})
    after = node.pod("web", lambda found: statuses(found)["main"]["restartCount"] == 1, "restarted")
    assert statuses(after)["main"]["image"] == newer
    assert statuses(after)["other"]["containerID"] == statuses(before)["other"]["containerID"]
    # Of the attempts that ended one is kept, and its log; what was rotated goes with the others.
    (logs,) = (node.daemon.base / "logs").glob("default_web_*/main")
    (logs / "0.log.20260131-080000.gz").touch()
    node.patch("web", {"spec": {"containers": [{"name": "main", "image": image}]}})
    node.pod("web", lambda found: statuses(found)["main"]["restartCount"] == 2, "restarted again")
    node.until(lambda: {path.name for path in logs.iterdir()} == {"1.log", "2.log"}, "logs of two attempts")


def test_a_changed_image_restarts_a_container_that_is_never_restarted(
    node: RunningNode, image: str, registry: Registry, busybox: Layout
) -> None:
    """The API takes no status after one that says that the container has ended."""
    node.apply(pod(shell(image, "exec sleep 1000"), restartPolicy="Never", terminationGracePeriodSeconds=1))
    before = node.running("web")
    newer = registry.push(busybox, "busybox:2")
    node.patch("web", {"spec": {"containers": [{"name": "main", "image": newer}]}})
    after = node.pod("web", lambda found: statuses(found)["main"]["restartCount"] == 1, "restarted")
    assert after["status"]["phase"] == "Running"
    assert "running" in statuses(after)["main"]["state"]
    assert statuses(after)["main"]["lastState"]["terminated"]["containerID"] == container_id(before)
    assert running_containers(node, "web") == {container_id(after).rpartition("/")[2]}
    assert "is invalid" not in node.said()


def statuses(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the statuses of a pod's containers by name."""
    return {item["name"]: item for item in found["status"]["containerStatuses"]}


def test_a_runtime_that_is_killed_changes_nothing(node: RunningNode, image: str) -> None:
    """The pod runs on without its runtime, and the agent goes on with it: a deletion then removes it."""
    node.apply(forever(image))
    before = container_id(node.running("web"))
    node.daemon.kill()
    node.delete("web")
    node.daemon.start()
    node.gone("web")
    assert node.left_behind() == []
    node.apply(forever(image))
    assert container_id(node.running("web")) != before


def test_statuses_are_written_when_the_api_is_back(node: RunningNode, image: str) -> None:
    """While the API is away pods run on, and what happened meanwhile is said afterwards."""
    go = node.daemon.base / "go"
    go.mkdir()
    waits = shell(image, "while [ ! -e /go/on ]; do sleep 0.05; done; exit 7", volumeMounts=[mount("/go", "go")])
    node.apply(pod(waits, volumes=[{"name": "go", "hostPath": {"path": str(go)}}]))
    node.running("web")
    node.api.stop(signal.SIGKILL)
    (go / "on").touch()
    node.until(lambda: not runs(node), "the container ended")
    node.api.start()
    failed = node.phase("web", "Failed")
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


def runs(node: RunningNode) -> bool:
    """Return whether a container runs on the node."""
    rows = json.loads(node.daemon.run("ps", "-o", "json", check=True).stdout)
    return any(container["state"] == "running" for row in rows for container in row["containers"])


def test_pods_that_run_are_looked_after_by_an_agent_that_starts_without_the_api(node: RunningNode, image: str) -> None:
    """What ends is started again; what was deleted meanwhile goes when the API is back, and the status is told."""
    node.apply(forever(image), forever(image, "deleted"), forever(image, "over"))
    before, deleted = container_id(node.running("web")), node.running("deleted")["metadata"]["uid"]
    over = node.running("over")["metadata"]["uid"]
    node.patch("over", {"spec": {"activeDeadlineSeconds": 1}})
    node.pod("over", is_settled, "settled")
    node.until((node.daemon.base / "kubelet" / "services.json").exists, "Services are kept")
    node.end_agent()
    node.delete("deleted", gracePeriodSeconds=0)
    node.api.stop()
    node.start_agent(serves="2 pods that run are looked after")
    (ended,) = running_containers(node, "web")

    async def stop() -> None:
        async with CriClient(node.daemon.socket) as client:
            await client.runtime.StopContainer(api_pb2.StopContainerRequest(container_id=ended, timeout=0))

    asyncio.run(stop())
    node.until(lambda: running_containers(node, "web") - {ended}, "the container is started again")
    directories = node.daemon.base / "kubelet" / "pods"
    assert {deleted, over} <= {path.name for path in directories.iterdir()}, "nothing is removed without the API"
    node.api.start()
    after = node.pod("web", lambda found: is_ready(found) and container_id(found) != before, "told")
    assert statuses(after)["main"]["restartCount"] == 1
    node.until(lambda: not (directories / deleted).exists(), "the deleted pod is removed")
    assert node.phase("over", "Failed")["status"]["reason"] == "DeadlineExceeded"


def test_a_runtime_that_hangs_holds_nothing_back_for_ever(node: RunningNode, image: str) -> None:
    """While the runtime does not answer pods run on; what was asked for meanwhile happens when it does."""
    node.apply(forever(image), forever(image, "other"))
    before = container_id(node.running("web"))
    node.running("other")
    os.kill(node.daemon.pid, signal.SIGSTOP)
    try:
        node.delete("other")
        node.apply(forever(image, "later"))
        terminating = node.get("other")
        assert terminating is not None
        assert terminating["metadata"]["deletionTimestamp"]
    finally:
        os.kill(node.daemon.pid, signal.SIGCONT)
    node.gone("other")
    node.running("later")
    assert container_id(node.running("web")) == before


def test_a_pod_whose_sandbox_is_stopped_gets_another(node: RunningNode, image: str) -> None:
    """What somebody stops at the runtime is made anew, and the restart is counted."""
    node.apply(forever(image))
    before = node.running("web")
    (row,) = json.loads(node.daemon.run("ps", "-o", "json", check=True).stdout)

    async def stop() -> None:
        async with CriClient(node.daemon.socket) as client:
            await client.runtime.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=row["id"]))

    asyncio.run(stop())
    after = node.pod("web", lambda found: is_ready(found) and container_id(found) != container_id(before), "again")
    assert statuses(after)["main"]["restartCount"] == 1
