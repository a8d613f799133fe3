"""Comparing stored layers with their digests. Runs in the worker.

A layer's content is hashed. Of one that is an EROFS image the metadata is made again, by a confined process, as the one
that unpacked it was, and compared byte for byte.

Request: ``root`` of the store, ``staging`` (an empty directory), ``layers``. Events: ``progress`` (``done`` of
``total`` bytes), ``damage`` (``layer``, ``problem``), ``checked`` (``layer``, ``bytes`` of its content) and
``unchecked`` (``layer``, ``why``).
"""

from __future__ import annotations

import filecmp
import hashlib
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from podkeep.base.errors import DataLoss, FailedPrecondition, PodkeepError
from podkeep.base.ids import Digest
from podkeep.images.channel import Channel
from podkeep.images.erofs import keeping
from podkeep.images.layers import LayerJob, Limits, UnpackProcess
from podkeep.images.stored import StoredLayers, give_way

_LIMITS = Limits(
    max_bytes=1 << 62, max_inodes=1 << 62, max_ratio=1 << 62, driver="erofs-metadata", max_memory=512 << 20
)
"""More than any layer was made with."""


def verify(request: dict[str, Any], channel: Channel) -> None:
    """Read every layer of the request and report those that are not what their digests say."""
    give_way()
    total = sum(layer["bytes"] for layer in request["layers"])
    before = 0
    for number, layer in enumerate(request["layers"]):
        check = _Check(request, layer, channel, (before, total))
        report = {"layer": layer["id"]}
        try:
            # An unpack process belongs to the thread that starts it, and ends with it.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(check.run, Path(request["staging"]) / str(number)).result()
            channel.emit({"event": "checked", "bytes": check.read, **report})
        except FailedPrecondition as error:
            channel.emit({"event": "unchecked", "why": error.message, **report})
        except PodkeepError as error:
            problem = error.message.removeprefix(f"layer {layer['digest']}: ").removeprefix(f"layer {layer['id']}: ")
            channel.emit({"event": "damage", "problem": problem, **report})
        except (OSError, struct.error) as error:
            channel.emit({"event": "damage", "problem": f"cannot be read: {error}", **report})
        before += layer["bytes"]


class _Check:
    """One layer. ``read`` counts the bytes of its content."""

    def __init__(
        self, request: dict[str, Any], layer: dict[str, Any], channel: Channel, place: tuple[int, int]
    ) -> None:
        """``place``: bytes on disk of the layers before this one, and of all."""
        self._lock: int = request["lock"]
        self._layers = StoredLayers(Path(request["root"]))
        self._layer = layer
        self._channel = channel
        self._before, self._total = place
        self.read = 0

    def run(self, staging: Path) -> None:
        """Raise what is wrong; ``staging`` is a directory to be made.

        :raises DataLoss: if something is not what its digest says.
        :raises InvalidArgument: if the layer would be refused today.
        :raises FailedPrecondition: if it cannot be told.
        :raises OSError: if it cannot be read.
        """
        self._layers.require(self._layer)
        metadata = self._layers.metadata(self._layer)
        if metadata is None or self._layer["kind"] == "file":
            self._hash()
        if metadata is None:
            return
        staging.mkdir(mode=0o755)
        if self._layer["kind"] == "file":
            keeping.write_file_image(str(staging / keeping.METADATA), self._layer["title"], self.read)
        else:
            self._rebuild(staging, keeping.tar_size(metadata.parent))
        if not filecmp.cmp(metadata, staging / keeping.METADATA, shallow=False):
            raise DataLoss(f"{metadata.name} is not what the layer's content makes")

    def _hash(self) -> None:
        wanted: str = self._layer["digest"]
        hashing = hashlib.new(wanted.partition(":")[0])
        for piece in self._pieces():
            hashing.update(piece)
        found = f"{hashing.name}:{hashing.hexdigest()}"
        if found != wanted:
            raise DataLoss(f"expected digest {wanted}, the content has {found}")

    def _rebuild(self, staging: Path, size: int) -> None:
        digest = Digest(self._layer["digest"])
        job = LayerJob(layer=digest, compression="none", digest=digest, size=size)
        process = UnpackProcess(self._lock)
        try:
            process.unpack(job, staging, _LIMITS, self._pieces(), self._channel)
        finally:
            process.close()

    def _pieces(self) -> Iterator[bytes]:
        size: int = self._layer["bytes"]
        for piece in self._layers.pieces(self._layer):
            yield piece
            self.read += len(piece)
            # What is told are bytes on disk; a layer's content is about as large.
            self._channel.progress("", "verifying", self._before + min(self.read, size), self._total)
