"""Layers that are one file: kept by the worker itself, because nothing in them is looked at.

A process for each, as archives have one, would take longer than most of them: an artifact may have hundreds of files.
Owns the check of such a blob and ``auto``, where the first block says whether it is a file at all. Does not own how a
driver keeps a file (``directory_layers``, ``erofs/keeping``). Called by ``assembly``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from podkeep.base.errors import InvalidArgument
from podkeep.images.layers.full_disk import is_full
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
    known = replace(job, kind="tar") if is_tar(start) else job.as_file()
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
        data_bytes = keep_file(root, job.title, settings.driver, pull)
    except (TreeError, OSError) as error:
        if is_full(error):
            raise no_space(job, str(error)) from error
        raise InvalidArgument(f"layer {job.shown}: {error}") from error
    check_blob(job, done, f"{hashing.name}:{hashing.hexdigest()}")
    return Made(
        layer=file_layer_id(job.shown, job.title), kind="file", driver=settings.driver, path=root, data_bytes=data_bytes
    )


def keep_file(root: Path, title: str, driver: str, pull: Callable[[], bytes]) -> int:
    """Keep what ``pull`` returns, piece by piece and empty at its end, in the way of a driver; return what the content
    takes on disk.

    :raises TreeError: if it cannot be written.
    :raises OSError: if it cannot be written.
    """
    if driver == "erofs":
        from podkeep.images.layers.erofs import keeping  # what most workers have no use for

        return keeping.keep_file(str(root), title, pull)
    from podkeep.images.layers import directory_layers
    from podkeep.images.layers.recording import SUFFIX

    record = os.open(f"{root}{SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return directory_layers.keep_file(str(root), record, title, pull)
    finally:
        os.close(record)
