"""Getting images: a worker process for each pull and load, and taking over what it made.

Owns what a worker is asked, that calls for the same pull join, who hears of its progress, and that nothing of a worker
stays, however its caller ends. Reads neither registries nor archives. Used by the store.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from podkeep.base.concurrency.singleflight import SingleFlight
from podkeep.base.concurrency.tasks import on_thread
from podkeep.base.concurrency.threads import working_for
from podkeep.base.config import ImagesConfig, RegistryConfig
from podkeep.base.errors import Internal, PermissionDenied
from podkeep.base.failpoints import reach
from podkeep.base.ids import Digest
from podkeep.base.registries import reference
from podkeep.base.text.printable import printable
from podkeep.images.formats import manifest, referrer_names
from podkeep.images.formats.image import Image, PullProgress, RegistryAuth, decode_run
from podkeep.images.formats.media_types import Policy
from podkeep.images.formats.openfile import OpenFile
from podkeep.images.messages import (
    Available,
    Event,
    FetchedImage,
    LayerSettings,
    Load,
    Progress,
    Pull,
    Repository,
    Retrying,
    Save,
    Unchanged,
    Verify,
    Wanted,
    unexpected,
)
from podkeep.images.registry import endpoints
from podkeep.images.registry.credentials import NodeCredentials
from podkeep.images.store.catalog import Catalog, tag_of
from podkeep.images.store.database import BlobRecord, LayerRecord, NewImage
from podkeep.images.store.durability import Durability
from podkeep.images.store.layer_store import LayerStore
from podkeep.images.store.workers import Workers, WorkerServer, run_worker

log = logging.getLogger(__name__)

_LOGGED_RETRIES = 20
"""Answers "later", and layers that did not come at once, of one pull that the log has."""
_BROKEN = {"resuming": "the connection broke, a layer goes on", "retrying": "a layer is asked of the next server"}
"""What is logged of phases of a pull (:class:`PullProgress`)."""

UNWANTED_S = 60.0
"""For how long a pull goes on without a caller; a kubelet comes back within half a minute, and joins it."""
Listener = Callable[[PullProgress], None]


class Fetching:
    """The pulls and loads of one store, on the event loop.

    :param lock: descriptor of the store's lock, which workers hold, too.
    :param server: what workers are copies of.
    """

    def __init__(
        self,
        catalog: Catalog,
        layers: LayerStore,
        durability: Durability,
        lock: int,
        config: ImagesConfig,
        registries: Mapping[str, RegistryConfig],
        server: WorkerServer,
    ) -> None:
        self._catalog = catalog
        self._layers = layers
        self._durability = durability
        self._lock_fd = lock
        self._flights: SingleFlight[Image] = SingleFlight(unwanted_s=UNWANTED_S)
        self._workers = Workers()
        self._server = server
        self._listeners: dict[str, list[Listener]] = {}
        self.reconfigure(config, registries)

    def reconfigure(self, config: ImagesConfig, registries: Mapping[str, RegistryConfig]) -> None:
        """Use other limits and registries from the next pull on."""
        self._config, self._registries = config, registries
        self._credentials = NodeCredentials(config)

    async def pull(
        self, reference_text: str, *, auth: RegistryAuth | None, progress: Listener | None, tenant: str
    ) -> Image:
        """Do what ``ImageStore.pull`` says."""
        wanted = reference.parse(reference_text)
        referrer_names.check_allowed(wanted, self._config.referrers)
        endpoints.check_allowed(wanted, self._config.allowed_registries)
        auth = endpoints.meant_for(auth, wanted)
        source, referrers = self._repository(wanted, auth), self._referrers_of(wanted, auth)
        known = self._known(wanted)
        key = str(wanted)
        listeners = self._listeners.setdefault(key, [])
        if progress:
            listeners.append(progress)
        try:
            # Helpers of one registry that hang take no threads from the others.
            with working_for(("registry", wanted.host)):
                # The credentials are part of the key: who has none must not get an image by joining a pull of somebody
                # who has.
                return await self._flights.do(
                    (key, auth, tenant), lambda: self._pull(key, source, referrers, known, tenant)
                )
        finally:
            if progress:
                listeners.remove(progress)
            if not listeners:
                self._listeners.pop(key, None)

    def _referrers_of(self, wanted: reference.Reference, auth: RegistryAuth | None) -> Repository | None:
        """Return the other repository to look into for what refers to ``wanted``."""
        other = referrer_names.elsewhere(wanted, self._config.referrers) if wanted.artifact_type else None
        if other is None:
            return None
        endpoints.check_allowed(other, self._config.allowed_registries)
        return self._repository(other, auth if other.host == wanted.host else None)

    def _repository(self, name: reference.Reference, auth: RegistryAuth | None) -> Repository:
        timeout = self._config.progress_timeout
        asked = endpoints.for_worker(name, self._registries, progress_timeout=timeout, auth=auth)
        return Repository(name=name, endpoints=asked)

    def _known(self, wanted: reference.Reference) -> tuple[Digest, ...]:
        """Return the digests at which the registry has what is here under this name: then there is nothing to get."""
        image = self._catalog.named(str(wanted))
        if image is None or wanted.artifact_type:
            return ()
        names = (reference.parse(name) for name in image.repo_digests)
        return tuple(name.digest for name in names if name.digest and name.name == wanted.name)

    async def _pull(
        self, key: str, source: Repository, referrers: Repository | None, known: tuple[Digest, ...], tenant: str
    ) -> Image:
        def tell(step: PullProgress) -> None:
            for listener in tuple(self._listeners.get(key, ())):
                listener(step)

        tell(PullProgress(image=key, digest="", phase="resolving", done=0, total=0))
        source, problems = await asyncio.to_thread(self._equip, source)
        if referrers is not None:
            referrers, more = await asyncio.to_thread(self._equip, referrers)
            problems += more

        def request(settings: LayerSettings) -> Pull:
            return Pull(source=source, referrers=referrers, known=known, settings=settings)

        try:
            fetched = await self._fetch(key, (source.name.host, tenant), request, tell)
            if not fetched:  # it is unchanged, and was removed meanwhile
                known = ()
                fetched = await self._fetch(key, (source.name.host, tenant), request, tell)
        except PermissionDenied as error:
            raise PermissionDenied("; ".join((error.message, *problems)), hint=error.hint) from error
        (image,) = fetched
        tell(PullProgress(image=key, digest="", phase="done", done=image.size, total=image.size))
        return image

    def _equip(self, repository: Repository) -> tuple[Repository, tuple[str, ...]]:
        """Return a repository with the node's credentials for its servers, and what went wrong in getting them."""
        equipped, problems = self._credentials.equip(repository.name, repository.endpoints)
        return structs.replace(repository, endpoints=equipped), problems

    async def close(self) -> None:
        """End every pull, those that wait for their turn included."""
        await self._flights.close()

    async def load(self, archive: Path, *, file: OpenFile | None, progress: Listener | None) -> list[Image]:
        """Do what ``ImageStore.load`` says."""
        images = await self._fetch(
            str(archive),
            ("load", ""),
            lambda settings: Load(path=str(archive), file=file, settings=settings),
            progress or (lambda _: None),
        )
        # The archive may be gone by the next boot, so that a load is answered only when it is on the disk.
        await on_thread(self._durability.sync)
        return images

    async def _fetch(
        self,
        name: str,
        place: tuple[str, str],
        request: Callable[[LayerSettings], Pull | Load],
        tell: Listener,
    ) -> list[Image]:
        """Run a worker and take over what it made, when there may be one more of an owner and tenant (``place``)."""
        async with self._workers.slot(*place):
            return await self._run(name, place[1], request, tell)

    async def _run(
        self, name: str, tenant: str, request: Callable[[LayerSettings], Pull | Load], tell: Listener
    ) -> list[Image]:
        """Run a worker and take over what it made; whatever happens, its staging directory goes."""
        # Not on a thread, which would go on making it after the caller was cancelled; it is one mkdir(2).
        staging = self._layers.driver.stage()
        leased: list[Digest] = []
        fetched: list[FetchedImage] = []
        unchanged: list[Unchanged] = []
        retries = itertools.count(1)

        async def handle(event: Event) -> Available | None:
            match event:
                case Wanted():
                    # To its end also if the caller is cancelled: `leased` must have what is leased before it is
                    # released.
                    return await on_thread(lambda: self._layers.lease(event.layers, leased))
                case Progress():
                    tell(
                        PullProgress(
                            image=name, digest=event.digest, phase=event.phase, done=event.done, total=event.total
                        )
                    )
                    if event.phase in _BROKEN:
                        _log_break(name, event, next(retries))
                case Retrying():
                    _log_retry(name, event, next(retries))
                case FetchedImage():
                    fetched.append(event)
                case Unchanged():
                    unchanged.append(event)
                case _:
                    raise unexpected(event)
            return None

        try:
            await run_worker(self._server, request(self._settings(staging)), handle, lock=self._lock_fd)
            if unchanged:
                image = self._catalog.named(unchanged[0].name)
                return [] if image is None or self._catalog.named(name) is None else [_named_first(image, name)]
            in_use = self._catalog.names_in_use()
            return await on_thread(lambda: self._take(fetched, staging, tenant, in_use))
        finally:
            # To its end: a cancelled caller must not leave files behind.
            await on_thread(lambda: self._finish(staging, leased))

    def _settings(self, staging: Path) -> LayerSettings:
        config = self._config
        return LayerSettings(
            staging=str(staging),
            driver=self._layers.driver.name,
            policy=Policy(media_types=config.media_types, artifact_types=config.artifact_types),
            architecture=manifest.node_architecture(),
            parallel=config.parallel_layers,
            max_bytes=config.max_layer_bytes,
            max_inodes=config.max_layer_inodes,
            max_ratio=config.max_unpack_ratio,
        )

    def _take(
        self, fetched: Sequence[FetchedImage], staging: Path, tenant: str, in_use: Collection[str]
    ) -> list[Image]:
        reach("images-before-commit")
        for image in fetched:
            _check_names(image)
            # Before the lock is taken: reading the lists takes its time, and their layers are leased or staged.
            self._layers.check(image)
        fresh: dict[Digest, LayerRecord] = {}
        try:
            return self._commit(fetched, staging, fresh, tenant, in_use)
        except BaseException:
            # On a disk that is full, what nobody finds would take its space until the next start.
            try:
                self._layers.take_back(fresh.values())
            except Exception:  # what failed first is what the caller has to know
                log.exception("layers without a record stay until the next start")
            raise

    def _commit(
        self,
        fetched: Sequence[FetchedImage],
        staging: Path,
        fresh: dict[Digest, LayerRecord],
        tenant: str,
        in_use: Collection[str],
    ) -> list[Image]:
        """Put layers into place and record them; ``fresh`` gets those that are in place."""
        with self._catalog.changing:
            blobs: list[BlobRecord] = []
            for layer in (layer for image in fetched for layer in image.new):
                taken = self._layers.commit(layer, fresh, staging, self._durability.boot_id)
                fresh[taken.id] = taken
                if layer.digest:
                    blobs.append(BlobRecord(digest=layer.digest, compression=layer.compression, layer=taken.id))
            reach("images-before-record")
            now = time.time_ns()
            new = [_new_image(image, now) for image in fetched]
            # After every layer is in place: a kill before this line leaves files without a record, which the next start
            # removes.
            self._catalog.record(new, fresh.values(), blobs, tenant=tenant, in_use=in_use)
            self._durability.sync_later()
            return [_named_first(self._catalog.images[image.id], *image.tags) for image in new]

    def _finish(self, staging: Path, leased: list[Digest]) -> None:
        # Layers that were leased for an image that did not come to its end may have no other user: collect looks at
        # them.
        self._layers.release(leased)
        self._layers.driver.discard(staging)
        self._layers.collect()

    async def work(self, request: Save | Verify, tell: Callable[[Event], None]) -> None:
        """Do what ``ImageStore.work`` says."""

        async def handle(event: Event) -> None:
            tell(event)

        async with self._workers.slot(type(request).__name__):
            await run_worker(self._server, request, handle, lock=self._lock_fd)


def _log_retry(name: str, event: Retrying, count: int) -> None:
    """Say why a pull waits. A registry decides how often that is: after so many, nothing more is said."""
    if count <= _LOGGED_RETRIES:
        log.info(
            "the answer to %s was %d, asked again in %.1f s%s: image=%s",
            printable(event.what[:300]),
            event.status,
            event.seconds,
            _last_of(count),
            name,
        )


def _log_break(name: str, event: Progress, count: int) -> None:
    """Say that a layer did not come at once, as often as :func:`_log_retry` says something of the same pull."""
    if count <= _LOGGED_RETRIES:
        log.info(
            "%s after %d of %d bytes: %s%s: image=%s",
            _BROKEN[event.phase],
            event.done,
            event.total,
            printable(event.digest[:100]),
            _last_of(count),
            name,
        )


def _last_of(count: int) -> str:
    return ", and no more of this pull is logged" if count == _LOGGED_RETRIES else ""


def _named_first(image: Image, *names: str) -> Image:
    """Return ``image`` with the tags it was just given before those it had."""
    tags = tuple(tag for name in names if (tag := tag_of(name)))
    return structs.replace(image, repo_tags=tuple(dict.fromkeys((*tags, *image.repo_tags))))


def _check_names(image: FetchedImage) -> None:
    """Check that a name with a digest leads to what has that digest, wherever the image came from.

    :raises Internal: if it does not.
    """
    documents = {digest for digest, _ in image.manifests}
    for name in (*image.tags, *image.digests):
        parsed = reference.parse(name)
        # With a condition the digest is that of what the image refers to.
        if parsed.digest and not parsed.artifact_type and (name in image.tags or parsed.digest not in documents):
            raise Internal(f"the image worker gave an image the name {name}, which is another one's")


def _new_image(fetched: FetchedImage, now: int) -> NewImage:
    run = decode_run(fetched.run)
    return NewImage(
        id=fetched.id,
        kind=fetched.kind,
        artifact_type=fetched.artifact_type,
        pulled_at=now,
        config=fetched.config,
        run=fetched.run,
        user=run.user,
        stop_signal=run.stop_signal,
        manifests=fetched.manifests,
        layers=fetched.layers,
        tags=fetched.tags,
        digests=fetched.digests,
    )
