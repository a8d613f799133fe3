"""Reading what the store keeps, in a worker: every layer again, as the plain tar or the file it was made of.

Changes nothing in the store. Used by ``saving`` and ``verify``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from podkeep.base.errors import DataLoss
from podkeep.images.messages import StoredLayer
from podkeep.images.snapshots import merging
from podkeep.images.snapshots.choice import open_drivers

_NICE = 10
"""Hashing may take a core for minutes; whatever containers do goes first."""


def give_way() -> None:
    """Let everything else on the machine go first."""
    os.nice(_NICE)


class StoredLayers:
    """The layers of the store below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._drivers = open_drivers(root)

    def require(self, layer: StoredLayer) -> None:
        """Return if all files of a layer are there.

        :raises DataLoss: if they are not.
        """
        if not self._drivers[layer.driver].has(layer.id):
            raise DataLoss(f"layer {layer.id}: it is gone from disk", hint="remove the image and pull it again")

    def pieces(self, layer: StoredLayer) -> Iterator[bytes]:
        """Yield the plain tar of a layer, or its file.

        :raises DataLoss: if it cannot be read, also between two pieces.
        :raises FailedPrecondition: if what is needed for it was never kept.
        """
        self.require(layer)
        return self._drivers[layer.driver].tar(layer.id)

    def inodes(self, layer: StoredLayer) -> int | None:
        """Return how many inodes a layer has on disk; None where digests say it all."""
        return self._drivers[layer.driver].inodes(layer.id)

    def list_digest(self, layer: StoredLayer) -> str:
        """Return the digest of the list of a layer's directories that no entry came for; empty if it has none.

        :raises OSError: if it cannot be read.
        """
        return merging.list_digest(self._root, layer.id)

    def metadata_digest(self, layer: StoredLayer) -> str:
        """Return the digest of what a layer's driver keeps beside its content; empty if that is nothing.

        :raises OSError: if it cannot be read.
        """
        return self._drivers[layer.driver].metadata_digest(layer.id)
