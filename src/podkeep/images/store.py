"""The image store: what is here, how it gets here, and how it goes.

Owns ``<root>``: the database, the layers (through a snapshot driver) and the lock that says who may change them. Runs
inside the server process and does nothing dangerous there: registries, archives and layers are read by worker
processes, which hand back verified documents and finished trees.

Crash safety: a worker unpacks into a staging directory; the store renames each tree into place, then records image
and layers in one transaction. What is killed in between leaves files without a record, which ``open`` removes.
Workers hold the store's lock too, so the next store waits for the last worker of the one before.

Against a loss of power: layers are not synced while a pod waits for them. A while after a pull everything is synced
at once and recorded as such; layers that were not before the machine went down are pulled again.

Removal does not ask whether containers use the image: the runtime knows, and must not remove what it has mounted.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from podkeep.base import lockfile
from podkeep.base.config import ImagesConfig, RegistryConfig
from podkeep.base.errors import InvalidArgument, NotFound, PodkeepError
from podkeep.base.failpoints import reach
from podkeep.base.ids import Digest, ImageID
from podkeep.base.singleflight import SingleFlight
from podkeep.images import endpoints, manifest, reference
from podkeep.images.database import ImageDatabase, ImageRecord, LayerRecord, NewImage
from podkeep.images.image import Image, PullProgress, RegistryAuth
from podkeep.images.snapshots.directories import DirectoriesDriver
from podkeep.images.snapshots.driver import SnapshotDriver
from podkeep.images.workers import run_worker
from podkeep.kernel.openat import syncfs

log = logging.getLogger(__name__)

Progress = Callable[[PullProgress], None]
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MIN_ID_PREFIX = 3
LOCK_PATIENCE_S = 10.0
"""How long to wait for the last processes of a killed owner."""
_SYNC_DELAY = 30.0
"""Seconds after a pull: by then the kernel has written most of it, and the pod that waited for it runs."""


@dataclass(frozen=True, kw_only=True)
class FsUsage:
    """What images take (CRI: FilesystemUsage): ``mountpoint`` is the store's directory."""

    mountpoint: str
    used_bytes: int
    inodes_used: int


class ImageStore:
    """The images of one node. Methods that block are plain functions and safe to call from any thread."""

    def __init__(
        self,
        root: Path,
        lock: int,
        database: ImageDatabase,
        driver: SnapshotDriver,
        config: ImagesConfig,
        registries: Mapping[str, RegistryConfig],
    ) -> None:
        """Use :meth:`open`."""
        self._root = root
        self._lock_fd = lock
        self._database = database
        self._driver = driver
        self._config = config
        self._registries = registries
        self._changing = threading.RLock()
        self._leases: Counter[Digest] = Counter()
        self._flights: SingleFlight[Image] = SingleFlight()
        self._listeners: dict[str, list[Progress]] = {}
        self._boot_id = _BOOT_ID.read_text().strip()
        self._timer: threading.Timer | None = None
        self._closed = False
        self._layers: dict[Digest, LayerRecord] = {}
        self._images: dict[ImageID, Image] = {}
        self._names: dict[str, ImageID] = {}

    def reconfigure(self, config: ImagesConfig, registries: Mapping[str, RegistryConfig]) -> None:
        """Use other limits and registries from the next pull on."""
        self._config, self._registries = config, registries

    @classmethod
    def open(cls, root: Path, *, config: ImagesConfig, registries: Mapping[str, RegistryConfig]) -> ImageStore:
        """Open the store below ``root``, made if missing, and remove what a killed process left there. Blocks.

        :raises FailedPrecondition: if another process has it open.
        :raises DataLoss: if the database is damaged; the hint says what to move away.
        """
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = lockfile.acquire(root / "lock", patience_s=LOCK_PATIENCE_S)
        try:
            database = ImageDatabase(root / "images.db")
            try:
                store = cls(root, lock, database, DirectoriesDriver(root), config, registries)
                store._recover()
            except BaseException:
                database.close()
                raise
        except BaseException:
            os.close(lock)
            raise
        return store

    def images(self) -> list[Image]:
        """Return every image, sorted by ID."""
        return list(self._images.values())

    def find(self, text: str) -> Image | None:
        """Return the image that ``text`` names: a reference in any form, a repository digest, an ID or a prefix of
        one.

        :raises InvalidArgument: if an ID prefix fits several images.
        """
        images, names = self._images, self._names
        if text.startswith("sha256:"):
            return images.get(ImageID(text)) or self._by_prefix(text.removeprefix("sha256:"))
        try:
            named = names.get(str(reference.parse(text)))
        except InvalidArgument:
            named = None
        return images.get(named) if named else self._by_prefix(text)

    def _by_prefix(self, text: str) -> Image | None:
        if len(text) < _MIN_ID_PREFIX or text.strip("0123456789abcdef"):
            return None
        found = [image for image in self.images() if image.id.partition(":")[2].startswith(text)]
        if len(found) > 1:
            raise InvalidArgument(f"{text!r} is the start of {len(found)} image IDs", hint="write more of the ID")
        return found[0] if found else None

    async def pull(
        self, reference_text: str, *, auth: RegistryAuth | None = None, progress: Progress | None = None
    ) -> Image:
        """Pull an image; calls for the same name and credentials join one pull. ``progress`` runs on the event loop.

        :raises InvalidArgument: if the name, a document or a layer is wrong.
        :raises NotFound: if the registry has no such image, or none for this node's architecture.
        :raises Unavailable: if no registry or mirror answers; the message starts with ``RegistryUnavailable: ``.
        :raises PermissionDenied: if the registry refuses the credentials.
        :raises DataLoss: if something does not match its digest.
        """
        wanted = reference.parse(reference_text)
        places = endpoints.endpoints_of(wanted, self._registries)
        request = {
            "kind": "pull",
            "host": wanted.host,
            "repository": wanted.repository,
            "tag": "" if wanted.digest else wanted.tag,
            "digest": wanted.digest or "",
            "endpoints": [endpoint.as_json() for endpoint in places],
            "auth": endpoints.auth_as_json(auth),
        }
        key = str(wanted)
        listeners = self._listeners.setdefault(key, [])
        if progress:
            listeners.append(progress)
        try:
            return await self._flights.do((key, auth), lambda: self._pull(key, request))
        finally:
            if progress:
                listeners.remove(progress)
            if not listeners:
                self._listeners.pop(key, None)

    async def _pull(self, key: str, request: dict[str, Any]) -> Image:
        def tell(step: PullProgress) -> None:
            for listener in tuple(self._listeners.get(key, ())):
                listener(step)

        tell(PullProgress(image=key, digest="", phase="resolving", done=0, total=0))
        (image,) = await self._fetch(key, request, tell)
        tell(PullProgress(image=key, digest="", phase="done", done=image.size, total=image.size))
        return image

    async def load(self, archive: Path, *, progress: Progress | None = None) -> list[Image]:
        """Load every image of an OCI layout (directory or tar) or a docker archive.

        :raises NotFound: if there is no such file, or no image in it for this node's architecture.
        :raises InvalidArgument: if it is no image archive, or a document or layer in it is wrong.
        :raises DataLoss: if something does not match its digest.
        """
        request = {"kind": "load", "path": str(archive)}
        return await self._fetch(str(archive), request, progress or (lambda _: None))

    async def _fetch(self, name: str, request: dict[str, Any], tell: Progress) -> list[Image]:
        """Run a worker and take over what it made; whatever happens, its staging directory goes."""
        # Not on a thread, which would go on making it after the caller was cancelled; it is one mkdir(2).
        staging = self._driver.stage()
        leased: list[Digest] = []

        async def answer(event: dict[str, Any]) -> dict[str, Any] | None:
            if event["event"] == "want":
                return {"have": await asyncio.to_thread(self._lease, event["layers"], leased)}
            tell(
                PullProgress(
                    image=name,
                    digest=event["digest"],
                    phase=event["phase"],
                    done=event["done"],
                    total=event["total"],
                )
            )
            return None

        request |= {
            "staging": str(staging),
            "architecture": manifest.node_architecture(),
            "parallel": self._config.parallel_layers,
            "max_bytes": self._config.max_layer_bytes,
            "max_inodes": self._config.max_layer_inodes,
        }
        try:
            records = await run_worker(request, answer, lock=self._lock_fd)
            return await asyncio.to_thread(self._take, records)
        finally:
            # Shielded: a cancelled caller must not leave files behind.
            await asyncio.shield(asyncio.to_thread(self._finish, staging, leased))

    def _lease(self, layers: Iterable[Digest], leased: list[Digest]) -> list[Digest]:
        """Say which layers are here; they stay until the pull that was told so ends."""
        with self._changing:
            have = [layer for layer in dict.fromkeys(layers) if layer in self._layers]
            self._leases.update(have)
            leased.extend(have)
            return have

    def _take(self, records: list[dict[str, Any]]) -> list[Image]:
        reach("images-before-commit")
        with self._changing:
            fresh: list[LayerRecord] = []
            for record in records:
                for layer in record["unpacked"]:
                    self._driver.commit(Path(layer["path"]), layer["diff_id"])
                    fresh.append(
                        LayerRecord(
                            diff_id=layer["diff_id"],
                            bytes=layer["bytes"],
                            inodes=layer["inodes"],
                            boot_id=self._boot_id,
                        )
                    )
            reach("images-before-record")
            new = [_new_image(record) for record in records]
            self._database.add(new, fresh)
            self._refresh()
            self._sync_later()
            return [_named_first(self._images[image.id], image.tags) for image in new]

    def _sync_later(self) -> None:
        with self._changing:
            if self._closed or self._timer is not None or not any(layer.boot_id for layer in self._layers.values()):
                return
            self._timer = threading.Timer(_SYNC_DELAY, self._sync_in_time)
            self._timer.daemon = True
            self._timer.start()

    def sync(self) -> None:
        """Write every layer to the disk now, so that it outlives a loss of power. Blocks.

        :raises KernelCallError: if the disk fails.
        :raises ResourceExhausted: if the disk has no space for the record of it.
        """
        with self._changing:
            layers = [layer.diff_id for layer in self._layers.values() if layer.boot_id]
        if not layers:
            return
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            syncfs(fd)
        finally:
            os.close(fd)
        with self._changing:
            if not self._closed:
                self._database.mark_synced(layers)
                self._refresh()

    def _sync_in_time(self) -> None:
        try:
            self.sync()
        except (PodkeepError, OSError) as error:
            log.warning("layers may not outlive a loss of power: %s", error)
        with self._changing:
            self._timer = None

    def _finish(self, staging: Path, leased: list[Digest]) -> None:
        with self._changing:
            self._leases.subtract(leased)
            self._leases += Counter()  # forget those at zero
        self._driver.discard(staging)
        self.collect()

    def remove(self, text: str) -> None:
        """Remove a tag (and the image with its last tag), or the image that an ID or a digest names. Blocks.

        An image that is not here is no error (CRI: RemoveImage is idempotent).

        :raises InvalidArgument: if an ID prefix fits several images.
        """
        self.forget(text)
        self.collect()

    def forget(self, text: str) -> None:
        """Do the quick half of :meth:`remove`: nobody finds the image any more, its files are still there."""
        with self._changing:
            image = self.find(text)
            if image is None:
                return
            tag = _tag_of(text)
            if tag in image.repo_tags and len(image.repo_tags) > 1:
                self._database.remove_name(tag)
            else:
                self._database.remove_images([image.id])
            self._refresh()

    def usage(self) -> FsUsage:
        """Return what layers take on disk: bytes in whole blocks, and inodes."""
        layers = self._layers.values()
        return FsUsage(
            mountpoint=str(self._root),
            used_bytes=sum(layer.bytes for layer in layers),
            inodes_used=sum(layer.inodes for layer in layers),
        )

    def lowers(self, image: Image, *, userns: int | None, at_least: int = 1) -> list[int]:
        """Return detached mounts of the image's layers, top layer first, idmapped when a user namespace is given.

        :param at_least: 2: with an empty tree beneath a single layer, for an overlay that nobody can write to.

        The descriptors are the caller's to close. Blocks, for some microseconds per layer.

        :raises NotFound: if the image was removed meanwhile.
        :raises KernelCallError: if the store's file system cannot be idmapped.
        """
        with self._changing:
            if image.id not in self._images:
                raise NotFound(f"image {image.id} is not here any more", hint="pull it again")
            return self._driver.lowers(image.layers, userns=userns, at_least=at_least)

    def close(self) -> None:
        """Let go of the database and the lock; a second call does nothing. Pulls must have ended before."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            timer = self._timer
            self._database.close()
            os.close(self._lock_fd)
        if timer is not None:
            timer.cancel()
            timer.join()

    def _recover(self) -> None:
        """Bring records and files into step after whatever ended the process before."""
        layers = self._database.layers()
        # Written in another boot and never seen on the disk: after a loss of power such files may be empty.
        doubtful = {key for key, layer in layers.items() if layer.boot_id not in ("", self._boot_id)}
        gone = self._driver.recover(frozenset(layers.keys() - doubtful))
        lost = gone | doubtful
        if lost:
            images = self._database.images_using(lost)
            log.warning("removing %d images whose layers did not survive: %s", len(images), ", ".join(sorted(images)))
            self._database.remove_images(images)
            self._database.remove_layers(lost)
        self._refresh()
        self.collect()
        self._sync_later()

    def collect(self) -> None:
        """Remove layers that no image and no running pull needs. Blocks, for as long as removing the files takes."""
        with self._changing:
            doomed = [layer for layer in self._database.unused_layers() if not self._leases[layer]]
            if not doomed:
                return
            self._database.remove_layers(doomed)
            self._refresh()
            retired = [self._driver.retire(layer) for layer in doomed]
        for tree in retired:
            self._driver.discard(tree)

    def _refresh(self) -> None:
        """Read what is asked for often into memory; readers see the old maps or the new."""
        layers = self._database.layers()
        images = {record.id: _image(record, layers) for record in self._database.images()}
        self._names = {name: image.id for image in images.values() for name in (*image.repo_tags, *image.repo_digests)}
        self._layers = layers
        self._images = images


def _tag_of(text: str) -> str:
    try:
        parsed = reference.parse(text)
    except InvalidArgument:
        return ""
    return "" if parsed.digest else str(parsed)


def _image(record: ImageRecord, layers: Mapping[Digest, LayerRecord]) -> Image:
    configuration = manifest.parse_configuration(record.config, f"image {record.id}")
    return Image(
        id=record.id,
        repo_tags=record.tags,
        repo_digests=record.digests,
        size=len(record.config) + sum(layers[layer].bytes for layer in set(record.layers)),
        pinned=False,
        config=configuration.run,
        layers=record.layers,
    )


def _named_first(image: Image, tags: tuple[str, ...]) -> Image:
    """Return ``image`` with the names it was just given before those it had."""
    return replace(image, repo_tags=tuple(dict.fromkeys((*tags, *image.repo_tags))))


def _new_image(record: dict[str, Any]) -> NewImage:
    return NewImage(
        id=ImageID(record["id"]),
        config=base64.b64decode(record["config"]),
        manifests=tuple((Digest(digest), base64.b64decode(data)) for digest, data in record["manifests"]),
        layers=tuple(Digest(layer) for layer in record["layers"]),
        tags=tuple(record["tags"]),
        digests=tuple(record["digests"]),
    )
