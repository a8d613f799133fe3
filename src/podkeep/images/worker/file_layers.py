"""Layers that are one file: kept by the worker itself, because nothing in them is looked at.

A process for each, as archives have one, would take longer than most of them: an artifact may have hundreds of files.
Owns the check of such a blob and ``auto``, where the first block says whether it is a file at all. Does not own how a
driver keeps a file (``layers.forms``). Called by ``assembly``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from msgspec import structs

from podkeep.base.errors import InvalidArgument
from podkeep.images.layers.forms import form_of
from podkeep.images.layers.messages import is_full
from podkeep.images.layers.rules import TreeError
from podkeep.images.layers.tarstream import BLOCK, is_tar
from podkeep.images.messages import LayerSettings
from podkeep.images.worker.channel import Channel
from podkeep.images.worker.layers import LayerJob, Made, check_blob, file_layer_id, no_space


def told(job: LayerJob, blob: Iterator[bytes]) -> tuple[LayerJob, Iterator[bytes]]:
    """Return what an ``auto`` layer is, and all of its blob."""
    start = b""
    while len(start) < BLOCK and (piece := next(blob, b"")):
        start += piece
    known = structs.replace(job, kind="tar") if is_tar(start) else job.as_file()
    return known, chain([start] if start else [], blob)


def keep(job: LayerJob, root: Path, settings: LayerSettings, blob: Iterator[bytes], channel: Channel) -> Made:
    """Keep ``blob`` in the empty directory ``root`` for the driver of new layers.

    :raises FailedPrecondition: if the blob is not what its digest says.
    :raises InvalidArgument: if it has more bytes than a layer may have, or cannot be written.
    :raises ResourceExhausted: if the disk is full.
    """
    hashing = hashlib.new(job.shown.partition(":")[0])
    done = 0

    def pull() -> bytes:
        nonlocal done
        piece = next(blob, b"")
        hashing.update(piece)
        done += len(piece)
        if done > settings.max_bytes:
            raise InvalidArgument(f"layer {job.shown}: more than {settings.max_bytes} bytes (images.max_layer_bytes)")
        channel.progress(job.shown, "downloading", done, job.size)
        return piece

    try:
        data_bytes = form_of(settings.driver).keep_file(str(root), job.title, pull)
    except (TreeError, OSError) as error:
        if is_full(error):
            raise no_space(job, str(error)) from error
        raise InvalidArgument(f"layer {job.shown}: {error}") from error
    check_blob(job, done, f"{hashing.name}:{hashing.hexdigest()}")
    return Made(
        layer=file_layer_id(job.shown, job.title), kind="file", driver=settings.driver, path=root, data_bytes=data_bytes
    )
