"""Mounting: the new mount API, the old one where it is shorter, and idmapped clones.

Owns: flag types, error hints, and the few compositions everybody needs (clone, attach, bind, unmount, tmpfs). Does not
own: reading mount tables (``mountinfo``), overlay (``overlay``), or the decision what to mount. Every function acts on
the mount namespace of the calling thread. A path's symbolic links are followed: callers resolve untrusted paths first
and pass a file descriptor.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING

from podkeep.base.errors import KernelCallError
from podkeep.kernel import libc

if TYPE_CHECKING:
    from pathlib import Path  # which the namespace helper has no other use for: a tenth of its memory


class AtFlag(IntFlag):
    """``AT_*`` flags of open_tree(2) and mount_setattr(2)."""

    NONE = 0
    SYMLINK_NOFOLLOW = 0x100
    NO_AUTOMOUNT = 0x800
    EMPTY_PATH = 0x1000
    RECURSIVE = 0x8000


class OpenTreeFlag(IntFlag):
    """Flags of open_tree(2) of its own; they share a word with :class:`AtFlag`."""

    CLONE = 0x1
    CLOEXEC = os.O_CLOEXEC


class MoveMountFlag(IntFlag):
    """``MOVE_MOUNT_*``."""

    FROM_SYMLINKS = 0x1
    FROM_EMPTY_PATH = 0x4
    TO_SYMLINKS = 0x10
    TO_EMPTY_PATH = 0x40
    BENEATH = 0x200


class MountAttr(IntFlag):
    """``MOUNT_ATTR_*`` of mount_setattr(2) and fsmount(2). Not the same numbers as :class:`MountFlag`."""

    NONE = 0
    RDONLY = 0x1
    NOSUID = 0x2
    NODEV = 0x4
    NOEXEC = 0x8
    NOATIME = 0x10
    STRICTATIME = 0x20
    NODIRATIME = 0x80
    IDMAP = 0x100000
    NOSYMFOLLOW = 0x200000


class MountFlag(IntFlag):
    """``MS_*`` of mount(2)."""

    NONE = 0
    RDONLY = 1
    NOSUID = 2
    NODEV = 4
    NOEXEC = 8
    REMOUNT = 32
    NOATIME = 1024
    BIND = 4096
    MOVE = 8192
    REC = 16384
    UNBINDABLE = 1 << 17
    PRIVATE = 1 << 18
    SLAVE = 1 << 19
    SHARED = 1 << 20
    RELATIME = 1 << 21
    STRICTATIME = 1 << 24


class Propagation(IntFlag):
    """Propagation types; the values of mount(2), which mount_setattr(2) takes as well."""

    UNCHANGED = 0
    UNBINDABLE = MountFlag.UNBINDABLE
    PRIVATE = MountFlag.PRIVATE
    SLAVE = MountFlag.SLAVE
    SHARED = MountFlag.SHARED


class UnmountFlag(IntFlag):
    """``MNT_*`` and ``UMOUNT_*`` of umount2(2)."""

    NONE = 0
    FORCE = 1
    DETACH = 2
    EXPIRE = 4
    NOFOLLOW = 8


class FsopenFlag(IntFlag):
    """``FSOPEN_*``."""

    CLOEXEC = 1


class FsmountFlag(IntFlag):
    """``FSMOUNT_*``."""

    CLOEXEC = 1


class FsconfigCommand(IntEnum):
    """``FSCONFIG_*``."""

    SET_FLAG = 0
    SET_STRING = 1
    SET_BINARY = 2
    SET_PATH = 3
    SET_PATH_EMPTY = 4
    SET_FD = 5
    CMD_CREATE = 6
    CMD_RECONFIGURE = 7
    CMD_CREATE_EXCL = 8


def open_tree(source: Path | str | int, *, clone: bool, recursive: bool = False) -> int:
    """Open ``source`` (a path, or a descriptor of the object itself); with ``clone`` as a detached copy of its mount.

    :returns: an O_PATH descriptor, closed by the caller; closing a detached copy unmounts it.
    :raises KernelCallError: if the kernel refuses.
    """
    flags = int(OpenTreeFlag.CLOEXEC)
    if clone:
        flags |= OpenTreeFlag.CLONE
    if recursive:
        flags |= AtFlag.RECURSIVE
    if isinstance(source, int):
        return libc.open_tree(source, b"", flags | AtFlag.EMPTY_PATH, _hint_object(source))
    return libc.open_tree(libc.AT_FDCWD, os.fsencode(source), flags)


def move_mount(mount_fd: int, target: Path | str | int, *, beneath: bool = False) -> None:
    """Attach the mount behind ``mount_fd`` at ``target`` (a path, or a descriptor of the mount point).

    :raises KernelCallError: if the kernel refuses.
    """
    flags = MoveMountFlag.FROM_EMPTY_PATH
    if beneath:
        flags |= MoveMountFlag.BENEATH
    if isinstance(target, int):
        hint = _hint_object(target)
        libc.move_mount(mount_fd, b"", target, b"", flags | MoveMountFlag.TO_EMPTY_PATH, hint)
    else:
        flags |= MoveMountFlag.TO_SYMLINKS
        libc.move_mount(mount_fd, b"", libc.AT_FDCWD, os.fsencode(target), flags)


def mount_setattr(
    mount: Path | str | int,
    *,
    set_: MountAttr = MountAttr.NONE,
    clear: MountAttr = MountAttr.NONE,
    propagation: Propagation = Propagation.UNCHANGED,
    userns: int | None = None,
    recursive: bool = False,
) -> None:
    """Change attributes of the mount at ``mount`` (a path, or a descriptor of a mount); all of them or none.

    :param userns: user namespace descriptor for :attr:`MountAttr.IDMAP`, which is added to ``set_``.
    :raises KernelCallError: if the kernel refuses; for an idmap that the file system does not support, with the text
        that KEP-127 (handling of volumes) quotes as the hint.
    """
    if userns is not None:
        set_ |= MountAttr.IDMAP
    dirfd, path, at = (mount, b"", AtFlag.EMPTY_PATH) if isinstance(mount, int) else _at(mount)
    if recursive:
        at |= AtFlag.RECURSIVE
    attr = libc.MountAttrArgument(
        attr_set=int(set_), attr_clr=int(clear), propagation=int(propagation), userns_fd=userns or 0
    )
    given = {"set": set_, "clear": clear, "propagation": propagation}
    fields = [*(f"{name}={libc.named(value)}" for name, value in given.items()), f"userns_fd={userns}"]
    call = f"mount_setattr({dirfd}, {os.fsdecode(path)!r}, {libc.named(at)}, {', '.join(fields)})"
    libc.mount_setattr(dirfd, path, at, attr, call)


def _at(path: Path | str) -> tuple[int, bytes, AtFlag]:
    return libc.AT_FDCWD, os.fsencode(path), AtFlag.NONE


def clone_tree(
    source: Path | str | int,
    *,
    recursive: bool = False,
    idmap_userns: int | None = None,
    attrs: MountAttr = MountAttr.NONE,
    propagation: Propagation = Propagation.PRIVATE,
) -> int:
    """Return a detached copy of the mount at ``source``, idmapped by a user namespace when one is given.

    The files keep their owners on disk; seen through the copy they are shifted (KEP-127, handling of volumes).

    :param idmap_userns: descriptor of the user namespace whose mappings apply.
    :returns: a descriptor of the detached mount, closed by the caller.
    :raises KernelCallError: if the kernel refuses; nothing is left behind. For a file system that cannot be idmapped
        the hint is the text that KEP-127 quotes.
    """
    # Detached while it is changed: a mount that was attached once cannot be idmapped any more (mount_setattr(2)).
    fd = open_tree(source, clone=True, recursive=recursive)
    try:
        mount_setattr(fd, set_=attrs, propagation=propagation, userns=idmap_userns, recursive=recursive)
    except KernelCallError as error:
        os.close(fd)
        # EINVAL is what the kernel answers for a file system without FS_ALLOW_IDMAP (mount_setattr(2)).
        if idmap_userns is not None and error.errno == errno.EINVAL:
            raise KernelCallError(error.call, error.errno, hint=_idmap_hint(source)) from error
        raise
    except BaseException:
        os.close(fd)
        raise
    return fd


def _idmap_hint(source: Path | str | int) -> str:
    return (
        f"failed to set MOUNT_ATTR_IDMAP on {_name(source)}: invalid argument "
        "(maybe the source filesystem doesn't support idmap mounts on this kernel?)"
    )


def attach(mount_fd: int, target: Path | str | int) -> None:
    """Attach a detached mount at ``target``; the descriptor stays open and is the caller's to close.

    :raises KernelCallError: if the kernel refuses.
    """
    move_mount(mount_fd, target)


def bind(
    source: Path | str | int, target: Path | str | int, *, recursive: bool = False, readonly: bool = False
) -> None:
    """Bind ``source`` at ``target``, private, and read-only from the first moment if asked.

    :raises KernelCallError: if the kernel refuses; nothing is left mounted.
    """
    # Attributes are set before it is attached: MS_BIND and then a remount leaves a moment in which it is writable.
    fd = clone_tree(source, recursive=recursive, attrs=MountAttr.RDONLY if readonly else MountAttr.NONE)
    try:
        attach(fd, target)
    finally:
        os.close(fd)


def unmount(target: Path | str, *, lazy: bool = False, missing_ok: bool = True) -> None:
    """Unmount what is mounted last at ``target``, without following a symbolic link there.

    :param lazy: detach now and let go when the last user is gone.
    :param missing_ok: do nothing if ``target`` does not exist or nothing is mounted there.
    :raises KernelCallError: if the kernel refuses.
    """
    # umount2(2) follows a link otherwise, and a container could put one in the mount point's place.
    flags = UnmountFlag.NOFOLLOW | (UnmountFlag.DETACH if lazy else UnmountFlag.NONE)
    try:
        libc.umount2(os.fsencode(target), flags)
    except KernelCallError as error:
        if missing_ok and error.errno in {errno.ENOENT, errno.EINVAL, errno.ENOTDIR}:
            return
        if error.errno == errno.EBUSY:
            hint = "a process still uses it: `fuser -vm` names it"
            raise KernelCallError(error.call, error.errno, hint=hint) from error
        raise


def tmpfs(target: Path | str, options: str = "", *, attrs: MountFlag = MountFlag.NOSUID | MountFlag.NODEV) -> None:
    """Mount an empty tmpfs at ``target``.

    :param options: as in tmpfs(5), for example ``size=64k,mode=0700``.
    :raises KernelCallError: if the kernel refuses.
    """
    mount("tmpfs", target, fstype="tmpfs", flags=attrs, data=options)


def mount(
    source: str | None,
    target: Path | str,
    *,
    fstype: str | None = None,
    flags: MountFlag = MountFlag.NONE,
    data: str = "",
) -> None:
    """Call mount(2); for what the new API has no shorter word for.

    :raises KernelCallError: if the kernel refuses.
    """
    libc.mount(
        None if source is None else os.fsencode(source),
        os.fsencode(target),
        None if fstype is None else os.fsencode(fstype),
        flags,
        os.fsencode(data) if data else None,
        "",
    )


def set_propagation(target: Path | str, propagation: Propagation, *, recursive: bool = False) -> None:
    """Change how mounts under ``target`` propagate (mount_namespaces(7)).

    :raises KernelCallError: if ``target`` is not a mount point, or the kernel refuses.
    """
    flags = MountFlag(int(propagation)) | (MountFlag.REC if recursive else MountFlag.NONE)
    mount(None, target, flags=flags)


def fsopen(fstype: str) -> int:
    """Open a file system context (fsopen(2)); the caller closes it.

    :raises KernelCallError: if the kernel does not know the file system.
    """
    return libc.fsopen(fstype.encode(), FsopenFlag.CLOEXEC)


def fsconfig_string(context: int, key: str, value: str) -> None:
    """Set an option; ``value`` has at most 255 bytes (a limit of fsconfig(2)).

    :raises KernelCallError: if the kernel refuses; the hint is what the file system said.
    """
    _fsconfig(context, FsconfigCommand.SET_STRING, key, os.fsencode(value), 0)


def fsconfig_flag(context: int, key: str) -> None:
    """Set an option that has no value.

    :raises KernelCallError: if the kernel refuses; the hint is what the file system said.
    """
    _fsconfig(context, FsconfigCommand.SET_FLAG, key, None, 0)


def fsconfig_fd(context: int, key: str, fd: int) -> None:
    """Set an option to an open file.

    :raises KernelCallError: if the kernel refuses; the hint is what the file system said.
    """
    _fsconfig(context, FsconfigCommand.SET_FD, key, None, fd)


def fsconfig_create(context: int) -> None:
    """Create the superblock from the options set so far.

    :raises KernelCallError: if the kernel refuses; the hint is what the file system said.
    """
    _fsconfig(context, FsconfigCommand.CMD_CREATE, None, None, 0)


def fsmount(context: int, attrs: MountAttr = MountAttr.NONE) -> int:
    """Return a detached mount of the created superblock; the caller closes the descriptor.

    :raises KernelCallError: if the kernel refuses.
    """
    return libc.fsmount(context, FsmountFlag.CLOEXEC, attrs)


def _fsconfig(context: int, command: FsconfigCommand, key: str | None, value: bytes | None, aux: int) -> None:
    try:
        libc.fsconfig(context, command, None if key is None else key.encode(), value, aux)
    except KernelCallError as error:
        raise KernelCallError(error.call, error.errno, hint=context_messages(context)) from error


def context_messages(context: int) -> str:
    """Return what the file system wrote to the context's message log, joined by ``; `` (fsopen(2))."""
    messages = []
    with suppress(OSError):
        # One message a read; ENODATA ends the list (fsopen(2)).
        while message := os.read(context, 4096):
            messages.append(message.decode(errors="replace").strip().partition(" ")[2])
    return "; ".join(messages)


def _name(source: Path | str | int) -> str:
    if not isinstance(source, int):
        return str(source)
    try:
        return os.readlink(f"/proc/self/fd/{source}")
    except OSError:
        return f"fd {source}"


def _hint_object(fd: int) -> str:
    return f"fd {fd} is {_name(fd)}"
