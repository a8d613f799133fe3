"""Making a directory of a layer, and beside it the record of what of the tar is not in the directory.

Runs in the confined process. ``tree`` makes the files, ``recording`` the record.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from podkeep.images.layers.files.recording import Recorder, record_file
from podkeep.images.layers.files.tree import FileTree
from podkeep.images.layers.messages import MadeTree
from podkeep.images.layers.names import DIRECTORIES
from podkeep.images.layers.rules import Bounds, TreeError
from podkeep.images.layers.tarstream import ByteSource, TarReader
from podkeep.kernel.files.openat import write_all

_BLOCK_BYTES = 4096
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def keep_tar(tree: str, record: int, pull: Callable[[], bytes], bounds: Bounds) -> MadeTree:
    """Make files of a tar in the empty directory ``tree``.

    :param record: descriptor of an empty file.
    :raises TarError: if it is not one.
    :raises TreeError: if an entry breaks a rule, or cannot be written.
    """
    recorder = Recorder(record)
    source = ByteSource(recorder.passing(pull))
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    made: FileTree | None = None
    try:
        made = FileTree(root, recorder, max_inodes=bounds.inodes, max_bytes=bounds.bytes)
        reader = TarReader(source)
        for entry in reader:
            stored = sum(length for _, length in entry.runs)
            made.apply(entry, recorder.taken(source.position, stored, reader.content()))
        made.finish()
        implied = made.implied()
        source.drain()  # the digest covers what follows the archive's end, too
        recorder.finish()
    except OSError as error:
        raise TreeError(f"the layer cannot be written: {error.strerror}") from error
    finally:
        if made is not None:
            made.close()
        os.close(root)
    return MadeTree(driver=DIRECTORIES, path="", opaque=tuple(made.opaque), implied=tuple(implied))


def keep_file(tree: str, record: int, title: str, pull: Callable[[], bytes]) -> int:
    """Keep a stream as one file named ``title``, as it is; return what the file takes on disk."""
    try:
        fd = os.open(f"{tree}/{title}", _CREATE, 0o644)
        try:
            while piece := pull():
                write_all(fd, piece)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        for path in (f"{tree}/{title}", tree):  # the registry knows no times
            os.utime(path, (0, 0))
        record_file(record, os.fsencode(title), size)
    except OSError as error:
        raise TreeError(f"{title!r}: {error.strerror}") from error
    return rounded(size)


def rounded(size: int) -> int:
    """Return what a file of ``size`` bytes takes on disk."""
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
