"""The image store: what is here, how it gets here, and how it goes.

Owns ``<root>``: the database, the layers (through a snapshot driver) and the lock that says who may change them. Runs
inside the server process and does nothing dangerous there: registries, archives and layers are read by worker
processes, which hand back verified documents and finished trees. Its parts: ``catalog`` (what is here), ``fetching``
(pulls and loads), ``layer_store`` (files and leases), ``durability`` (losses of power).

Crash safety: a worker unpacks into a staging directory; the store renames each tree into place, then records image
and layers in one transaction. What is killed in between leaves files without a record, which ``open`` removes.
Workers hold the store's lock too, so the next store waits for the last worker of the one before.

Removal does not ask whether containers use the image: the runtime knows, and must not remove what it has mounted.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from podkeep.base import lockfile
from podkeep.base.concurrency.tasks import finished
from podkeep.base.config import ImagesConfig, RegistryConfig
from podkeep.base.ids import Digest, ImageID
from podkeep.base.registries import reference
from podkeep.images.formats import referrer_names
from podkeep.images.formats.image import Image, ImageRunConfig, RegistryAuth
from podkeep.images.formats.openfile import OpenFile
from podkeep.images.messages import Event, Save, Verify
from podkeep.images.snapshots import choice
from podkeep.images.store.catalog import Catalog, NamesInUse, spare_tag
from podkeep.images.store.database import ImageDatabase, LayerRecord
from podkeep.images.store.durability import Durability
from podkeep.images.store.fetching import Fetching, Listener
from podkeep.images.store.layer_store import FsUsage, LayerStore
from podkeep.images.store.workers import WorkerServer
from podkeep.kernel.process.forkserver import ForkServer

LOCK_TIMEOUT_S = 10.0
"""How long to wait for the last processes of a killed owner."""


class ImageStore:
    """The images of one node. Methods that block are plain functions and safe to call from any thread."""

    def __init__(
        self,
        root: Path,
        lock: int,
        catalog: Catalog,
        layers: LayerStore,
        config: ImagesConfig,
        registries: Mapping[str, RegistryConfig],
        server: WorkerServer,
    ) -> None:
        """Use :meth:`open`."""
        self._root = root
        self._lock_fd = lock
        self._config = config
        self._closed = False
        self._catalog = catalog
        self._layers = layers
        self._durability = Durability(root, self._catalog)
        self._server = server
        self._fetching = Fetching(self._catalog, self._layers, self._durability, lock, config, registries, server)

    def reconfigure(self, config: ImagesConfig, registries: Mapping[str, RegistryConfig]) -> None:
        """Use other limits and registries from the next pull on, and pin other images at once. Blocks."""
        with self._catalog.changing:
            self._config = config
            self._fetching.reconfigure(config, registries)
            self._catalog.refresh(pinned=config.pinned)

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        config: ImagesConfig,
        registries: Mapping[str, RegistryConfig],
        mounted: Path | None = None,
        names_in_use: NamesInUse = frozenset,
        fork_server: ForkServer | None = None,
    ) -> ImageStore:
        """Open the store below ``root``, made if missing, and remove what a killed process left there. Blocks.

        :param mounted: directory below which layers are mounted; None: one in the store.
        :param names_in_use: of its names an image keeps these, however many it has.
        :param fork_server: what its workers are copies of, which outlives the store; None: one of its own.
        :raises FailedPrecondition: if another process has it open.
        :raises DataLoss: if the database is damaged; the hint says what to move away.
        """
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = lockfile.acquire(root / "lock", timeout_s=LOCK_TIMEOUT_S)
        try:
            database = ImageDatabase(root / "images.db")
            try:
                # Every driver, whichever is chosen for new layers: a store goes on using those that it has.
                drivers = choice.open_drivers(root, mounted or root / "mounted")
                try:
                    chosen = choice.choose(root, config.snapshot_driver)
                    catalog = Catalog(database, config.pinned, names_in_use)
                    layers = LayerStore(root, catalog, drivers, chosen.driver)
                    store = cls(root, lock, catalog, layers, config, registries, WorkerServer(fork_server))
                    # Before anything is pulled: what is staged now is a killed process's.
                    store._layers.recover(store._durability.boot_id)
                    store._durability.sync_later()
                except BaseException:
                    for driver in drivers.values():
                        driver.close()
                    raise
            except BaseException:
                database.close()
                raise
        except BaseException:
            os.close(lock)
            raise
        return store

    def images(self) -> list[Image]:
        """Return every image, sorted by ID."""
        return [image for image in self._catalog.images.values() if self._catalog.leaving[image.id] <= 0]

    def find(self, text: str) -> Image | None:
        """Return the image that ``text`` names: a reference in any form, a repository digest, an ID or a prefix of
        one.

        :raises InvalidArgument: if an ID prefix fits several images.
        :raises FailedPrecondition: if it names an artifact by its subject, and ``images.referrers`` is off.
        """
        if "?" in text:  # no ID has one
            referrer_names.check_allowed(reference.parse(text), self._config.referrers)
        return self._catalog.find(text)

    async def pull(
        self,
        reference_text: str,
        *,
        auth: RegistryAuth | None = None,
        progress: Listener | None = None,
        tenant: str = "",
    ) -> Image:
        """Pull an image; calls of one tenant for the same name and credentials join one pull.

        :param progress: runs on the event loop.
        :param tenant: whose pod it is for: a tenant's pulls do not keep those of others waiting.
        :raises InvalidArgument: if the name, a document or a layer is wrong.
        :raises NotFound: if the registry has no such image, or none for this node's architecture.
        :raises RegistryUnavailable: if no registry or mirror answers.
        :raises PermissionDenied: if the registry refuses the credentials, or its images are not allowed here.
        :raises FailedPrecondition: if something does not match its digest.
        """
        return await self._fetching.pull(reference_text, auth=auth, progress=progress, tenant=tenant)

    async def load(
        self, archive: Path, *, file: OpenFile | None = None, progress: Listener | None = None
    ) -> list[Image]:
        """Load every image of an OCI layout (directory or tar) or a docker archive. It then outlives a loss of power.

        :param file: read instead of what is at the path ``archive``, which then is just a name.
        :raises NotFound: if there is no such file, or no image in it for this node's architecture.
        :raises InvalidArgument: if it is no image archive, or a document or layer in it is wrong.
        :raises FailedPrecondition: if something does not match its digest.
        :raises KernelCallError: if the disk fails; the images are here all the same.
        """
        return await self._fetching.load(archive, file=file, progress=progress)

    def remove(self, text: str) -> None:
        """Remove a tag (and the image with its last tag), or the image that an ID or a digest names. Blocks.

        An image that is not here is no error (CRI: RemoveImage is idempotent).

        :raises InvalidArgument: if an ID prefix fits several images.
        """
        self.forget(text)
        self.collect()

    def forget(self, text: str) -> None:
        """Do the quick half of :meth:`remove`: nobody finds the image any more, its files are still there. Blocks."""
        with self._catalog.changing:
            image = self.find(text)
            if image is None:
                return
            if tag := spare_tag(text, image):
                self._catalog.database.remove_name(tag)
            else:
                self._catalog.database.remove_images([image.id])
            self._catalog.refresh()

    def untag(self, tag: str) -> bool:
        """Take away one of several tags; return whether it was one. Blocks."""
        with self._catalog.changing:
            image = self.find(tag)
            if image is None or not spare_tag(tag, image):
                return False
            self._catalog.database.remove_name(tag)
            self._catalog.refresh()
            return True

    async def withdraw(self, images: Sequence[Image]) -> list[Image]:
        """Do what :meth:`forget_images` does for a caller on the event loop, who just saw that no container uses them.

        From the first step on nobody finds these images: none can be made of them meanwhile.
        """
        leaving = Counter(image.id for image in images)
        # Before the first await: what the caller saw of containers is still so.
        self._catalog.leaving += leaving
        work = asyncio.ensure_future(asyncio.to_thread(self.forget_images, images))
        try:
            await finished(work)  # a caller that gives up does not end it
        finally:
            self._catalog.leaving -= leaving
        return work.result()

    def forget_images(self, images: Iterable[Image]) -> list[Image]:
        """Forget images that are still what they were when they were chosen; return those. Their files are still there.

        Blocks.

        An image that was pulled once more meanwhile, or was given a name, stays: somebody wants it.
        """
        with self._catalog.changing:
            doomed = [image for image in images if self._catalog.images.get(image.id) == image]
            if doomed:
                self._catalog.database.remove_images([image.id for image in doomed])
                self._catalog.refresh()
            return doomed

    def collect(self) -> None:
        """Remove layers that no image and no running pull needs. Blocks, for as long as removing the files takes."""
        self._layers.collect()

    def usage(self) -> FsUsage:
        """Return what the store takes on disk, as ``du`` counts it: bytes in whole blocks, and inodes.

        Layers, records (manifests and configurations are in them), and the directories they are in; what a running
        pull has staged is not counted. Blocks, for a look at each file that helps to merge layers.
        """
        return self._layers.usage()

    def lowers(self, image: Image, *, userns: int | None, at_least: int = 1) -> list[int]:
        """Return detached mounts of the image's layers, top layer first, idmapped when a user namespace is given.

        :param at_least: 2: with an empty tree beneath a single layer, for a read-only overlay.

        The descriptors are the caller's to close. Blocks, for some microseconds per layer, and the first time of an
        image with directories that no entry came for until there is a tree of them (``merging``).

        :raises NotFound: if the image was removed meanwhile.
        :raises InvalidArgument: if an older podkeep took it, and that tree would take too much.
        :raises KernelCallError: if the store's file system cannot be idmapped.
        """
        return self._layers.lowers(image, userns=userns, at_least=at_least)

    def unmount_unused(self, images: Iterable[ImageID]) -> None:
        """Let go of the mounts of layers that none of ``images`` has; they are mounted again when they are used."""
        with self._catalog.changing:
            if not self._closed:
                self._layers.unmount_unused(images)

    @property
    def root(self) -> Path:
        return self._root

    def records(self) -> tuple[Mapping[ImageID, Image], Mapping[Digest, LayerRecord]]:
        """Return the images and layers as they are now; what changes later changes neither map."""
        return self._catalog.records

    def merging_bytes(self, layers: Iterable[Digest], images: Iterable[tuple[Digest, ...]]) -> int:
        """Return what helps to merge takes on disk for these layers, and for images with just these. Blocks."""
        return self._layers.merging_bytes(layers, images)

    def run_config(self, image: Image) -> ImageRunConfig:
        """Return how an image wants to be run; an artifact, and one that is unusable, say nothing of that. Blocks.

        :raises NotFound: if the image was removed meanwhile.
        """
        return self._catalog.run_config(image)

    def documents(self, image: ImageID) -> tuple[bytes, dict[Digest, bytes]]:
        """Return the configuration of an image, and the manifests and indexes that led to it, by their digests.

        :raises NotFound: if the image was removed meanwhile.
        """
        return self._catalog.database.documents(image)

    def hold(self, layers: Iterable[Digest]) -> list[Digest]:
        """Keep layers until they are given to :meth:`release`; return those that are here. Blocks."""
        return self._layers.hold(layers)

    def release(self, held: Iterable[Digest]) -> None:
        """Let go of what :meth:`hold` returned, and remove what is not referenced now. Blocks, as removing does."""
        self._layers.release(held)
        self._layers.collect()

    async def work(self, request: Save | Verify, tell: Callable[[Event], None]) -> None:
        """Run a worker that reads what is stored to its end.

        :param tell: called with each of its events but the last.
        :raises PodkeepError: what the worker reports.
        """
        await self._fetching.work(request, tell)

    def strays(self, *, remove: bool = False) -> list[str]:
        """Return what lies where layers are kept and has no record; ``remove`` it if told to. Blocks."""
        return self._layers.strays(remove=remove)

    def sync(self) -> None:
        """Write every layer and record to the disk now, so that they outlive a loss of power. Blocks.

        :raises KernelCallError: if the disk fails.
        :raises ResourceExhausted: if the disk has no space for the record of it.
        """
        self._durability.sync()

    async def end_pulls(self) -> None:
        """End every pull, those that wait for their turn included; callers have gone before."""
        await self._fetching.close()

    def close(self) -> None:
        """Let go of the database and the lock; a second call does nothing. Pulls must have ended before."""
        with self._catalog.changing:
            if self._closed:
                return
            self._closed = True
            # The lock is held, so that a sync that runs writes no more to a database that is closed.
            self._durability.close()
            self._layers.close()
            self._catalog.database.close()
            os.close(self._lock_fd)
        # Without the lock, which the sync that is waited for takes at its end.
        self._durability.join()
        self._server.end()
