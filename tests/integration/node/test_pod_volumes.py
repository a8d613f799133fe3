"""Volumes of pods on a node with an API: what they hold, whose it is, and how they follow the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent.manifests import FOREVER, pod, shell

from support.running_node import RunningNode

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf"}, "data": {"a": "1"}}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"k": "private"}}


def mounted(image: str, command: str, *volumes: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a pod that mounts each volume at ``/vol/NAME``."""
    container = shell(image, command)
    container["volumeMounts"] = [{"name": item["name"], "mountPath": f"/vol/{item['name']}"} for item in volumes]
    return pod(container, volumes=list(volumes), **spec)


def log_of(node: RunningNode, name: str = "web") -> str:
    """Return what the pod's container wrote, without the end of the last line."""
    return node.written(name)


def volume_of(node: RunningNode, plugin: str, volume: str, name: str = "web") -> Path:
    """Return where the node has a volume, as the runtime's mount namespace shows it."""
    found = node.get(name)
    assert found is not None
    place = node.daemon.base / "kubelet/pods" / found["metadata"]["uid"] / "volumes" / plugin / volume
    return Path(f"/proc/{node.daemon.pid}/root") / place.relative_to("/")


def state(root: Path) -> dict[str, tuple[int, int]]:
    found = [root, *root.rglob("*")]
    return {str(path): (path.lstat().st_ino, path.lstat().st_ctime_ns) for path in found}


KINDS: tuple[dict[str, Any], ...] = (
    {"name": "conf", "configMap": {"name": "conf"}},
    {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}},
    {
        "name": "down",
        "downwardAPI": {
            "items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}},
            ]
        },
    },
    {
        "name": "all",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
                {"configMap": {"name": "conf"}},
                {"secret": {"name": "key"}},
                {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ]
        },
    },
    {"name": "disk", "emptyDir": {}},
    {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
)
SHOW = (
    "touch /vol/disk/new /vol/mem/new; cd /vol; "
    "stat -L -c '%n %u %g %a' conf/a key/k down/labels down/cpu all/token all/name all/a all/k disk/new mem/new; "
    "cat down/labels; echo; cat all/name; echo; df -k /vol/mem | tail -n 1 | awk '{print \"mem\", $2}'; sleep 1000"
)
SHOWN = {
    "conf/a 0 0 644",
    "key/k 0 0 400",
    "down/labels 0 0 644",
    "down/cpu 0 0 644",
    "all/token 0 0 644",
    "all/name 0 0 644",
    "all/a 0 0 644",
    "all/k 0 0 644",
    "disk/new 0 0 644",
    "mem/new 0 0 644",
    'app="web"',
    "web",
    "mem 1024",
}


@pytest.mark.parametrize("host_users", [True, False])
def test_all_kinds_belong_to_root_inside_the_pod(node: RunningNode, image: str, host_users: bool) -> None:
    """With and without a user namespace the same owners and modes are seen, and on disk nothing is shifted."""
    node.apply(MAP, SECRET)
    document = mounted(image, SHOW, *KINDS, hostUsers=host_users)
    document["metadata"]["labels"] = {"app": "web"}
    node.apply(document)
    node.running("web")
    node.until(lambda: "mem 1024" in log_of(node), "the container's report")
    assert set(log_of(node).split("\n")) - {""} == SHOWN
    assert (volume_of(node, "kubernetes.io~empty-dir", "disk") / "new").stat().st_uid == 0


def test_files_follow_what_they_are_made_of(node: RunningNode, image: str) -> None:
    """Another ConfigMap, other labels: the files change in one step; nothing else is touched, no container restarts."""
    node.apply(MAP, SECRET)
    document = mounted(image, "sleep 1000", *KINDS)
    document["metadata"]["labels"] = {"app": "web"}
    node.apply(document)
    before = node.running("web")["status"]["containerStatuses"][0]
    conf = volume_of(node, "kubernetes.io~configmap", "conf")
    down = volume_of(node, "kubernetes.io~downward-api", "down")
    secret = volume_of(node, "kubernetes.io~secret", "key")
    untouched = state(secret)
    node.ask(
        "PATCH",
        "/api/v1/namespaces/default/configmaps/conf",
        {"data": {"a": "2"}},
        media="application/merge-patch+json",
    )
    node.until(lambda: (conf / "a").read_text() == "2", "the new content")
    node.patch("web", {"metadata": {"labels": {"app": "db"}}})
    node.until(lambda: (down / "labels").read_text() == 'app="db"', "the new label")
    assert state(secret) == untouched
    after = node.running("web")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)


def test_files_are_brought_up_to_date_after_a_restart_of_the_agent(node: RunningNode, image: str) -> None:
    """A ConfigMap that changes while no agent is there is no news for the next one, which looks all the same."""
    node.apply(MAP)
    node.apply(mounted(image, "sleep 1000", KINDS[0]))
    before = node.running("web")["status"]["containerStatuses"][0]["containerID"]
    conf = volume_of(node, "kubernetes.io~configmap", "conf")
    node.end_agent()
    change = {"data": {"a": "2"}}
    node.ask("PATCH", "/api/v1/namespaces/default/configmaps/conf", change, media="application/merge-patch+json")
    assert (conf / "a").read_text() == "1"
    node.start_agent()
    node.until(lambda: (conf / "a").read_text() == "2", "the new content")
    assert node.running("web")["status"]["containerStatuses"][0]["containerID"] == before


def test_a_pod_waits_for_what_is_missing_and_starts_when_it_comes(node: RunningNode, image: str) -> None:
    """FailedMount in a kubelet's words, and no need to touch the pod."""
    node.apply(mounted(image, "sleep 1000", KINDS[0]))

    def told() -> list[str]:
        return [event["message"] for event in node.events("web") if event["reason"] == "FailedMount"]

    node.until(told, "FailedMount")
    assert told()[0] == 'MountVolume.SetUp failed for volume "conf" : configmap "conf" not found'
    waiting = node.get("web")
    assert waiting is not None
    assert waiting["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
    node.apply(MAP)
    node.running("web")


def claim_and_volume(node: RunningNode, source: dict[str, Any]) -> None:
    """Create a claim ``data`` and a volume for it."""
    own = {"accessModes": ["ReadWriteOnce"], "storageClassName": "manual"}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
    asks = own | {"resources": {"requests": {"storage": "1Gi"}}}
    node.ask("POST", "/api/v1/namespaces/default/persistentvolumeclaims", claim | {"spec": asks})
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv1"}}
    has = own | {"capacity": {"storage": "1Gi"}} | source
    node.ask("POST", "/api/v1/persistentvolumes", volume | {"spec": has})


def test_a_claim_on_a_volume_of_the_node_keeps_its_data(node: RunningNode, image: str) -> None:
    """A second pod with the claim, in a user namespace, finds what the first one wrote."""
    data = node.daemon.base / "data"
    data.mkdir()
    claim_and_volume(node, {"hostPath": {"path": str(data), "type": "Directory"}})
    volume = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}
    node.apply(mounted(image, "echo kept > /vol/d/file", volume))
    node.phase("web", "Succeeded")
    assert (data / "file").read_text() == "kept\n"
    node.delete("web")
    node.gone("web")
    node.apply(mounted(image, "cat /vol/d/file", volume, hostUsers=False))
    node.phase("web", "Succeeded")
    assert log_of(node) == "kept"


def test_the_status_says_which_mounts_are_read_only_recursively(node: RunningNode, image: str) -> None:
    """``IfPossible`` is told as what came of it (KEP-3857): this node's runtime can."""
    container = shell(image, FOREVER)
    container["volumeMounts"] = [
        {"name": "one", "mountPath": f"/{mode}", "readOnly": True, "recursiveReadOnly": mode}
        for mode in ("Disabled", "IfPossible", "Enabled")
    ]
    node.apply(pod(container, volumes=[{"name": "one", "emptyDir": {}}]))
    mounts = node.running("web")["status"]["containerStatuses"][0]["volumeMounts"]
    assert {item["mountPath"]: item["recursiveReadOnly"] for item in mounts if item["name"] == "one"} == {
        "/Disabled": "Disabled",
        "/IfPossible": "Enabled",
        "/Enabled": "Enabled",
    }
