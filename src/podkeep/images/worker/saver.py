"""Writing images to a file, a pipe or a directory. Runs in the worker; what is written is ``saving``."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from podkeep.base.failpoints import reach
from podkeep.base.ids import Digest
from podkeep.images.formats.openfile import failure, open_again
from podkeep.images.messages import Save, Saved, StoredImage
from podkeep.images.worker import saving
from podkeep.images.worker.channel import Channel
from podkeep.images.worker.stored import StoredLayers, give_way


def save(request: Save, channel: Channel) -> None:
    """Write the images of the request to its target.

    :raises DataLoss: if a layer is damaged.
    :raises ResourceExhausted: if the target is full.
    :raises FailedPrecondition: if it cannot be opened or written.
    """
    give_way()
    layers = StoredLayers(Path(request.root))
    flags = os.O_RDONLY | os.O_DIRECTORY if request.directory else os.O_WRONLY
    fd = open_again(request.target, flags)
    known = {layer.id: layer for image in request.images for layer in image.layers}
    sizes = {key: sum(map(len, layers.pieces(layer))) for key, layer in known.items()}
    what = saving.plan([_image(image, sizes) for image in request.images])
    done = 0

    def content(layer: saving.SavedLayer) -> Iterator[bytes]:
        nonlocal done
        for piece in layers.pieces(known[layer.id]):
            yield piece
            done += len(piece)
            channel.progress("", "saving", done, what.bytes)
        reach("images-save")

    channel.progress("", "saving", 0, what.bytes)
    saving.write(what, saving.target_of(fd, request.target.name), content)
    _sync(fd, request.target.name)
    channel.emit(Saved(bytes=what.bytes))


def _image(image: StoredImage, sizes: Mapping[Digest, int]) -> saving.SavedImage:
    return saving.SavedImage(
        id=image.id,
        kind=image.kind,
        config=image.config,
        manifest=image.manifest,
        layers=tuple(
            saving.SavedLayer(id=layer.id, digest=layer.digest, size=sizes[layer.id]) for layer in image.layers
        ),
        tags=image.tags,
        digests=image.digests,
    )


def _sync(fd: int, name: str) -> None:
    """See that a file is on its disk: some file systems find out only then that they are full."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return
    try:
        os.fsync(fd)
    except OSError as error:
        raise failure(error, name, "cannot be written") from error
