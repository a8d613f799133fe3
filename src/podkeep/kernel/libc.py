"""System calls that Python's standard library lacks: those about mounts, namespaces and file systems, and some others.

What one module of this package alone calls (openat2(2), syncfs(2), capset(2)) is declared there, as is prctl(2), whose
arguments differ by what is asked for.

Owns: the foreign functions, each with ``argtypes`` and ``restype`` set at import, and the translation of ``errno`` into
:class:`KernelCallError`. Does not own: flag types and meaning, which belong to the module of each kernel API
(``mounts``, ``namespaces``). Called by the other modules of this package only.

A function object is made by subscription (``_LIBC["mount"]``), which returns a new object at every look-up: nobody else
can change the argument types of ours, whichever thread they are on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from ctypes import POINTER, c_char, c_char_p, c_int, c_long, c_size_t, c_uint, c_uint64, c_ulong
from enum import Enum, IntFlag
from typing import Any, NamedTuple

from podkeep.base.errors import KernelCallError

# use_errno: ctypes keeps each thread's errno aside, which the interpreter's own calls would overwrite.
_LIBC = ctypes.CDLL(None, use_errno=True)

# Numbers shared by every architecture (calls added since Linux 5.0, include/uapi/asm-generic/unistd.h). They are called
# through syscall(2) because a C library older than the kernel has no wrapper.
_NR_OPEN_TREE = 428
_NR_MOVE_MOUNT = 429
_NR_FSOPEN = 430
_NR_FSCONFIG = 431
_NR_FSMOUNT = 432
_NR_MOUNT_SETATTR = 442
_NR_STATMOUNT = 457
_NR_LISTMOUNT = 458

AT_FDCWD = -100
"""In place of a descriptor: paths start at the working directory."""


class CloneFlag(IntFlag):
    """Namespace bits of clone(2), unshare(2) and setns(2)."""

    FS = 0x00000200
    NEWNS = 0x00020000
    NEWCGROUP = 0x02000000
    NEWUTS = 0x04000000
    NEWIPC = 0x08000000
    NEWUSER = 0x10000000
    NEWPID = 0x20000000
    NEWNET = 0x40000000


class _Statx(ctypes.Structure):
    """``struct statx`` of statx(2), as far as it is read here; the kernel fills in 256 bytes."""

    _fields_ = (
        ("mask", c_uint),
        ("block_size", c_uint),
        ("attributes", c_uint64),
        ("between", c_char * 40),
        ("attributes_mask", c_uint64),
        ("times_and_devices", c_char * 80),
        ("mount_id", c_uint64),
        ("after", c_char * 104),
    )


_BASIC = struct.Struct("=4xIQIIIH2xQQQ8xqI4x16xqI4xqI4xIIII")
"""All that stat(2) tells, as statx(2) has it; what is passed over are the mask, and the time of birth."""
_SECOND_NS = 1_000_000_000


class Look(NamedTuple):
    """What the kernel knows of a file by itself; ``mounted``: something is mounted there, of which ``status`` is."""

    status: os.stat_result
    mounted: bool


class _Passwd(ctypes.Structure):
    """``struct passwd`` of getpwnam(3), as far as it is read here; it is smaller than this everywhere."""

    _fields_ = (("name", c_char_p), ("password", c_char_p), ("uid", c_uint), ("gid", c_uint), ("after", c_char * 64))


class _Statfs(ctypes.Structure):
    """``struct statfs`` of statfs(2), as far as it is read here; it is smaller than this everywhere."""

    _fields_ = (("type", c_long), ("after", c_char * 248))


_AT_SYMLINK_NOFOLLOW = 0x100
_AT_NO_AUTOMOUNT = 0x800
_AT_EMPTY_PATH = 0x1000
_AT_STATX_DONT_SYNC = 0x4000
_STATX_BASIC_STATS = 0x7FF
_STATX_MNT_ID = 0x1000
_STATX_MNT_ID_UNIQUE = 0x4000
_STATX_ATTR_MOUNT_ROOT = 0x2000
_AT_KNOWN = _AT_EMPTY_PATH | _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC
"""Without DONT_SYNC a network file system asks its server, and waits as long as that does not answer."""


class MountAttrArgument(ctypes.Structure):
    """``struct mount_attr`` of mount_setattr(2)."""

    _fields_ = (("attr_set", c_uint64), ("attr_clr", c_uint64), ("propagation", c_uint64), ("userns_fd", c_uint64))


class _MountIdRequest(ctypes.Structure):
    """``struct mnt_id_req`` of listmount(2) and statmount(2)."""

    _fields_ = (("size", c_uint), ("spare", c_uint), ("mount_id", c_uint64), ("parameter", c_uint64))


class _Statmount(ctypes.Structure):
    """``struct statmount`` of statmount(2), as far as it is read here; the kernel fills in 512 bytes."""

    _fields_ = (
        ("size", c_uint),
        ("options", c_uint),
        ("mask", c_uint64),
        ("device", c_uint * 2),
        ("magic", c_uint64),
        ("after", c_char * 480),
    )


_STATMOUNT_SB_BASIC = 1


def _declare(name: str, *argtypes: Any, restype: Any = c_int) -> Any:
    function = _LIBC[name]
    function.argtypes = argtypes
    function.restype = restype
    return function


def _declare_number(*argtypes: Any) -> Any:
    return _declare("syscall", c_long, *argtypes, restype=c_long)


_mount = _declare("mount", c_char_p, c_char_p, c_char_p, c_ulong, c_char_p)
_umount2 = _declare("umount2", c_char_p, c_int)
_pivot_root = _declare("pivot_root", c_char_p, c_char_p)
_setns = _declare("setns", c_int, c_int)
_unshare = _declare("unshare", c_int)
_statx = _declare("statx", c_int, c_char_p, c_int, c_uint, POINTER(_Statx))
_fstatfs = _declare("fstatfs", c_int, POINTER(_Statfs))
_open_tree = _declare_number(c_int, c_char_p, c_uint)
_move_mount = _declare_number(c_int, c_char_p, c_int, c_char_p, c_uint)
_fsopen = _declare_number(c_char_p, c_uint)
_fsconfig = _declare_number(c_int, c_uint, c_char_p, c_char_p, c_int)
_fsmount = _declare_number(c_int, c_uint, c_uint)
_mount_setattr = _declare_number(c_int, c_char_p, c_uint, POINTER(MountAttrArgument), c_size_t)
_statmount = _declare_number(POINTER(_MountIdRequest), POINTER(_Statmount), c_size_t, c_uint)
_listmount = _declare_number(POINTER(_MountIdRequest), POINTER(c_uint64), c_size_t, c_uint)


_getpwnam_r = _declare("getpwnam_r", c_char_p, POINTER(_Passwd), c_char_p, c_size_t, POINTER(POINTER(_Passwd)))

_NO_SUCH_USER = frozenset({0, errno.ENOENT, errno.ESRCH})
_MAX_PASSWD_BYTES = 1 << 20


def _checked(result: int, call: str, hint: str) -> int:
    if result == -1:
        raise KernelCallError(call, ctypes.get_errno(), hint=hint)
    return result


def mount(source: bytes | None, target: bytes, fstype: bytes | None, flags: int, data: bytes | None, hint: str) -> None:
    """Call mount(2).

    :raises KernelCallError: with ``hint`` if the kernel refuses.
    """
    call = f"mount({_text(source)}, {_text(target)}, {_text(fstype)}, {named(flags)}, {_text(data)})"
    _checked(_mount(source, target, fstype, int(flags), data), call, hint)


def mallopt(option: int, value: int) -> bool:
    """mallopt(3); tells whether this C library has it and took the value."""
    function = getattr(_LIBC, "mallopt", None)
    if function is None:
        return False
    function.argtypes, function.restype = (c_int, c_int), c_int
    return bool(function(option, value))


def malloc_trim() -> None:
    """malloc_trim(3); does nothing if this C library has none."""
    function = getattr(_LIBC, "malloc_trim", None)
    if function is not None:
        function.argtypes, function.restype = (c_size_t,), c_int
        function(0)


def user_id(name: bytes) -> int | None:
    """Return the UID of a user by getpwnam_r(3); None: there is none.

    :raises OSError: if it cannot be told.
    """
    # getpwnam_r(3) answers ERANGE if an entry does not fit; the bound keeps a broken name service from taking all
    # memory.
    entry, size = _Passwd(), 1 << 10
    while True:
        found, buffer = POINTER(_Passwd)(), ctypes.create_string_buffer(size)
        number = _getpwnam_r(name, entry, buffer, size, found)
        if number != errno.ERANGE or size >= _MAX_PASSWD_BYTES:
            break
        size *= 4
    if found:
        return int(entry.uid)
    if number in _NO_SUCH_USER:
        return None
    raise OSError(number, os.strerror(number), os.fsdecode(name))


def umount2(target: bytes, flags: int, hint: str = "") -> None:
    """Call umount2(2).

    :raises KernelCallError: if the kernel refuses.
    """
    _checked(_umount2(target, int(flags)), f"umount2({_text(target)}, {named(flags)})", hint)


def pivot_root(new: bytes, old: bytes, hint: str = "") -> None:
    """Call pivot_root(2).

    :raises KernelCallError: if the kernel refuses.
    """
    _checked(_pivot_root(new, old), f"pivot_root({_text(new)}, {_text(old)})", hint)


def setns(fd: int, kind: int, hint: str = "") -> None:
    """Move the calling thread into the namespace behind ``fd``; ``kind`` is one CloneFlag.

    :raises KernelCallError: if the kernel refuses.
    """
    _checked(_setns(fd, int(kind)), f"setns(fd={fd}, {named(kind)})", hint)


def unshare(flags: int, hint: str = "") -> None:
    """Call unshare(2) for the calling thread.

    :raises KernelCallError: if the kernel refuses.
    """
    _checked(_unshare(int(flags)), f"unshare({named(flags)})", hint)


def mount_id(fd: int) -> int:
    """Return the ID of the mount that ``fd`` is on, as in the first column of mountinfo (statx(2), ``stx_mnt_id``).

    :raises KernelCallError: if the kernel refuses, or (ENOSYS) is too old to say.
    """
    # It comes without being asked for. A FUSE that a user namespace has mounted refuses whoever asks for anything.
    return _mount_id(fd, 0, _STATX_MNT_ID, "Linux 5.8")


def mounts_below(fd: int, most: int) -> int:
    """Return how many mounts there are below the one that ``fd`` is on, at any depth, counted up to ``most``.

    :raises KernelCallError: if the kernel refuses, or (ENOSYS) is too old to say.
    """
    unique = _unique_mount_id(fd)
    request = _MountIdRequest(size=ctypes.sizeof(_MountIdRequest), mount_id=unique)
    ids = (c_uint64 * most)()
    return _checked(_listmount(_NR_LISTMOUNT, ctypes.byref(request), ids, most, 0), f"listmount(of fd={fd})", "")


def mount_magic(fd: int) -> int:
    """Return the magic number of the file system that ``fd`` is on, as its mount has it (statmount(2)).

    Unlike statfs(2) it asks nobody but the kernel.

    :raises KernelCallError: if the kernel refuses, or (ENOSYS) is too old to say.
    """
    request = _MountIdRequest(
        size=ctypes.sizeof(_MountIdRequest), mount_id=_unique_mount_id(fd), parameter=_STATMOUNT_SB_BASIC
    )
    result = _Statmount()
    call = f"statmount(of fd={fd})"
    _checked(_statmount(_NR_STATMOUNT, ctypes.byref(request), ctypes.byref(result), ctypes.sizeof(result), 0), call, "")
    return int(result.magic)


def _unique_mount_id(fd: int) -> int:
    return _mount_id(fd, _STATX_MNT_ID_UNIQUE, _STATX_MNT_ID_UNIQUE, "Linux 6.8")


def _mount_id(fd: int, asked: int, wanted: int, since: str) -> int:
    result = _Statx()
    call = f"statx(fd={fd}, mask={wanted:#x})"
    _checked(_statx(fd, b"", _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC, asked, ctypes.byref(result)), call, "")
    # A kernel that does not know the field leaves its bit out of the answer, and no error comes.
    if not result.mask & wanted:
        raise KernelCallError(call, errno.ENOSYS, hint=f"{since} or later is needed")
    return int(result.mount_id)


def is_mount_root(dirfd: int, path: bytes) -> bool:
    """Say whether something is mounted at ``path``, a symbolic link itself (statx(2), ``STATX_ATTR_MOUNT_ROOT``).

    Asks nobody but the kernel: a network file system that hangs does not matter.

    :param path: empty: ``dirfd`` is of what is looked at.
    :raises KernelCallError: if the kernel refuses, or (ENOSYS) is too old to say.
    """
    result = _Statx()
    call = f"statx({_text(path)}, STATX_ATTR_MOUNT_ROOT)"
    _checked(_statx(dirfd, path, _AT_KNOWN | _AT_SYMLINK_NOFOLLOW, 0, ctypes.byref(result)), call, "")
    if not result.attributes_mask & _STATX_ATTR_MOUNT_ROOT:
        raise KernelCallError(call, errno.ENOSYS, hint="Linux 5.8 or later is needed")
    return bool(result.attributes & _STATX_ATTR_MOUNT_ROOT)


def look(dirfd: int, path: bytes, *, follow: bool = False) -> Look:
    """Return what the kernel knows of a file, as stat(2) tells it, without asking anybody else.

    A server of FUSE or of a network file system need not answer, and signals do not end the wait for it. What they have
    changed since may be unknown.

    :param path: empty: ``dirfd`` is of what is looked at.
    :param follow: a symbolic link.
    :raises KernelCallError: if the kernel refuses, EACCES at a FUSE that a user namespace has mounted.
    """
    result = _Statx()
    flags = _AT_KNOWN | (0 if follow else _AT_SYMLINK_NOFOLLOW)
    if _statx(dirfd, path, flags, _STATX_BASIC_STATS, ctypes.byref(result)) == -1:
        raise KernelCallError(f"statx({_text(path)}, STATX_BASIC_STATS)", ctypes.get_errno())
    (block_size, attributes, links, uid, gid, mode, inode, size, blocks, *rest) = _BASIC.unpack_from(result)
    read, read_ns, changed, changed_ns, written, written_ns, number_major, number_minor, major, minor = rest
    read_ns += read * _SECOND_NS
    written_ns += written * _SECOND_NS
    changed_ns += changed * _SECOND_NS
    fields = (
        *(mode, inode, os.makedev(major, minor), links, uid, gid, size, read, written, changed),
        *(read_ns / _SECOND_NS, written_ns / _SECOND_NS, changed_ns / _SECOND_NS, read_ns, written_ns, changed_ns),
        *(block_size, blocks, os.makedev(number_major, number_minor)),
    )
    return Look(os.stat_result(fields), attributes & _STATX_ATTR_MOUNT_ROOT != 0)


def file_system_type(fd: int) -> int:
    """Return the magic number of the file system that ``fd`` is on (statfs(2), ``f_type``).

    :raises KernelCallError: if the kernel refuses.
    """
    result = _Statfs()
    _checked(_fstatfs(fd, ctypes.byref(result)), f"fstatfs(fd={fd})", "")
    return int(result.type)


def open_tree(dirfd: int, path: bytes, flags: int, hint: str = "") -> int:
    """Call open_tree(2) and return the file descriptor.

    :raises KernelCallError: if the kernel refuses.
    """
    result: int = _open_tree(_NR_OPEN_TREE, dirfd, path, int(flags))
    return _checked(result, f"open_tree(dirfd={dirfd}, {_text(path)}, {named(flags)})", hint)


def move_mount(from_dirfd: int, from_path: bytes, to_dirfd: int, to_path: bytes, flags: int, hint: str = "") -> None:
    """Call move_mount(2).

    :raises KernelCallError: if the kernel refuses.
    """
    result = _move_mount(_NR_MOVE_MOUNT, from_dirfd, from_path, to_dirfd, to_path, int(flags))
    places = f"from_dirfd={from_dirfd}, {_text(from_path)}, to_dirfd={to_dirfd}, {_text(to_path)}"
    _checked(result, f"move_mount({places}, {named(flags)})", hint)


def fsopen(fstype: bytes, flags: int, hint: str = "") -> int:
    """Call fsopen(2) and return the file system context descriptor.

    :raises KernelCallError: if the kernel refuses.
    """
    return _checked(_fsopen(_NR_FSOPEN, fstype, int(flags)), f"fsopen({_text(fstype)}, {named(flags)})", hint)


def fsconfig(fd: int, command: int, key: bytes | None, value: bytes | None, aux: int) -> None:
    """Call fsconfig(2); the caller adds what the context's message log says.

    :raises KernelCallError: if the kernel refuses.
    """
    result = _fsconfig(_NR_FSCONFIG, fd, int(command), key, value, aux)
    _checked(result, f"fsconfig(fd={fd}, {named(command)}, {_text(key)}, {_text(value)}, aux={aux})", "")


def fsmount(fd: int, flags: int, attributes: int, hint: str = "") -> int:
    """Call fsmount(2) and return the descriptor of the detached mount.

    :raises KernelCallError: if the kernel refuses.
    """
    result: int = _fsmount(_NR_FSMOUNT, fd, int(flags), int(attributes))
    return _checked(result, f"fsmount(fd={fd}, {named(flags)}, {named(attributes)})", hint)


def mount_setattr(dirfd: int, path: bytes, flags: int, attr: MountAttrArgument, call: str, hint: str = "") -> None:
    """Call mount_setattr(2); ``call`` is how the error writes it, because ``attr`` is four bare numbers.

    :raises KernelCallError: if the kernel refuses.
    """
    result = _mount_setattr(
        _NR_MOUNT_SETATTR, dirfd, path, int(flags), ctypes.byref(attr), ctypes.sizeof(MountAttrArgument)
    )
    _checked(result, call, hint)


def named(value: int) -> str:
    """Return flags or a command by name, such as ``BIND|REC``, and any other number as it is."""
    return (isinstance(value, Enum) and value.name) or str(int(value))


def _text(value: bytes | None) -> str:
    return "NULL" if value is None else repr(value.decode(errors="surrogateescape"))
