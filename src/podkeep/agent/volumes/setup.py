"""Making one volume of a pod ready on the node before containers start.

Owns: what is made of each kind of volume, under the pod's directory with the kubelet's paths. With a mapping for each
pod, files belong to root on disk whatever that is; the runtime shifts them by idmapped mounts (KEP-127). On a node with
one mapping they belong to root of the pod, but for what is at a hostPath, which stays as it is. Which volumes of a pod
are wanted, again and again, is ``pod_volumes``. Taking volumes down is ``poddirs.PodDirs.remove``: everything made here
is below the pod's directory.
"""

from __future__ import annotations

import os
import posixpath
import stat
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from podkeep.agent.objects.sources import Sources
from podkeep.agent.poddirs import PodDir
from podkeep.agent.user_namespaces.model import PodUserNamespace
from podkeep.agent.volumes import empty_dir, host_path, ownership, projection
from podkeep.agent.volumes.claims import BoundVolume, MountCheckFailed, NotProcessed, PodClaims
from podkeep.agent.volumes.ownership import UNCHANGED, Owners
from podkeep.agent.volumes.payload import MAX_BYTES, MAX_POD_BYTES, Payload, holds_files, payload
from podkeep.api.containers import VolumeMount
from podkeep.api.pod import Pod
from podkeep.api.volumes import Volume
from podkeep.base.errors import FailedPrecondition, PodkeepError, words_of
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.files import openat

_PLUGINS = {
    "config_map": "kubernetes.io~configmap",
    "downward_api": "kubernetes.io~downward-api",
    "projected": "kubernetes.io~projected",
    "secret": "kubernetes.io~secret",
}
"""Names of directories of what has files, by the attribute of a volume."""
_EMPTY_DIR = "kubernetes.io~empty-dir"
_HOST_PATH = "kubernetes.io~host-path"
_LOCAL = "kubernetes.io~local-volume"
_GIVEN = "given-to-group"
_USE = threading.Lock()
"""Held while a volume is looked for in the directories of all pods."""
_TMPFS_BYTES = 4 * MAX_BYTES
"""Of the file system of a secret: of its files, of the next ones beside them, and of what they take in pages."""
_DIRECTORY_MODE = 0o755
_SETUP = "MountVolume.SetUp"


class MountedVolume(FrozenStruct, kw_only=True):
    """A volume that is ready: where it is on the node, and whether containers may only read it.

    With ``device`` it is a block device, for ``volumeDevices``. ``group`` is one more group of every container.
    ``owners`` are of what the agent makes inside. With ``persistent`` there may be no link in its path, and each mount
    of it is pinned: what is at the path may be exchanged at any time.
    """

    name: str
    path: Path
    read_only: bool = False
    device: bool = False
    persistent: bool = False
    group: int | None = None
    owners: Owners = UNCHANGED


class Surroundings(FrozenStruct, kw_only=True):
    """What volumes have to know of the node: name, labels, and ``allocatable``, what it has for pods by resource.

    And of the pod's place on it: ``user_namespace``, the pod's own; ``None`` if it shares the node's.
    """

    node_name: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    allocatable: Mapping[str, str] = msgspec.field(default_factory=dict)
    images: bool = True
    """Whether volumes may be images (feature gate ImageVolume)."""
    user_namespace: PodUserNamespace | None = None


def set_up(
    pod: Pod, directory: PodDir, sources: Sources, node: Surroundings | None = None
) -> Mapping[str, MountedVolume]:
    """Make all volumes of ``pod`` and return them by name. Doing it again brings files up to date and keeps the rest.

    Images are not among them: nothing of those is on the node's file system (``volumes/images.py``).

    :raises FailedPrecondition: naming the first volume that failed and what is wrong with it.
    """
    around, inside, claimed = node or Surroundings(), mount_points(pod), PodClaims(pod, sources)
    volumes = [volume for volume in pod.spec.volumes if volume.image is None or not around.images]
    return {volume.name: set_up_one(pod, volume, directory, around, inside, claimed) for volume in volumes}


def set_up_one(
    pod: Pod,
    volume: Volume,
    directory: PodDir,
    node: Surroundings,
    inside: Mapping[str, Sequence[str]],
    claimed: PodClaims,
) -> MountedVolume:
    """Make one volume, or bring its files up to date.

    :param inside: the directories in each volume on which others are mounted (:func:`mount_points`).
    :raises NotProcessed: if it is not known yet what to mount, or this node has nothing for volumes of this kind.
    :raises FailedPrecondition: with a kubelet's text, naming the volume and what is wrong with it.
    """
    named = volume.name
    try:
        if volume.persistent_volume_claim is not None or volume.ephemeral is not None:
            persistent = claimed.bound(volume)
            named = persistent.name
            claimed.require_here(volume, node.labels, node.node_name)
            return _persistent(pod, volume, persistent, directory, owners_of(pod, node))
        return _set_up(pod, volume, directory, claimed.sources, node, inside.get(volume.name, ()))
    except NotProcessed:
        raise
    except MountCheckFailed as error:
        raise _failed(f"MountVolume.{error.step}", named, error.message, error.hint) from error
    except PodkeepError as error:
        raise _failed(_SETUP, named, error.message, error.hint) from error
    # A path with a NUL, which the API takes, is a ValueError in Python: no system call is made.
    except ValueError as error:
        raise _failed(_SETUP, named, "a path holds a NUL character", "") from error
    except OSError as error:
        raise _failed(_SETUP, named, words_of(error), "") from error


def files(pod: Pod, volume: Volume, sources: Sources, node: Surroundings, left: int = MAX_POD_BYTES) -> Payload | None:
    """Return what the files of a volume should be; None if the node does not write them.

    :param left: bytes that they may have, for the pod's other volumes have the rest.
    :raises FailedPrecondition: as :func:`set_up_one`.
    """
    if not holds_files(volume):
        return None
    try:
        return payload(volume, pod, sources, node.allocatable, left)
    except PodkeepError as error:
        raise _failed(_SETUP, volume.name, error.message, error.hint) from error


def _failed(what: str, volume: str, why: str, hint: str) -> FailedPrecondition:
    return FailedPrecondition(f'{what} failed for volume "{volume}" : {why}', hint=hint)


def owners_of(pod: Pod, node: Surroundings) -> Owners:
    """Return whom the files of the pod's volumes belong to on disk."""
    security, own = pod.spec.security_context, node.user_namespace
    return Owners(
        id_map=None if own is None or own.idmapped_volumes else own.id_map,
        group=None if security is None else security.fs_group,
    )


def _set_up(
    pod: Pod, volume: Volume, directory: PodDir, sources: Sources, node: Surroundings, inside: Sequence[str]
) -> MountedVolume:
    if volume.host_path is not None:
        return MountedVolume(name=volume.name, path=host_path.check(volume.host_path))
    owners = owners_of(pod, node)
    if volume.empty_dir is not None:
        path = directory.volume(_EMPTY_DIR, volume.name)
        empty_dir.make(pod, volume.empty_dir, path, node.allocatable, owners)
        projection.make_mount_points(path, inside, owners)
        return MountedVolume(name=volume.name, path=path, owners=owners)
    if not holds_files(volume):
        raise NotProcessed(
            f'failed to get Plugin from volumeSpec for volume "{volume.name}" err=no volume plugin matched'
        )
    content = payload(volume, pod, sources, node.allocatable)
    path = files_directory(volume, directory)
    if volume.config_map is not None:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        status = path.stat()
        if owners.id_map is not None and (status.st_uid, status.st_gid) != owners.root:
            os.chown(path, *owners.root)
        if stat.S_IMODE(status.st_mode) != _DIRECTORY_MODE:  # the umask had its say
            path.chmod(_DIRECTORY_MODE)
    else:
        # Secrets and tokens never touch a disk; a kubelet has the others in memory, too.
        root = "" if owners.id_map is None else empty_dir.options_for(Owners(id_map=owners.id_map))
        empty_dir.mount_tmpfs(path, f"mode=0755{root},size={_TMPFS_BYTES}")
    projection.write(path, content, owners)
    projection.make_mount_points(path, inside, owners)
    return MountedVolume(name=volume.name, path=path, read_only=True, owners=owners)


def files_directory(volume: Volume, directory: PodDir) -> Path:
    """Return where a volume has its files whose content is the node's."""
    plugin = next(name for attribute, name in _PLUGINS.items() if getattr(volume, attribute) is not None)
    return directory.volume(plugin, volume.name)


def _persistent(pod: Pod, volume: Volume, persistent: BoundVolume, directory: PodDir, owners: Owners) -> MountedVolume:
    """Check the volume behind a claim, and give it to its owners if it is a local one (kubelet: local volumes)."""
    if persistent.host_path is not None:
        path = host_path.check_persistent(persistent.host_path)
        mark = directory.volume(_HOST_PATH, persistent.name)
    elif persistent.local:
        try:
            path = host_path.check_local(persistent.local, block=persistent.block)
        except FileNotFoundError as error:
            text = f'path "{persistent.local}" does not exist'
            raise MountCheckFailed(text, step="NewMounter initialization", volume=persistent.name) from error
        mark = directory.volume(_LOCAL, persistent.name)
    else:
        raise NotProcessed(
            f'failed to get Plugin from volumeSpec for volume "{persistent.name}" err=no volume plugin matched',
            hint="this node has volumes of types local and hostPath",
        )
    _use(mark, directory, exclusive=persistent.exclusive)
    given = UNCHANGED if persistent.host_path is not None or persistent.block else owners
    if given != UNCHANGED and not persistent.read_only:
        _give_local(pod, path, given, mark / _GIVEN)
    return MountedVolume(
        name=volume.name,
        path=path,
        read_only=persistent.read_only,
        device=persistent.block,
        persistent=True,
        group=persistent.group,
        owners=given,
    )


def _use(mark: Path, directory: PodDir, *, exclusive: bool) -> None:
    """Note in the pod's directory that it uses a volume: ``mark`` is a directory there, gone with the pod's.

    :raises FailedPrecondition: if the volume is for one pod and another one uses it.
    """
    # Looking and marking are one step, or two pods that come together would both find the volume unused.
    with _USE:
        if mark.exists():
            return
        if exclusive and any((pod / mark.relative_to(directory.path)).exists() for pod in _others(directory)):
            raise FailedPrecondition(
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
            )
        mark.mkdir(mode=0o750, parents=True)


def _others(directory: PodDir) -> list[Path]:
    return [path for path in directory.path.parent.iterdir() if path != directory.path]


def _give_local(pod: Pod, path: Path, owners: Owners, given: Path) -> None:
    """Give a local volume to its owners, once for the pod: the file ``given`` is made when that is done."""
    if given.exists():
        return
    security = pod.spec.security_context
    policy = None if security is None else security.fs_group_change_policy
    # Opened once, so that what is judged is what is given away, whatever is put at the path meanwhile.
    with openat.closing(host_path.open_unlinked(path)) as named:
        if policy != "OnRootMismatch" or not ownership.belongs(os.fstat(named), owners, writable=True):
            with openat.closing(openat.reopen(named, os.O_RDONLY | os.O_DIRECTORY)) as root:
                ownership.give_tree(root, owners, writable=True)
    # Last: an agent that is killed during the walk does it again.
    given.touch(mode=0o640)


def mount_points(pod: Pod) -> dict[str, list[str]]:
    """Return, by the names of volumes, the directories in each on which a container of the pod has another one mounted.

    Not those that are inside of such a directory (kubelet, nested volumes), nor those of a subPath, which may be a file
    (``container_files.py``). Of several mounts at one place the last one counts, which is above the others. Pure; for
    all volumes at once, since a pod may have as many volumes as mounts.
    """
    found: dict[str, set[str]] = {}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        mounts: dict[str, VolumeMount] = {}
        for mount in container.volume_mounts:
            mounts[posixpath.join("/", posixpath.normpath(mount.mount_path))] = mount
        # With NUL for the slash, what is inside of a directory comes right after it, whatever other names begin alike.
        places = sorted(mounts, key=_in_tree)
        keys = [_in_tree(place) for place in places]
        for top, outer in mounts.items():
            if _is_part(outer):
                continue
            for index in _outermost(keys, f"{_in_tree(top)}\0"):
                if not _is_part(mounts[places[index]]):
                    found.setdefault(outer.name, set()).add(places[index][len(top) + 1 :])
    return {volume: sorted(paths) for volume, paths in found.items()}


def _in_tree(path: str) -> str:
    return path.replace("/", "\0")


def _is_part(mount: VolumeMount) -> bool:
    return bool(mount.sub_path or mount.sub_path_expr)


def _outermost(keys: Sequence[str], prefix: str) -> Iterator[int]:
    """Yield where in ``keys``, which are sorted, those are that begin with a prefix and are not inside of another."""
    index = bisect_left(keys, prefix)
    while index < len(keys) and keys[index].startswith(prefix):
        yield index
        index = bisect_left(keys, f"{keys[index]}\1", index)
