"""subPath: a file or directory inside a volume, pinned by a bind mount so that nothing can be swapped in afterwards.

A whole volume is pinned in the same way if others may exchange it.

The volume's content belongs to the containers, which may put symbolic links there while we look. The path is therefore
opened by the kernel in one call that never leaves the volume, and what was opened is what gets mounted.

A pin has of its volume's mounts what ``mountPropagation`` asks for: with HostToContainer it is a slave, with
Bidirectional a peer of the mount that the volume is on. Only a peer has to be let go of before it is unmounted, or what
is mounted below it would be unmounted in the volume as well: :func:`let_go`. Nor can a peer be got at any more when
something is mounted right at the subPath, in the volume and thereby here: so it is in a file system of its own, and let
go of with all that is in that.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.kernel.files import openat, removal
from podkeep.kernel.files.openat import Resolve, openat2
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import Propagation

# The container decides what is there: O_PATH opens no device and waits for no FIFO.
_LOOK = os.O_PATH
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


_BIDIRECTIONAL = "Bidirectional"
_PROPAGATION = {
    None: Propagation.PRIVATE,
    "None": Propagation.PRIVATE,
    "HostToContainer": Propagation.SLAVE,
    _BIDIRECTIONAL: Propagation.UNCHANGED,
}
_PEER = "peer"
"""Name of a pin that is a peer, in its own file system at ``target``."""


def pin(
    volume: Path,
    sub_path: str,
    target: Path,
    *,
    name: str = "",
    opened: Callable[[Path], int] = openat.open_named,
    propagation: str | None = None,
    user: int | None = None,
) -> Path:
    """Mount ``sub_path`` of ``volume`` at ``target`` or in it, and return where; missing directories are made.

    Symbolic links are followed as long as they stay inside the volume. A second call with the same target keeps the
    first mount if the path still leads to the same file. If it does not, what it leads to now takes its place: a
    ConfigMap that was changed has new files, and nothing can be mounted from one that is removed.

    :param sub_path: empty: the volume itself.
    :param name: what the pod calls the volume; by default the last part of its path.
    :param opened: returns a descriptor (``O_PATH``) of the volume.
    :param propagation: the mount's ``mountPropagation``.
    :param user: whom directories that are made belong to; by default this process's.
    :raises FailedPrecondition: if the path leads out of the volume or through something that is no directory.
    :raises KernelCallError: if the kernel refuses the mount.
    :raises OSError: if there is no volume.
    """
    pinned = place(target, propagation)
    with openat.closing(opened(volume)) as root:
        try:
            fd = _open(root, sub_path or ".", user)
        except KernelCallError as error:
            raise _refused(volume, name or volume.name, sub_path, error) from error
        with openat.closing(fd):
            if not _is_pinned(fd, pinned):
                _let_one_go(target)
                if pinned != target:
                    _make_apart(target)
                kind = _PROPAGATION[propagation]
                # A whole volume has what is mounted in it while the container starts, not when the pod did.
                _mount(fd, pinned, Propagation.SLAVE if kind == Propagation.PRIVATE and not sub_path else kind)
    return pinned


def place(target: Path, propagation: str | None) -> Path:
    """Return where :func:`pin` mounts."""
    return target / _PEER if propagation == _BIDIRECTIONAL else target


def _is_pinned(fd: int, target: Path) -> bool:
    return mountinfo.is_mount_point(target) and os.path.samestat(os.fstat(fd), target.stat())


def _let_one_go(target: Path) -> None:
    """Unmount and remove a pin, so that another file, or a directory instead of a file, can be in its place."""
    # More than one mount when an agent was killed between mounting and taking the one before away, or somebody mounted
    # over it.
    while mountinfo.is_mount_point(target):
        removal.make_private(str(target))
        removal.unmount(str(target))
    if target.is_dir():
        target.rmdir()
    else:
        target.unlink(missing_ok=True)


def _open(root: int, sub_path: str, user: int | None) -> int:
    try:
        return openat2(root, os.fsencode(sub_path), _LOOK, Resolve.BENEATH | Resolve.NO_MAGICLINKS)
    except KernelCallError as error:
        if error.errno != errno.ENOENT:
            raise
    _make(root, [part for part in sub_path.split("/") if part not in {"", "."}], -1 if user is None else user)
    return openat2(root, os.fsencode(sub_path), _LOOK, Resolve.BENEATH | Resolve.NO_MAGICLINKS)


def _make(root: int, parts: list[str], user: int) -> None:
    """Make the directories ``parts`` one inside the other, each under one that was opened without leaving ``root``.

    They get the permission bits and the group of the volume's root, whatever the umask is, as the kubelet's do: who may
    write to the volume (fsGroup) may write to its subPaths.
    """
    volume = os.fstat(root)
    for depth in range(len(parts)):
        above = os.fsencode("/".join(parts[:depth]) or ".")
        parent = openat2(root, above, _DIRECTORY, Resolve.BENEATH | Resolve.NO_MAGICLINKS)
        try:
            os.mkdir(parts[depth], 0o700, dir_fd=parent)
            # A container may have removed or exchanged it meanwhile.
            made = openat2(parent, os.fsencode(parts[depth]), _DIRECTORY, Resolve.BENEATH | Resolve.NO_SYMLINKS)
            try:
                # What has something in it was put in the place of ours meanwhile, and stays closed if it was.
                if _is_empty(made):
                    os.fchown(made, user, volume.st_gid)
                    # After the change of owners, which may clear the set-group-ID bit.
                    os.fchmod(made, stat.S_IMODE(volume.st_mode))
            finally:
                os.close(made)
        except FileExistsError:
            pass
        finally:
            os.close(parent)


def _is_empty(directory: int) -> bool:
    with os.scandir(directory) as entries:
        return next(entries, None) is None


def let_go(pins: Path) -> None:
    """Take every pin below ``pins`` out of the peer group of its volume, so that it can be unmounted alone.

    :raises PodkeepError: if that cannot be done; then nothing below ``pins`` may be unmounted.
    """
    for mount_point in mountinfo.outermost(mountinfo.under(pins)):
        removal.make_private(mount_point)


def _mount(fd: int, target: Path, propagation: Propagation) -> None:
    target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        target.mkdir(mode=0o750, exist_ok=True)
    else:
        target.touch(mode=0o640)
    copy = mounts.clone_tree(fd, recursive=True, propagation=propagation)
    try:
        mounts.attach(copy, target)
    finally:
        os.close(copy)


def _make_apart(target: Path) -> None:
    """Mount a file system at ``target`` that passes no mounts on; they go with it in one step."""
    target.mkdir(mode=0o750, parents=True)
    mounts.tmpfs(target, "size=64k,mode=0750")
    mounts.set_propagation(target, Propagation.PRIVATE)


def _refused(volume: Path, name: str, sub_path: str, error: KernelCallError) -> FailedPrecondition:
    reasons = {
        errno.EXDEV: "it leads out of the volume",
        errno.ELOOP: "it leads through too many or forbidden symbolic links",
        errno.ENOTDIR: "a part of it is not a directory",
        errno.ENOENT: "a symbolic link in it leads nowhere, or a part of it was removed meanwhile",
    }
    why = reasons.get(error.errno, error.message)
    what = f'subPath "{sub_path}" of volume "{name}"' if sub_path else f"volume {volume}"
    return FailedPrecondition(f"failed to prepare {what}: {why}")
