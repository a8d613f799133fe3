"""Extended attributes of a layer's files: what the kernel would refuse or change when they are set, and their encoding.

A file that is created gets its access control lists through setxattr(2), which checks them and changes the mode; an
inode that is written into an image does not. So that is here, with the kernel's rules (fs/posix_acl.c). What other
attributes may be is checked for all layers (``rules``). Pure.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping

from podkeep.images.layers.erofs import layout

ACCESS_ACL = "system.posix_acl_access"
DEFAULT_ACL = "system.posix_acl_default"
OPAQUE = {"trusted.overlay.opaque": b"y"}
"""Kernel, overlayfs.rst, "whiteouts and opaque directories"."""
_PREFIXES = ((ACCESS_ACL, 2), (DEFAULT_ACL, 3), ("user.", 1), ("trusted.", 4), ("security.", 6))
"""Beginnings of names and the numbers that stand for them (``EROFS_XATTR_INDEX_*``)."""
_HEADER = bytes(12)
_ENTRY = struct.Struct("<BBH")

_ACL_VERSION = struct.pack("<I", 2)
_ACL_ENTRY = struct.Struct("<HHI")
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 1, 2, 4, 8, 16, 32
_NO_ID = 0xFFFFFFFF
_Acl = list[tuple[int, int, int]]


def settled(
    xattrs: Mapping[str, bytes], mode: int, *, before: Mapping[str, bytes] | None = None, directory: bool = False
) -> tuple[int, dict[str, bytes]]:
    """Return mode and attributes of a file after each of ``xattrs`` was set on it, which ``rules`` let pass.

    :param before: the attributes it had.
    :raises OSError: as setxattr(2) would.
    """
    kept = dict(before or {})
    for name, value in xattrs.items():
        if len(value) > layout.MAX_XATTR_VALUE:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        if name.startswith("system."):
            mode = _set_acl(kept, name, value, mode, directory=directory)
        else:
            kept[name] = value
    return mode, kept


def changed_mode(xattrs: Mapping[str, bytes], mode: int) -> dict[str, bytes]:
    """Return the attributes of a file whose mode was set: an access control list follows it (posix_acl_chmod)."""
    if ACCESS_ACL not in xattrs:
        return dict(xattrs)
    acl = _parse_acl(xattrs[ACCESS_ACL])
    # With a mask, the group bits of the mode are the mask's (acl(5)).
    group = _MASK if any(tag == _MASK for tag, _, _ in acl) else _GROUP_OBJ
    permissions = {_USER_OBJ: mode >> 6 & 7, group: mode >> 3 & 7, _OTHER: mode & 7}
    return dict(xattrs) | {ACCESS_ACL: _packed_acl([(tag, permissions.get(tag, old), who) for tag, old, who in acl])}


def encoded(xattrs: Mapping[str, bytes]) -> bytes:
    """Return attributes as they follow an inode, in an order that does not depend on how they came; empty for none.

    :raises OSError: if they are too many.
    """
    if not xattrs:
        return b""
    parts = [_HEADER]
    for name, value in sorted(xattrs.items()):
        prefix, index = next(item for item in _PREFIXES if name.startswith(item[0]))
        suffix = os.fsencode(name[len(prefix) :])
        entry = _ENTRY.pack(len(suffix), index, len(value)) + suffix + value
        parts.append(entry + bytes(-len(entry) % 4))
    result = b"".join(parts)
    if len(result) > layout.MAX_XATTR_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return result


def _set_acl(kept: dict[str, bytes], name: str, value: bytes, mode: int, *, directory: bool) -> int:
    """Set an access control list; return the mode, of which an access list is the other form (acl(5))."""
    if name not in (ACCESS_ACL, DEFAULT_ACL):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    acl = _parse_acl(value)
    if name == DEFAULT_ACL and not directory:
        if acl:
            # As the kernel: only a directory has a default list, but any file may be told that it has none.
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return mode
    if not acl:
        kept.pop(name, None)
        return mode
    _validate(acl)
    if name == DEFAULT_ACL:
        kept[name] = _packed_acl(acl)
        return mode
    permissions = {tag: allowed for tag, allowed, _ in acl}
    group = permissions.get(_MASK, permissions[_GROUP_OBJ])
    if permissions.keys() <= {_USER_OBJ, _GROUP_OBJ, _OTHER}:
        kept.pop(name, None)  # it says no more than the mode does
    else:
        kept[name] = _packed_acl(acl)
    return mode & ~0o777 | permissions[_USER_OBJ] << 6 | group << 3 | permissions[_OTHER]


def _parse_acl(value: bytes) -> _Acl:
    """Return tag, permissions and ID of each entry.

    :raises OSError: as posix_acl_from_xattr of the kernel.
    """
    body = value[len(_ACL_VERSION) :]
    if len(value) < len(_ACL_VERSION) or len(body) % _ACL_ENTRY.size:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if value[: len(_ACL_VERSION)] != _ACL_VERSION:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    return list(_ACL_ENTRY.iter_unpack(body))


def _validate(acl: _Acl) -> None:
    """Check that a list is one.

    :raises OSError: as posix_acl_valid of the kernel.
    """
    tags = [tag for tag, _, _ in acl]
    named = [(tag, who) for tag, _, who in acl if tag in (_USER, _GROUP)]
    if not (
        tags == sorted(tags)
        and all(tags.count(tag) == 1 for tag in (_USER_OBJ, _GROUP_OBJ, _OTHER))
        and tags.count(_MASK) in ((1,) if named else (0, 1))
        and set(tags) <= {_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER}
        and all(allowed <= 7 for _, allowed, _ in acl)
        and all(who != _NO_ID for _, who in named)
    ):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _packed_acl(acl: _Acl) -> bytes:
    named = (_USER, _GROUP)
    entries = [_ACL_ENTRY.pack(tag, allowed, who if tag in named else _NO_ID) for tag, allowed, who in acl]
    return _ACL_VERSION + b"".join(entries)
