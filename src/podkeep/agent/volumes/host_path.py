"""hostPath and local volumes: checking that a path of the node is what the pod says, and making it if it asks for that.

Links in the path are followed as the node has them, also those that another pod made in a hostPath of its own, and what
is missing is made where they lead: a kubelet does the same, and /var/run is a link. No more than 40 are followed, no
link leads to what is made, and it is a directory, or an empty file, whatever is put there meanwhile.

Links in the path of a PersistentVolume are not followed. Its administrator says which directory it is, pods that may
ask for it cannot choose; but if it lies in another volume, a pod with that one could have it lead to any directory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from podkeep.api.volumes import HostPathVolumeSource
from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.kernel.files import openat

_DEV = Path("/dev")
_SHARED_MEMORY = _DEV / "shm"
"""Anybody may write there, also in a pod with ``hostIPC``."""
_CHECKS: dict[str, tuple[Callable[[int], bool], str]] = {
    "Directory": (stat.S_ISDIR, "is not a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "is not a directory"),
    "File": (stat.S_ISREG, "is not a file"),
    "FileOrCreate": (stat.S_ISREG, "is not a file"),
    "Socket": (stat.S_ISSOCK, "is not a socket file"),
    "CharDevice": (stat.S_ISCHR, "is not a character device"),
    "BlockDevice": (stat.S_ISBLK, "is not a block device"),
}


def check(source: HostPathVolumeSource) -> Path:
    """Return the path of a hostPath volume, made first if its type says so.

    With an empty type nothing is checked, and what is missing becomes a directory: a kubelet leaves that to its
    runtime, and containerd and CRI-O make it.

    :raises FailedPrecondition: if there is something else at the path, or nothing (Kubernetes: hostPath type check).
    :raises OSError: if the path cannot be made.
    """
    path = Path(source.path)
    if not source.type:
        if not path.exists():
            _create(path, directory=True)
        return path
    if source.type.endswith("OrCreate") and not path.exists():
        _create(path, directory=source.type == "DirectoryOrCreate")
    matches, why = _CHECKS[source.type]
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise FailedPrecondition(f"hostPath type check failed: {path} {why}", hint="nothing is there") from error
    if not matches(mode):
        raise FailedPrecondition(f"hostPath type check failed: {path} {why}")
    return path


def check_persistent(source: HostPathVolumeSource) -> Path:
    """Return the path of a PersistentVolume of type hostPath as :func:`check` does.

    :raises FailedPrecondition: also if there is a symbolic link on the way, as in :func:`open_unlinked`.
    :raises OSError: as :func:`check`.
    """
    with suppress(FileNotFoundError):
        os.close(open_unlinked(Path(source.path)))
    return check(source)


def check_local(source: str, *, block: bool) -> Path:
    """Return the path of a local volume, which somebody prepared: a directory, or with ``block`` a block device.

    :raises FailedPrecondition: if there is something else, or a symbolic link on the way to a directory. A device is
        below ``/dev``, where links are the machine's (``/dev/disk/by-id``): the runtime opens it by its path.
    :raises OSError: if nothing is there.
    """
    # As a kubelet refuses it (validation.ValidatePathNoBacksteps).
    if ".." in source.split("/"):
        raise FailedPrecondition(f"invalid path: {source} must not contain '..'")
    path = Path(source)
    if block and (_DEV not in path.parents or _SHARED_MEMORY in path.parents):
        raise FailedPrecondition(
            f"local volume {source} is not below /dev and the volumeMode is Block",
            hint="have the PersistentVolume name the device as /dev/disk/by-id/NAME",
        )
    with openat.closing(openat.open_named(path) if block else open_unlinked(path)) as fd:
        mode = os.fstat(fd).st_mode
    if stat.S_ISBLK(mode) if block else stat.S_ISDIR(mode):
        return path
    if stat.S_ISBLK(mode):
        raise FailedPrecondition(
            f"local volume {source} is a block device and the volumeMode is Filesystem",
            hint="make a file system on it, mount that, and use the directory as the local volume",
        )
    raise FailedPrecondition("only directory and block device are supported")


def open_unlinked(path: Path) -> int:
    """Open (``O_PATH``) what a PersistentVolume's path leads to without a link; the caller closes it.

    One right below the root directory is followed: no pod makes one there, and ``/home`` and ``/mnt`` are links on some
    machines.

    :raises FailedPrecondition: if there is another symbolic link on the way.
    :raises OSError: if nothing is there.
    """
    top = openat.resolved(Path("/", *path.parts[1:2]))
    try:
        return openat.open_resolved(Path(top, *path.parts[2:]))
    except KernelCallError as error:
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    except FailedPrecondition as error:
        raise FailedPrecondition(
            f"there is a symbolic link in the path {path} of a PersistentVolume",
            hint="have it name what the link leads to; a pod may have made the link",
        ) from error


def _create(path: Path, *, directory: bool) -> None:
    if directory:
        openat.make_directories(path, mode=0o755)
        return
    # The kubelet makes the file only, not the directories above it. A pod may have put a link there that leads to
    # nothing: no file is made where it leads.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
    except FileExistsError as error:
        if path.is_symlink():
            raise FailedPrecondition(f"hostPath type check failed: {path} is a symbolic link to nothing") from error
