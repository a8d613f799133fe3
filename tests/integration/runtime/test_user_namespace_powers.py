"""What a pod with a user namespace may do with capabilities and devices that it was given: FUSE, tun, veth."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo
from support.cri import BLOCK, UNCONFINED, Pods, bind, namespaces, pod
from support.escaped import DONE, PROGRAMS


def device(directory: Path, path: str, number: tuple[int, int]) -> api.Device:
    """Return a device that everybody may open, as udev makes it."""
    node = directory / Path(path).name
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(*number))
    node.chmod(0o666)
    return api.Device(host_path=str(node), container_path=path, permissions="rw")


@pytest.mark.requirement("U86", "U122")
def test_fuse_and_links_are_the_pods_alone(pods: Pods, tmp_path: Path) -> None:
    """It mounts and links as it likes, and the machine's mounts and links do not change."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    programs = shutil.copytree(PROGRAMS, tmp_path / "programs")
    devices = [device(tmp_path, "/dev/fuse", (10, 229)), device(tmp_path, "/dev/net/tun", (10, 200))]
    mounts = [bind(Path(path), path, BLOCK, readonly=True) for path in ("/usr", "/lib", "/lib64")]
    mounts.append(bind(programs, "/programs", BLOCK, readonly=True))
    security = {"capabilities": api.Capability(add_capabilities=["NET_ADMIN", "SYS_ADMIN"]), "apparmor": UNCONFINED}
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    container = pods.launch(sandbox, security=security, mounts=mounts, devices=devices)
    before = (mountinfo.read(), os.listdir("/sys/class/net"))
    uses = ("mount_fuse", "make_tunnel", "make_veth", "mount_tmpfs")
    assert json.loads(pods.read(container, f"/usr/bin/python3 /programs/powers.py {' '.join(uses)}")) == dict.fromkeys(
        uses, DONE
    )
    assert (mountinfo.read(), os.listdir("/sys/class/net")) == before
