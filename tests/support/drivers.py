"""Layers made by the real unpack process and kept by a snapshot driver, and their trees to look at."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podkeep.base.ids import Digest
from podkeep.images.layers.forms import form_of
from podkeep.images.snapshots.choice import open_drivers
from podkeep.images.snapshots.driver import SnapshotDriver
from podkeep.images.worker.layers import file_layer_id
from podkeep.kernel.mount import mounts
from support import erofs
from support.unpacking import unpack

NAMES = ("directories", "erofs")


class Layers:
    """A store's drivers below ``root``; new layers go to the one named ``name``."""

    def __init__(self, root: Path, name: str) -> None:
        if name == "erofs":
            erofs.needed()
        root.mkdir(mode=0o700, exist_ok=True)
        self.root = root
        self.mounted = root / "mounted"
        self.drivers = open_drivers(root, self.mounted)
        self.driver: SnapshotDriver = self.drivers[name]
        self.keeper: dict[Digest, str] = {}

    def keep(self, archive: bytes | Iterable[bytes], **request: Any) -> Digest:
        """Unpack and commit a layer.

        :raises ValueError: with the message of the unpack process, if it refuses the layer.
        """
        staged = self.driver.stage()
        try:
            done = unpack(staged / "0", archive, driver=self.driver.name, **request)
            if done.error:
                raise ValueError(done.error)
            layer, tree = done.digest, done.tree
            self.keeper[layer] = tree.driver
            self.drivers[tree.driver].commit(staged / "0" / tree.path, layer)
        finally:
            self.driver.discard(staged)
        return layer

    def keep_file(self, content: bytes, title: str) -> Digest:
        """Commit a layer that is one file."""
        staged, layer = self.driver.stage(), file_layer_id(Digest("sha256:0"), title)
        try:
            (staged / "0").mkdir()
            (staged / "0").chmod(0o755)
            form_of(self.driver.name).keep_file(str(staged / "0"), title, iter((content, b"")).__next__)
            self.keeper[layer] = self.driver.name
            self.driver.commit(staged / "0", layer)
        finally:
            self.driver.discard(staged)
        return layer

    def of(self, layer: Digest) -> SnapshotDriver:
        """Return the driver that keeps a layer."""
        return self.drivers[self.keeper[layer]]

    @contextmanager
    def tree(self, layer: Digest, *, userns: int | None = None) -> Iterator[Path]:
        """Yield where a layer can be looked at, as a pod sees it."""
        (fd,) = self.of(layer).lowers([layer], userns=userns)
        at = self.root / "view"
        at.mkdir()
        try:
            mounts.attach(fd, at)
            yield at
        finally:
            os.close(fd)
            mounts.unmount(at, lazy=True)
            at.rmdir()

    def close(self) -> None:
        """Unmount what is mounted."""
        for driver in self.drivers.values():
            driver.close()
