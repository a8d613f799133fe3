"""Getting images: a worker process for each pull and load, and taking over what it made.

Owns what a worker is asked, that calls for the same pull join, who hears of its progress, and that nothing of a worker
stays, however its caller ends. Reads neither registries nor archives. Used by the store.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from podkeep.base import reference
from podkeep.base.config import ImagesConfig, RegistryConfig
from podkeep.base.errors import PermissionDenied
from podkeep.base.failpoints import reach
from podkeep.base.ids import Digest, ImageID
from podkeep.base.singleflight import SingleFlight
from podkeep.base.threads import working_for
from podkeep.images import endpoints, manifest, referrer_names
from podkeep.images.catalog import Catalog, tag_of
from podkeep.images.credentials import NodeCredentials
from podkeep.images.database import BlobRecord, LayerRecord, NewImage
from podkeep.images.durability import Durability
from podkeep.images.image import Image, PullProgress, RegistryAuth
from podkeep.images.layer_store import LayerStore
from podkeep.images.media_types import Policy
from podkeep.images.openfile import OpenFile
from podkeep.images.workers import run_worker

Progress = Callable[[PullProgress], None]


class Fetching:
    """The pulls and loads of one store, on the event loop.

    :param lock: descriptor of the store's lock, which workers hold, too.
    """

    def __init__(
        self,
        catalog: Catalog,
        layers: LayerStore,
        durability: Durability,
        lock: int,
        config: ImagesConfig,
        registries: Mapping[str, RegistryConfig],
    ) -> None:
        self._catalog = catalog
        self._layers = layers
        self._durability = durability
        self._lock_fd = lock
        self._flights: SingleFlight[Image] = SingleFlight()
        self._listeners: dict[str, list[Progress]] = {}
        self.reconfigure(config, registries)

    def reconfigure(self, config: ImagesConfig, registries: Mapping[str, RegistryConfig]) -> None:
        """Use other limits and registries from the next pull on."""
        self._config, self._registries = config, registries
        self._credentials = NodeCredentials(config)

    async def pull(self, reference_text: str, *, auth: RegistryAuth | None, progress: Progress | None) -> Image:
        """Do what ``ImageStore.pull`` says."""
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
            # Helpers of one registry that hang take no threads from the others.
            with working_for(("registry", wanted.host)):
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
        image = self._catalog.named(str(wanted))
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

    async def load(self, archive: Path, *, file: OpenFile | None, progress: Progress | None) -> list[Image]:
        """Do what ``ImageStore.load`` says."""
        request = {"kind": "load", "path": str(archive), "file": file.as_json() if file else None}
        return await self._fetch(str(archive), request, progress or (lambda _: None))

    async def _fetch(self, name: str, request: dict[str, Any], tell: Progress) -> list[Image]:
        """Run a worker and take over what it made; whatever happens, its staging directory goes."""
        # Not on a thread, which would go on making it after the caller was cancelled; it is one mkdir(2).
        staging = self._layers.driver.stage()
        leased: list[Digest] = []

        async def answer(event: dict[str, Any]) -> dict[str, Any] | None:
            if event["event"] == "want":
                return await asyncio.to_thread(self._layers.lease, event["layers"], leased)
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

        try:
            records = await run_worker(request | self._rules(staging), answer, lock=self._lock_fd)
            if records and "unchanged" in records[0]:
                image = self._catalog.named(records[0]["unchanged"])
                return [] if image is None or self._catalog.named(name) is None else [_named_first(image, name)]
            return await asyncio.to_thread(self._take, records, staging)
        finally:
            # Shielded: a cancelled caller must not leave files behind.
            await asyncio.shield(asyncio.to_thread(self._finish, staging, leased))

    def _rules(self, staging: Path) -> dict[str, Any]:
        """Return what is the same in each request: where to write, and how much of what."""
        config = self._config
        return {
            "staging": str(staging),
            "driver": self._layers.driver.name,
            "policy": Policy(media_types=config.media_types, artifact_types=config.artifact_types).as_json(),
            "architecture": manifest.node_architecture(),
            "parallel": config.parallel_layers,
            "max_bytes": config.max_layer_bytes,
            "max_inodes": config.max_layer_inodes,
            "max_ratio": config.max_unpack_ratio,
        }

    def _take(self, records: list[dict[str, Any]], staging: Path) -> list[Image]:
        reach("images-before-commit")
        for record in records:
            self._layers.check(record)
        with self._catalog.changing:
            fresh: dict[Digest, LayerRecord] = {}
            blobs: list[BlobRecord] = []
            for layer in (layer for record in records for layer in record["new"]):
                taken = self._layers.commit(layer, fresh, staging, self._durability.boot_id)
                fresh[taken.id] = taken
                if layer["digest"]:
                    blobs.append(BlobRecord(digest=layer["digest"], compression=layer["compression"], layer=taken.id))
            reach("images-before-record")
            now = time.time_ns()
            new = [_new_image(record, now) for record in records]
            self._catalog.database.add(new, fresh.values(), blobs)
            self._catalog.refresh()
            self._durability.sync_later()
            return [_named_first(self._catalog.images[image.id], *image.tags) for image in new]

    def _finish(self, staging: Path, leased: list[Digest]) -> None:
        self._layers.release(leased)
        self._layers.driver.discard(staging)
        self._layers.collect()

    async def work(self, request: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """Do what ``ImageStore.work`` says."""

        async def tell(event: dict[str, Any]) -> None:
            answer(event)

        staging = self._layers.driver.stage()
        try:
            places = {"root": str(self._layers.root), "staging": str(staging)}
            await run_worker(request | places, tell, lock=self._lock_fd)
        finally:
            await asyncio.shield(asyncio.to_thread(self._layers.driver.discard, staging))


def _named_first(image: Image, *names: str) -> Image:
    """Return ``image`` with the tags it was just given before those it had."""
    tags = tuple(tag for name in names if (tag := tag_of(name)))
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
