"""What a layer may hold, whatever keeps it: names, whiteouts, devices, extended attributes. Pure.

Owns the decisions (OCI image-spec, layer.md); what follows from them is done by ``tree``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from podkeep.images.layers.tarstream import Entry, EntryKind

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
_AUFS_METADATA = b".wh..wh."
_HARMLESS_DEVICES = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)})
"""null, zero, full, random, urandom, tty, console, ptmx (kernel, devices.txt)."""
MAX_NAME = 255
"""Bytes (linux/limits.h, NAME_MAX)."""
MAX_PATH = 4095
"""Bytes of a path from the root, and of a symbolic link's target (linux/limits.h, PATH_MAX, without the zero byte)."""
_MAX_XATTR_BYTES = 65536
"""One value (linux/limits.h, XATTR_SIZE_MAX), and here also all names and values of one file."""
_MAX_DIRECTORY_XATTR_BYTES = 3584
_XATTR_OVERHEAD = 16
"""Names and values of one directory, and what each attribute takes besides: the directories of several layers are
merged in a tree on disk (``merging``), and ext4 has one block of 4 KiB for those of an inode."""
_CAPABILITY_BYTES = {0x02000000: 20, 0x03000000: 24}
"""Sizes by revision (linux/capability.h, VFS_CAP_REVISION_2 and _3)."""
_MAX_IMPLIED = 1 << 18
_MAX_IMPLIED_BYTES = 8 << 20
"""Directories of one layer that no entry came for, and the bytes of their paths together."""
_MAX_OPAQUE = 1 << 16
"""Opaque directories of one layer."""
_LINK_STEPS = 1 << 16
_ENTRY_LINK_STEPS = 64
"""Parts of names and of links' targets that are walked because of links, of one layer, and more for each entry. Where
``lib`` is a link to ``usr/lib``, an entry has some ten; forty links of 4095 bytes have 80,000."""
NO_LIMIT = _LATEST = (1 << 63) - 1


class TreeError(Exception):
    """An entry breaks a rule or could not be written; the message names the entry."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a layer may have: entries, bytes of files with their holes, and bytes of memory for a tree in memory."""

    inodes: int
    bytes: int
    memory: int


class Budget:
    """What one layer may still bring. ``entries`` is how many came, directories that none came for included."""

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._opaque = 0
        self._implied = 0
        self._implied_bytes = 0
        self._link_steps = 0
        self.entries = 1

    def entry(self, size: int = 0) -> None:
        """Count an entry whose content is ``size`` bytes, holes included.

        :raises TreeError: if it is one too many, or too large together with those before.
        """
        self.entries += 1
        if self.entries > self._max_entries:
            raise TreeError(f"more than {self._max_entries} entries (images.max_layer_inodes)")
        self._bytes += size
        if self._bytes > self._max_bytes:
            raise TreeError(f"more than {self._max_bytes} bytes of files (images.max_layer_bytes)")

    def implied(self, length: int) -> None:
        """Count a directory that no entry came for, with a path of ``length`` bytes.

        :raises TreeError: if it is one too many.
        """
        self.entry()
        self._implied += 1
        self._implied_bytes += length
        if self._implied > _MAX_IMPLIED or self._implied_bytes > _MAX_IMPLIED_BYTES:
            raise TreeError(
                f"more than {_MAX_IMPLIED} directories without an entry, or {_MAX_IMPLIED_BYTES} bytes of their names"
            )

    def link(self, steps: int) -> None:
        """Count the parts that a symbolic link on the way to a directory makes necessary to walk, before they are.

        :raises TreeError: if they are too many.
        """
        self._link_steps += steps
        if self._link_steps > _LINK_STEPS + _ENTRY_LINK_STEPS * self.entries:
            raise TreeError(
                f"symbolic links above its entries lead over more than {_LINK_STEPS} parts of names, and"
                f" {_ENTRY_LINK_STEPS} for each entry"
            )

    def opaque(self) -> None:
        """Count an opaque directory.

        :raises TreeError: if it is one too many.
        """
        self._opaque += 1
        if self._opaque > _MAX_OPAQUE:
            raise TreeError(f"more than {_MAX_OPAQUE} opaque directories")


def checked_name(name: bytes, which: str, entry: Entry) -> bytes:
    """Return a name relative to the root, without ``.``, empty parts or a slash at its end; empty for the root.

    An absolute name is one below the root, too: builders of images write such (ko does).

    :param which: what the name is, for the message.
    :raises TreeError: if it is empty, holds ``..`` or is longer than names can be.
    """
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise TreeError(f"entry {shown(entry.name)}: {which} {shown(name)} holds '..'")
    if not parts and not name:
        raise TreeError("an entry has no name" if name is entry.name else f"entry {shown(entry.name)}: no {which[4:]}")
    path = b"/".join(parts)
    # Only then a part of it can be too long: nearly every name is looked at no further.
    if len(path) > MAX_NAME:
        longest = max(len(part) for part in parts)
        if longest > MAX_NAME:
            raise TreeError(
                f"entry {shown(entry.name)}: {which} holds a name of {longest} bytes, longer than the {MAX_NAME}"
                " of Linux"
            )
        check_path(len(path), entry)
    return path


def check_path(length: int, entry: Entry) -> None:
    """Refuse a path of ``length`` bytes if nobody could open it by name.

    :raises TreeError: if it is too long.
    """
    if length > MAX_PATH:
        raise TreeError(f"entry {shown(entry.name)}: a path of {length} bytes, longer than the {MAX_PATH} of Linux")


def is_ignored(path: bytes, entry: Entry) -> bool:
    """Tell whether the entry at ``path`` is to be passed over: what AUFS kept for itself, which is not in the image.

    :raises TreeError: if it is below a name that is a whiteout's.
    """
    # Nearly every name, which then need not be taken apart.
    if WHITEOUT not in path:
        return False
    *above, last = path.split(b"/")
    for part in above:
        if part == OPAQUE or (part.startswith(WHITEOUT) and not part.startswith(_AUFS_METADATA)):
            raise TreeError(f"entry {shown(entry.name)}: its parent {shown(part)} is a whiteout's name")
        if part.startswith(_AUFS_METADATA):
            return True
    return last.startswith(_AUFS_METADATA) and last != OPAQUE


def modification_time(entry: Entry) -> int:
    """Return the entry's time in nanoseconds; what lies before 1970 or beyond 2262 is 1970, as with containerd."""
    return entry.mtime if 0 <= entry.mtime <= _LATEST else 0


def hidden_name(name: bytes, entry: Entry) -> bytes | None:
    """Return the name that a whiteout hides; None if it hides nothing here and is to be passed over.

    :param name: starts with ``.wh.`` and is not the opaque marker.
    :raises TreeError: if it names no entry of a directory.
    """
    if name.startswith(_AUFS_METADATA):
        return None
    hidden = name.removeprefix(WHITEOUT)
    if hidden in (b"", b".", b".."):
        raise TreeError(f"entry {shown(entry.name)}: a whiteout of nothing")
    return hidden


def check_node(entry: Entry) -> None:
    """Check what has no content: refuse devices that no image may bring, and links that no file system can hold.

    :raises TreeError: naming the device, or if a symbolic link's target is empty or too long.
    """
    if entry.kind is EntryKind.SYMLINK and not entry.link:
        raise TreeError(f"entry {shown(entry.name)}: a symbolic link to nothing")
    if entry.kind is EntryKind.SYMLINK and len(entry.link) > MAX_PATH:
        raise TreeError(
            f"entry {shown(entry.name)}: a target of {len(entry.link)} bytes, longer than the {MAX_PATH} of Linux"
        )
    if entry.kind is EntryKind.BLOCK:
        raise TreeError(f"entry {shown(entry.name)}: block device {entry.major}:{entry.minor} is refused")
    if entry.kind is not EntryKind.CHARACTER or (entry.major, entry.minor) in _HARMLESS_DEVICES:
        return
    device = f"character device {entry.major}:{entry.minor}"
    if (entry.major, entry.minor) == (0, 0):
        device += ", overlayfs's own whiteout,"
    raise TreeError(f"entry {shown(entry.name)}: {device} is refused")


def refuse_trusted(entry: Entry) -> None:
    """Refuse attributes that only the host may set: overlayfs trusts them.

    :raises TreeError: if the entry has one, whatever its kind.
    """
    if any(key.startswith("trusted.") for key in entry.xattrs):
        raise TreeError(f"entry {shown(entry.name)}: extended attributes of the trusted namespace are refused")


def kept_xattrs(entry: Entry) -> dict[str, bytes]:
    """Return what belongs to the file; labels of a security module are the host's to give, not the image's.

    :raises TreeError: if an attribute is of no namespace that Linux has, is too large, or could not be set.
    """
    kept: dict[str, bytes] = {}
    total = 0
    for key, value in entry.xattrs.items():
        if key == "security.capability" or key.startswith(("user.", "system.posix_acl_")):
            _check_xattr(key, value, entry)
            total += len(key) + len(value)
            kept[key] = value
        # Labels of security modules are passed over and not refused: they are the host's to give.
        elif not key.startswith("security."):
            raise TreeError(f"entry {shown(entry.name)}: extended attribute {key[:300]!r} is of no known namespace")
    if total > _MAX_XATTR_BYTES:
        raise TreeError(
            f"entry {shown(entry.name)}: extended attributes of {total} bytes, more than {_MAX_XATTR_BYTES}"
        )
    if entry.kind is EntryKind.DIRECTORY:
        check_directory(kept, entry)
    return kept


def check_directory(xattrs: Mapping[str, bytes], entry: Entry) -> None:
    """Check the attributes of a directory, those that entries before gave it included.

    :raises TreeError: if they are more than file systems keep.
    """
    ours = {os.fsencode(key): value for key, value in xattrs.items() if not key.startswith("trusted.")}
    total = sum(len(key) + len(value) + _XATTR_OVERHEAD for key, value in ours.items())
    if total > _MAX_DIRECTORY_XATTR_BYTES:
        raise TreeError(
            f"entry {shown(entry.name)}: extended attributes of a directory with {total} bytes ({_XATTR_OVERHEAD} of"
            f" each included), more than {_MAX_DIRECTORY_XATTR_BYTES}"
        )


def _check_xattr(key: str, value: bytes, entry: Entry) -> None:
    what = f"entry {shown(entry.name)}: extended attribute {key[:300]!r}"
    length = len(os.fsencode(key))
    if key == "user.":
        raise TreeError(f"{what} has no name")
    if length > MAX_NAME:
        raise TreeError(f"{what} has a name of {length} bytes, longer than the {MAX_NAME} of Linux")
    if len(value) > _MAX_XATTR_BYTES:
        raise TreeError(f"{what} is of {len(value)} bytes, longer than the {_MAX_XATTR_BYTES} of Linux")
    if key == "security.capability":
        revision = int.from_bytes(value[:4], "little") & ~1
        # Behind the sets revision 3 has a root ID, which must be one (security/commoncap.c).
        if len(value) != _CAPABILITY_BYTES.get(revision) or value[20:24] == b"\xff\xff\xff\xff":
            raise TreeError(f"{what} is not valid")


def shown(name: bytes) -> str:
    """Return a name as messages show it: bounded, on one line."""
    text = name.decode(errors="backslashreplace")
    return repr(text if len(text) <= 200 else text[:200] + "...")
