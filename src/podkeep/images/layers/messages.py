"""What the worker and an unpack process say to each other: a request, the compressed layer after it, and one report.

The process has read what is hostile, so nothing it says is taken for granted. One that was taken over can make any
tree, and say that it has any digest; what it cannot do is have the worker, which is not confined, read or change what
is not the layer's. What the process *made* is checked where it is opened (``snapshots``).

Paths are bytes, in base64 on the wire: names of files need not be Unicode.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from podkeep.base.errors import Internal, InvalidArgument
from podkeep.base.ids import Digest, parse_digest

MOST = 256 << 20
"""Bytes of a report; the lists of directories in it have limits of their own (``rules``)."""


class UnpackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a tree of a layer in the empty directory ``root``, in the form that ``driver`` keeps.

    ``compression`` is ``none``, ``gzip`` or ``zstd``, ``algorithm`` that of the diff ID. The plain tar may have
    ``max_bytes``, ``max_ratio`` times what it came as, and ``max_inodes``; a tree in memory ``max_memory`` bytes.
    """

    root: str
    driver: str
    compression: str
    algorithm: str
    max_bytes: int
    max_inodes: int
    max_ratio: int
    max_memory: int


class MadeTree(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was made of a tar: ``path`` below the layer's directory has what ``driver`` keeps.

    ``opaque`` directories hide the layers beneath, for ``implied`` ones there was no entry. Their paths are relative.
    """

    driver: str
    path: str
    opaque: tuple[bytes, ...]
    implied: tuple[bytes, ...]


class Unpacked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """A layer is unpacked; ``digest`` is of its plain tar."""

    digest: Digest
    tree: MadeTree


class Refused(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """A layer breaks a rule, or cannot be written; ``full``: the disk has no space for it."""

    error: str
    full: bool


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(UnpackRequest).decode
_decode_report = msgspec.json.Decoder(Unpacked | Refused).decode


def legible(text: str) -> str:
    """Return a text that others had a part in as Unicode: names of files may be no such."""
    return text.encode(errors="backslashreplace").decode()


def decode_report(line: bytes | bytearray, makes: Collection[tuple[str, str]]) -> Unpacked | Refused:
    """Return a report on a layer.

    :param makes: what may have been made of it, by driver and path (``Form.makes``).
    :raises Internal: if it says what no unpack process says.
    """
    try:
        report: Unpacked | Refused = _decode_report(line)
        if isinstance(report, Unpacked):
            if (report.tree.driver, report.tree.path) not in makes:
                raise ValueError(f"a layer in {report.tree.path!r} for {report.tree.driver!r}")
            parse_digest(report.digest)
    except (ValueError, RecursionError, InvalidArgument) as error:
        raise Internal(f"the unpack process said what it never says: {error}") from error
    return report
