"""Comparing what the store has with its digests. The server's side: a worker reads the layers (``worker.stored``).

Owns: what is looked at, what is told, and what is removed so that a pull brings it anew. Layers are held while they are
read. Also what is recorded of an image beside its layers: its documents, its names, and what a worker is told of its
layers. Called by ``maintenance``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from podkeep.base.concurrency.tasks import acquired, on_thread
from podkeep.base.errors import NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import Digest, ImageID
from podkeep.images.formats import manifest
from podkeep.images.formats.image import Image
from podkeep.images.messages import Checked, Damaged, Event, Progress, StoredLayer, Unchecked, Verify, unexpected
from podkeep.images.store.database import LayerRecord
from podkeep.images.store.store import ImageStore


class Document(FrozenStruct, kw_only=True):
    """A document of an image; ``role`` is ``index``, ``manifest`` or ``configuration``."""

    role: str
    digest: Digest
    data: bytes


class Step(FrozenStruct, kw_only=True):
    """Progress of a verification; ``done`` of ``total`` bytes on disk."""

    done: int
    total: int


class Damage(FrozenStruct, kw_only=True):
    """Something that is not what its digest says; ``kept`` says why it was not removed, if that was asked for."""

    object: str
    problem: str
    images: tuple[ImageID, ...] = ()
    names: tuple[str, ...] = ()
    repaired: bool = False
    kept: str = ""


@dataclass(kw_only=True)
class Summary:
    """What a verification looked at."""

    images: int = 0
    layers: int = 0
    documents: int = 0
    bytes: int = 0
    damages: int = 0
    unchecked: int = 0
    """Layers kept in a way that does not allow it."""


class Checking:
    """The verifications of one store.

    :param in_use: says by what an image is used, or nothing; called on the event loop.
    """

    def __init__(self, store: ImageStore, in_use: Callable[[Image], str]) -> None:
        self._store = store
        self._in_use = in_use

    async def verify(
        self, images: Sequence[Image], *, everything: bool, repair: bool
    ) -> AsyncGenerator[Step | Damage | Summary, None]:
        """Compare images with their digests; yield progress, damages and at last the summary.

        With ``repair`` images that are damaged and that no container uses are removed, with every image that shares
        the damaged layer, so that a pull brings it anew.

        :param everything: these are all images; layers that none has, and what has no record, are looked at, too.
        """
        wanted = [layer for image in images for layer in image.layers]
        # Held while they are read: a removal in between would look like damage.
        hold = partial(self._store.hold, self._store.records()[1] if everything else wanted)
        held = await acquired(hold, self._store.release)
        _, layers = self._store.records()
        summary = Summary(images=len(images))
        damages: list[Damage] = []
        try:
            for image in images:
                damages += await asyncio.to_thread(self._check_documents, image, summary)
            async with aclosing(self._check_layers([layers[layer] for layer in held], summary)) as events:
                async for event in events:
                    if isinstance(event, Step):
                        yield event
                    else:
                        damages.append(event)
            # While the layers are held each is the one that was read, whatever is pulled and removed meanwhile.
            if repair:
                damages = [await self._repaired(damage) for damage in damages]
        finally:
            # To its end: a cancelled verification must not keep its layers for ever.
            await on_thread(partial(self._store.release, held))
        if everything:
            damages += await asyncio.to_thread(self._check_strays, repair)
        summary.damages = len(damages)
        for damage in damages:
            yield damage
        yield summary

    def _check_documents(self, image: Image, summary: Summary) -> list[Damage]:
        damage = partial(Damage, images=(image.id,), names=names_of(image))
        damages = [damage(object=image.id, problem=image.unusable)] if image.unusable else []
        try:
            for document in documents_of(self._store, image):
                summary.documents += 1
                found = manifest.digest_of(document.data, document.digest.partition(":")[0])
                if found != document.digest:
                    problem = f"{document.role}: expected digest {document.digest}, the content has {found}"
                    damages.append(damage(object=document.digest, problem=problem))
        except NotFound:
            return []  # removed meanwhile
        except PodkeepError as error:
            damages.append(damage(object=image.id, problem=error.message))
        return damages

    async def _check_layers(
        self, layers: Sequence[LayerRecord], summary: Summary
    ) -> AsyncGenerator[Step | Damage, None]:
        """Yield steps, and the damages of layers; count the layers in ``summary``."""
        if not layers:
            return
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        request = Verify(root=str(self._store.root), layers=tuple(map(stored_layer, layers)))

        async def read() -> None:
            try:
                await self._store.work(request, events.put_nowait)
            finally:
                events.put_nowait(None)

        reader = asyncio.ensure_future(read())
        try:
            while (event := await events.get()) is not None:
                match event:
                    case Progress():
                        yield Step(done=event.done, total=event.total)
                    case Damaged():
                        summary.layers += 1
                        yield self._damage(event.layer, event.problem)
                    case Checked():
                        summary.layers += 1
                        summary.bytes += event.bytes
                    case Unchecked():
                        summary.unchecked += 1
                    case _:
                        raise unexpected(event)
            await reader
        finally:
            # Whoever reads the events may stop in the middle: the worker ends with them.
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _damage(self, layer: Digest, problem: str) -> Damage:
        having = [image for image in self._store.images() if layer in image.layers]
        return Damage(
            object=layer,
            problem=problem,
            images=tuple(image.id for image in having),
            names=tuple(name for image in having for name in names_of(image)),
        )

    def _check_strays(self, repair: bool) -> list[Damage]:
        return [
            Damage(object=stray, problem="no image has it", repaired=repair)
            for stray in self._store.strays(remove=repair)
        ]

    async def _repaired(self, damage: Damage) -> Damage:
        """Forget the images that a damage is in, or say which cannot be."""
        images = [image for image in self._store.images() if image.id in damage.images or damage.object in image.layers]
        kept = [f"{image.id} is in use {used}" for image in images if (used := self._in_use(image))]
        if kept:
            return structs.replace(damage, kept="; ".join(kept))
        if len(await self._store.withdraw(images)) < len(images):
            return structs.replace(damage, kept="it was pulled again meanwhile")
        return structs.replace(damage, repaired=True)


def documents_of(store: ImageStore, image: Image) -> list[Document]:
    """Return the documents of an image: indexes and manifests, then the configuration. Blocks.

    :raises NotFound: if the image was removed meanwhile.
    :raises InvalidArgument: if a manifest is damaged so that it cannot be read.
    """
    config, manifests = store.documents(image.id)
    documents = []
    for digest, data in manifests.items():
        role = "index" if manifest.is_index(manifest.parse_document(data, digest), "") else "manifest"
        documents.append(Document(role=role, digest=digest, data=data))
    wanted = _config_digest(image, config, manifests.values())
    return [*documents, Document(role="configuration", digest=wanted, data=config)]


def names_of(image: Image) -> tuple[str, ...]:
    """Return what an image is called: its tags, or without any its digests."""
    return image.repo_tags or image.repo_digests


def _config_digest(image: Image, config: bytes, manifests: Iterable[bytes]) -> Digest:
    """Return the digest that a configuration must have."""
    if image.kind == "image":
        return Digest(image.id)
    for data in manifests:
        described = manifest.parse_document(data, image.id).get("config")
        if isinstance(described, dict) and isinstance(described.get("digest"), str):
            return Digest(described["digest"])
    return manifest.digest_of(config)


def stored_layer(layer: LayerRecord) -> StoredLayer:
    """Return what a worker is told of a layer that it reads."""
    return StoredLayer(
        id=layer.id,
        driver=layer.driver,
        digest=layer.blob if layer.kind == "file" and layer.blob else layer.id,
        metadata=layer.metadata,
        implied=layer.implied,
        bytes=layer.bytes,
        inodes=layer.inodes,
    )
