"""Watches: the events of a resource as lines of JSON, from a revision on, with everything that clients ask of them.

An event is encoded once for all watchers that see it in the same form. Selectors turn an event into another: what
they begin to take was added, what they do not take any more was deleted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from podkeep.apiserver.kinds.resources import Target
from podkeep.apiserver.list_watch.facts import Facts
from podkeep.apiserver.list_watch.lists import Objects, Turn, future_revision, no_turn
from podkeep.apiserver.list_watch.recent import Recent
from podkeep.apiserver.meta.status import StatusError, expired, internal
from podkeep.apiserver.requests.limits import NoRoom, Room
from podkeep.apiserver.requests.media_types import Form
from podkeep.apiserver.requests.options import ListOptions
from podkeep.apiserver.requests.output import EVENT_END, PIECE_BYTES, Pieces, Rendering, decode, encode, event_start
from podkeep.apiserver.schema.table import Kind
from podkeep.apiserver.storage.records import Event, EventType, Stored
from podkeep.apiserver.storage.store import Compacted, FutureRevision, Slow, Store, Watcher
from podkeep.base.concurrency.turns import Turns
from podkeep.base.errors import PodkeepError
from podkeep.http.messages import Chunk, WriteNow, framed

BOOKMARK_S = 60.0
"""Seconds between bookmarks of a watch without events."""
LAST_BOOKMARK_S = 2.0
"""How long before a watch's end its last bookmark comes."""
LEAST_S = 1800.0
"""How long a watch goes on whose client says nothing; up to twice that, so that not all end at once."""
SELECTED_AT_ONCE = 8
"""Events that selectors are held against in one turn of the event loop: hundreds of watchers may have long ones, which
take 10 µs for each event, and all of them see it in the same turn."""
KEPT_BYTES = 8 << 20
"""Of lines of the newest events, in forms other than the object."""


class Change(NamedTuple):
    """An event as one watcher sees it."""

    type: EventType
    stored: Stored
    is_previous: bool = False
    """The object is the one before the event, which has another revision."""


def seen(event: Event, selects: Callable[[Stored], bool]) -> Change | None:
    """Return what a watcher with a selector sees of an event; None: nothing (apiserver: ``cacheWatcher``)."""
    stored, previous = event.stored, event.previous
    before = previous is not None and selects(previous)
    if event.type is EventType.DELETED:
        return Change(EventType.DELETED, stored) if before else None
    now = selects(stored)
    if now:
        return Change(EventType.MODIFIED if before else EventType.ADDED, stored)
    if before and previous is not None:
        return Change(EventType.DELETED, Stored(stored.key, stored.revision, previous.value), is_previous=True)
    return None


def with_revision(value: bytes, revision: int) -> bytes:
    """Return an object as JSON with another ``resourceVersion``."""
    plain = decode(value)
    plain["metadata"]["resourceVersion"] = str(revision)
    return encode(plain)


def error_line(error: StatusError) -> bytes:
    return b'{"type":"ERROR","object":' + encode(error.status()) + b"}\n"


class Watches:
    """The watches of a server."""

    def __init__(self, store: Store, facts: Facts, clock: Callable[[], float] | None = None) -> None:
        self._store, self._facts = store, facts
        self._clock = clock or asyncio.get_running_loop().time
        self._lines: Recent[tuple[int, EventType, Kind, Form, str, bool], bytes] = Recent(KEPT_BYTES)
        self._open: set[Watcher] = set()
        self._turns = Turns(PIECE_BYTES, 1)
        """Of watchers who are sent a large line: one begins in each turn of the event loop."""
        self._delivered: tuple[Sequence[Event], Chunk] = (), framed(b"\n")

    def __len__(self) -> int:
        return len(self._open)

    def close(self) -> None:
        for watcher in list(self._open):
            watcher.end()

    def start(
        self, target: Target, options: ListOptions, view: Rendering, write_now: WriteNow, room: Room, turn: Turn
    ) -> tuple[AsyncGenerator[bytes, None], Callable[[], None]]:
        """Begin a watch.

        :param write_now: writes lines while the next ones are waited for; False: it wrote none.
        :param room: for what is kept of large objects for this watch alone.
        :param turn: of reading large ones that are there.
        :returns: its lines, and what ends it.
        :raises StatusError: 504, if the revision is not there yet.
        """
        resource = target.resource
        namespace = target.namespace if resource.namespaced else ""
        revision = options.resource_version or 0
        if revision > self._store.revision:
            raise future_revision(
                FutureRevision(f"Too large resource version: {revision}, current: {self._store.revision}")
            )
        initial = Objects(self._store, revision)
        if options.initial_events or not revision:
            revision = self._store.revision
            if options.initial_events:
                items = self._store.snapshot(resource.storage_name, namespace).items
                initial = Objects(self._store, revision, items)
        try:
            watcher = self._store.watch(resource.storage_name, revision, namespace)
        except Compacted:
            oldest = self._store.compacted(resource.storage_name)
            return _refused(expired(f"too old resource version: {revision} ({oldest})")), _nothing
        watcher.keep = room.taken
        self._open.add(watcher)
        if view.is_stored and not options.selects:
            # With selectors, what an object is decides: that is for the watch's own task, which may fail alone.
            watcher.deliver = lambda events: write_now(self._chunk_of(events, view))

        def end() -> None:
            watcher.end()
            self._open.discard(watcher)

        is_read = options.selects or not view.is_stored
        pieces = self._initial(options, view, initial, room, turn if is_read else no_turn)
        return self._stream(watcher, options, view, pieces, revision), end

    def _chunk_of(self, events: Sequence[Event], view: Rendering) -> Chunk:
        """Return events whose objects are shown as they are stored, made once for all watchers of them."""
        made_of, chunk = self._delivered
        if events is not made_of:
            chunk = framed(b"".join([view.event(event.type, event.stored.value, headers=False) for event in events]))
            self._delivered = events, chunk
        return chunk

    async def _stream(
        self,
        watcher: Watcher,
        options: ListOptions,
        view: Rendering,
        initial: AsyncGenerator[bytes, None],
        revision: int,
    ) -> AsyncGenerator[bytes, None]:
        headers = True
        try:
            async with aclosing(initial):
                async for piece in initial:
                    headers = headers and not piece
                    yield piece
                    await asyncio.sleep(0)
        except Compacted as error:
            yield error_line(expired(error.message))
            return
        except NoRoom as error:
            yield error_line(error)
            return
        del initial
        if options.initial_events and options.bookmarks:
            yield view.bookmark(revision, ends_initial=True)
        try:
            async with aclosing(self._told(watcher, options, view)) as all_told:
                async for told in all_told:
                    if isinstance(told, int):
                        yield view.bookmark(told, ends_initial=False)
                        continue
                    for lines in self._lines_of(told, view, headers=headers):
                        headers = False
                        # Thousands may see the same object, and each first piece of it is as long as that.
                        await self._turns.wait("", len(lines))
                        yield lines
        except Slow:
            # Without an ERROR event: clients watch again from the last revision they saw.
            return
        except NoRoom as error:
            yield error_line(error)
        except Compacted as error:
            yield error_line(expired(error.message))
        except PodkeepError as error:
            yield error_line(internal(str(error)))

    async def _initial(
        self, options: ListOptions, view: Rendering, initial: Objects, room: Room, turn: Turn
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of the objects that are there, in pieces; an object that is large is one, and no copy."""
        headers = True

        def line(stored: Stored) -> Sequence[bytes]:
            nonlocal headers
            if options.selects and not self._facts.selects(options, view.resource, stored):
                return ()
            if view.is_stored:
                return event_start(EventType.ADDED), stored.value, EVENT_END
            made = view.event(EventType.ADDED, view.seen(stored.value), headers=headers)
            headers = False
            return (made,)

        pieces = Pieces()
        async with aclosing(initial.sent(pieces, room, line, turn)) as sent:
            async for piece in sent:
                yield piece
        yield pieces.rest()

    async def _told(
        self, watcher: Watcher, options: ListOptions, view: Rendering
    ) -> AsyncGenerator[list[Change] | int, None]:
        """Yield what a watcher sees, and the revisions of its bookmarks, until the watch ends or its time is over."""
        end = self._clock() + (options.timeout or LEAST_S * (1 + random.random()))
        bookmark = self._next_bookmark(end)
        while (now := self._clock()) < end:
            if now >= bookmark:
                if options.bookmarks and watcher.is_drained:
                    yield self._store.revision
                bookmark = self._next_bookmark(end)
            # One clock for all events until then: a timeout of each would cost as much as its encoding.
            clock = asyncio.get_running_loop().call_at(bookmark, watcher.wake)
            try:
                while (events := await watcher.batch(PIECE_BYTES)) is not None:
                    if not events:
                        return
                    yield await self._changes(events, options, view)
            finally:
                clock.cancel()

    def _next_bookmark(self, end: float) -> float:
        """Return when the next bookmark is due: regularly, and shortly before the end; then the end itself."""
        now = self._clock()
        last = end - LAST_BOOKMARK_S
        return min(now + BOOKMARK_S, last if now < last else end)

    async def _changes(self, events: Sequence[Event], options: ListOptions, view: Rendering) -> list[Change]:
        if not options.selects:
            return [Change(event.type, event.stored) for event in events]
        selects = partial(self._facts.selects, options, view.resource)
        changes: list[Change] = []
        for start in range(0, len(events), SELECTED_AT_ONCE):
            if start:
                await asyncio.sleep(0)  # others have their turn
            some = events[start : start + SELECTED_AT_ONCE]
            changes += [change for event in some if (change := seen(event, selects))]
        return changes

    def _lines_of(self, changes: Sequence[Change], view: Rendering, *, headers: bool) -> Iterator[bytes]:
        """Yield lines together, but no copy of one that is large."""
        pieces = Pieces()
        for change in changes:
            yield from pieces.add(self._line(change, view, headers=headers))
            headers = False
        if rest := pieces.rest():
            yield rest

    def _line(self, change: Change, view: Rendering, *, headers: bool) -> bytes:
        value = change.stored.value
        if view.is_stored and len(value) < PIECE_BYTES and not change.is_previous:
            return view.event(change.type, value, headers=False)
        # A large one is one object for all watchers, who may take it slowly; what is to be made of it is made once.
        key = change.stored.revision, change.type, view.resource.kind, view.form, view.include, headers
        line = self._lines.get(key)
        if line is None:
            if change.is_previous:
                value = with_revision(value, change.stored.revision)
            line = view.event(change.type, view.seen(value), headers=headers)
            self._lines.put(key, line, len(line))
        return line


async def _refused(error: StatusError) -> AsyncGenerator[bytes, None]:
    yield error_line(error)


def _nothing() -> None:
    return
