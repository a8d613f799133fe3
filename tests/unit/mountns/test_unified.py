"""What covers the place of a hybrid machine's second hierarchy, and a host that mounts that again later."""

from __future__ import annotations

import os

import pytest

from podkeep.kernel import libc
from podkeep.kernel.cgroup import cgroups
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import Propagation
from podkeep.mountns import contents, unified
from unit.kernel.isolation import in_new_namespaces

pytestmark = pytest.mark.skipif(not unified.UNIFIED.is_dir(), reason="this machine's cgroups are not hybrid")


def at_the_place() -> list[str]:
    return sorted(entry.fs_type for entry in mountinfo.read() if entry.mount_point == str(unified.UNIFIED))


@in_new_namespaces()
def test_the_place_is_covered_whatever_the_host_does() -> None:
    mounts.set_propagation("/", Propagation.SHARED, recursive=True)
    while at_the_place():
        mounts.unmount(unified.UNIFIED, lazy=True)
    host = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    libc.unshare(CloneFlag.NEWNS)
    mounts.set_propagation("/", Propagation.SLAVE, recursive=True)
    hidden = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    unified.detach()
    assert at_the_place() == ["cgroup"]
    assert unified.UNIFIED not in cgroups.detect().hierarchies
    libc.setns(host, CloneFlag.NEWNS)
    # It is no container's: the namespace can be removed when no container is left.
    assert contents.container_mounts(hidden) == []
    mounts.mount("cgroup2", unified.UNIFIED, fstype="cgroup2")
    libc.setns(hidden, CloneFlag.NEWNS)
    assert at_the_place() == ["cgroup", "cgroup2"]
    unified.detach()
    assert at_the_place() == ["cgroup", "cgroup2"]
    assert not (unified.UNIFIED / "cgroup.controllers").exists(), "crun sees no second hierarchy"
