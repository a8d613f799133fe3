"""What people do with stored images: look at them, save, remove, prune and verify them. The server's side.

Owns: what is told about an image, and that nothing is removed that a container uses. Who uses what is asked of the
runtime, on the event loop, in the same step in which an image is forgotten: no container can be made of it in between.
Verifying is ``checking``; layers are read by a worker (``saving``, ``stored``). Called by
``runtime/rpc/image_maintenance.py``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from msgspec import structs

from podkeep.base.concurrency.tasks import acquired, on_thread
from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import Digest, ImageID
from podkeep.images.formats.image import Image, PullProgress
from podkeep.images.formats.openfile import OpenFile, open_directory, remove_directory
from podkeep.images.messages import Event, Progress, Save, Saved, StoredImage, unexpected
from podkeep.images.store import prune
from podkeep.images.store.catalog import spare_tag
from podkeep.images.store.checking import (
    Checking,
    Damage,
    Document,
    Step,
    Summary,
    documents_of,
    stored_layer,
)
from podkeep.images.store.database import LayerRecord
from podkeep.images.store.fetching import Listener
from podkeep.images.store.store import ImageStore

log = logging.getLogger(__name__)


class ImageUser(FrozenStruct, kw_only=True):
    """A container that has an image as root file system or, with ``volume``, as volume."""

    container_id: str
    container_name: str
    pod_namespace: str
    pod_name: str
    volume: bool

    def __str__(self) -> str:
        how = "as a volume of" if self.volume else "by"
        pod = f"{self.pod_namespace}/{self.pod_name}"
        return f"{how} container {self.container_name} of pod {pod} ({self.container_id[:12]})"


class Description(FrozenStruct, kw_only=True):
    """An image, who uses it, its layers base first with the number of images that have each, and, if asked for, its
    documents."""

    image: Image
    shared_size: int
    users: tuple[ImageUser, ...]
    documents: tuple[Document, ...] = ()
    layers: tuple[tuple[LayerRecord, int], ...] = ()


class Removed(FrozenStruct, kw_only=True):
    """What went: names, the image if it went with them, and bytes on disk."""

    untagged: tuple[str, ...]
    image: ImageID | None
    reclaimed: int


Users = Callable[[], Mapping[ImageID, Sequence[ImageUser]]]


class Maintenance:
    """The verbs on one store. Its coroutines run on the event loop, and blocking steps on threads.

    :param users: who uses which image now; called on the event loop.
    """

    def __init__(self, store: ImageStore, users: Users) -> None:
        self._store = store
        self._users = users

    def find(self, text: str) -> Image:
        """Return the image that ``text`` names.

        :raises NotFound: if there is none.
        :raises InvalidArgument: if an ID prefix fits several images.
        """
        image = self._store.find(text)
        if image is None:
            raise NotFound(f"no image {text}", hint="`podkeep image ls` lists the images")
        return image

    def chosen(self, names: Iterable[str]) -> list[Image]:
        """Return the images that ``names`` lead to, each once, in this order; without names all.

        :raises NotFound: if a name leads to none.
        """
        found = {image.id: image for image in map(self.find, names)}
        return list(found.values()) if found else self._store.images()

    async def describe(self, names: Iterable[str], *, documents: bool) -> AsyncGenerator[Description, None]:
        """Yield what is known about images, or about all; one that is removed meanwhile is left out.

        :raises NotFound: if a name leads to none.
        """
        for found in self._described(self.chosen(names)):
            if not documents:
                yield found
                continue
            try:
                content = tuple(await asyncio.to_thread(documents_of, self._store, found.image))
            except NotFound:
                continue
            except InvalidArgument as error:
                log.warning("image %s is reported without its manifests: %s", found.image.id, error.message)
                content = ()
            yield structs.replace(found, documents=content)

    def _described(self, images: Iterable[Image]) -> list[Description]:
        here, layers = self._store.records()
        users, having = self._users(), prune.counts(here.values())
        return [
            Description(
                image=image,
                shared_size=prune.shared(image, having, layers),
                users=tuple(users.get(image.id, ())),
                layers=tuple((layers[layer], having[layer]) for layer in image.layers),
            )
            for image in images
            if all(layer in layers for layer in image.layers)
        ]

    async def remove(self, text: str) -> Removed:
        """Take a name away, and the image with its last one; an ID or a digest means the whole image.

        :raises NotFound: if there is no such image.
        :raises FailedPrecondition: if the image would go and a container uses it.
        """
        image = self.find(text)
        spare = spare_tag(text, image)
        if spare:
            untagged = await asyncio.to_thread(self._store.untag, spare)
            if untagged:
                return Removed(untagged=(spare,), image=None, reclaimed=0)
            image = self.find(text)  # meanwhile it has no other, or is gone
        # On the event loop, without an await before withdraw's first step: no container can be made of it in between.
        in_use = self._in_use(image)
        if in_use:
            raise FailedPrecondition(f"image {text} is in use {in_use}", hint="remove the pod or the container first")
        records = self._store.records()
        await self._store.withdraw([image])
        reclaimed = await asyncio.to_thread(self._reclaim, records, {image.id})
        return Removed(untagged=(*image.repo_tags, *image.repo_digests), image=image.id, reclaimed=reclaimed)

    async def prune(self, *, tagged: bool, pulled_before: int | None, dry_run: bool) -> tuple[list[Description], int]:
        """Remove the images that :func:`prune.choose` names; return them, as they were, and the bytes reclaimed."""
        records = self._store.records()
        doomed = prune.choose(records[0].values(), used=self._users(), tagged=tagged, pulled_before=pulled_before)
        described = self._described(doomed)
        if not dry_run:
            # Some may stay: what was pulled once more, or was given a name, since they were chosen.
            gone = {image.id for image in await self._store.withdraw(doomed)}
            described = [found for found in described if found.image.id in gone]
        doomed_ids = {found.image.id for found in described}
        return described, await asyncio.to_thread(self._reclaim, records, doomed_ids, dry_run=dry_run)

    def _reclaim(
        self,
        before: tuple[Mapping[ImageID, Image], Mapping[Digest, LayerRecord]],
        gone: Collection[ImageID],
        *,
        dry_run: bool = False,
    ) -> int:
        """Remove the files of forgotten images, and return what they take on disk. ``before``: the records then."""
        images, _ = before
        trees = {image.layers for image in images.values() if image.id in gone}
        # Images with the same layers have one tree together.
        trees -= {image.layers for image in images.values() if image.id not in gone}
        try:
            # Measured before they go, which is in the finally block.
            return prune.reclaimed(*before, gone) + self._store.merging_bytes(prune.only_in(images, gone), trees)
        finally:
            if not dry_run:
                self._store.collect()

    async def save(self, names: Sequence[str], target: OpenFile, progress: Listener) -> int:
        """Write images as an OCI layout to a file (as one tar), a pipe or a directory; return the bytes of its files.

        The layers stay until that is done, also if the images are removed meanwhile. A directory is removed when it is
        not done, or its owner is gone.

        :raises NotFound: if a name leads to none.
        :raises DataLoss: if a layer is damaged.
        :raises ResourceExhausted: if the target is full.
        :raises FailedPrecondition: if the target cannot be written.
        """
        images = self.chosen(names)
        # Open until the end: what is removed after a failure is this directory, wherever it is by then.
        directory = open_directory(target)
        try:
            return await self._saved_whole(images, target, progress, directory=directory is not None)
        except BaseException:
            if directory is not None:
                # To its end, whoever gives up: once it is closed, another directory may have the descriptor.
                await on_thread(partial(remove_directory, directory))
            raise
        finally:
            if directory is not None:
                os.close(directory)

    async def _saved_whole(
        self, images: Sequence[Image], target: OpenFile, progress: Listener, *, directory: bool
    ) -> int:
        hold = partial(self._store.hold, [layer for image in images for layer in image.layers])
        held = await acquired(hold, self._store.release)
        try:
            _, layers = self._store.records()
            request = Save(
                root=str(self._store.root),
                target=target,
                directory=directory,
                images=tuple([await asyncio.to_thread(self._saved, image, layers) for image in images]),
            )
            return await self._written(request, target.name, progress)
        finally:
            await on_thread(partial(self._store.release, held))

    async def _written(self, request: Save, name: str, progress: Listener) -> int:
        written = 0

        def note(event: Event) -> None:
            nonlocal written
            match event:
                case Saved():
                    written = event.bytes
                case Progress():
                    step = PullProgress(image=name, digest="", phase="saving", done=event.done, total=event.total)
                    progress(step)
                case _:
                    raise unexpected(event)

        await self._store.work(request, note)
        return written

    def _saved(self, image: Image, layers: Mapping[Digest, LayerRecord]) -> StoredImage:
        if not all(layer in layers for layer in image.layers):
            raise NotFound(f"image {image.id} is not here any more")
        by_role = {document.role: document.data for document in documents_of(self._store, image)}
        return StoredImage(
            id=image.id,
            kind=image.kind,
            config=by_role["configuration"],
            manifest=by_role.get("manifest", b""),
            layers=tuple(stored_layer(layers[layer]) for layer in image.layers),
            tags=image.repo_tags,
            digests=image.repo_digests,
        )

    def verify(self, names: Sequence[str], *, repair: bool) -> AsyncGenerator[Step | Damage | Summary, None]:
        """Compare images, or everything, with their digests (:meth:`Checking.verify`).

        :raises NotFound: if a name leads to none.
        """
        return Checking(self._store, self._in_use).verify(self.chosen(names), everything=not names, repair=repair)

    def _in_use(self, image: Image) -> str:
        """Say by what an image is used, or nothing."""
        users = self._users().get(image.id, ())
        if not users:
            return ""
        return str(users[0]) + (f" and {len(users) - 1} more" if len(users) > 1 else "")
