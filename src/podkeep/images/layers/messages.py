"""What the worker and an unpack process say to each other: a request, the compressed layer after it, and one report.

The process has read what is hostile: the worker believes nothing of its report that it did not check
(``worker.layers.decode_report``). Paths are bytes, in base64 on the wire: names of files need not be Unicode.
"""

from __future__ import annotations

import errno

import msgspec

from podkeep.base.errors import KernelCallError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class UnpackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a tree of a layer in the empty directory ``root``, in the form that ``driver`` keeps.

    ``compression`` is ``none``, ``gzip`` or ``zstd``, ``algorithm`` that of the diff ID. The plain tar may have
    ``max_bytes``, ``max_ratio`` times what it came as, and ``max_inodes``; a tree in memory ``max_memory`` bytes.
    ``turn`` is a descriptor of a file that the processes of one pull lock when they need much memory.
    """

    root: str
    driver: str
    compression: str
    algorithm: str
    max_bytes: int
    max_inodes: int
    max_ratio: int
    max_memory: int
    turn: int | None = None


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

    digest: str
    tree: MadeTree


class Refused(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """A layer breaks a rule, or cannot be written; ``full``: the disk has no space for it."""

    error: str
    full: bool


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(UnpackRequest).decode


def legible(text: str) -> str:
    """Return a text that others had a part in as Unicode: names of files may be no such."""
    return text.encode(errors="backslashreplace").decode()


def is_full(error: BaseException) -> bool:
    """Tell whether ``error`` comes of a file system without space, or a quota that is used up."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (OSError, KernelCallError)) and cause.errno in _FULL:
            return True
        cause = cause.__cause__
    return False
