"""Requests to one API server: the verbs on any resource, with connections that are kept and a deadline for each.

Owns: connections, retries, sizes. Does not own: what objects mean. Objects are plain JSON values.

Retries are client-go's: a request that reads goes out again if a kept connection had ended; any request does if the
server refused it (429, 5xx) and said when to come again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Literal

import msgspec

import podkeep
from podkeep.base.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.client.connection import Connection, ConnectionEnded, Headers, server_address
from podkeep.client.credentials import Credentials
from podkeep.client.errors import ApiError, refusal, status_error
from podkeep.client.resources import Resource
from podkeep.client.settings import Settings
from podkeep.http.client import Upgraded

log = logging.getLogger(__name__)

TIMEOUT_S = 30.0
MAX_BODY_BYTES = 64 << 20
"""Of an answer, and so of one page of a list."""
MAX_PAGES, MAX_LISTED = 10_000, 500_000
"""Pages of one list, and objects on all of them."""
MAX_EVENT_BYTES = 16 << 20
"""Of one event of a watch. An object has at most 1.5 MiB in etcd, and 3 MiB in a request."""
MAX_CONNECTIONS = 16
"""For requests at a time; others wait. Watches and streams are apart, each with a connection of its own."""
_FEWER = 8
"""By which the size of pages is divided when one is more than an answer may have."""
_IDLE_S = 90.0
"""After which an idle connection is not used again (net/http, IdleConnTimeout)."""
_RETRIES = 10
_ERROR_BYTES = 1 << 20
WATCH_S = 300.0
"""A watch lasts that long, or up to twice as long: so that not all end at once (client-go, reflector)."""
_WATCH_SLACK_S = 60.0
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_READS = ("GET", "HEAD")

Object = dict[str, Any]


class Patch(StrEnum):
    """How a patch is written: its media type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a watch; a bookmark's object has a resourceVersion and little else."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: dict[str, Any]


_EVENT = msgspec.json.Decoder(WatchEvent)


Keep = Callable[[Object], Object | None]
"""Returns what is kept of an object; None: it is left out."""


def _all_of(item: Object) -> Object:
    return item


def _kept(page: Object, keep: Keep) -> list[Object]:
    return [kept for item in page.get("items") or () if (kept := keep(item)) is not None]


class Answer(FrozenStruct, kw_only=True):
    """An answer of any path: what :meth:`Client.request` returns."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def value(self) -> Any:
        return msgspec.json.decode(self.data)


class Client:
    """A client of one server; of one event loop.

    Every method raises :class:`ApiError` if the server refuses, ``Unavailable`` if it cannot be reached or broke off,
    ``DeadlineExceeded`` if it did not answer in time, ``FailedPrecondition`` if there are no credentials.

    :param user_agent: what the server's logs call the client.
    :param timeout: seconds for each request with its retries, if a method is not told another.
    :param on_warning: is told what the server warns of in an answer; without it that is not read.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        user_agent: str = "",
        timeout: float = TIMEOUT_S,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings
        self._on_warning = on_warning
        self.timeout = timeout
        self._where = server_address(settings.server)
        self._credentials = Credentials(settings)
        self._headers: Headers = [
            ("user-agent", f"{user_agent or 'podkeep'}/{podkeep.__version__}"),
            ("accept", "application/json"),
        ]
        self._idle: deque[tuple[float, Connection]] = deque()
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._streams: set[Connection] = set()
        self._renewals = 0

    # -- objects

    async def get(
        self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "", version: str = ""
    ) -> Object:
        """Return an object.

        :param version: ``0``: what the server has in memory will do.
        """
        query = {"resourceVersion": version}
        return await self._object("GET", resource.path(namespace, name, subresource, query))

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        version: str = "",
        keep: Keep = _all_of,
    ) -> Object:
        """Return a list with all its ``items``; their ``kind`` and ``apiVersion`` are the server's to leave out.

        :param limit: how many objects a request asks for; 0: all. All pages are returned as one list. Of objects of
            which so many are more than an answer may have, fewer are asked for.
        :param version: ``0``: what the server has in memory will do; empty: the newest.
        :param keep: what is kept of each object, as its page comes.
        """
        query = {"labelSelector": labels, "fieldSelector": fields, "resourceVersion": version}
        if not limit:
            found = await self._object("GET", resource.path(namespace, query=query))
            return {**found, "items": _kept(found, keep)}
        try:
            return await self._pages(resource, namespace, query, limit, keep)
        except ApiError as error:
            if not error.gone:
                raise
        # The pages took too long: as one, it is of one moment.
        found = await self._object("GET", resource.path(namespace, query=query))
        return {**found, "items": _kept(found, keep)}

    async def _pages(self, resource: Resource, namespace: str, query: dict[str, str], limit: int, keep: Keep) -> Object:
        items: list[Object] = []
        pages = listed = 0
        while True:
            try:
                page = await self._object("GET", resource.path(namespace, query={**query, "limit": str(limit)}))
            except ResourceExhausted:
                # Large objects of somebody must not keep others from theirs.
                if limit <= 1:
                    raise
                limit = max(limit // _FEWER, 1)
                continue
            pages += 1
            listed += len(page.get("items") or ())
            items += _kept(page, keep)
            token = page.get("metadata", {}).get("continue")
            if not token:
                return {**page, "items": items}
            # The token names the revision; kube-apiserver refuses a resourceVersion beside it.
            query = {**query, "continue": token, "resourceVersion": ""}
            if pages > MAX_PAGES or listed > MAX_LISTED:
                said = f"{pages} pages with {listed} objects"
                raise ResourceExhausted(f"the API at {self._where} gives a list of {resource} without an end: {said}")

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        """Create an object, or what a subresource of the object ``name`` creates (``token``, ``eviction``).

        :param query: options of the request, as ``fieldManager``, ``fieldValidation`` or ``dryRun``.
        """
        path = resource.path(namespace, name, subresource, query)
        return await self._object("POST", path, body)

    async def update(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        subresource: str = "",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        """Replace an object; with its resourceVersion, only if it is still of that one."""
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"], subresource, query)
        return await self._object("PUT", path, body)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        kind: Patch = Patch.STRATEGIC,
        subresource: str = "",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        """Change an object.

        :param body: a list for a JSON patch.
        :param query: options of the request; :attr:`Patch.APPLY` needs ``fieldManager``, and may ``force``.
        """
        return await self._object("PATCH", resource.path(namespace, name, subresource, query), body, media=kind)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        grace: int | None = None,
        uid: str = "",
        propagation: Literal["", "Background", "Foreground", "Orphan"] = "",
        dry_run: bool = False,
    ) -> Object:
        """Delete an object; return it, if it is not gone at once, or a Status.

        :param grace: seconds; None: what the object says.
        :param uid: only the object with that UID, not another one of its name; else it is a conflict.
        :param dry_run: say what it would do, and do nothing.
        """
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        if dry_run:
            options["dryRun"] = ["All"]
        return await self._object("DELETE", resource.path(namespace, name), options)

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        version: str = "",
        bookmarks: bool = True,
        timeout: float | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield what happens to objects from a resourceVersion on, bookmarks too; it ends when the server ends it.

        Close it (``contextlib.aclosing``) when it is not read to its end.

        :param timeout: seconds after which the server ends it; None: five to ten minutes.
        :raises ApiError: if the server refuses it or says so in the stream; ``gone``: list again.
        """
        seconds = timeout if timeout is not None else WATCH_S * (1 + random.random())
        query = {
            "watch": "true",
            "labelSelector": labels,
            "fieldSelector": fields,
            "resourceVersion": version,
            "allowWatchBookmarks": "true" if bookmarks else "",
            "timeoutSeconds": str(max(int(seconds), 1)),
        }
        async with self._stream("GET", resource.path(namespace, query=query)) as connection:
            try:
                async with asyncio.timeout(seconds + _WATCH_SLACK_S):
                    async for line in _lines(connection):
                        event = _event(line)
                        if event.type == "ERROR":
                            raise status_error(event.object)
                        yield event
            except Unavailable:
                # Ended by renew(): its caller goes on where it was.
                if not connection.aborted:
                    raise
            except TimeoutError as error:
                raise DeadlineExceeded(f"the watch of {resource} did not end in time") from error

    # -- anything

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Any] | bytes | None = None,
        *,
        media: str = "application/json",
        accept: str = "",
        timeout: float | None = None,
        limit: int = MAX_BODY_BYTES,
    ) -> Answer:
        """Send a request and return the answer, if it is no refusal.

        :param path: with the query.
        :param limit: bytes that the answer may have.
        """
        data = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        seconds = self.timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                return await self._tried(method, path, data, self._of_body(media, data, accept), limit)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the API at {self._where} did not answer {method} {path.partition('?')[0]} within {seconds:g} s"
            ) from error

    async def stream(self, path: str, *, accept: str = "*/*") -> AsyncGenerator[bytes, None]:
        """Yield the body of an answer as it comes, without a deadline: a log that is followed."""
        async with self._stream("GET", path, accept=accept) as connection:
            async for piece in connection.pieces():
                yield piece

    async def upgrade(self, method: str, path: str, headers: Mapping[str, str]) -> Upgraded:
        """Ask for another protocol on a new connection, as for exec; the caller closes it.

        :param headers: with ``upgrade``, and what that protocol wants.
        """
        try:
            async with asyncio.timeout(self.timeout):
                connection = await self._begun(method, path, [("connection", "Upgrade"), *headers.items()])
        except TimeoutError as error:
            raise self._late() from error
        if connection.status != 101:
            try:
                data = await connection.body(_ERROR_BYTES)
            finally:
                connection.abort()
            raise refusal(connection.status, data)
        reader, writer, first = connection.upgraded()
        return Upgraded(f"the API at {self._where}", reader, writer, connection.headers, first)

    def renew(self) -> None:
        """Begin anew with every connection, since there is another client certificate: watches end, and are resumed."""
        self._renewals += 1
        self._drop_idle()
        for connection in self._streams:
            connection.abort()

    async def close(self) -> None:
        for connection in self._streams:
            connection.abort()
        while self._idle:
            await self._idle.popleft()[1].close()

    # -- inside

    async def _object(
        self, method: str, path: str, body: Mapping[str, Any] | Sequence[Any] | None = None, *, media: str = ""
    ) -> Object:
        answer = await self.request(method, path, body, media=media or "application/json", limit=MAX_BODY_BYTES)
        try:
            return _OBJECT.decode(answer.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unavailable(
                f"the API at {self._where} answered with something else than an object: {error}"
            ) from error

    @staticmethod
    def _of_body(media: str, data: bytes, accept: str) -> Headers:
        headers = [("content-type", media)] if data else []
        return [*headers, ("accept", accept)] if accept else headers

    async def _tried(self, method: str, path: str, data: bytes, extra: Headers, limit: int) -> Answer:
        """Send a request until there is an answer that counts."""
        refused = False
        for attempt in range(_RETRIES + 1):
            try:
                return await self._once(method, path, data, extra, limit)
            except ApiError as error:
                if error.code == 401 and not refused and self._credentials.refused():
                    refused = True
                    continue
                asked = error.code == 429 or error.code >= 500
                if not asked or not error.retry_after or attempt == _RETRIES:
                    raise
                await asyncio.sleep(error.retry_after)
            except _IdleConnectionEnded:
                continue
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, method: str, path: str, data: bytes, extra: Headers, limit: int) -> Answer:
        async with self._places:
            renewals = self._renewals
            connection = await self._taken()
            was_used = connection.used
            try:
                await connection.ask(method, path, [*self._with(extra), *await self._credentials.headers()], data)
                body = await connection.body(limit if connection.status < 400 else _ERROR_BYTES)
            except ConnectionEnded as error:
                connection.abort()
                if was_used and method in _READS:
                    raise _IdleConnectionEnded from error
                raise
            except BaseException:
                connection.abort()
                raise
            warnings = connection.warnings
            self._give_back(connection, renewals)
        if self._on_warning is not None:
            for text in warnings:
                self._on_warning(text)
        if connection.status >= 400:
            raise refusal(connection.status, body, _seconds(connection.headers.get("retry-after", "")))
        return Answer(status=connection.status, headers=connection.headers, data=body)

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"the API at {self._where} did not answer within {self.timeout:g} s")

    def _with(self, extra: Headers) -> Headers:
        if any(name == "accept" for name, _ in extra):
            return [*self._headers[:1], *extra]
        return [*self._headers, *extra]

    async def _taken(self) -> Connection:
        while self._idle:
            since, connection = self._idle.pop()
            if connection.usable and time.monotonic() - since < _IDLE_S:
                return connection
            connection.abort()
        return await self._opened()

    async def _opened(self) -> Connection:
        tls = await self._credentials.context()
        return await Connection.open(self._where, tls, self.settings.server_name)

    def _give_back(self, connection: Connection, renewals: int) -> None:
        if connection.usable and renewals == self._renewals:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.abort()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop()[1].abort()

    async def _begun(self, method: str, path: str, headers: Headers) -> Connection:
        """Send a request on a connection of its own, and return that with the head of the answer."""
        connection = await self._opened()
        try:
            await connection.ask(method, path, [*self._with(headers), *await self._credentials.headers()])
        except BaseException:
            connection.abort()
            raise
        return connection

    @asynccontextmanager
    async def _stream(self, method: str, path: str, *, accept: str = "") -> AsyncIterator[Connection]:
        """Yield a connection whose answer is read as it comes."""
        try:
            async with asyncio.timeout(self.timeout):
                connection = await self._begun(method, path, [("accept", accept)] if accept else [])
                if connection.status == 401 and self._credentials.refused():
                    connection.abort()
                    connection = await self._begun(method, path, [("accept", accept)] if accept else [])
        except TimeoutError as error:
            raise self._late() from error
        self._streams.add(connection)
        try:
            if connection.status >= 400:
                retry = _seconds(connection.headers.get("retry-after", ""))
                raise refusal(connection.status, await connection.body(_ERROR_BYTES), retry)
            yield connection
        finally:
            self._streams.discard(connection)
            connection.abort()


class _IdleConnectionEnded(Exception):
    """A connection that was kept had ended."""


def _seconds(text: str) -> float:
    """Return a ``Retry-After`` in seconds; 0 for a date, as client-go."""
    return float(min(int(text), 3600)) if text.isascii() and text.isdecimal() and len(text) < 6 else 0.0


async def _lines(connection: Connection) -> AsyncIterator[bytes]:
    """Yield the lines of a stream.

    :raises Unavailable: if one is too long.
    """
    rest: list[bytes] = []
    size = 0
    async for piece in connection.pieces():
        *lines, last = piece.split(b"\n")
        for line in lines:
            whole = b"".join([*rest, line])
            rest, size = [], 0
            if whole:
                yield whole
        if last:
            rest.append(last)
            size += len(last)
            if size > MAX_EVENT_BYTES:
                raise Unavailable(f"an event of a watch has more than {MAX_EVENT_BYTES} bytes")
    if rest:
        yield b"".join(rest)


def _event(line: bytes) -> WatchEvent:
    try:
        return _EVENT.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unavailable(f"a watch sent something else than an event: {error}") from error
