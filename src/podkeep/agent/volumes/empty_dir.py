"""emptyDir: a directory on disk, in memory, or of huge pages, which lives as long as the pod."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from podkeep.agent.resources import pod_limits
from podkeep.agent.volumes import ownership
from podkeep.agent.volumes.ownership import UNCHANGED, Owners
from podkeep.api.containers import Container
from podkeep.api.pod import Pod
from podkeep.api.volumes import EmptyDirVolumeSource
from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.base.text import quantity
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import MountFlag

_MODE = 0o777
_HUGE_PAGES = "HugePages"
_HUGE_PAGES_OF = "HugePages-"
_RESOURCE = "hugepages-"


def make(pod: Pod, source: EmptyDirVolumeSource, path: Path, allocatable: Mapping[str, str], owners: Owners) -> None:
    """Make an emptyDir at ``path``; one that is there is left as it is.

    :param owners: whom it belongs to from the start.
    :param allocatable: what the node has for pods, by resource.
    :raises FailedPrecondition: if the pod asks for huge pages in a volume and not in a container.
    :raises KernelCallError: if the kernel refuses a mount.
    :raises OSError: if the kernel refuses otherwise.
    """
    mode = _MODE if source.mode is None else source.mode
    if source.medium == "Memory":
        limit = memory_limit(pod, source, allocatable)
        size = f",size={limit}" if limit else ""
        mount_tmpfs(path, _owned(mode, owners) + size)
    elif source.medium.startswith(_HUGE_PAGES):
        _mount_huge_pages(path, f"pagesize={page_size(pod, source.medium)},{_owned(mode, owners)}")
        if owners.group is not None:
            # The file system takes no set-group-ID bit at its mount.
            path.chmod(ownership.mode_for_group(path.stat().st_mode, writable=True))
    else:
        _make_directory(path, mode, owners)


def _owned(mode: int, owners: Owners) -> str:
    """Return mount options for the owner, the group and the mode of a file system's root."""
    if owners.group is not None:
        mode = ownership.mode_for_group(stat.S_IFDIR | mode, writable=True)
    return f"mode={mode:04o}{options_for(owners)}"


def options_for(owners: Owners) -> str:
    """Return mount options of a tmpfs or a hugetlbfs for whom its root belongs to, each after a comma."""
    uid, gid = owners.root
    user = "" if owners.id_map is None else f",uid={uid}"
    group = gid if owners.group is None else owners.group
    return user if owners.id_map is None and owners.group is None else f"{user},gid={group}"


def _make_directory(path: Path, mode: int, owners: Owners) -> None:
    """Make a directory that has its owner and mode from its first moment on: what is there is never looked at again."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    # Volume names are DNS labels, so that no volume can be called like this.
    new = path.with_name(f"..{path.name}.{secrets.token_hex(8)}")
    new.mkdir(mode=0o700)
    try:
        new.chmod(mode)
        if owners != UNCHANGED:
            ownership.give(new, owners, writable=True)
        os.rename(new, path)
    except BaseException:
        new.rmdir()
        raise


def mount_tmpfs(path: Path, options: str) -> None:
    """Mount a tmpfs at ``path``, unless something is mounted there already.

    :raises KernelCallError: if the kernel refuses.
    """
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    if mountinfo.is_mount_point(path):
        return
    try:
        # Swap would put secrets on a disk after all (Linux 6.3: tmpfs option noswap).
        mounts.tmpfs(path, f"{options},noswap")
    except KernelCallError:
        mounts.tmpfs(path, options)


def _mount_huge_pages(path: Path, options: str) -> None:
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not mountinfo.is_mount_point(path):
        flags = MountFlag.NOSUID | MountFlag.NODEV
        mounts.mount("nodev", path, fstype="hugetlbfs", flags=flags, data=options)


def memory_limit(pod: Pod, source: EmptyDirVolumeSource, allocatable: Mapping[str, str]) -> int:
    """Return how many bytes a volume in memory may hold, 0 for the kernel's own limit.

    That is the least of what the node has for pods, the pod's own memory limit, and ``sizeLimit``.
    """
    # Without a size, a tmpfs may take half of the machine's memory (tmpfs(5)), more than pods may have.
    limits = [quantity.units(allocatable["memory"])] if "memory" in allocatable else []
    limits.append(pod_limits.of_pod(pod).memory or 0)
    if source.size_limit is not None:
        limits.append(quantity.units(source.size_limit))
    return min((limit for limit in limits if limit > 0), default=0)


def page_size(pod: Pod, medium: str) -> int:
    """Return the size in bytes of the pages of a volume of huge pages: one that the pod's containers ask for.

    :raises FailedPrecondition: if none asks for it, or the medium names no size and they ask for several.
    """
    sizes = set(_requested_pages(pod))
    if medium != _HUGE_PAGES:
        sizes &= {quantity.units(medium.removeprefix(_HUGE_PAGES_OF))}
    if not sizes:
        raise FailedPrecondition(
            f"medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )
    if len(sizes) > 1:
        raise FailedPrecondition(f"medium: {medium} can't be used if container requests multiple huge page sizes")
    return sizes.pop()


def _requested_pages(pod: Pod) -> Iterator[int]:
    containers: list[Container] = [*pod.spec.containers, *pod.spec.init_containers]
    asked = [container.resources for container in containers]
    if pod.spec.resources is not None:
        asked.append(pod.spec.resources)
    for resources in asked:
        for name in {*resources.requests, *resources.limits}:
            if name.startswith(_RESOURCE):
                yield quantity.units(name.removeprefix(_RESOURCE))
