"""Layers as plain directories, the form overlayfs takes as lower directories. Works on every local file system.

Owns ``layers/``, ``staging/`` and ``trash/`` below its root. A layer appears in ``layers/`` by one rename and leaves
it by one; what a killed process left in ``staging/`` and ``trash/`` is removed by ``recover``.

The blobs are not kept: the tree is the only copy, so an image takes its unpacked size and no more. A damaged layer
is pulled again; an image cannot be pushed from here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import DataLoss, Internal
from podkeep.base.ids import Digest
from podkeep.kernel import mounts
from podkeep.kernel.removal import remove_tree


class DirectoriesDriver:
    """The ``directories`` snapshot driver."""

    name = "directories"

    def __init__(self, root: Path) -> None:
        self._layers = root / "layers"
        self._staging = root / "staging"
        self._trash = root / "trash"
        # Closed to other users: set-user-ID programs of images must not be reachable from the host's file tree.
        for directory in (self._layers, self._staging, self._trash):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def stage(self) -> Path:
        """Return a new, empty staging directory."""
        return Path(tempfile.mkdtemp(dir=self._staging))

    def discard(self, doomed: Path) -> None:
        """Remove what ``stage`` or ``retire`` returned, and what is in it."""
        remove_tree(doomed)

    def commit(self, unpacked: Path, layer: Digest) -> None:
        """Move an unpacked tree into place; one that is there already wins."""
        target = self._path(layer)
        try:
            os.rename(unpacked, target)
        except OSError as error:
            if not target.is_dir():
                raise Internal(f"cannot move layer {layer} from {unpacked} to {target}: {error.strerror}") from error
            remove_tree(unpacked)

    def link(self, source: Digest, title: str, staged: Path) -> None:
        """Make a directory with a hard link to the file of ``source``."""
        (file,) = self._path(source).iterdir()
        staged.mkdir(mode=0o755)
        staged.chmod(0o755)  # whatever the umask
        os.link(file, staged / title, follow_symlinks=False)
        os.utime(staged, (0, 0))

    def has(self, layer: Digest) -> bool:
        """Tell whether the layer is kept."""
        return self._path(layer).is_dir()

    def kept(self) -> frozenset[Digest]:
        """Return every layer that is on disk."""
        return frozenset(Digest(entry.name.replace("-", ":", 1)) for entry in self._layers.iterdir())

    def retire(self, layer: Digest) -> Path:
        """Take the layer out of ``layers/`` in one step."""
        doomed = Path(tempfile.mkdtemp(dir=self._trash))
        with suppress(FileNotFoundError):
            os.rename(self._path(layer), doomed / "layer")
        return doomed

    def recover(self, known: frozenset[Digest]) -> frozenset[Digest]:
        """Remove what no record knows; return the known layers that are gone."""
        for directory in (self._staging, self._trash):
            for leftover in directory.iterdir():
                remove_tree(leftover)
        names = {self._path(layer).name: layer for layer in known}
        present = {entry.name for entry in self._layers.iterdir()}
        for name in present - names.keys():
            remove_tree(self._layers / name)
        return frozenset(layer for name, layer in names.items() if name not in present)

    def lowers(self, layers: Sequence[Digest], *, userns: int | None, at_least: int = 1) -> list[int]:
        """Return a detached mount per layer, top layer first."""
        # The same layer twice makes overlayfs fail with ELOOP; the upper of two equal layers hides the lower whole.
        paths = [self._path(layer) for layer in dict.fromkeys(reversed(layers))] or [self._empty("empty")]
        if len(paths) < at_least:
            paths.append(self._empty("bottom"))
        fds: list[int] = []
        try:
            for path in paths:
                if not path.is_dir():
                    raise DataLoss(f"{path}: the layer is gone from disk", hint="remove the image and pull it again")
                fds.append(mounts.clone_tree(path, recursive=False, idmap_userns=userns))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return fds

    def _path(self, layer: Digest) -> Path:
        return self._layers / layer.replace(":", "-")

    def _empty(self, name: str) -> Path:
        """An empty tree: of an image without layers (``FROM scratch`` and nothing else), or beneath a single layer."""
        path = self._layers.parent / name
        path.mkdir(mode=0o755, exist_ok=True)
        return path
