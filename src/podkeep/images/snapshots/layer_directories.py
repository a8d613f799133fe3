"""What snapshot drivers have in common: a directory per layer, which comes by one rename and goes by one.

Owns ``<root>/<name>/``, and ``staging/``, ``trash/`` and the empty trees together with the other drivers of the root.
What a killed process left there is removed by ``recover``. Knows nothing of what is in a layer's directory.
"""

from __future__ import annotations

import os
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import DataLoss, Internal
from podkeep.base.ids import Digest
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.mount import mounts


def file_name(layer: Digest) -> str:
    """Return a layer's ID as the name of what is its own in a directory."""
    return layer.replace(":", "-")


def gone(path: Path) -> DataLoss:
    """Return the error of a layer that should be at ``path``."""
    return DataLoss(f"{path}: the layer is gone from disk", hint="remove the image and pull it again")


class LayerDirectories(ABC):
    """The half of a driver that moves directories; the methods are those of ``SnapshotDriver``."""

    def __init__(self, root: Path, name: str) -> None:
        self.layers = root / name
        self._root = root
        self._staging = root / "staging"
        self._trash = root / "trash"
        # Closed to other users: set-user-ID programs of images must not be reachable from the host's file tree.
        for directory in (self.layers, self._staging, self._trash):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, layer: Digest) -> Path:
        return self.layers / file_name(layer)

    def stage(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._staging))

    def discard(self, doomed: Path) -> None:
        remove_tree(doomed)

    def commit(self, unpacked: Path, layer: Digest) -> None:
        """Move a staged directory into place; one that is there already wins.

        :raises Internal: if it cannot be moved, or is no directory.
        """
        if not stat.S_ISDIR(unpacked.lstat().st_mode):  # a link to one would have the host's files mounted
            raise Internal(f"layer {layer}: what was made of it is no layer: {unpacked} is no directory")
        target = self.path(layer)
        try:
            os.rename(unpacked, target)
        except OSError as error:
            # rename(2) replaces no directory that has something in it: two pulls may bring the same layer.
            if not target.is_dir():
                raise Internal(f"cannot move layer {layer} from {unpacked} to {target}: {error.strerror}") from error
            remove_tree(unpacked)

    def kept(self) -> frozenset[Digest]:
        return frozenset(Digest(entry.name.replace("-", ":", 1)) for entry in self.layers.iterdir())

    def retire(self, layer: Digest) -> Path:
        """Take the layer away in one step; return what is to be removed."""
        return self.take_away(self.path(layer))

    def take_away(self, path: Path) -> Path:
        # One rename takes it away; removing the files may take long, and is the caller's to do later. No directory is
        # made for it: where files have used up the inodes, none could be.
        doomed = self._trash / f"{path.name}.{os.urandom(8).hex()}"
        with suppress(FileNotFoundError):
            os.rename(path, doomed)
        return doomed

    def recover(self, known: frozenset[Digest]) -> frozenset[Digest]:
        for directory in (self._staging, self._trash):
            for leftover in directory.iterdir():
                remove_tree(leftover)
        names = {self.path(layer).name: layer for layer in known}
        present = {entry.name for entry in self.layers.iterdir()}
        for name in present - names.keys():
            remove_tree(self.layers / name)
        return frozenset(layer for name, layer in names.items() if name not in present)

    def lowers(self, layers: Sequence[Digest], *, userns: int | None, at_least: int = 1) -> list[int]:
        """Return a detached mount per layer, top layer first (``SnapshotDriver.lowers``)."""
        # The same layer twice makes overlayfs fail with ELOOP; the upper of two equal layers hides the lower whole.
        paths = [self._tree(layer) for layer in dict.fromkeys(reversed(layers))] or [self._empty("empty")]
        if len(paths) < at_least:
            paths.append(self._empty("bottom"))
        fds: list[int] = []
        try:
            for path in paths:
                fds.append(mounts.clone_tree(path, recursive=False, idmap_userns=userns))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return fds

    @abstractmethod
    def _tree(self, layer: Digest) -> Path:
        """Return the directory that a layer is seen in.

        :raises DataLoss: if the layer is gone.
        """

    def _empty(self, name: str) -> Path:
        """Return an empty tree: of an image without layers (``FROM scratch`` and nothing else), or beneath a single
        layer."""
        path = self._root / name
        path.mkdir(mode=0o755, exist_ok=True)
        return path
