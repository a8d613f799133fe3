"""hostPath: checking that a path of the node is what the pod says, and making it if the pod asks for that.

Links in the path are followed as the node has them, also those that another pod made in a hostPath of its own, and what
is missing is made where they lead: a kubelet does the same, and /var/run is a link. No more than 40 are followed, no
link leads to what is made, and it is a directory, or an empty file, whatever is put there meanwhile.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from podkeep.api.volumes import HostPathVolumeSource
from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.files import openat

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


def check_local(source: str, *, block: bool) -> Path:
    """Return the path of a local volume, which somebody prepared: a directory, or with ``block`` a block device.

    :raises FailedPrecondition: if there is something else.
    :raises OSError: if nothing is there.
    """
    # As a kubelet refuses it (validation.ValidatePathNoBacksteps).
    if ".." in source.split("/"):
        raise FailedPrecondition(f"invalid path: {source} must not contain '..'")
    path = Path(source)
    mode = path.stat().st_mode
    if stat.S_ISBLK(mode) if block else stat.S_ISDIR(mode):
        return path
    if stat.S_ISBLK(mode):
        raise FailedPrecondition(
            f"local volume {source} is a block device and the volumeMode is Filesystem",
            hint="make a file system on it, mount that, and use the directory as the local volume",
        )
    raise FailedPrecondition("only directory and block device are supported")


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
