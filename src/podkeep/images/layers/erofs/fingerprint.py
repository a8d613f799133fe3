"""The digest of a layer's metadata image, recorded when the layer comes.

What is on disk later is compared with it, whatever version of podkeep wrote it: the same tar may make other metadata
one day. Used by the worker that made the metadata, by the store, and by ``verify``.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

METADATA = "meta.erofs"
_PIECE = 1 << 20


def metadata_digest(directory: Path) -> str:
    """Return the digest of the metadata in a layer's directory.

    :raises OSError: if it cannot be read, or is no regular file.
    """
    hashing = hashlib.sha256()
    # Nothing that a process which looked into the layer left here is followed or waited for.
    fd = os.open(directory / METADATA, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{directory / METADATA} is no file")
        while piece := file.read(_PIECE):
            hashing.update(piece)
    return f"sha256:{hashing.hexdigest()}"
