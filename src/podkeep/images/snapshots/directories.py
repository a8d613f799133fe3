"""Layers as plain directories, the form overlayfs takes as lower directories. Works on every local file system.

Owns ``layers/`` below its root, through a ``LayerDirectories``, and ``headers/``: what of each tar is not in its tree.

The blobs are not kept: the tree is the only copy, so an image takes its unpacked size and little more.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import Internal
from podkeep.base.ids import Digest
from podkeep.images.layers.files.recording import record_file, replay
from podkeep.images.layers.forms import DIRECTORIES, RECORD_SUFFIX
from podkeep.images.snapshots.layer_directories import LayerDirectories, file_name, gone
from podkeep.kernel import tree_size
from podkeep.kernel.removal import remove_tree


class DirectoriesDriver:
    """The ``directories`` snapshot driver."""

    name = DIRECTORIES

    def __init__(self, root: Path) -> None:
        self._directories = LayerDirectories(root, "layers")
        self._records = root / "headers"
        self._records.mkdir(mode=0o700, exist_ok=True)

    def stage(self) -> Path:
        """Return a new, empty staging directory."""
        return self._directories.stage()

    def discard(self, doomed: Path) -> None:
        """Remove what ``stage`` or ``retire`` returned, and what is in it."""
        remove_tree(doomed)

    def commit(self, unpacked: Path, layer: Digest) -> None:
        """Move an unpacked tree and its record into place; a tree that is there already wins.

        :raises Internal: if it cannot be moved, or is not what is made of a layer.
        """
        record = _beside(unpacked)
        with suppress(FileNotFoundError):
            # The process that made it is not to be trusted: whoever reads it must not follow a link, or wait.
            if not stat.S_ISREG(record.lstat().st_mode):
                raise Internal(f"layer {layer}: what was made of it is no layer: {record.name} is no file")
            os.rename(record, self._record(layer))
        self._directories.put(unpacked, layer)

    def link(self, source: Digest, title: str, staged: Path) -> str:
        """Make a directory with a hard link to the file of ``source``."""
        (file,) = self._path(source).iterdir()
        staged.mkdir(mode=0o755)
        staged.chmod(0o755)  # whatever the umask
        os.link(file, staged / title, follow_symlinks=False)
        os.utime(staged, (0, 0))
        record = os.open(_beside(staged), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            record_file(record, os.fsencode(title), (staged / title).stat().st_size)
        finally:
            os.close(record)
        return ""

    def has(self, layer: Digest) -> bool:
        """Tell whether the layer is kept."""
        return self._path(layer).is_dir()

    def kept(self) -> frozenset[Digest]:
        """Return every layer that is on disk."""
        return self._directories.kept()

    def retire(self, layer: Digest) -> Path:
        """Take the layer out of ``layers/`` in one step."""
        doomed = self._directories.retire(layer)
        self._record(layer).unlink(missing_ok=True)
        return doomed

    def recover(self, known: frozenset[Digest]) -> frozenset[Digest]:
        """Remove what no record knows; return the known layers that are gone."""
        names = {self._record(layer).name for layer in known}
        for left in self._records.iterdir():
            if left.name not in names:
                left.unlink()
        return self._directories.recover(known)

    def lowers(self, layers: Sequence[Digest], *, userns: int | None, at_least: int = 1) -> list[int]:
        """Return a detached mount per layer, top layer first."""
        return self._directories.lowers(layers, self._present, userns=userns, at_least=at_least)

    def tar(self, layer: Digest) -> Iterator[bytes]:
        """Yield the recorded headers and the files' content."""
        return replay(self._record(layer), self._path(layer))

    def metadata_digest(self, layer: Digest) -> str:
        """Return nothing: all that is beside the content is needed for the tar."""
        return ""

    def inodes(self, layer: Digest) -> int | None:
        """Return how many inodes the layer has on disk."""
        size = tree_size.measure(str(self._path(layer)))
        return (size.inodes if size else 0) + self._record(layer).exists()

    def release(self, keep: frozenset[Digest]) -> None:
        """Do nothing: nothing is mounted between uses."""

    def close(self) -> None:
        """Do nothing: nothing is mounted between uses."""

    def _path(self, layer: Digest) -> Path:
        return self._directories.path(layer)

    def _present(self, layer: Digest) -> Path:
        path = self._path(layer)
        if not path.is_dir():
            raise gone(path)
        return path

    def _record(self, layer: Digest) -> Path:
        return self._records / file_name(layer)


def _beside(tree: Path) -> Path:
    return tree.with_name(tree.name + RECORD_SUFFIX)
