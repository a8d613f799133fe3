"""The forms in which a layer can be kept, and what differs between them while a layer is made.

A snapshot driver keeps layers of the form that has its name; this is the half of it that the worker and the unpack
process need, which start sooner without the other half (``snapshots``), and without the form that they do not use.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from podkeep.images.layers.names import DIRECTORIES, EROFS, METADATA, RECORD_SUFFIX, TREE

if TYPE_CHECKING:
    from podkeep.images.layers.messages import MadeTree
    from podkeep.images.layers.rules import Bounds

_PIECE = 1 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Form(Protocol):
    """A form. A layer is made of a tar by :meth:`open_record` and :meth:`keep_tar`, with the confinement of the process
    in between, or of a file by :meth:`keep_file`; :meth:`metadata_digest` is taken of the result."""

    makes: frozenset[tuple[str, str]]
    """Of what a tar may become: the driver that keeps it, and where it is below the layer's directory."""

    def open_record(self, directory: str) -> int | None:
        """Make the empty file beside a layer's directory that the layer's record goes into; None: it has none."""
        ...

    def keep_tar(self, directory: str, record: int | None, pull: Callable[[], bytes], bounds: Bounds) -> MadeTree:
        """Keep a tar in the empty ``directory``.

        :param pull: returns the next piece of the plain tar, empty at its end.
        :raises TarError: if it is not one.
        :raises TreeError: if an entry breaks a rule, or cannot be written.
        """
        ...

    def keep_file(self, directory: str, title: str, pull: Callable[[], bytes]) -> int:
        """Keep a stream as one file named ``title`` in the empty ``directory``; return the bytes that its content takes
        on disk.

        :raises TreeError: if it cannot be written.
        :raises OSError: if it cannot be written.
        """
        ...

    def metadata_digest(self, directory: Path) -> str:
        """Return the digest of what was made beside the content of a staged layer; empty if that is nothing.

        :raises OSError: if it cannot be read.
        """
        ...


class _Directories:
    makes = frozenset({(DIRECTORIES, "")})

    def open_record(self, directory: str) -> int | None:
        return os.open(directory + RECORD_SUFFIX, _CREATE, 0o600)

    def keep_tar(self, directory: str, record: int | None, pull: Callable[[], bytes], bounds: Bounds) -> MadeTree:
        from podkeep.images.layers.files import keeping

        if record is None:
            raise ValueError("a directory is made without a record")
        return keeping.keep_tar(directory, record, pull, bounds)

    def keep_file(self, directory: str, title: str, pull: Callable[[], bytes]) -> int:
        from podkeep.images.layers.files import keeping

        record = os.open(directory + RECORD_SUFFIX, _CREATE, 0o600)
        try:
            return keeping.keep_file(directory, record, title, pull)
        finally:
            os.close(record)

    def metadata_digest(self, directory: Path) -> str:
        return ""


class _Erofs:
    makes = frozenset({(EROFS, ""), (DIRECTORIES, TREE)})

    def open_record(self, directory: str) -> int | None:
        return None

    def keep_tar(self, directory: str, record: int | None, pull: Callable[[], bytes], bounds: Bounds) -> MadeTree:
        from podkeep.images.layers.erofs import keeping

        return keeping.keep_tar(directory.rstrip("/"), pull, bounds)

    def keep_file(self, directory: str, title: str, pull: Callable[[], bytes]) -> int:
        from podkeep.images.layers.erofs import keeping

        return keeping.keep_file(directory, title, pull)

    def metadata_digest(self, directory: Path) -> str:
        return metadata_digest(directory)


_FORMS: dict[str, Form] = {DIRECTORIES: _Directories(), EROFS: _Erofs()}


def form_of(driver: str) -> Form:
    return _FORMS[driver]


def metadata_digest(directory: Path) -> str:
    """Return the digest of the metadata image in a layer's directory, which is recorded when the layer comes.

    What is on disk later is compared with it, whatever version of podkeep wrote it: the same tar may make other
    metadata one day.

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
