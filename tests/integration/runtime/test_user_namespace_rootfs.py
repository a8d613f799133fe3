"""The three ways in which an image gets the owners of a pod with a user namespace (KEP-127, Resource exhaustion)."""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo
from support.cri import BLOCK, OTHER_BLOCK, Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.images import Member, busybox_layout, directory, file, hardlink, symlink
from support.registry import Registry

VARIANTS = ("idmapped", "metacopy", "copy")
CHANGED = VARIANTS[1:]
LARGE = 3 << 20
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0).decode("latin-1")
"""cap_net_bind_service+ep."""
LAYERS: list[list[Member]] = [
    [
        directory("data", 0o2775, uid=7, gid=50),
        file("data/large", os.urandom(LARGE), 0o640, uid=1000, gid=1000),
        file("data/removed", "by the second layer"),
        file("data/changed", "by the second layer"),
        directory("data/hidden"),
        file("data/hidden/old", "by the second layer"),
        file("bin/suid", "#!/bin/sh\n", 0o6755, uid=1000, gid=50),
        hardlink("data/other-name", "data/large"),
        symlink("data/link", "/etc/shadow", uid=1000, gid=1000),
        symlink("data/up", "../../../../../../../etc", uid=1000, gid=1000),
        Member(name="data/null", kind=b"3", mode=0o666, uid=8, gid=9, device=(1, 3)),
        Member(name="data/pipe", kind=b"6", mode=0o600, uid=8, gid=9),
        file("data/strange", "of an ID that no pod has", 0o4711, uid=3_000_000, gid=3_000_001),
        file("data/noted", "x", pax={"SCHILY.xattr.user.note": "kept"}),
        file("bin/capable", "#!/bin/sh\n", 0o755, pax={"SCHILY.xattr.security.capability": CAPABILITY}),
    ],
    [
        directory("data", 0o2775, uid=7, gid=50),
        file("data/.wh.removed"),
        file("data/changed", "new"),
        directory("data/hidden"),
        file("data/hidden/.wh..wh..opq"),
        file("data/hidden/new"),
    ],
]
LOOK = "cd /data; find . /bin/suid /bin/capable | sort | xargs stat -c '%n %A %u %g %h %s %t %T %Y %N'"


@pytest.fixture(scope="module")
def everything(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with all that a copy could lose."""
    layout = busybox_layout(tmp_path_factory.mktemp("everything"), layers=LAYERS)
    return registry.push(layout, "everything:1")


@pytest.fixture(scope="module", params=["erofs", "directories"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def daemon_of(base: Path, registry: Registry, variant: str, driver: str = "auto", more: str = "") -> Daemon:
    """Return a daemon, not started, with one way forced."""
    base.mkdir()
    extra = f'[images]\nsnapshot_driver = "{driver}"\n[registries."{registry.host}"]\ninsecure = true\n{more}'
    return Daemon(base, extra=extra, settings=(f"runtime.user_namespace_rootfs={variant}",))


@pytest.fixture(scope="module")
def daemons(open_directory: Path, registry: Registry, driver: str) -> Iterator[dict[str, Daemon]]:
    """A running daemon for each way."""
    made = {}
    try:
        for variant in VARIANTS:
            base = open_directory / f"rootfs-{variant}-{driver}"
            made[variant] = daemon_of(base, registry, variant, driver).start()
        yield made
    finally:
        for daemon in made.values():
            daemon.end()


def trees(daemon: Daemon) -> list[Path]:
    """Return the changed trees that a daemon keeps, and what is being made."""
    return sorted((daemon.layout.root / "changed").glob("*/*"))


def stored(daemon: Daemon) -> list[tuple[str, int, int, int]]:
    """Return everything below a daemon's directory of images, with mode and owner."""
    result = []
    for path in sorted((daemon.layout.root / "images").rglob("*")):
        status = path.lstat()
        if path.suffix not in {".db", ".db-wal", ".db-shm"} and "images.db" not in path.name:
            result.append((str(path), status.st_mode, status.st_uid, status.st_gid))
    return result


def used(pods: Pods) -> tuple[int, int]:
    """Return bytes and inodes of ImageFsInfo; those of containers must be the same file system's."""
    answer = pods.call("ImageFsInfo", api.ImageFsInfoRequest(), service="images")
    (images,), (containers,) = answer.image_filesystems, answer.container_filesystems
    assert (images.used_bytes, images.inodes_used) == (containers.used_bytes, containers.inodes_used)
    return images.used_bytes.value, images.inodes_used.value


def entries_of(pods: Pods, container: str) -> int:
    """Return how many entries the root file system of a container has, hard links once."""
    return int(pods.read(container, "find / -xdev | wc -l"))


def own_pod(pods: Pods, name: str = "one", block: tuple[int, int, int] = BLOCK) -> str:
    """Run a pod with a user namespace."""
    return pods.run(pod(name, options=namespaces(user=block)))


@pytest.mark.requirement("U84")
def test_a_pod_sees_the_same_whichever_way(daemons: dict[str, Daemon], everything: str) -> None:
    seen = {}
    for variant, daemon in daemons.items():
        with Pods(daemon.socket, everything) as pods:
            pods.pull()
            container = pods.launch(own_pod(pods))
            root = Path(f"/proc/{pods.host_pid(container)}/root")
            suid, capable = (root / "bin" / name for name in ("suid", "capable"))
            seen[variant] = {
                "files": pods.read(container, LOOK).splitlines(),
                "content": pods.read(container, "cat /data/changed; sha256sum /data/large /data/other-name"),
                "suid": (suid.stat().st_uid, stat.S_IMODE(suid.stat().st_mode)),
                "note": os.getxattr(root / "data/noted", "user.note"),
            }
            # Whatever of it is seen from outside: root of the pod has the capability, and no other root.
            assert os.getxattr(capable, "security.capability")[4:20] == struct.pack("<IIII", 1 << 10, 0, 0, 0)
            assert os.getxattr(capable, "security.capability")[20:] == struct.pack("<I", 65536)
    assert seen["metacopy"] == seen["copy"] == seen["idmapped"]
    files = "\n".join(seen["copy"]["files"])
    assert "./strange -rws--x--x 65534 65534" in files
    assert "./null crw-rw-rw- 8 9" in files
    assert "removed" not in files
    assert "hidden/old" not in files
    assert seen["copy"]["suid"] == (66536, 0o6755)
