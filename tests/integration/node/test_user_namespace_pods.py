"""Pods with user namespaces on a node, side by side: mappings, the range they come from, volumes and ``fsGroup``."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.manifests import FOREVER, config_map, mount, pod, secret, shell
from node.test_pod_volumes import volume_of
from node.test_user_namespace_gate import container_of, mapping_of

from podkeep.agent.user_namespaces.blocks import default_range
from support import filesystems
from support.cri import Pods
from support.running_node import RunningNode

MAX_PODS = 20
VOLUMES = [
    {"name": "empty", "emptyDir": {}},
    {"name": "memory", "emptyDir": {"medium": "Memory"}},
    {"name": "config", "configMap": {"name": "settings"}},
    {"name": "secret", "secret": {"secretName": "key", "defaultMode": 0o400}},
]
ON_TMPFS = ("memory", "secret")
FILES = {
    "/config/text": ("0 2000", "t"),
    "/secret/text": ("0 2000", "t"),
    "/empty/file": ("1000 2000", "x"),
    "/memory/file": ("1000 2000", "x"),
}
"""Owner, group and content of what is in the volumes; those called ``file`` are made by the container."""


@pytest.mark.requirement("U112")
def test_two_pods_with_user_namespaces(own_node: RunningNode, image: str) -> None:
    """Both have a mapping of the node's range, not the same; volumes have the owner and the group that the pod says.

    Where tmpfs cannot be idmapped, they do without the volumes that are on it.
    """
    own_node.settings = (f"agent.max_pods={MAX_PODS}",)
    security = {"runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 2000}
    volumes = [one for one in VOLUMES if one["name"] not in ON_TMPFS or filesystems.can_be_idmapped("tmpfs")]
    mounts = [mount(f"/{volume['name']}", str(volume["name"])) for volume in volumes]
    files = {path: told for path, told in FILES.items() if any(path.startswith(one["mountPath"]) for one in mounts)}
    makes = "; ".join(f"echo x >{path}" for path in files if path.endswith("/file"))
    with own_node as node, Pods(node.daemon.socket, image) as runtime:
        node.apply(config_map("settings", text="t"), secret("key", text="t"))
        found = []
        for name in ("one", "two"):
            main = shell(image, FOREVER, volumeMounts=mounts)
            node.apply(
                pod(main, name=name, restartPolicy="Always", hostUsers=False, securityContext=security, volumes=volumes)
            )
            container = container_of(node, name)[0].rpartition("/")[2]
            runtime.read(container, makes)
            for path, told in files.items():
                assert tuple(runtime.read(container, f"stat -L -c '%u %g' {path}; cat {path}").splitlines()) == told
            assert "2000" in runtime.read(container, "id -G").split()
            written: Path = volume_of(node, "kubernetes.io~empty-dir", "empty", name) / "file"
            assert (written.stat().st_uid, written.stat().st_gid) == (1000, 2000)
            found.append([int(word) for word in mapping_of(node, image, name)])
        assert [(inside, length) for inside, _, length in found] == [(0, 65536)] * 2
        starts = {start for _, start, _ in found}
        assert len(starts) == 2
        assert starts <= set(default_range(MAX_PODS).starts())
