"""Layers as plain directories, the form overlayfs takes as lower directories. Works on every local file system.

Owns ``layers/`` below its root, and ``headers/``: what of each tar is not in its tree.

The blobs are not kept: the tree is the only copy, so an image takes its unpacked size and little more.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import Internal
from podkeep.base.ids import Digest
from podkeep.images.layers.files.recording import record_file, replay
from podkeep.images.layers.names import DIRECTORIES, RECORD_SUFFIX
from podkeep.images.snapshots.layer_directories import LayerDirectories, file_name, gone
from podkeep.kernel.files import tree_size


class DirectoriesDriver(LayerDirectories):
    """The ``directories`` snapshot driver."""

    name = DIRECTORIES

    def __init__(self, root: Path) -> None:
        super().__init__(root, "layers")
        self._records = root / "headers"
        self._records.mkdir(mode=0o700, exist_ok=True)

    def commit(self, unpacked: Path, layer: Digest) -> None:
        """Move an unpacked tree and its record into place; a tree that is there already wins.

        :raises Internal: if it cannot be moved, or is not what is made of a layer.
        """
        # The record first: once the tree is in place the layer counts, and recover removes a record without a layer.
        record = _beside(unpacked)
        with suppress(FileNotFoundError):
            # The process that made it is not to be trusted: whoever reads it must not follow a link, or wait.
            if not stat.S_ISREG(record.lstat().st_mode):
                raise Internal(f"layer {layer}: what was made of it is no layer: {record.name} is no file")
            os.rename(record, self._record(layer))
        super().commit(unpacked, layer)

    def link(self, source: Digest, title: str, staged: Path) -> str:
        """Make a directory with a hard link to the file of ``source``."""
        (file,) = self.path(source).iterdir()
        staged.mkdir(mode=0o755)
        staged.chmod(0o755)  # whatever the umask
        os.link(file, staged / title, follow_symlinks=False)
        # As keep_file makes it: the registry knows no times.
        os.utime(staged, (0, 0))
        record = os.open(_beside(staged), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            record_file(record, os.fsencode(title), (staged / title).stat().st_size)
        finally:
            os.close(record)
        return ""

    def has(self, layer: Digest) -> bool:
        return self.path(layer).is_dir()

    def retire(self, layer: Digest) -> Path:
        """Take the layer out of ``layers/`` in one step."""
        doomed = super().retire(layer)
        self._record(layer).unlink(missing_ok=True)
        return doomed

    def recover(self, known: frozenset[Digest]) -> frozenset[Digest]:
        names = {self._record(layer).name for layer in known}
        for left in self._records.iterdir():
            if left.name not in names:
                left.unlink()
        return super().recover(known)

    def tar(self, layer: Digest) -> Iterator[bytes]:
        """Yield the recorded headers and the files' content."""
        return replay(self._record(layer), self.path(layer))

    def metadata_digest(self, layer: Digest) -> str:
        """Return nothing: all that is beside the content is needed for the tar."""
        return ""

    def inodes(self, layer: Digest) -> int | None:
        size = tree_size.measure(str(self.path(layer)))
        return (size.inodes if size else 0) + self._record(layer).exists()

    def release(self, keep: frozenset[Digest]) -> None:
        """Do nothing: nothing is mounted between uses."""

    def close(self) -> None:
        """Do nothing: nothing is mounted between uses."""

    def _tree(self, layer: Digest) -> Path:
        path = self.path(layer)
        if not path.is_dir():
            raise gone(path)
        return path

    def _record(self, layer: Digest) -> Path:
        return self._records / file_name(layer)


def _beside(tree: Path) -> Path:
    return tree.with_name(tree.name + RECORD_SUFFIX)
