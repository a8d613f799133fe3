"""Lists: the objects of a resource at one revision, as the request's selectors and page want them.

What ``resourceVersion`` means is upstream's (Kubernetes: API concepts, "Semantics for get and list").
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, TypeAlias

import msgspec

from podkeep.apiserver.kinds.resources import Resource, Target
from podkeep.apiserver.list_watch.facts import Facts
from podkeep.apiserver.meta.status import StatusError, bad_request, expired
from podkeep.apiserver.requests.limits import Room
from podkeep.apiserver.requests.options import EXACT, ListOptions
from podkeep.apiserver.requests.output import Pieces
from podkeep.apiserver.storage.records import Key, Stored
from podkeep.apiserver.storage.store import Compacted, FutureRevision, Page, Store
from podkeep.base.frozen import FrozenStruct

_TOKEN_VERSION = "meta.k8s.io/v1"
_TOO_OLD = "The resourceVersion for the provided list is too old."
_INCONSISTENT = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_PAGE = 500
"""Objects that are read from the disk at a time."""
TURN = 200
"""Objects that selectors are held against in one turn of the event loop: some 2 ms if none was read before."""
TURN_BYTES = 8 << 20
"""Of these objects, if they are large: they are read for it, and what was read of all of them is not kept."""
ADDED_AT_ONCE = 1_000
"""Objects of which is kept in one turn what they are: some 0.2 ms."""
KEPT_BYTES = 64 << 10
"""Of the objects of a list, at once, that are kept for a client: it can take its time, and others change them. One is
read if it is larger."""


Turn: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits until nobody else reads what is large, given the bytes that are to be read until its caller waits again."""


async def no_turn(_: int) -> None:
    """Wait for nobody: nothing is read."""


class Token(NamedTuple):
    """Where a list goes on. ``revision`` is -1 for the newest, of which more is said than of the first page."""

    revision: int
    namespace: str
    name: str


def write_token(token: Token) -> str:
    """Return ``metadata.continue``."""
    start = f"{token.namespace}/{token.name}"
    text = msgspec.json.encode({"v": _TOKEN_VERSION, "rv": token.revision, "start": start})
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def read_token(text: str) -> Token:
    """Return what the parameter ``continue`` says.

    :raises StatusError: 400, if it is not one of ours.
    """
    try:
        data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        given = msgspec.json.decode(data, type=dict[str, int | str])
        if given["v"] != _TOKEN_VERSION:
            raise _bad_token("server does not recognize this encoded version")
        revision, start = given["rv"], given["start"]
        if not isinstance(revision, int) or not isinstance(start, str) or not (revision == -1 or revision > 0):
            raise _bad_token(f"incorrect encoded start resourceVersion (version {_TOKEN_VERSION})")
        namespace, separator, name = start.partition("/")
        if not separator or not name:
            raise _bad_token(f"encoded start key empty (version {_TOKEN_VERSION})")
    except (UnicodeError, binascii.Error, msgspec.DecodeError, KeyError, RecursionError):
        raise _bad_token("incorrect encoding") from None
    return Token(revision, namespace, name)


def _bad_token(why: str) -> StatusError:
    return bad_request(f"continue key is not valid: {why}")


class _ExpiredToken(StatusError):
    """410, with a token that goes on at the newest revision."""

    def __init__(self, token: Token) -> None:
        super().__init__(410, "Expired", _INCONSISTENT)
        self._token = write_token(token._replace(revision=-1))

    def status(self) -> dict[str, Any]:
        return super().status() | {"metadata": {"continue": self._token}}


def future_revision(error: FutureRevision) -> StatusError:
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return StatusError(504, "Timeout", error.message, causes=causes, retryAfterSeconds=1)


class Objects:
    """Objects as they were at a revision, for an answer that is sent for as long as its client takes.

    The first :data:`KEPT_BYTES` of them are kept meanwhile. Others are in the store's memory as long as they are the
    newest, and on its disk after: of them, what they are, the revision that wrote them, and their bytes.
    """

    def __init__(self, store: Store, revision: int, found: Sequence[Stored] = ()) -> None:
        self._store, self._revision = store, revision
        self._first: list[Stored] = []
        self._room = KEPT_BYTES
        # One list of each, and no object of its own for each object, whose making takes most of the time.
        self._keys: list[Key] = []
        self._revisions: list[int] = []
        self._sizes: list[int] = []
        self.add(found)

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, found: Sequence[Stored]) -> None:
        """Add what was found, after all others."""
        sizes = [len(stored.value) for stored in found]
        for stored, size in zip(found, sizes, strict=True):
            if size > self._room:
                self._room = -1  # none that follows is kept, so that those which are kept are the first
                break
            self._first.append(stored)
            self._room -= size
        self._keys += [stored.key for stored in found]
        self._revisions += [stored.revision for stored in found]
        self._sizes += sizes

    @property
    def last(self) -> Key:
        return self._keys[-1]

    def keys(self) -> Sequence[Key]:
        return self._keys

    async def pages(self, room: Room, turn: Turn = no_turn) -> AsyncGenerator[Sequence[Stored], None]:
        """Yield them, in portions of which each is worked on in one turn of the event loop, after ``turn``.

        :raises Compacted: if the revision is not kept any more.
        :raises NoRoom: if there is none for what comes from the disk.
        """
        for start, end in spans(self._sizes, KEPT_BYTES):
            found = [self._in_memory(index) for index in range(start, end)]
            with room.taken(sum(self._sizes[start + offset] for offset, stored in enumerate(found) if stored is None)):
                page = await self._read(start, found)
                await turn(sum(self._sizes[start:end]))
                yield page
            # Not kept while the client takes what was made of it.
            del found, page
            await asyncio.sleep(0)

    async def sent(
        self, pieces: Pieces, room: Room, parts_of: Callable[[Stored], Iterable[bytes]], turn: Turn = no_turn
    ) -> AsyncGenerator[bytes, None]:
        """Yield what ``parts_of`` makes of each of them, joined by ``pieces``; ``pieces.rest()`` has what is left.

        A large object that is among its parts as it is stored is no copy, and takes no room.

        :raises Compacted: as :meth:`pages`.
        :raises NoRoom: likewise, and if there is none for what else is made of a large one.
        """
        async with aclosing(self.pages(room, turn)) as pages:
            async for page in pages:
                for stored in page:
                    for piece in pieces.add(*parts_of(stored)):
                        with room.taken(0 if piece is stored.value else len(piece)):
                            yield piece

    async def _read(self, start: int, found: Sequence[Stored | None]) -> Sequence[Stored]:
        """Return the objects from ``start`` on, given those of them that are in memory."""
        past = [self._revisions[index] for index, stored in enumerate(found, start) if stored is None]
        values = iter(await self._store.values(self._keys[start].resource, self._revision, past) if past else ())
        return [
            stored or Stored(self._keys[index], self._revisions[index], next(values))
            for index, stored in enumerate(found, start)
        ]

    def _in_memory(self, index: int) -> Stored | None:
        if index < len(self._first):
            return self._first[index]
        newest = self._store.get(self._keys[index])
        return newest if newest is not None and newest.revision == self._revisions[index] else None


class Listed(FrozenStruct):
    """Objects of a list, and its metadata."""

    objects: Objects
    metadata: dict[str, Any]


class Lists:
    """Lists of a store's objects."""

    def __init__(self, store: Store, facts: Facts) -> None:
        self._store, self._facts = store, facts

    async def find(self, target: Target, options: ListOptions, turn: Turn) -> Listed:
        """Return the objects that a request asks for; each portion that selectors read has its ``turn``.

        What comes from the disk is read by one after the other anyway.

        :raises StatusError: 400, 410 or 504.
        """
        resource = target.resource
        if options.continue_:
            token = read_token(options.continue_)
            return await self._after(target, options, token, turn)
        # With a limit, a revision means exactly that one (API concepts, the resourceVersion parameter).
        exact = options.match == EXACT or (options.resource_version and options.limit and not options.match)
        revision = options.resource_version or 0
        if revision > self._store.revision:
            raise future_revision(
                FutureRevision(f"Too large resource version: {revision}, current: {self._store.revision}")
            )
        if exact and revision != self._store.revision:
            try:
                return await self._at(target, options, revision, ("", ""))
            except Compacted:
                raise expired(_TOO_OLD) from None
        name = options.fields.value("metadata.name")
        # A watcher of one object lists it so: it is looked up, not looked for.
        if name is not None and (target.namespace or not resource.namespaced):
            named = self._store.get(resource.key(target.namespace, name))
            return await self._chosen(options, resource, Page([named] if named else [], self._store.revision), turn)
        return await self._chosen(options, resource, self._snapshot(target), turn)

    def expired(self, options: ListOptions) -> StatusError:
        """Return the error of a list whose revision is not kept any more when it is read."""
        return _ExpiredToken(read_token(options.continue_)) if options.continue_ else expired(_TOO_OLD)

    def empty(self, listed: Listed) -> Listed:
        """Return a list of nothing that is otherwise the same."""
        return Listed(Objects(self._store, self._store.revision), listed.metadata)

    def _snapshot(self, target: Target) -> Page:
        namespace = target.namespace if target.resource.namespaced else ""
        return self._store.snapshot(target.resource.storage_name, namespace)

    async def _after(self, target: Target, options: ListOptions, token: Token, turn: Turn) -> Listed:
        after = (token.namespace, token.name)
        if token.revision in (-1, self._store.revision):
            page = self._snapshot(target)
            start = bisect_right(page.items, after, key=lambda stored: (stored.key.namespace, stored.key.name))
            return await self._chosen(options, target.resource, Page(page.items[start:], page.revision), turn)
        try:
            return await self._at(target, options, token.revision, after)
        except FutureRevision as error:
            raise future_revision(error) from None
        except Compacted:
            raise _ExpiredToken(token) from None

    async def _chosen(self, options: ListOptions, resource: Resource, all_of: Page, turn: Turn) -> Listed:
        """Return a page of what is in memory, letting others take turns while selectors read many objects."""
        items, revision = all_of.items, all_of.revision
        limit = options.limit or len(items)
        if not options.selects:
            page, left = items[:limit], max(len(items) - limit, 0)
            return await self._listed(page, revision, more=left > 0, remaining=left)
        found: list[Stored] = []
        for portion in turns(items, TURN_BYTES):
            await asyncio.sleep(0)
            await turn(sum(len(stored.value) for stored in portion))
            for stored in portion:
                if not self._facts.selects(options, resource, stored):
                    continue
                if len(found) == limit:
                    # How many remain is not said: nobody has looked at them (upstream leaves it out with selectors,
                    # too).
                    return await self._listed(found, revision, more=True)
                found.append(stored)
        return await self._listed(found, revision)

    async def _listed(
        self, items: Sequence[Stored], revision: int, *, more: bool = False, remaining: int = 0
    ) -> Listed:
        objects = Objects(self._store, revision)
        for start in range(0, len(items), ADDED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            objects.add(items[start : start + ADDED_AT_ONCE])
        return Listed(objects, _metadata(objects, revision, more=more, remaining=remaining))

    async def _at(self, target: Target, options: ListOptions, revision: int, after: tuple[str, str]) -> Listed:
        """Return a page of what was at a revision.

        :raises Compacted: or FutureRevision, as the store.
        """
        namespace = target.namespace if target.resource.namespaced else ""
        found = Objects(self._store, revision)
        more = True
        while more and not (options.limit and len(found) == options.limit):
            wanted = min(options.limit - len(found), _PAGE) if options.limit else _PAGE
            page = await self._store.page(
                target.resource.storage_name, namespace, revision, after, _PAGE if options.selects else wanted
            )
            after, left = await self._take(page.items, target.resource, options, found, after)
            more = page.more or left > 0
            del page  # it is not kept while the next one is waited for
        return Listed(found, _metadata(found, revision, more=more))

    async def _take(
        self,
        items: Sequence[Stored],
        resource: Resource,
        options: ListOptions,
        found: Objects,
        after: tuple[str, str],
    ) -> tuple[tuple[str, str], int]:
        """Add what is selected, up to the limit; return after which of them that ended, and how many are left."""
        left = len(items)
        for turn in turns(items, TURN_BYTES):
            await asyncio.sleep(0)
            for stored in turn:
                if options.limit and len(found) == options.limit:
                    return after, left
                left -= 1
                if not options.selects or self._facts.selects(options, resource, stored):
                    found.add([stored])
                after = stored.key.namespace, stored.key.name
        return after, left


def turns(items: Sequence[Stored], most_bytes: int) -> Iterator[Sequence[Stored]]:
    """Yield objects in such portions that selectors are held against one in a turn of the event loop."""
    for start, end in spans((len(item.value) for item in items), most_bytes):
        yield items[start:end]


def spans(sizes: Iterable[int], most_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield where such portions begin and end, given the bytes of each object."""
    start = end = size = 0
    for end, each in enumerate(sizes, 1):
        size += each
        if end - start >= TURN or size >= most_bytes:
            yield start, end
            start, size = end, 0
    if start < end:
        yield start, end


def _metadata(objects: Objects, revision: int, *, more: bool = False, remaining: int = 0) -> dict[str, Any]:
    fields: dict[str, Any] = {"resourceVersion": str(revision)}
    if more:
        last = objects.last
        fields["continue"] = write_token(Token(revision, last.namespace, last.name))
        if remaining:
            fields["remainingItemCount"] = remaining
    return fields
