"""Every kind of volume in one pod with a user namespace: its owners and modes inside and on disk (KEP-127, volumes)."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import config_map, image_volume, pod, secret, shell
from node.test_pod_volumes import log_of, volume_of

from support import filesystems
from support.running_node import RunningNode

HOST_PATHS = {
    "any": "",
    "directory": "Directory",
    "made": "DirectoryOrCreate",
    "file": "File",
    "filemade": "FileOrCreate",
    "socket": "Socket",
    "character": "CharDevice",
    "block": "BlockDevice",
}
"""Types of hostPath by the name of the volume and of what is at its path."""
HUGE = {"limits": {"hugepages-2Mi": "0", "memory": "64Mi"}}
"""Says how large pages are, and takes none: a machine may have none."""
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def prepare(root: Path) -> None:
    """Make what the machine has of volumes below ``root``, all of it root's."""
    root.chmod(0o755)
    for name, mode in (("any", 0o750), ("directory", 0o755), ("local", 0o700), ("hostpv", 0o751), ("ephemeral", 0o755)):
        (root / name).mkdir()
        (root / name).chmod(mode)
        (root / name / "inside").write_text(name)
        (root / name / "inside").chmod(0o600)
    (root / "file").write_text("file")
    (root / "file").chmod(0o640)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
    (root / "socket").chmod(0o600)
    for name, kind in (("character", stat.S_IFCHR), ("block", stat.S_IFBLK)):
        os.mknod(root / name, kind | 0o600, os.makedev(1, 3 if kind == stat.S_IFCHR else 0))


def claims(node: RunningNode, root: Path) -> None:
    """Make the persistent volumes, each bound to a claim; the claim of the ephemeral volume comes with its pod."""
    node.ask("POST", "/api/v1/persistentvolumes", persistent(node, "local", {"local": {"path": str(root / "local")}}))
    node.ask(
        "POST", "/api/v1/persistentvolumes", persistent(node, "hostpv", {"hostPath": {"path": str(root / "hostpv")}})
    )
    own = {"local": {"path": str(root / "ephemeral")}}
    node.ask("POST", "/api/v1/persistentvolumes", persistent(node, "web-ephemeral", own))
    for name in ("local", "hostpv"):
        node.ask("POST", "/api/v1/namespaces/default/persistentvolumeclaims", claim(name))


def persistent(node: RunningNode, name: str, source: dict[str, Any]) -> dict[str, Any]:
    """Return a PersistentVolume."""
    here = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.name]}]}]
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "storageClassName": name,
        "nodeAffinity": {"required": {"nodeSelectorTerms": here}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec | source}


def claim(name: str, **metadata: Any) -> dict[str, Any]:
    """Return a claim that only the volume of its own name can be bound to."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name} | metadata,
        "spec": spec,
    }


def volumes(image: str, root: Path) -> list[dict[str, Any]]:
    """Return a volume of every kind."""
    downward = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
    sources = [
        {"configMap": {"name": "conf"}},
        {"secret": {"name": "key", "items": [{"key": "k", "path": "k", "mode": 0o400}]}},
        {"downwardAPI": downward},
        {"serviceAccountToken": {"path": "token"}},
    ]
    return [
        {"name": "conf", "configMap": {"name": "conf", "defaultMode": 0o400}},
        {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}},
        {"name": "down", "downwardAPI": downward | {"defaultMode": 0o604}},
        {"name": "all", "projected": {"sources": sources, "defaultMode": 0o440}},
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "huge", "emptyDir": {"medium": "HugePages-2Mi"}},
        *({"name": name, "hostPath": {"path": str(root / name), "type": kind}} for name, kind in HOST_PATHS.items()),
        {"name": "local", "persistentVolumeClaim": {"claimName": "local"}},
        {"name": "hostpv", "persistentVolumeClaim": {"claimName": "hostpv"}},
        {"name": "ephemeral", "ephemeral": {"volumeClaimTemplate": {"spec": claim("web-ephemeral")["spec"]}}},
        image_volume(image, "image"),
    ]


ON_TMPFS = ("key", "down", "all", "memory", TOKEN)
"""Places of volumes, as they begin."""
MAKES = ("disk", "memory", "huge", "any", "directory", "made", "local", "hostpv", "ephemeral")
"""Volumes in which the container makes a file, ``new``."""
LOOKS = (
    *("conf", "conf/a", "key", "key/k", "down/name", "all/a", "all/k", "all/name", "all/token"),
    *("disk", "memory", "huge"),
    *HOST_PATHS,
    *("any/inside", "directory/inside"),
    *("local", "local/inside", "hostpv", "hostpv/inside", "ephemeral", "ephemeral/inside"),
    *("image", "image/bin/busybox"),
)


def script() -> str:
    """Return what the container does: it makes files, and tells owners and modes of everything."""
    new = " ".join(f"{name}/new" for name in MAKES)
    places = " ".join((*LOOKS, *(f"{name}/new" for name in MAKES)))
    told = f"stat -L -c '%n %u %g %a' {places} {TOKEN}/token"
    return f"umask 022; cd /vol; exec 2>/dev/null; touch {new}; {told}; echo $(cat conf/a key/k); echo all; sleep 1000"


def document(
    image: str, root: Path, security: dict[str, Any], *, host_users: bool, without: Collection[str] = ()
) -> dict[str, Any]:
    """Return the pod.

    :param without: volumes that it does not get; what it tells of them is nothing.
    """
    every = [item for item in volumes(image, root) if item["name"] not in without]
    container = shell(image, script(), resources=HUGE)
    container["volumeMounts"] = [{"name": item["name"], "mountPath": f"/vol/{item['name']}"} for item in every]
    return pod(
        container,
        volumes=every,
        hostUsers=host_users,
        automountServiceAccountToken=TOKEN not in without,
        securityContext=security,
    )


PLAIN = f"""
    conf 0 0 755                conf/a 0 0 400              key 0 0 755                 key/k 0 0 400
    down/name 0 0 604           all/a 0 0 440               all/k 0 0 400               all/name 0 0 440
    all/token 0 0 440           {TOKEN}/token 0 0 644
    disk 0 0 777                memory 0 0 777              huge 0 0 777
    disk/new 0 0 644            memory/new 0 0 644          huge/new 0 0 644
    any 0 0 750                 directory 0 0 755           made 0 0 755
    any/inside 0 0 600          directory/inside 0 0 600
    any/new 0 0 644             directory/new 0 0 644       made/new 0 0 644
    file 0 0 640                filemade 0 0 644
    socket 0 0 600              character 0 0 600           block 0 0 600
    local 0 0 700               hostpv 0 0 751              ephemeral 0 0 755
    local/inside 0 0 600        hostpv/inside 0 0 600       ephemeral/inside 0 0 600
    local/new 0 0 644           hostpv/new 0 0 644          ephemeral/new 0 0 644
    image 0 0 755               image/bin/busybox 0 0 755
"""
"""Owner, group and mode of everything in a pod that says nothing of them."""
GROUP = f"""
    conf/a 0 200 440            key/k 0 200 440             down/name 0 200 644
    all/a 0 200 440             all/k 0 200 440             all/name 0 200 440
    all/token 0 200 640         {TOKEN}/token 0 200 640
    disk 0 200 2777             memory 0 200 2777           huge 0 200 2777
    disk/new 0 200 644          memory/new 0 200 644        huge/new 0 200 644
    local 0 200 2770            local/inside 0 200 660      local/new 0 200 644
    ephemeral 0 200 2775        ephemeral/inside 0 200 660  ephemeral/new 0 200 644
"""
"""What differs with ``fsGroup: 200``: hostPath and images never do."""


def not_mapped() -> set[str]:
    """Return the places of volumes that no user namespace can have on this kernel: see tests/nested for their pods."""
    in_memory = set() if filesystems.can_be_idmapped("tmpfs") else set(ON_TMPFS)
    return in_memory if filesystems.can_be_idmapped("hugetlbfs") else in_memory | {"huge"}


def expected(text: str) -> dict[str, str]:
    """Return owner, group and mode by the place that they are of."""
    words = text.split()
    return {words[at]: " ".join(words[at + 1 : at + 4]) for at in range(0, len(words), 4)}


@contextmanager
def running(node: RunningNode, root: Path, whole: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Run the pod with all that it refers to; yield what its container saw."""
    prepare(root)
    node.apply(config_map("conf", a="1"), secret("key", k="private"))
    claims(node, root)
    node.apply(whole)
    made = node.get("web")
    assert made is not None
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": made["metadata"]["uid"], "controller": True}
    node.ask(
        "POST", "/api/v1/namespaces/default/persistentvolumeclaims", claim("web-ephemeral", ownerReferences=[owner])
    )
    node.running("web")
    node.until(lambda: log_of(node).endswith("\nall"), "the container's report")
    *told, content, _ = log_of(node).splitlines()
    has_key = any(item["name"] == "key" for item in whole["spec"]["volumes"])
    assert content == ("1private" if has_key else "1"), "root reads what is only its own"
    yield {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in told}


@pytest.mark.requirement("U68", "U72")
@pytest.mark.parametrize("host_users", [False, True], ids=["own users", "host users"])
@pytest.mark.parametrize(
    ("security", "differs"), [({}, ""), ({"fsGroup": 200}, GROUP)], ids=["no group", "a group of its own"]
)
def test_every_kind_of_volume_has_exact_owners_and_modes(
    node: RunningNode,
    image: str,
    open_directory: Path,
    security: dict[str, Any],
    differs: str,
    host_users: bool,
) -> None:
    """The same inside with and without a user namespace; and on disk nobody but root has a file.

    On a kernel that cannot map all of them, a pod with a user namespace has the others.
    """
    root = open_directory / os.urandom(4).hex()
    root.mkdir()
    without = set() if host_users else not_mapped()
    wanted = {
        place: facts
        for place, facts in (expected(PLAIN) | expected(differs)).items()
        if without.isdisjoint({place.partition("/")[0], place.removesuffix("/token")})
    }
    with running(node, root, document(image, root, security, host_users=host_users, without=without)) as seen:
        assert seen == wanted
        disk = volume_of(node, "kubernetes.io~empty-dir", "disk")
        assert {path.lstat().st_uid for path in (disk, *disk.parent.parent.rglob("*"), *root.rglob("*"))} == {0}
