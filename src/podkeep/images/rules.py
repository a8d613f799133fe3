"""What a layer may hold, whatever keeps it: names, whiteouts, devices, extended attributes. Pure.

Owns the decisions (OCI image-spec, layer.md); what follows from them is done by ``tree`` (files below a directory) and
``erofs`` (a metadata image). Both raise :class:`TreeError` and with the same words.
"""

from __future__ import annotations

from podkeep.images.tarstream import Entry, EntryKind

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
_AUFS_METADATA = b".wh..wh."
_HARMLESS_DEVICES = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)})
"""null, zero, full, random, urandom, tty, console, ptmx (kernel, devices.txt)."""


class TreeError(Exception):
    """An entry breaks a rule or could not be written; the message names the entry."""


def checked_name(name: bytes, which: str, entry: Entry) -> bytes:
    """Return a name relative to the root, without ``.``, empty parts or a slash at its end; empty for the root.

    :param which: what the name is, for the message.
    :raises TreeError: if it is absolute or holds ``..``.
    """
    if name.startswith(b"/") and name.strip(b"/"):
        raise TreeError(f"entry {shown(entry.name)}: {which} {shown(name)} is absolute")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise TreeError(f"entry {shown(entry.name)}: {which} {shown(name)} holds '..'")
    return b"/".join(parts)


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


def refuse_devices(entry: Entry) -> None:
    """Refuse devices that no image may bring; harmless ones pass, and what is no device.

    :raises TreeError: naming the device.
    """
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

    :raises TreeError: if an attribute is of no namespace that Linux has.
    """
    kept: dict[str, bytes] = {}
    for key, value in entry.xattrs.items():
        if key == "security.capability" or key.startswith(("user.", "system.posix_acl_")):
            kept[key] = value
        elif not key.startswith("security."):
            raise TreeError(f"entry {shown(entry.name)}: extended attribute {key!r} is of no known namespace")
    return kept


def shown(name: bytes) -> str:
    """Return a name as messages show it: bounded, on one line."""
    text = name.decode(errors="backslashreplace")
    return repr(text if len(text) <= 200 else text[:200] + "...")
