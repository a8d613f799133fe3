"""Following a collection: it is listed once, then watched, and resumed wherever it was; listed again when it must be.

The rules are client-go's reflector: the first list may come from the server's memory, a 410 lists again with the
newest, other failures wait 0.8 s and up to 30 s, and half again at random. Nothing of the objects is kept here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from podkeep.base.backoff import Backoff
from podkeep.base.errors import Internal, PodkeepError, ResourceExhausted, Unavailable
from podkeep.client.client import WATCH_S, Client, Keep
from podkeep.client.errors import ApiError
from podkeep.client.resources import Resource

log = logging.getLogger(__name__)

_SHORT_S = 1.0
"""A watch that ends earlier, without an event, is waited for like a failure."""
PAGE = 500


class Handler(Protocol):
    """Who follows; called on the event loop, in the server's order, and must not block."""

    def replaced(self, items: Sequence[Mapping[str, Any]]) -> None:
        """These are all objects: what is not among them is gone."""

    def changed(self, item: Mapping[str, Any]) -> None:
        """An object is new or was changed."""

    def deleted(self, item: Mapping[str, Any]) -> None:
        """An object is gone; ``item`` is its last state."""


class Reflector:
    """Follows the objects of a resource that selectors leave. ``run`` it in a task; it ends by being cancelled.

    :param watch_s: seconds, and up to twice as many, after which a watch is begun anew.
    :param keep: what the handler is to have of each object; what is left out is no object for it. Others write
        them, as large and as many as they like.
    :ivar synced: is set when the first list was handed over.
    :ivar error: why it does not follow at the moment; None while it does.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        watch_s: float = WATCH_S,
        keep: Keep = dict,
    ) -> None:
        self._client, self._resource, self._namespace = client, resource, namespace
        self._labels, self._fields = labels, fields
        self._watch_s, self._keep = watch_s, keep
        self._version = ""
        self._newest = False
        self._backoff = Backoff()
        self.synced = asyncio.Event()
        self.error: PodkeepError | None = None

    def __str__(self) -> str:
        text = f"{self._namespace}/{self._resource}" if self._namespace else str(self._resource)
        return f"{text} ({self._fields or self._labels})" if self._fields or self._labels else text

    async def run(self, handler: Handler) -> None:
        """List and watch for ever; failures of the API are logged once each, and waited for.

        An object that the handler cannot take is logged as well, and all are listed again: the next one counts.
        """
        listed = False
        while True:
            try:
                if not listed:
                    await self._list(handler)
                    listed = True
                await self._watch(handler)
            except PodkeepError as error:
                listed = listed and self._resumes(error)
                await self._wait(error)
            except Exception as error:  # the boundary: without this task nothing of the API would be seen any more
                listed = False
                log.exception("an object of %s cannot be taken", self)
                await self._wait(Internal(f"{type(error).__name__}: {error}"))

    async def _list(self, handler: Handler) -> None:
        try:
            found = await self._listed()
        except ResourceExhausted:
            if self._newest:
                raise
            # In pages it may be as large as it likes.
            self._newest = True
            found = await self._listed()
        self._version = found.get("metadata", {}).get("resourceVersion", "")
        self._newest = False
        self._well()
        handler.replaced(found.get("items") or [])
        self.synced.set()

    def _changed(self, handler: Handler, item: dict[str, Any]) -> None:
        if (kept := self._keep(item)) is None:
            handler.deleted(item)
        else:
            handler.changed(kept)

    async def _listed(self) -> dict[str, Any]:
        return await self._client.list(
            self._resource,
            self._namespace,
            labels=self._labels,
            fields=self._fields,
            # A server that answers from memory knows no pages.
            limit=PAGE if self._newest else 0,
            version="" if self._newest else "0",
            keep=self._keep,
        )

    async def _watch(self, handler: Handler) -> None:
        """Watch until the server ends it."""
        since, events = time.monotonic(), 0
        watch = self._client.watch(
            self._resource,
            self._namespace,
            labels=self._labels,
            fields=self._fields,
            version=self._version,
            # At random, as client-go's minWatchTimeout: clients that began together do not all watch anew at the same
            # time.
            timeout=self._watch_s * (1 + random.random()),
        )
        async with aclosing(watch):
            async for event in watch:
                events += 1
                self._well()
                version = event.object.get("metadata", {}).get("resourceVersion", "")
                if event.type == "DELETED":
                    handler.deleted(event.object)
                elif event.type != "BOOKMARK":
                    self._changed(handler, event.object)
                self._version = version or self._version
        if not events and time.monotonic() - since < _SHORT_S:
            raise Unavailable(f"the watch of {self} ended at once")

    def _well(self) -> None:
        if self.error is not None:
            log.info("following %s again", self)
            self.error = None

    def _resumes(self, error: PodkeepError) -> bool:
        """Return whether a watch can go on where it was; else it is listed again."""
        if not isinstance(error, ApiError):
            return True
        if error.gone:
            self._newest = True
            return False
        return error.code == 429 or error.code >= 500

    async def _wait(self, error: PodkeepError) -> None:
        if isinstance(error, ApiError) and error.gone:
            log.debug("listing %s again: %s", self, error)
        elif self.error is None or self.error.message != error.message:
            log.warning("cannot follow %s: %s", self, error)
            self.error = error
        await asyncio.sleep(max(self._backoff.next(), getattr(error, "retry_after", 0.0)))
