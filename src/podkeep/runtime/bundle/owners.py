"""Whose the files of an image are on disk, when a copy of them is made for a pod with a user namespace. Pure.

A copy shows the pod what an idmapped mount of the image would (mount_setattr(2), MOUNT_ATTR_IDMAP): an ID of the image
is that ID inside. What the mapping does not have belongs to nobody inside, and to no process of the pod: the copy gives
it to a host ID that the mapping does not have either.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from podkeep.base.errors import InvalidArgument
from podkeep.kernel.namespace.idmap import MAX_ID, IdMap, IdMapping

_REMEMBERED = 4096
"""IDs whose answer is kept. An image has some ten; a hostile one has 500 other ones in each file's access list."""
_CAPABILITY = "security.capability"
_ACLS = frozenset({"system.posix_acl_access", "system.posix_acl_default"})
_REVISION_MASK = 0xFF000000
_REVISIONS = {0x02000000: 20, 0x03000000: 24}
"""Length of ``struct vfs_cap_data`` by revision; one with a root ID is revision 3 (uapi/linux/capability.h)."""
_REVISION_3 = 0x03000000
_SETS_BYTES = 20
_WORD = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
"""Tag, permissions and ID (uapi/linux/posix_acl_xattr.h)."""
_ACL_USER, _ACL_GROUP = 0x02, 0x08


class Owners:
    """What the IDs of an image are on disk for one mapping."""

    def __init__(self, idmap: IdMap) -> None:
        nobody_uid, nobody_gid = unmapped(idmap.uids), unmapped(idmap.gids)

        @lru_cache(_REMEMBERED)
        def uid(inside: int) -> int:
            try:
                return idmap.host_uid(inside)
            except InvalidArgument:
                return nobody_uid

        @lru_cache(_REMEMBERED)
        def gid(inside: int) -> int:
            try:
                return idmap.host_gid(inside)
            except InvalidArgument:
                return nobody_gid

        self.uid, self.gid = uid, gid
        self._idmap = idmap

    def attribute(self, name: str, value: bytes) -> bytes | None:
        """Return what an extended attribute of the image is on disk; None: it is left out.

        File capabilities name the root user they hold for, access control lists users and groups; nothing else does.
        """
        if name == _CAPABILITY:
            return self._capability(value)
        return self._acl(value) if name in _ACLS else value

    def _capability(self, value: bytes) -> bytes | None:
        """Return file capabilities of revision 3, which hold for who is root in the pod (capabilities(7), Namespaced
        file capabilities); None if they hold for a user that the pod does not have, or are not valid."""
        (magic,) = _WORD.unpack_from(value) if len(value) >= _WORD.size else (0,)
        revision = magic & _REVISION_MASK
        if len(value) != _REVISIONS.get(revision):
            return None
        root = _WORD.unpack_from(value, _SETS_BYTES)[0] if revision == _REVISION_3 else 0
        try:
            host = self._idmap.host_uid(root)
        except InvalidArgument:
            return None
        return _WORD.pack(_REVISION_3 | magic & ~_REVISION_MASK) + value[4:_SETS_BYTES] + _WORD.pack(host)

    def _acl(self, value: bytes) -> bytes:
        # An image writes what it likes here: what is no whole entry at the end is left as it is.
        result, at = bytearray(value), _WORD.size
        while at + _ACL_ENTRY.size <= len(value):
            tag, permissions, who = _ACL_ENTRY.unpack_from(value, at)
            if tag in {_ACL_USER, _ACL_GROUP}:
                host = self.uid(who) if tag == _ACL_USER else self.gid(who)
                _ACL_ENTRY.pack_into(result, at, tag, permissions, host)
            at += _ACL_ENTRY.size
        return bytes(result)


def unmapped(mappings: Sequence[IdMapping]) -> int:
    """Return the largest host ID that no entry has: inside it shows as nobody (user_namespaces(7), Unmapped IDs)."""
    found = MAX_ID
    for item in sorted(mappings, key=lambda item: item.host_id, reverse=True):
        if item.host_id <= found < item.host_id + item.length:
            found = item.host_id - 1
    return found
