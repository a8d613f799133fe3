"""Making the two files of a layer: ``data``, the plain tar as it came, or ``file``, and ``meta.erofs`` of it.

Runs in the confined process, in the layer's directory, which is its root. What cannot be kept as an image is unpacked
from the stored tar in a second pass, into ``tree``. The functions for layers that are one file also serve the driver.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from podkeep.images.layers.erofs import image, layout
from podkeep.images.layers.erofs.datafile import DataFile
from podkeep.images.layers.erofs.tree import TooLarge, Tree
from podkeep.images.layers.files import keeping as files
from podkeep.images.layers.messages import MadeTree
from podkeep.images.layers.names import EROFS, METADATA, RECORD_SUFFIX, TREE
from podkeep.images.layers.rules import Bounds
from podkeep.images.layers.stages import Aside
from podkeep.images.layers.tarstream import ByteSource, Entry, EntryKind, TarReader

DATA = "data"
FILE = "file"
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 20


def keep_tar(directory: str, pull: Callable[[], bytes], bounds: Bounds) -> MadeTree:
    """Keep a tar below ``directory``.

    :param pull: returns the next piece of the plain tar, empty at its end.
    :raises TarError: if it is not one.
    :raises TreeError: if an entry breaks a rule.
    """
    data = os.open(f"{directory}/{DATA}", _CREATE, 0o600)
    try:
        with _stored(pull, data) as source:
            tree = _tree_of(source, bounds)
        return _unpack_again(directory, data, bounds) if tree is None else _finish(directory, tree, source.position)
    finally:
        os.close(data)


def keep_file(directory: str, title: str, pull: Callable[[], bytes]) -> int:
    """Keep a stream as one file named ``title``; return what its content takes on disk."""
    data = os.open(f"{directory}/{FILE}", _CREATE, 0o600)
    try:
        with _stored(pull, data) as source:
            pass
        # The last block is whole, whatever a kernel makes of one that is not.
        os.ftruncate(data, source.position + -source.position % layout.BLOCK)
    finally:
        os.close(data)
    write_file_image(f"{directory}/{METADATA}", title, source.position)
    return files.rounded(os.stat(f"{directory}/{FILE}").st_size)


def write_file_image(path: str, title: str, size: int) -> None:
    """Write the metadata of a layer that is one file of ``size`` bytes."""
    tree = Tree(max_inodes=2, max_memory=1 << 20)
    entry = Entry(EntryKind.FILE, os.fsencode(title))
    entry.mode, entry.size = 0o644, size
    tree.apply(entry, 0)
    _write_image(path, tree, size)


def file_size(metadata: Path) -> int:
    """Return the size of the one file of a layer."""
    with metadata.open("rb") as image_file:
        # Root and its three names are in the first block, the file's inode begins the next.
        image_file.seek(layout.FIRST_INODE_OFFSET + layout.BLOCK)
        return layout.size_of(image_file.read(layout.INODE))


def tar_size(directory: Path) -> int:
    """Return the size of the plain tar of a layer, which may end within a block."""
    with (directory / METADATA).open("rb") as image_file:
        return (directory / DATA).stat().st_size - layout.filler_of(image_file.read(layout.FIRST_INODE_OFFSET))


def content(directory: Path) -> Path:
    """Return which file of a layer's directory has the content."""
    file = directory / FILE
    return file if file.exists() else directory / DATA


def check(directory: Path) -> None:
    """Check what a process made that is not to be trusted, once it is dead, before anybody opens or mounts it.

    :raises OSError: if a file is missing, or no file.
    :raises ValueError: if the metadata begin as none that are written here.
    """
    sizes = []
    for path in (content(directory), directory / METADATA):
        # Such a process may make what it likes in its directory, symbolic links to the host's files for example.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                raise ValueError(f"{path.name} is no file")
            sizes.append(about.st_size)
            head = os.read(fd, layout.FIRST_INODE_OFFSET)
        finally:
            os.close(fd)
    layout.check_superblock(head, image_bytes=sizes[1], data_bytes=sizes[0])


@contextmanager
def _stored(pull: Callable[[], bytes], fd: int) -> Iterator[ByteSource]:
    """Yield a source of what ``pull`` returns; in the end all of it is in ``fd``."""
    file = DataFile(fd)
    writing = Aside(file.write)
    source = ByteSource(writing.passing(pull))
    try:
        yield source
        source.drain()
    finally:
        writing.finish()  # also if it failed: nothing may be written once the caller closes the file
    file.finish()


def _tree_of(source: ByteSource, bounds: Bounds) -> Tree | None:
    tree = Tree(max_inodes=bounds.inodes, max_memory=bounds.memory, max_bytes=bounds.bytes)
    try:
        for entry in TarReader(source):
            tree.apply(entry, source.position)
    # The tar is read on to its end all the same: it is stored, and unpacked from there.
    except TooLarge:
        return None
    return tree


def _finish(directory: str, tree: Tree, size: int) -> MadeTree:
    os.truncate(f"{directory}/{DATA}", size + -size % layout.BLOCK)
    _write_image(f"{directory}/{METADATA}", tree, size)
    return MadeTree(driver=EROFS, path="", opaque=(), implied=tuple(tree.implied()))


def _write_image(path: str, tree: Tree, data_bytes: int) -> None:
    fd = os.open(path, _CREATE, 0o600)
    with os.fdopen(fd, "wb", buffering=_PIECE) as output:
        image.write(tree, output, data_bytes=data_bytes)


def _unpack_again(directory: str, data: int, bounds: Bounds) -> MadeTree:
    """Make files of a tar that was stored already."""
    os.lseek(data, 0, os.SEEK_SET)
    tree = f"{directory}/{TREE}"
    os.mkdir(tree, 0o755)
    record = os.open(tree + RECORD_SUFFIX, _CREATE, 0o600)
    try:
        made = files.keep_tar(tree, record, lambda: os.read(data, _PIECE), bounds)
    finally:
        os.close(record)
    return structs.replace(made, path=TREE)
