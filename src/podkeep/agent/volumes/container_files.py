"""Everything of the node that one container sees: its volume mounts, /etc/hosts and the termination log.

Owns the files it makes below the pod's directory. Blocking; called from a thread.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from podkeep.agent import sub_path
from podkeep.agent.convert.container import PlannedImage, PlannedMount
from podkeep.agent.environment.variables import expand_known
from podkeep.agent.logs import files as log_files
from podkeep.agent.poddirs import PodDir
from podkeep.agent.volumes import host_path, projection
from podkeep.agent.volumes.ownership import UNCHANGED, Owners
from podkeep.agent.volumes.setup import MountedVolume
from podkeep.api.containers import Container, VolumeMount
from podkeep.api.pod import Pod
from podkeep.api.validation.volumes import descending_path
from podkeep.base import atomicfile
from podkeep.base.errors import FailedPrecondition, InvalidArgument, reason_of
from podkeep.kernel.files import openat

HOSTS = "/etc/hosts"
OWN_MOUNTS = 2
"""Which every container has besides its volumes, unless one takes the place: /etc/hosts and the termination log."""
_MAX_MESSAGE = 4096
_MAX_LOG_BYTES = 2048
_MAX_LOG_LINES = 80
_MAX_LOG_READ = 64 * 1024
"""Bytes of a log of which its last 2048 are taken: each piece of a line, up to 16 kB, has a head of its own."""
_MAX_SUB_PATH = 4095
"""Characters, as of a path that the kernel takes. That of an image is the runtime's to look at, and each of a thousand
mounts may name a variable of a megabyte."""


def write_hosts(directory: PodDir, text: str, owner: tuple[int, int] = (0, 0)) -> None:
    """Write the pod's /etc/hosts, readable by everybody.

    The file is replaced in place: containers of the pod that run already have this very file mounted.

    :param owner: UID and GID on disk.
    """
    try:
        # Containers can write to it: no link is followed, and O_NONBLOCK fails on a lease (F_SETLEASE) instead of
        # waiting.
        fd = os.open(directory.hosts, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, BlockingIOError):
        # None yet, or a container has a lease on it, for which all would wait: it keeps the old one.
        atomicfile.write(directory.hosts, text.encode(), mode=0o644)
        if owner != (0, 0):
            os.chown(directory.hosts, *owner, follow_symlinks=False)
        return
    with os.fdopen(fd, "wb") as file:
        if owner != (0, 0):
            os.fchown(fd, *owner)
        file.write(text.encode())


def mounts(
    container: Container,
    attempt: int,
    directory: PodDir,
    volumes: Mapping[str, MountedVolume | PlannedImage],
    environment: Mapping[str, str],
    owner: tuple[int, int] = (0, 0),
) -> list[PlannedMount]:
    """Prepare and return the mounts of one attempt of ``container``.

    :param owner: UID and GID on disk of what is made for the container.
    :raises InvalidArgument: if an expanded ``subPathExpr`` is no path inside a volume, or a variable in it not set.
    :raises FailedPrecondition: if a ``subPath`` leads out of its volume.
    """
    owners = {volume.path: volume.owners for volume in volumes.values() if isinstance(volume, MountedVolume)}
    try:
        planned = [
            # By the volume, and not by where it is mounted from: its sub paths are pinned elsewhere.
            structs.replace(
                _volume_mount(mount, index, container, directory, volumes, environment),
                selinux_relabel=_is_own(volumes[mount.name], directory),
            )
            for index, mount in enumerate(container.volume_mounts)
        ]
        _make_mount_points(planned, directory, owners)
    except ValueError as error:  # a NUL in a path, which the API takes: no system call is made
        raise InvalidArgument(f"volumeMounts of container {container.name}: a path holds a NUL character") from error
    taken = {mount.container_path for mount in planned}
    if HOSTS not in taken:
        planned.append(PlannedMount(host_path=directory.hosts, container_path=HOSTS, selinux_relabel=True))
    if container.termination_message_path not in taken:
        log = termination_log(directory, container.name, attempt)
        _make_termination_log(log, owner)
        planned.append(
            PlannedMount(host_path=log, container_path=container.termination_message_path, selinux_relabel=True)
        )
    return planned


def _is_own(volume: MountedVolume | PlannedImage, directory: PodDir) -> bool:
    """Return whether a volume was made for the pod, and gets its label; what it only refers to keeps its own label."""
    return isinstance(volume, MountedVolume) and directory.volumes in volume.path.parents


def recursive(container: Container, planned: Sequence[PlannedMount], *, possible: bool) -> list[PlannedMount]:
    """Return ``planned`` with what is to be read-only recursively (KEP-3857).

    :param possible: the runtime can do it.
    :raises InvalidArgument: if it is asked for and cannot be had.
    """
    modes = {posixpath.join("/", mount.mount_path): mount for mount in container.volume_mounts}
    result = []
    for item in planned:
        mount = modes.get(item.container_path)
        mode = None if mount is None else mount.recursive_read_only
        if mount is not None and mode in {"Enabled", "IfPossible"}:
            _check_recursive(mount, possible=possible)
            item = structs.replace(item, recursive_read_only=possible and item.image is None)
        result.append(item)
    return result


def _check_recursive(mount: VolumeMount, *, possible: bool) -> None:
    asked = f'volume "{mount.name}" requested recursive read-only mode, but it is not'
    if not mount.read_only:
        raise InvalidArgument(f"{asked} read-only")
    if mount.mount_propagation not in {None, "None"}:
        raise InvalidArgument(f'{asked} compatible with propagation "{mount.mount_propagation}"')
    if mount.recursive_read_only == "Enabled" and not possible:
        raise InvalidArgument(f"{asked} supported by the runtime")


def _volume_mount(
    mount: VolumeMount,
    index: int,
    container: Container,
    directory: PodDir,
    volumes: Mapping[str, MountedVolume | PlannedImage],
    environment: Mapping[str, str],
) -> PlannedMount:
    volume = volumes[mount.name]
    inner = mount.sub_path or expand_known(mount.sub_path_expr, environment)
    if len(inner) > _MAX_SUB_PATH:
        why = f"has more than {_MAX_SUB_PATH} characters"
        raise InvalidArgument(f'subPath "{inner[:64]}…" of volume "{mount.name}" {why}')
    if inner and (why := descending_path(inner)):
        raise InvalidArgument(f'subPath "{inner}" of volume "{mount.name}" {why}')
    if isinstance(volume, PlannedImage):
        return PlannedMount(
            image=volume,
            sub_path=inner,
            container_path=posixpath.join("/", mount.mount_path),
            read_only=True,
            propagation=mount.mount_propagation,
        )
    path = volume.path
    if inner or volume.persistent:
        pinned = directory.sub_path(mount.name, container.name, index)
        user = None if volume.owners.id_map is None else volume.owners.root[0]
        opened = host_path.open_unlinked if volume.persistent else openat.open_named
        path = sub_path.pin(
            path, inner, pinned, name=mount.name, opened=opened, propagation=mount.mount_propagation, user=user
        )
    return PlannedMount(
        host_path=path,
        # A path without a leading slash is taken from the root, as a kubelet does.
        container_path=posixpath.join("/", mount.mount_path),
        read_only=mount.read_only or volume.read_only,
        propagation=mount.mount_propagation,
    )


def _make_mount_points(planned: Sequence[PlannedMount], directory: PodDir, owners: Mapping[Path, Owners]) -> None:
    """Make what a ``subPath`` is mounted on in a read-only volume; only now it is known whether that is a file.

    Other mount points are made with the volume (``volumes/setup.py``), and so are those in what is writable by the OCI
    runtime. A hostPath is left as it is.
    """
    places = [(posixpath.normpath(mount.container_path), mount) for mount in planned]
    for place, mount in places:
        source = mount.host_path
        if not mount.sub_path if source is None else directory.sub_paths not in source.parents:
            continue
        around = [(top, outer) for top, outer in places if place.startswith(f"{top}/")]
        top, outer = max(around, key=lambda item: len(item[0]), default=("", mount))
        if outer is mount or not outer.read_only:
            continue
        # The innermost volume around it: with nested volumes that is where the OCI runtime looks for the mount point.
        volume, inside = outer.host_path, place[len(top) + 1 :]
        if volume is None or directory.volumes not in volume.parents:
            continue
        if source is None or source.is_dir():
            projection.make_mount_points(volume, [inside], owners.get(volume, UNCHANGED))
        else:
            projection.make_mount_point_of_file(volume, inside, owners.get(volume, UNCHANGED))


def termination_log(directory: PodDir, container: str, attempt: int) -> Path:
    """Return the file in which an attempt of ``container`` may leave a termination message."""
    return directory.container(container) / f"termination-log.{attempt}"


def mounted_termination_log(pod: Pod, name: str, directory: PodDir) -> Path | None:
    """Return the pin of what of an emptyDir a container has at its ``terminationMessagePath``, where the agent's file
    would be; None: nothing.

    It is read as root, for everybody who sees the status: files of a hostPath or a claim, which a kubelet reads as
    well, may be others', and closed to the container.
    """
    spec = pod.spec
    container = next((item for item in spec.all_containers if item.name == name), None)
    if container is None:
        return None
    own = {volume.name for volume in spec.volumes if volume.empty_dir is not None}
    for index, mount in enumerate(container.volume_mounts):
        if posixpath.join("/", mount.mount_path) == container.termination_message_path:
            if mount.name not in own or not (mount.sub_path or mount.sub_path_expr):
                return None
            return sub_path.place(directory.sub_path(mount.name, name, index), mount.mount_propagation)
    return None


def _make_termination_log(path: Path, owner: tuple[int, int]) -> None:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if owner != (0, 0):
            os.fchown(fd, *owner)
        # Whatever user the container runs as writes here.
        os.fchmod(fd, 0o666)
    finally:
        os.close(fd)


def keep_termination_message(path: Path, pinned: Path) -> None:
    """Keep what a container left in a file of an emptyDir as its termination log ``path``, unless that was done.

    The volume goes when the pod has ended, and other attempts write to it.

    :param pinned: what the container had in its place (:func:`mounted_termination_log`).
    :raises OSError: if it cannot be read, or not be kept.
    """
    if os.path.lexists(path):
        return
    fd = openat.open_beside(pinned)
    if fd is None:
        return
    text, _ = _end(fd, _MAX_MESSAGE)
    path.parent.mkdir(mode=0o750, exist_ok=True)
    atomicfile.write(path, text)


def termination_message(path: Path, log: Path, *, fall_back: bool) -> str:
    """Return the termination message of a container: the end of what it wrote, at most 4096 bytes.

    :param path: its termination log.
    :param log: its output in CRI log format, whose end is used when there is no message and ``fall_back`` is set:
        at most 80 lines and 2048 bytes.
    """
    # The container chose what is at the path: only a regular file is opened, and no lease is waited for.
    try:
        text = _end(openat.open_beside(path), _MAX_MESSAGE)[0]
    except OSError as error:
        return f"Error on reading termination log {path}: {reason_of(error)}"  # in a kubelet's words
    if text or not fall_back:
        return text.decode(errors="replace")
    try:
        return _log_tail(log).decode(errors="replace")
    except (FailedPrecondition, OSError) as error:
        return f"Error on reading termination message from logs: {reason_of(error)}"  # in a kubelet's words


def _end(fd: int | None, limit: int) -> tuple[bytes, bool]:
    """Return the last ``limit`` bytes of a file, if there is one, and whether there are more before them; close it."""
    if fd is None:
        return b"", False
    with openat.closing(fd):
        before = max(0, os.fstat(fd).st_size - limit)
        os.lseek(fd, before, os.SEEK_SET)
        return openat.read_bytes(fd, limit), before > 0


def _log_tail(log: Path) -> bytes:
    """Return the end of what a container wrote."""
    data, is_cut = _end(log_files.open_log(log), _MAX_LOG_READ)
    # A read from the middle begins inside a line, whose head is missing.
    pieces = data.split(b"\n")[1 if is_cut else 0 :]
    lines: list[bytes] = [b""]
    for piece in pieces:
        parts = piece.split(b" ", 3)
        if len(parts) == 4:
            lines[-1] += parts[3]
            # Tag P of the CRI log format: the line goes on in the next record.
            if b"P" not in parts[2].split(b":"):
                lines[-1] += b"\n"
                lines.append(b"")
    kept = lines[-_MAX_LOG_LINES - 1 :] if not lines[-1] else lines[-_MAX_LOG_LINES:]
    return b"".join(kept)[-_MAX_LOG_BYTES:]
