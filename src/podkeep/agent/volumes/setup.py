"""Making a pod's volumes ready on the node before its containers start.

Owns: emptyDir, hostPath, configMap and secret volumes under the pod's directory, with the kubelet's paths. Files
belong to root on disk whatever the pod's user namespace is; the runtime shifts them by idmapped mounts (KEP-127).
Taking volumes down is ``poddirs.PodDirs.remove``: everything made here is below the pod's directory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from podkeep.agent.poddirs import PodDir
from podkeep.agent.sources import Sources
from podkeep.agent.volumes import host_path, ownership, projection
from podkeep.agent.volumes.payload import MAX_BYTES, payload
from podkeep.api.pod import Pod
from podkeep.api.volumes import EmptyDirVolumeSource, Volume
from podkeep.base import quantity
from podkeep.base.errors import FailedPrecondition, KernelCallError, PodkeepError, Unimplemented
from podkeep.kernel.mount import mountinfo, mounts

_EMPTY_DIR = "kubernetes.io~empty-dir"
_CONFIG_MAP = "kubernetes.io~configmap"
_SECRET = "kubernetes.io~secret"
_SECRET_BYTES = 4 * MAX_BYTES
"""Of the file system of a secret: of its files, of the next ones beside them, and of what they take in pages."""


@dataclass(frozen=True, kw_only=True)
class MountedVolume:
    """A volume that is ready: where it is on the node, and whether containers may only read it."""

    name: str
    path: Path
    read_only: bool = False


def set_up(pod: Pod, directory: PodDir, sources: Sources) -> Mapping[str, MountedVolume]:
    """Make the volumes of ``pod`` and return them by name. Doing it again brings files up to date and keeps the rest.

    Images are not among them: nothing of those is on the node's file system (``volumes/images.py``).

    :raises FailedPrecondition: naming the volume and what is wrong with it.
    """
    ready = {}
    for volume in pod.spec.volumes:
        if volume.image is not None:
            continue
        try:
            ready[volume.name] = _set_up(pod, volume, directory, sources)
        except PodkeepError as error:
            raise _failed(volume, error.message, error.hint) from error
        except OSError as error:
            raise _failed(volume, str(error), "") from error
    return ready


def _failed(volume: Volume, why: str, hint: str) -> FailedPrecondition:
    return FailedPrecondition(f'MountVolume.SetUp failed for volume "{volume.name}" : {why}', hint=hint)


def _set_up(pod: Pod, volume: Volume, directory: PodDir, sources: Sources) -> MountedVolume:
    security = pod.spec.security_context
    fs_group = None if security is None else security.fs_group
    if volume.host_path is not None:
        return MountedVolume(name=volume.name, path=host_path.check(volume.host_path))
    if volume.empty_dir is not None:
        path = directory.volume(_EMPTY_DIR, volume.name)
        _empty_dir(volume.empty_dir, path, fs_group)
        projection.make_mount_points(path, mount_points_inside(pod, volume.name))
        return MountedVolume(name=volume.name, path=path)
    if volume.config_map is not None:
        path = directory.volume(_CONFIG_MAP, volume.name)
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif volume.secret is not None:
        path = directory.volume(_SECRET, volume.name)
        # Secrets never touch a disk.
        _mount_tmpfs(path, f"mode=0755,size={_SECRET_BYTES}", mode=0o755)
    else:
        raise Unimplemented("this kind of volume is not supported by this version")
    path.chmod(0o755)
    projection.write(path, payload(volume, pod.metadata.namespace, sources), fs_group=fs_group)
    projection.make_mount_points(path, mount_points_inside(pod, volume.name))
    return MountedVolume(name=volume.name, path=path, read_only=True)


def mount_points_inside(pod: Pod, volume: str) -> list[str]:
    """Return the directories in a volume on which a container of the pod has another volume mounted; pure.

    Not those that are inside of such a directory (kubelet, nested volumes), nor those of a subPath, which may be a file
    (``container_files.py``).
    """
    found = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        mounted = [
            (posixpath.join("/", posixpath.normpath(mount.mount_path)), mount) for mount in container.volume_mounts
        ]
        places = sorted(mounted, key=lambda item: item[0])
        for top, outer in places:
            if outer.name != volume or outer.sub_path or outer.sub_path_expr:
                continue
            inside = [(place[len(top) :], mount) for place, mount in places if place.startswith(f"{top}/")]
            covered: list[str] = []
            for place, mount in inside:
                if any(place.startswith(f"{other}/") for other in covered):
                    continue
                covered.append(place)
                if not mount.sub_path and not mount.sub_path_expr:
                    found.add(place.strip("/"))
    return sorted(found)


def _empty_dir(source: EmptyDirVolumeSource, path: Path, fs_group: int | None) -> None:
    if path.exists() and source.medium != "Memory":
        return
    if source.medium == "Memory":
        limit = quantity.units(source.size_limit) if source.size_limit else 0
        if not _mount_tmpfs(path, f"mode=0777,size={limit}" if limit else "mode=0777", mode=0o777):
            return
    else:
        path.mkdir(mode=0o777, parents=True)
    path.chmod(0o777)
    if fs_group is not None:
        ownership.give_to_group(path, fs_group, writable=True)


def _mount_tmpfs(path: Path, options: str, *, mode: int) -> bool:
    """Mount a tmpfs at ``path`` and return True, or False if something is mounted there already."""
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    if mountinfo.is_mount_point(path):
        return False
    try:
        # Swap would put secrets on a disk after all (Linux 6.3: tmpfs option noswap).
        mounts.tmpfs(path, f"{options},noswap")
    except KernelCallError:
        mounts.tmpfs(path, options)
    return True
