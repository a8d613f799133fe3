"""Reading what the store keeps, in a worker: every layer again, as the plain tar or the file it was made of.

:func:`verify` compares layers with their digests: a layer's content is hashed, and so is what its driver made beside
it. Changes nothing in the store. :class:`StoredLayers` also serves ``saving``.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from podkeep.base.errors import DataLoss, FailedPrecondition, PodkeepError
from podkeep.images.layers.messages import legible
from podkeep.images.messages import Checked, Damaged, StoredLayer, Unchecked, Verify
from podkeep.images.snapshots import merging
from podkeep.images.snapshots.choice import open_drivers
from podkeep.images.worker.channel import Channel

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


def verify(request: Verify, channel: Channel) -> None:
    """Read every layer of the request and report those that are not what their digests say."""
    give_way()
    layers = StoredLayers(Path(request.root))
    total = sum(layer.bytes for layer in request.layers)
    before = 0
    for layer in request.layers:
        check = _Check(layers, layer, channel, (before, total))
        try:
            check.run()
            channel.emit(Checked(layer=layer.id, bytes=check.read))
        except FailedPrecondition as error:
            channel.emit(Unchecked(layer=layer.id, why=legible(error.message)))
        except PodkeepError as error:
            problem = error.message.removeprefix(f"layer {layer.digest}: ").removeprefix(f"layer {layer.id}: ")
            channel.emit(Damaged(layer=layer.id, problem=legible(problem)))
        # What cannot even be read is damage of this layer, and the others are looked at all the same.
        except (OSError, ValueError, struct.error) as error:
            channel.emit(Damaged(layer=layer.id, problem=legible(f"cannot be read: {error}")))
        before += layer.bytes


class _Check:
    """One layer. ``read`` counts the bytes of its content."""

    def __init__(self, layers: StoredLayers, layer: StoredLayer, channel: Channel, place: tuple[int, int]) -> None:
        """``place``: bytes on disk of the layers before this one, and of all."""
        self._layers = layers
        self._layer = layer
        self._channel = channel
        self._before, self._total = place
        self.read = 0

    def run(self) -> None:
        """Raise what is wrong.

        :raises DataLoss: if something is not what its digest says.
        :raises FailedPrecondition: if it cannot be told.
        :raises OSError: if it cannot be read.
        """
        self._layers.require(self._layer)
        # First: it says where the content ends.
        beside = (
            ("its metadata", self._layer.metadata, self._layers.metadata_digest(self._layer)),
            ("its list of directories without an entry", self._layer.implied, self._layers.list_digest(self._layer)),
        )
        for what, wanted, found in beside:
            if wanted and found != wanted:
                raise DataLoss(f"{what}: expected digest {wanted}, the content has {found or 'none'}")
        self._hash()
        # What a tar does not have, nobody reads above.
        there, expected = self._layers.inodes(self._layer), self._layer.inodes
        if there not in (None, expected):
            raise DataLoss(f"expected {expected} files and directories, there are {there}")
        unknown = [what for what, wanted, found in beside if found and not wanted]
        if unknown:
            raise FailedPrecondition(f"of {' and '.join(unknown)} no digest was recorded")

    def _hash(self) -> None:
        wanted = self._layer.digest
        hashing = hashlib.new(wanted.partition(":")[0])
        for piece in self._pieces():
            hashing.update(piece)
        found = f"{hashing.name}:{hashing.hexdigest()}"
        if found != wanted:
            raise DataLoss(f"expected digest {wanted}, the content has {found}")

    def _pieces(self) -> Iterator[bytes]:
        size = self._layer.bytes
        for piece in self._layers.pieces(self._layer):
            yield piece
            self.read += len(piece)
            # What is told are bytes on disk; a layer's content is about as large.
            self._channel.progress("", "verifying", self._before + min(self.read, size), self._total)
