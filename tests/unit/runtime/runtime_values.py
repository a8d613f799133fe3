"""Small valid records for the runtime's tests; every argument replaces a field."""

from __future__ import annotations

from typing import Any

from podkeep.base.ids import ContainerID, ImageID, SandboxID
from podkeep.images.formats.image import ImageRunConfig
from podkeep.kernel.namespace.idmap import block
from podkeep.runtime.model.records import (
    Container,
    ContainerConfig,
    ContainerState,
    ContainerStatus,
    NamespaceOptions,
    Sandbox,
    SandboxConfig,
    SandboxState,
    SandboxStatus,
)
from podkeep.runtime.oci.spec import HostFacts, PodFiles, SpecInput
from podkeep.runtime.oci.users import User

CAPABILITIES = frozenset({"CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_SETUID", "CAP_MKNOD"})
"""What the daemon of these tests holds."""
IDMAP = block(65536, 65536)
OCI_IDMAP = [{"containerID": 0, "hostID": 65536, "size": 65536}]
NULL_DEVICE = {"path": "/dev/null", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666, "uid": 0, "gid": 0}
FUSE_DEVICE = {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666, "uid": 0, "gid": 0}


def sandbox_config(**fields: Any) -> SandboxConfig:
    return SandboxConfig(**{"name": "web", "uid": "uid-1", "namespace": "default", **fields})


def container_config(**fields: Any) -> ContainerConfig:
    return ContainerConfig(**{"name": "main", "image": "busybox", "command": ("/bin/app",), **fields})


def in_own_userns(**fields: Any) -> SandboxConfig:
    return sandbox_config(namespaces=NamespaceOptions(userns=IDMAP), **fields)


def host_facts(**fields: Any) -> HostFacts:
    return HostFacts(**{"capabilities": CAPABILITIES, "machine": "x86_64", "oom_score_floor": -1000, **fields})


def spec_input(**fields: Any) -> SpecInput:
    given = {
        "sandbox": sandbox_config(),
        "container": container_config(),
        "image": ImageRunConfig(),
        "user": User(uid=0, gid=0, groups=(0,), home="/root"),
        "host": host_facts(),
        "rootfs": "/run/podkeep/containers/c/rootfs",
        "cgroup": "/podkeep/pod-s/c",
        "namespaces": {"mount": "", "ipc": "/run/ns/ipc", "pid": "", "network": "/run/ns/net"},
        "files": PodFiles(hosts="/pod/hosts", hostname="/pod/hostname", resolv_conf="/pod/resolv.conf", shm="/pod/shm"),
    }
    return SpecInput(**{**given, **fields})


def sandbox(identity: str = "a" * 64, *, state: SandboxState = SandboxState.READY, **fields: Any) -> Sandbox:
    status = SandboxStatus(state=state, created_at=1)
    return Sandbox(id=SandboxID(identity), config=sandbox_config(**fields), status=status)


def container(identity: str = "c" * 64, *, sandbox_id: str = "a" * 64, **fields: Any) -> Container:
    return Container(
        id=ContainerID(identity),
        sandbox_id=SandboxID(sandbox_id),
        config=container_config(**fields),
        image_id=ImageID("sha256:" + "0" * 64),
        image_ref="docker.io/library/busybox@sha256:" + "1" * 64,
        status=ContainerStatus(state=ContainerState.CREATED, created_at=2),
    )
