"""Overlay file systems whose lower layers are detached mounts, idmapped or not.

Owns: handing layers to the kernel, by descriptor (``lowerdir+``, Linux 6.13) or, before that, by paths to which they
are attached for the moment of mounting. Does not own: making the layers (``images``) or the directories (``runtime``).
An overlay itself cannot be idmapped, so a pod's mappings are on its layers (KEP-127, variant 1).
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from enum import Flag, auto
from pathlib import Path

from podkeep.base.errors import InvalidArgument, KernelCallError
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import MountAttr, MountFlag

MAX_OPTIONS_BYTES = 4095
"""mount(2) copies one page of options."""


class OverlayFlag(Flag):
    """Options of an overlay (overlayfs.rst).

    ``VOLATILE``: the upper directory is never synced, and may be lost when the machine ends; :func:`make_readonly`
    needs it. ``METACOPY``: the data of files that are marked to have none is looked for in the layers beneath
    ("Metadata only copy up"); nobody else may be able to set ``trusted`` attributes in the layers and the upper
    directory then.
    """

    NONE = 0
    VOLATILE = auto()
    METACOPY = auto()


def mount_overlay(
    lowers: Sequence[int],
    *,
    upper: Path,
    work: Path,
    target: Path,
    by_path: bool = False,
    context: str = "",
    flags: OverlayFlag = OverlayFlag.NONE,
) -> None:
    """Mount a writable overlay at ``target``.

    :param lowers: descriptors of detached mounts (``mounts.clone_tree``), top layer first; they stay
        open and the overlay keeps its own references. An old kernel uses them up: pass each only once.
    :param upper: directory that takes the changes; on one file system with ``work``.
    :param by_path: do not try descriptors first.
    :param context: as in :func:`overlay_readonly`.
    :raises InvalidArgument: if ``lowers`` is empty.
    :raises KernelCallError: if the kernel refuses; nothing is left mounted.
    """
    wanted = _Overlay(lowers=lowers, upper_work=(upper, work), context=context, flags=flags)
    _mount(wanted, target, by_path=by_path)


def make_readonly(target: Path) -> None:
    """Make a writable overlay read-only as a whole, in all its mounts: its superblock, not the mount at ``target``.

    Only who is privileged in the user namespace that it was mounted from can undo that. One that is not ``VOLATILE``
    would have the kernel write out the whole file system that its upper directory is on.

    :raises KernelCallError: if the kernel refuses, EBUSY if a file of it is open for writing.
    """
    mounts.mount(None, target, flags=MountFlag.REMOUNT | MountFlag.RDONLY)


def overlay_readonly(
    lowers: Sequence[int],
    target: Path,
    *,
    attrs: MountAttr = MountAttr.NONE,
    context: str = "",
    by_path: bool = False,
    flags: OverlayFlag = OverlayFlag.NONE,
) -> None:
    """Mount the layers at ``target`` read-only for good: without an upper directory nobody can make it writable.

    A bind mount of a single layer would not do: its read-only flag is the mount's own, and a privileged process can
    take it off. The kernel wants two layers at least; an empty directory can be the other one.

    :param lowers: as in :func:`mount_overlay`.
    :param attrs: attributes beside RDONLY.
    :param context: SELinux label that every file gets (mount(8), context=); empty: the files' own.
    :raises InvalidArgument: if there are fewer than two.
    :raises KernelCallError: if the kernel refuses; nothing is left mounted.
    """
    if len(lowers) < 2:
        raise InvalidArgument(f"read-only overlay at {target} of {len(lowers)} layers", hint="add an empty directory")
    wanted = _Overlay(lowers=lowers, attrs=attrs | MountAttr.RDONLY, context=context, flags=flags)
    _mount(wanted, target, by_path=by_path)


class _Overlay(FrozenStruct, kw_only=True):
    """``upper_work`` is None for a read-only one."""

    lowers: Sequence[int]
    upper_work: tuple[Path, Path] | None = None
    attrs: MountAttr = MountAttr.NONE
    context: str = ""
    flags: OverlayFlag = OverlayFlag.NONE


def _mount(wanted: _Overlay, target: Path, *, by_path: bool) -> None:
    if not wanted.lowers:
        raise InvalidArgument(f"overlay at {target} without a layer")
    if by_path or not _mount_by_descriptor(wanted, target):
        _mount_by_path(wanted, target)


def _mount_by_descriptor(wanted: _Overlay, target: Path) -> bool:
    """Return False if the kernel does not take layers by descriptor."""
    with ExitStack() as closing:

        def opened(fd: int) -> int:
            closing.callback(os.close, fd)
            return fd

        context = opened(mounts.fsopen("overlay"))
        mounts.fsconfig_string(context, "source", "overlay")
        for number, fd in enumerate(wanted.lowers):
            try:
                mounts.fsconfig_fd(context, "lowerdir+", fd)
            except KernelCallError as error:
                # A kernel before 6.13 refuses the option itself, so at the first layer; a later refusal is about that
                # layer.
                if number == 0 and error.errno in {errno.EINVAL, errno.EOPNOTSUPP} and not _is_closed(fd):
                    return False
                raise
        if wanted.upper_work is not None:
            for key, directory in zip(("upperdir", "workdir"), wanted.upper_work, strict=True):
                mounts.fsconfig_fd(context, key, opened(_open_directory(directory)))
        if OverlayFlag.VOLATILE in wanted.flags:
            mounts.fsconfig_flag(context, "volatile")
        if OverlayFlag.METACOPY in wanted.flags:
            mounts.fsconfig_string(context, "metacopy", "on")
        if wanted.context:
            mounts.fsconfig_string(context, "context", wanted.context)
        mounts.fsconfig_create(context)
        mounts.attach(opened(mounts.fsmount(context, wanted.attrs)), target)
    return True


def _mount_by_path(wanted: _Overlay, target: Path) -> None:
    with ExitStack() as undo:
        # Short names: the paths of all layers have to fit into one page of options.
        top = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="lo")))
        mounts.tmpfs(top, "size=1m,mode=0700")
        undo.callback(mounts.unmount, top, lazy=True)
        # Else what is attached here would appear in every peer of /tmp's mount.
        mounts.set_propagation(top, mounts.Propagation.PRIVATE)
        paths = []
        for number, fd in enumerate(wanted.lowers):
            path = top / str(number)
            path.mkdir()
            _attach_copy(fd, path)
            undo.callback(mounts.unmount, path, lazy=True)
            paths.append(path)
        options = options_text(paths, wanted.upper_work, context=wanted.context)
        options += ",volatile" if OverlayFlag.VOLATILE in wanted.flags else ""
        options += ",metacopy=on" if OverlayFlag.METACOPY in wanted.flags else ""
        if len(os.fsencode(options)) > MAX_OPTIONS_BYTES:
            raise InvalidArgument(
                f"overlay at {target}: the names of {len(wanted.lowers)} layers do not fit in one page",
                hint="use Linux 6.13 or newer, which takes layers by descriptor",
            )
        flags = MountFlag.RDONLY if wanted.upper_work is None else MountFlag.NONE
        mounts.mount("overlay", target, fstype="overlay", flags=flags, data=options)
        if wanted.attrs:
            try:
                mounts.mount_setattr(target, set_=wanted.attrs)
            except BaseException:
                mounts.unmount(target, lazy=True)
                raise


def _attach_copy(fd: int, path: Path) -> None:
    # Before Linux 6.15 a detached mount cannot be cloned again; there the caller's own is attached, and so used up.
    try:
        mounts.bind(fd, path)
    except KernelCallError as error:
        if error.errno != errno.EINVAL:
            raise
        mounts.attach(fd, path)


def options_text(lowers: Sequence[Path], upper_work: tuple[Path, Path] | None, *, context: str = "") -> str:
    """Return overlay's mount options for layers given as paths, escaped as the kernel's overlayfs.rst asks."""
    options = ["lowerdir=" + ":".join(_escape(path) for path in lowers)]
    if upper_work is not None:
        options += [f"upperdir={_escape(upper_work[0])}", f"workdir={_escape(upper_work[1])}"]
    if context:
        # Quoted, because a label may hold a comma (mount(8), context=).
        options.append(f'context="{context}"')
    return ",".join(options)


def _escape(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _open_directory(path: Path) -> int:
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise KernelCallError(f"open({str(path)!r}, O_PATH|O_DIRECTORY)", error.errno or 0) from error


def _is_closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False
