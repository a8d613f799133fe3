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
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from podkeep.base import lockfile
from podkeep.base.config import ImagesConfig, RegistryConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, PodkeepError
from podkeep.base.failpoints import reach
from podkeep.base.ids import Digest, ImageID
from podkeep.base.singleflight import SingleFlight
from podkeep.images import endpoints, manifest, merging, reference, referrer_names
from podkeep.images.credentials import NodeCredentials
from podkeep.images.database import BlobRecord, ImageDatabase, ImageRecord, LayerRecord, NewImage
from podkeep.images.image import Image, ImageRunConfig, PullProgress, RegistryAuth
from podkeep.images.media_types import Policy
from podkeep.images.openfile import OpenFile
from podkeep.images.snapshots import choice
from podkeep.images.snapshots.driver import SnapshotDriver
from podkeep.images.workers import run_worker
from podkeep.kernel import tree_size
from podkeep.kernel.openat import syncfs

log = logging.getLogger(__name__)

Progress = Callable[[PullProgress], None]
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MIN_ID_PREFIX = 3
_RECORDED = frozenset(("layers", "headers", "erofs", "staging", "trash", "mounted"))
"""Directories of the store whose content is in the records of layers, or not to be counted."""
_BLOCK_BYTES = 512  # st_blocks, whatever the file system's block size is (inode(7))
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
        drivers: Mapping[str, SnapshotDriver],
        new_layers: str,
        config: ImagesConfig,
        registries: Mapping[str, RegistryConfig],
    ) -> None:
        """Use :meth:`open`.

        :param drivers: by name, of every layer there may be; new ones go to the one named ``new_layers``.
        """
        self._root = root
        self._lock_fd = lock
        self._database = database
        self._drivers = drivers
        self._merging = merging.Merging(root)
        self._driver = drivers[new_layers]
        self._config = config
        self._registries = registries
        self._changing = threading.RLock()
        self._leases: Counter[Digest] = Counter()
        self._flights: SingleFlight[Image] = SingleFlight()
        self._listeners: dict[str, list[Progress]] = {}
        self._credentials = NodeCredentials(config)
        self._boot_id = _BOOT_ID.read_text().strip()
        self._timer: threading.Timer | None = None
        self._closed = False
        self._layers: dict[Digest, LayerRecord] = {}
        self._blobs: dict[Digest, list[BlobRecord]] = {}
        self._images: dict[ImageID, Image] = {}
        self._names: dict[str, ImageID] = {}

    def reconfigure(self, config: ImagesConfig, registries: Mapping[str, RegistryConfig]) -> None:
        """Use other limits and registries from the next pull on, and pin other images at once."""
        with self._changing:
            self._config, self._registries = config, registries
            self._credentials = NodeCredentials(config)
            self._refresh()

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        config: ImagesConfig,
        registries: Mapping[str, RegistryConfig],
        mounted: Path | None = None,
    ) -> ImageStore:
        """Open the store below ``root``, made if missing, and remove what a killed process left there. Blocks.

        :param mounted: directory below which layers are mounted; None: one in the store.
        :raises FailedPrecondition: if another process has it open.
        :raises DataLoss: if the database is damaged; the hint says what to move away.
        """
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = lockfile.acquire(root / "lock", patience_s=LOCK_PATIENCE_S)
        try:
            database = ImageDatabase(root / "images.db")
            try:
                drivers = choice.open_drivers(root, mounted or root / "mounted")
                try:
                    chosen = choice.choose(root, config.snapshot_driver)
                    store = cls(root, lock, database, drivers, chosen.driver, config, registries)
                    store._recover()
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
        return list(self._images.values())

    def find(self, text: str) -> Image | None:
        """Return the image that ``text`` names: a reference in any form, a repository digest, an ID or a prefix of
        one.

        :raises InvalidArgument: if an ID prefix fits several images.
        :raises FailedPrecondition: if it names an artifact by its subject, and ``images.referrers`` is off.
        """
        images, names = self._images, self._names
        if "?" in text:  # no ID has one
            referrer_names.check_allowed(reference.parse(text), self._config.referrers)
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
        :raises PermissionDenied: if the registry refuses the credentials, or its images are not allowed here.
        :raises DataLoss: if something does not match its digest.
        """
        wanted = reference.parse(reference_text)
        referrer_names.check_allowed(wanted, self._config.referrers)
        endpoints.check_allowed(wanted, self._config.allowed_registries)
        auth = endpoints.meant_for(auth, wanted)
        request = {
            "kind": "pull",
            "host": wanted.host,
            "repository": wanted.repository,
            "tag": "" if wanted.digest else wanted.tag,
            "digest": wanted.digest or "",
            "endpoints": self._endpoints_of(wanted),
            "auth": endpoints.auth_as_json(auth),
            "known": self._known(wanted),
            "artifact_type": wanted.artifact_type,
            "referrers": self._referrers_of(wanted, auth),
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

    def _referrers_of(self, wanted: reference.Reference, auth: RegistryAuth | None) -> dict[str, Any] | None:
        """Return the other repository to look into for what refers to ``wanted``, for the worker's request."""
        other = referrer_names.elsewhere(wanted, self._config.referrers) if wanted.artifact_type else None
        if other is None:
            return None
        endpoints.check_allowed(other, self._config.allowed_registries)
        return {
            "host": other.host,
            "repository": other.repository,
            "endpoints": self._endpoints_of(other),
            "auth": endpoints.auth_as_json(auth if other.host == wanted.host else None),
        }

    def _endpoints_of(self, wanted: reference.Reference) -> list[dict[str, object]]:
        timeout = self._config.progress_timeout
        return endpoints.for_worker(wanted, self._registries, progress_timeout=timeout)

    def _known(self, wanted: reference.Reference) -> list[Digest]:
        """Return the digests at which the registry has what is here under this name: then there is nothing to get."""
        image = self._images.get(self._names.get(str(wanted), ImageID("")))
        if image is None or wanted.artifact_type:
            return []
        names = (reference.parse(name) for name in image.repo_digests)
        return [name.digest for name in names if name.digest and name.name == wanted.name]

    async def _pull(self, key: str, request: dict[str, Any]) -> Image:
        def tell(step: PullProgress) -> None:
            for listener in tuple(self._listeners.get(key, ())):
                listener(step)

        tell(PullProgress(image=key, digest="", phase="resolving", done=0, total=0))
        problems = await asyncio.to_thread(self._equip, request)
        try:
            fetched = await self._fetch(key, request, tell)
            if not fetched:  # it is unchanged, and was removed meanwhile
                fetched = await self._fetch(key, request | {"known": []}, tell)
        except PermissionDenied as error:
            raise PermissionDenied("; ".join((error.message, *problems)), hint=error.hint) from error
        (image,) = fetched
        tell(PullProgress(image=key, digest="", phase="done", done=image.size, total=image.size))
        return image

    def _equip(self, request: dict[str, Any]) -> tuple[str, ...]:
        """Add the node's credentials to a request; return what went wrong in getting them."""
        places = [request] + ([request["referrers"]] if request["referrers"] else [])
        return tuple(problem for place in places for problem in self._credentials.equip(place))

    async def load(
        self, archive: Path, *, file: OpenFile | None = None, progress: Progress | None = None
    ) -> list[Image]:
        """Load every image of an OCI layout (directory or tar) or a docker archive.

        :param file: read instead of what is at the path ``archive``, which then is just a name.
        :raises NotFound: if there is no such file, or no image in it for this node's architecture.
        :raises InvalidArgument: if it is no image archive, or a document or layer in it is wrong.
        :raises DataLoss: if something does not match its digest.
        """
        request = {"kind": "load", "path": str(archive), "file": file.as_json() if file else None}
        return await self._fetch(str(archive), request, progress or (lambda _: None))

    async def _fetch(self, name: str, request: dict[str, Any], tell: Progress) -> list[Image]:
        """Run a worker and take over what it made; whatever happens, its staging directory goes."""
        # Not on a thread, which would go on making it after the caller was cancelled; it is one mkdir(2).
        staging = self._driver.stage()
        leased: list[Digest] = []

        async def answer(event: dict[str, Any]) -> dict[str, Any] | None:
            if event["event"] == "want":
                return await asyncio.to_thread(self._lease, event["layers"], leased)
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
            "driver": self._driver.name,
            "policy": Policy(
                media_types=self._config.media_types, artifact_types=self._config.artifact_types
            ).as_json(),
            "architecture": manifest.node_architecture(),
            "parallel": self._config.parallel_layers,
            "max_bytes": self._config.max_layer_bytes,
            "max_inodes": self._config.max_layer_inodes,
            "max_ratio": self._config.max_unpack_ratio,
        }
        try:
            records = await run_worker(request, answer, lock=self._lock_fd)
            if records and "unchanged" in records[0]:
                image = self._images.get(self._names.get(records[0]["unchanged"], ImageID("")))
                return [] if image is None or name not in self._names else [_named_first(image, _tags_of(name))]
            return await asyncio.to_thread(self._take, records, staging)
        finally:
            # Shielded: a cancelled caller must not leave files behind.
            await asyncio.shield(asyncio.to_thread(self._finish, staging, leased))

    def _lease(self, wanted: Sequence[dict[str, str]], leased: list[Digest]) -> dict[str, list[str]]:
        """Say which layers are here, and which have their content under another name (``twins``), each by its ID or
        an empty string. What was told stays until the pull that was told so ends."""
        with self._changing:
            have = [self._here(item) for item in wanted]
            twins = ["" if here else self._twin(item) for here, item in zip(have, wanted, strict=True)]
            told = [Digest(layer) for layer in dict.fromkeys((*have, *twins)) if layer]
            self._leases.update(told)
            leased.extend(told)
            return {"have": have, "twins": twins}

    def _here(self, item: Mapping[str, str]) -> str:
        if layer := item["layer"]:
            record = self._layers.get(Digest(layer))
            return layer if record is not None and record.kind == item["kind"] else ""
        compression = item["compression"]
        found = self._of_blob(item["digest"], ("auto", "none") if compression == "none" else (compression,))
        return next((layer.id for layer in found if layer.kind == "tar" or layer.title == item["title"]), "")

    def _twin(self, item: Mapping[str, str]) -> str:
        if item["kind"] == "tar":
            return ""
        found = self._of_blob(item["digest"], ("auto",) if item["kind"] == "auto" else ())
        return next((layer.id for layer in found if layer.kind == "file"), "")

    def _of_blob(self, digest: str, compressions: Collection[str] = ()) -> Iterator[LayerRecord]:
        """Yield the layers that were made of a blob, taken to be compressed in one of these ways, or in any."""
        for blob in self._blobs.get(Digest(digest), ()):
            if not compressions or blob.compression in compressions:
                yield self._layers[blob.layer]

    def _take(self, records: list[dict[str, Any]], staging: Path) -> list[Image]:
        reach("images-before-commit")
        with self._changing:
            fresh: dict[Digest, LayerRecord] = {}
            blobs: list[BlobRecord] = []
            for layer in (layer for record in records for layer in record["new"]):
                taken = self._commit(layer, fresh, staging)
                fresh[taken.id] = taken
                if layer["digest"]:
                    blobs.append(BlobRecord(digest=layer["digest"], compression=layer["compression"], layer=taken.id))
            reach("images-before-record")
            now = time.time_ns()
            new = [_new_image(record, now) for record in records]
            self._database.add(new, fresh.values(), blobs)
            self._refresh()
            self._sync_later()
            return [_named_first(self._images[image.id], image.tags) for image in new]

    def _commit(self, layer: Mapping[str, Any], fresh: Mapping[Digest, LayerRecord], staging: Path) -> LayerRecord:
        """Put a layer into place: what the worker unpacked, or a file that is here under another name."""
        key = Digest(layer["layer"])
        known = fresh.get(key) or self._layers.get(key)
        if known is not None:  # another image of the archive, or another pull, brought it meanwhile
            return known
        # Also of two pulls at the same time one file stays.
        source = self._same_file(layer, fresh) if layer["kind"] == "file" else None
        if source is not None:
            path = staging / f"link-{len(fresh)}"
            self._drivers[source.driver].link(source.id, layer["title"], path)
            taken = replace(source, id=key, title=layer["title"], boot_id=self._boot_id)
        else:
            path = Path(layer["path"])
            taken = LayerRecord(
                id=key,
                kind=layer["kind"],
                title=layer["title"],
                blob=layer["digest"] if layer["kind"] == "file" else None,
                driver=layer["driver"],
                bytes=layer["bytes"],
                inodes=layer["inodes"],
                data_bytes=layer["data_bytes"],
                boot_id=self._boot_id,
            )
        self._merging.commit(path, key)
        self._drivers[taken.driver].commit(path, key)
        return taken

    def _same_file(self, layer: Mapping[str, Any], fresh: Mapping[Digest, LayerRecord]) -> LayerRecord | None:
        """Return a file with the content of this one."""
        here = (*fresh.values(), *self._of_blob(layer["digest"]))
        return next((record for record in here if record.kind == "file" and record.blob == layer["digest"]), None)

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
            layers = [layer.id for layer in self._layers.values() if layer.boot_id]
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

    def forget_images(self, images: Iterable[Image]) -> list[Image]:
        """Forget images that are still what they were when they were chosen; return those. Their files are still there.

        An image that was pulled once more meanwhile, or was given a name, stays: somebody wants it.
        """
        with self._changing:
            doomed = [image for image in images if self._images.get(image.id) == image]
            if doomed:
                self._database.remove_images([image.id for image in doomed])
                self._refresh()
            return doomed

    def usage(self) -> FsUsage:
        """Return what the store takes on disk, as ``du`` counts it: bytes in whole blocks, and inodes.

        Layers, records (manifests and configurations are in them), and the directories they are in; what a running
        pull has staged is not counted. Blocks, for a look at each file that helps to merge layers.
        """
        used, inodes = disk_usage(self._layers.values())
        used, inodes = used + self._root.lstat().st_blocks * _BLOCK_BYTES, inodes + 1
        for path in self._root.iterdir():
            size = None if path.name in _RECORDED else tree_size.measure(str(path))
            with suppress(FileNotFoundError):  # of SQLite's files
                used += size.used_bytes if size else path.lstat().st_blocks * _BLOCK_BYTES
                inodes += size.inodes if size else 1
        return FsUsage(mountpoint=str(self._root), used_bytes=used, inodes_used=inodes)

    def lowers(self, image: Image, *, userns: int | None, at_least: int = 1) -> list[int]:
        """Return detached mounts of the image's layers, top layer first, idmapped when a user namespace is given.

        :param at_least: 2: with an empty tree beneath a single layer, for an overlay that nobody can write to.

        The descriptors are the caller's to close. Blocks, for some microseconds per layer.

        :raises NotFound: if the image was removed meanwhile.
        :raises KernelCallError: if the store's file system cannot be idmapped.
        """
        with self._changing:
            here = self._images.get(image.id)
            if here is None:
                raise NotFound(f"image {image.id} is not here any more", hint="pull it again")
            image = here  # pulled again meanwhile, it may have other layers
            top = self._merging.top(image.layers, lambda: self._stored_lowers(image.layers, None, 1), userns)
            try:
                lowers = merging.visible(self._stored_lowers(image.layers, userns, at_least - len(top)))
                # What was left out beneath an opaque root counted; the empty tree of no layers does not hide anything.
                if len(top) + len(lowers) < at_least:
                    lowers += self._driver.lowers((), userns=userns)
            except BaseException:
                for fd in top:
                    os.close(fd)
                raise
            return top + lowers

    def _stored_lowers(self, layers: Sequence[Digest], userns: int | None, at_least: int) -> list[int]:
        """Return the layers as their drivers have them."""
        keepers = {self._layers[layer].driver for layer in layers} or {self._driver.name}
        if len(keepers) == 1:
            return self._drivers[keepers.pop()].lowers(layers, userns=userns, at_least=at_least)
        return self._mixed_lowers(layers, userns)

    def unmount_unused(self, images: Iterable[ImageID]) -> None:
        """Let go of the mounts of layers that none of ``images`` has; they are mounted again when they are used."""
        with self._changing:
            if self._closed:
                return
            keep = {layer for image in images if image in self._images for layer in self._images[image].layers}
            for driver in self._drivers.values():
                driver.release(frozenset(keep))

    def _mixed_lowers(self, layers: Sequence[Digest], userns: int | None) -> list[int]:
        """Do it for layers that several drivers keep, which are two at least."""
        fds: list[int] = []
        try:
            for layer in dict.fromkeys(reversed(layers)):
                fds += self._drivers[self._layers[layer].driver].lowers([layer], userns=userns)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return fds

    @property
    def root(self) -> Path:
        """The directory of the store."""
        return self._root

    def records(self) -> tuple[Mapping[ImageID, Image], Mapping[Digest, LayerRecord]]:
        """Return the images and layers as they are now; what changes later changes neither map."""
        with self._changing:
            return self._images, self._layers

    def merging_bytes(self, layers: Iterable[Digest], images: Iterable[tuple[Digest, ...]]) -> int:
        """Return what helps to merge takes on disk for these layers, and for images with just these. Blocks."""
        return self._merging.used_bytes(layers, images)

    def documents(self, image: ImageID) -> tuple[bytes, dict[Digest, bytes]]:
        """Return the configuration of an image, and the manifests and indexes that led to it, by their digests.

        :raises NotFound: if the image was removed meanwhile.
        """
        return self._database.config(image), self._database.manifests(image)

    def hold(self, layers: Iterable[Digest]) -> list[Digest]:
        """Keep layers until they are given to :meth:`release`; return those that are here."""
        with self._changing:
            held = [layer for layer in dict.fromkeys(layers) if layer in self._layers]
            self._leases.update(held)
            return held

    def release(self, held: Iterable[Digest]) -> None:
        """Let go of what :meth:`hold` returned, and remove what nobody needs any more. Blocks, as removing does."""
        with self._changing:
            self._leases.subtract(held)
            self._leases += Counter()  # forget those at zero
        self.collect()

    async def work(self, request: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """Run a worker that reads what is stored (kinds ``save`` and ``verify``) to its end.

        :param answer: called with each of its events.
        :raises PodkeepError: what the worker reports.
        """

        async def tell(event: dict[str, Any]) -> None:
            answer(event)

        staging = self._driver.stage()
        try:
            places = {"root": str(self._root), "staging": str(staging)}
            await run_worker(request | places, tell, lock=self._lock_fd)
        finally:
            await asyncio.shield(asyncio.to_thread(self._driver.discard, staging))

    def strays(self, *, remove: bool = False) -> list[str]:
        """Return what lies where layers are kept and has no record; ``remove`` it if told to. Blocks."""
        found: list[str] = []
        doomed: list[tuple[SnapshotDriver, Path]] = []
        with self._changing:
            for driver in self._drivers.values():
                known = {key for key, layer in self._layers.items() if layer.driver == driver.name}
                for layer in sorted(driver.kept() - known):
                    found.append(f"{driver.name}: {layer}")
                    if remove:
                        doomed.append((driver, driver.retire(layer)))
        for driver, tree in doomed:
            driver.discard(tree)
        return found

    def close(self) -> None:
        """Let go of the database and the lock; a second call does nothing. Pulls must have ended before."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            timer = self._timer
            for driver in self._drivers.values():
                driver.close()
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
        unknown = {layer.driver for layer in layers.values()} - self._drivers.keys()
        if unknown:
            raise FailedPrecondition(
                f"{self._root} has layers of snapshot drivers this podkeep lacks: {', '.join(sorted(unknown))}",
                hint="use the podkeep that wrote it, or move the directory away and pull again",
            )
        lost = doubtful
        for driver in self._drivers.values():
            kept = {key for key, layer in layers.items() if layer.driver == driver.name}
            lost |= driver.recover(frozenset(kept - doubtful))
        if lost:
            images = self._database.images_using(lost)
            log.warning("removing %d images whose layers did not survive: %s", len(images), ", ".join(sorted(images)))
            self._database.remove_images(images)
            self._database.remove_layers(lost)
        self._refresh()
        self._merging.keep_lists(self._layers)
        self._merging.keep_trees(image.layers for image in self._images.values())
        self.collect()
        self._sync_later()

    def collect(self) -> None:
        """Remove layers that no image and no running pull needs. Blocks, for as long as removing the files takes."""
        with self._changing:
            doomed = [layer for layer in self._database.unused_layers() if not self._leases[layer]]
            if not doomed:
                return
            keepers = {layer: self._drivers[self._layers[layer].driver] for layer in doomed}
            self._database.remove_layers(doomed)
            self._refresh()
            for layer in doomed:
                self._merging.forget(layer)
            self._merging.keep_trees(image.layers for image in self._images.values())
            retired = [(driver, driver.retire(layer)) for layer, driver in keepers.items()]
        for driver, tree in retired:
            driver.discard(tree)

    def _refresh(self) -> None:
        """Read what is asked for often into memory; readers see the old maps or the new."""
        layers = self._database.layers()
        blobs: dict[Digest, list[BlobRecord]] = {}
        for blob in self._database.blobs():
            blobs.setdefault(blob.digest, []).append(blob)
        images = {record.id: _image(record, layers, self._config.pinned) for record in self._database.images()}
        self._names = {name: image.id for image in images.values() for name in (*image.repo_tags, *image.repo_digests)}
        self._layers = layers
        self._blobs = blobs
        self._images = images


def disk_usage(layers: Iterable[LayerRecord]) -> tuple[int, int]:
    """Return the bytes and inodes that layers take on disk together; what file layers share counts once."""
    used = inodes = 0
    shared: set[Digest] = set()
    for layer in layers:
        used += layer.bytes
        inodes += layer.inodes
        if layer.blob is not None:
            if layer.blob in shared:
                used -= layer.data_bytes
                inodes -= 1
            shared.add(layer.blob)
    return used, inodes


def _tags_of(name: str) -> tuple[str, ...]:
    return (tag,) if (tag := _tag_of(name)) else ()


def _tag_of(text: str) -> str:
    try:
        parsed = reference.parse(text)
    except InvalidArgument:
        return ""
    return "" if parsed.digest else str(parsed)


def _image(record: ImageRecord, layers: Mapping[Digest, LayerRecord], pinned: Sequence[str]) -> Image:
    artifact = record.kind == "artifact"
    names = (*record.tags, *record.digests)
    used, _ = disk_usage(layers[layer] for layer in dict.fromkeys(record.layers))
    return Image(
        id=record.id,
        kind=record.kind,
        artifact_type=record.artifact_type,
        repo_tags=record.tags,
        repo_digests=record.digests,
        size=len(record.config) + used,
        pinned=any(fnmatchcase(name, pattern) for name in names for pattern in pinned),
        pulled_at=record.pulled_at,
        config=ImageRunConfig() if artifact else manifest.parse_configuration(record.config, f"image {record.id}").run,
        layers=record.layers,
    )


def _named_first(image: Image, tags: tuple[str, ...]) -> Image:
    """Return ``image`` with the names it was just given before those it had."""
    return replace(image, repo_tags=tuple(dict.fromkeys((*tags, *image.repo_tags))))


def _new_image(record: dict[str, Any], now: int) -> NewImage:
    return NewImage(
        id=ImageID(record["id"]),
        kind=record["kind"],
        artifact_type=record["artifact_type"],
        pulled_at=now,
        config=base64.b64decode(record["config"]),
        manifests=tuple((Digest(digest), base64.b64decode(data)) for digest, data in record["manifests"]),
        layers=tuple(Digest(layer) for layer in record["layers"]),
        tags=tuple(record["tags"]),
        digests=tuple(record["digests"]),
    )
