"""The store: reads from memory, writes in groups, watches in the order of revisions.

Used on one event loop's thread. A write is checked and given its revision at once, and acknowledged when its group is
on the disk: what was acknowledged survives a crash and the loss of power. Reads and watchers see a write when it is
acknowledged; later writes are checked against it as soon as it has its revision (:meth:`Store.newest`).

If a group cannot be written, it fails with all writes that were queued after it, since those may have been computed
from it, and none of them is ever seen.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

import msgspec

from podkeep.apiserver.storage.database import Database
from podkeep.apiserver.storage.records import Event, EventType, Key, Stored
from podkeep.base.concurrency.tasks import Tasks, finished
from podkeep.base.errors import FailedPrecondition, Internal, PodkeepError, Unavailable
from podkeep.base.frozen import FrozenStruct

log = logging.getLogger(__name__)

HISTORY_EVENTS = 10_000
"""Newest writes that are kept in memory for watches that begin in the past; older ones come from the disk."""
HISTORY_BYTES = 16 << 20
WATCHER_EVENTS = 1_000
"""Events that may still wait for a watcher when others follow, unless it takes some; else it has to list again."""
WATCHER_BYTES = 8 << 20
WATCHER_MOST = 4
"""How many times that may wait for one that takes some, but too few; what came last does not count."""
DELIVERED_BYTES = 64 << 10
"""Of the objects that a watcher takes at once at most: whoever takes more has it piece by piece."""
SHORT_LIVED = frozenset({"events", "coordination.k8s.io/leases"})
"""Resources that are written all the time and whose past hardly anybody asks for: less of it is kept."""
_COMPACT_BATCH = 500
_GROUP_EVENTS = 500
"""Writes that one transaction holds at most, so that the first of a burst do not wait for the last."""
OBJECT_BYTES = 1 << 10
"""What an object takes of memory beside its own bytes, with what controllers remember of it."""
GROUP_BYTES = 4 << 20
"""Of their objects, but for the last one's."""
_DISK_EVENTS = 500
_encode = msgspec.json.Encoder().encode
_key_of = attrgetter("key")
_Write: TypeAlias = tuple[Event, asyncio.Future[Stored]]
_Scope: TypeAlias = tuple[str, str]
"""A resource and a namespace: what a watcher sees events of. The namespace is empty for all of them."""
_Past: TypeAlias = Callable[[str, int], Awaitable[tuple[list[Event], int | None]]]
_Result = TypeVar("_Result")


class Follower(Protocol):
    """Keeps an index of objects."""

    def catch_up(self) -> None:
        """Look at what was written since the last time."""
        ...


class Compacted(FailedPrecondition):
    """The revision that was asked for is not kept any more."""


class Conflict(FailedPrecondition):
    """The object is not at the revision that the write was computed from, but at ``newest``; None: there is none."""

    def __init__(self, key: Key, newest: Stored | None) -> None:
        super().__init__(f"{key.resource} {key.name} has changed")
        self.newest = newest


class FutureRevision(Unavailable):
    """The revision that was asked for is not there yet."""


class Slow(Unavailable):
    """A watcher did not take its events; it has to list again."""


class Watcher:
    """The events of one resource, from a revision on. An asynchronous iterator that ends when the watch is ended.

    :raises Slow: from the iterator, if it was not read fast enough.
    :raises Compacted: from the iterator, if what it was to begin with is not kept any more.
    """

    def __init__(
        self, resource: str, namespace: str, after: int, past: _Past, close: Callable[[Watcher], None]
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self._after: int | None = after
        self._past = past
        self._close = close
        self._events: deque[Event] = deque()
        self._older: deque[Event] = deque()
        self._bytes = 0
        self._latest = (0, 0)
        self._took = True
        self._waiting: asyncio.Future[None] | None = None
        self._woken = False
        self.deliver: Callable[[Sequence[Event]], bool] | None = None
        """Takes events in the turn in which they are acknowledged, while :meth:`batch` waits and has given out all
        earlier ones, unless they are many (``DELIVERED_BYTES``); False: it took none, and :meth:`batch` returns them.
        It must not raise."""
        self.keep: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext()
        """Told of the bytes of objects that came from the disk, until all of them were taken and are done with; it
        may refuse them. What is in the store's memory is kept for others, too."""
        self._kept = ExitStack()
        self._error: PodkeepError | None = None
        self._ended = False

    def _is_ours(self, event: Event) -> bool:
        return not self.namespace or event.stored.key.namespace == self.namespace

    def put(self, events: Sequence[Event], added: int) -> None:
        """Hand over its events of a group that was just acknowledged, or end the watch if too many wait already.

        The group itself may be of any size: there was no time yet to take any of it.

        :param events: one or more; the same sequence for all watchers that see the same.
        :param added: how many bytes their objects have.
        """
        if (
            self._waiting is not None
            and not self._waiting.done()  # so there are no others
            and self.deliver is not None
            and added <= DELIVERED_BYTES
            and self.deliver(events)
        ):
            return
        count, size = self._latest
        if (_exceeds(len(self._events), self._bytes, 1) and not self._took) or _exceeds(
            len(self._events) - count, self._bytes - size, WATCHER_MOST
        ):
            self.end(Slow("the watch was ended: its events were not read fast enough", hint="list, then watch again"))
            return
        self._latest = len(events), added
        self._took = False
        self._events += events
        self._bytes += added
        self._go_on()

    def end(self, error: PodkeepError | None = None) -> None:
        """End the watch. With an error, what waits is dropped and the iterator raises it."""
        if not self._ended:
            self._ended, self._error, self._after = True, error, None
            if error is not None:
                self._older.clear()
                self._events.clear()
            self._go_on()
            self._kept.close()
            self._close(self)

    def wake(self) -> None:
        """Have :meth:`batch` return None once, now or when it is called: its reader has something else to do."""
        self._woken = True
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> Event:
        while True:
            found = await self.batch(1)
            if found:
                return found[0]
            if found is not None:
                raise StopAsyncIteration

    async def batch(self, size: int) -> list[Event] | None:
        """Return the next events, waiting for one: those that are there, but none after ``size`` bytes of objects.

        Cancelled, it has taken none. Empty at the end of the watch; None when woken; otherwise as the iterator.
        """
        if not self._older:
            self._kept.close()  # those of before are done with
        while self._after is not None and not self._older:
            events, after = await self._past(self.resource, self._after)
            # The watch may have been ended while the disk was read.
            if not self._ended:
                self._older.extend(filter(self._is_ours, events))
                self._after = after
                if after is not None:
                    self._kept.enter_context(self.keep(sum(map(_size, self._older))))
        self._took = True
        while not self._woken and not self._older and not self._events:
            if self._error is not None:
                raise self._error
            if self._ended:
                return []
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
            self._took = True
        if self._woken:
            self._woken = False
            return None
        found: list[Event] = []
        taken = 0
        while taken < size and (waiting := self._older or (self._after is None and self._events)):
            event = waiting.popleft()
            if waiting is self._events:
                self._bytes -= len(event.stored.value)
            taken += len(event.stored.value)
            found.append(event)
        return found

    @property
    def is_drained(self) -> bool:
        """Whether everything up to the store's revision was taken."""
        return self._after is None and not self._older and not self._events and self._error is None


def _size(event: Event) -> int:
    return len(event.stored.value) + (len(event.previous.value) if event.previous else 0)


def _weight(stored: Stored) -> int:
    return len(stored.value) + OBJECT_BYTES


def _group(queue: Sequence[_Write]) -> int:
    """Return how many of the first writes that wait are one transaction."""
    size = 0
    for count, (event, _) in enumerate(queue[:_GROUP_EVENTS], 1):
        size += len(event.stored.value)
        if size >= GROUP_BYTES:
            return count
    return min(len(queue), _GROUP_EVENTS)


def _exceeds(events: int, size: int, times: int) -> bool:
    return events > times * WATCHER_EVENTS or size > times * WATCHER_BYTES


class Page(FrozenStruct):
    """Objects of a resource at one revision. ``more`` tells whether there are some after the last."""

    items: list[Stored]
    revision: int
    more: bool = False


class Store:
    """The objects of one database. An asynchronous context manager."""

    def __init__(self, path: Path) -> None:
        """Open the database and read what is in it; blocks.

        :raises DataLoss: as :class:`Database`; likewise ResourceExhausted and Unavailable.
        """
        self._database = Database(path)
        # One thread: SQLite's connection is used by one at a time, and groups reach the disk in the order of revisions.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="storage")
        self._tasks = Tasks("storage")
        self._reading = asyncio.Lock()
        self._revision = self._assigned = self._database.revision()
        self._compacted = self._database.compacted()
        # How far that has come is not on the disk: who watched these before a restart lists them again.
        self._short_compacted = self._revision
        self._short_done = self._compacted
        self._objects: dict[str, dict[Key, Stored]] = {}
        self._bytes: Counter[str] = Counter()
        for stored in self._database.current():
            self._objects.setdefault(stored.key.resource, {})[stored.key] = stored
            self._bytes[stored.key.namespace] += _weight(stored)
        # The same by their keys: a list of many is a part of this one, which is copied in no time.
        self._sorted = {name: sorted(objects.values(), key=_key_of) for name, objects in self._objects.items()}
        self._pending: dict[Key, _Write] = {}
        self._queue: list[_Write] = []
        self._writer: asyncio.Task[None] | None = None
        self.problem: PodkeepError | None = None
        """Why the last write failed, if it did."""
        self.on_problem: Callable[[], None] = lambda: None
        """Called when that is another one, or none any more."""
        self._history: deque[Event] = deque()
        self._history_bytes = 0
        self._history_start = self._revision
        self.past_bytes = self._database.past_bytes()
        """Of what objects were: on the disk at the start, and all that writes have made the past since."""
        self._grown = asyncio.Event()
        self._grown_at = self.past_bytes
        self._watchers: dict[_Scope, set[Watcher]] = {}
        self.followers: WeakSet[Follower] = WeakSet()
        """Indexes that catch up after each group. One that is asked seldom would read every object again, in one turn
        of the event loop, once what was written is not known any more: 16 MiB that anybody writes are enough."""

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every watch, wait for what is being written, and close the database."""
        for watchers in list(self._watchers.values()):
            for watcher in list(watchers):
                watcher.end()
        if self._writer is not None:
            await finished(self._writer)
        await self._on_thread(self._database.close)
        self._thread.shutdown()

    async def _on_thread(self, work: Callable[[], _Result]) -> _Result:
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        await finished(future)
        return future.result()

    async def _read(self, work: Callable[[], _Result]) -> _Result:
        # One at a time: a write waits for the one that is under way, not for all that clients ask for.
        async with self._reading:
            return await self._on_thread(work)

    # reads

    @property
    def revision(self) -> int:
        """The newest revision that is acknowledged."""
        return self._revision

    def compacted(self, resource: str) -> int:
        """Return the oldest revision that a watch or a list of a resource may ask for."""
        return max(self._compacted, self._short_compacted) if resource in SHORT_LIVED else self._compacted

    def get(self, key: Key) -> Stored | None:
        """Return an object as it is acknowledged; None if there is none."""
        return self._objects.get(key.resource, {}).get(key)

    def newest(self, key: Key) -> Stored | None:
        """Return an object as the next write to it finds it, which may not be acknowledged yet."""
        if key not in self._pending:
            return self.get(key)
        event, _ = self._pending[key]
        return None if event.type is EventType.DELETED else event.stored

    async def settled(self, key: Key) -> None:
        """Wait until what :meth:`newest` tells of an object now is acknowledged.

        :raises PodkeepError: why it could not be written.
        """
        if key in self._pending:
            _, future = self._pending[key]
            # Several may wait for one write: cancelling one of them must not cancel it for the others.
            await asyncio.shield(future)

    def changes(self, after: int) -> list[Key] | None:
        """Return what writes after a revision were about, newest first; None if that is not known any more."""
        if after < self._history_start:
            return None
        keys = []
        for event in reversed(self._history):
            if event.stored.revision <= after:
                break
            keys.append(event.stored.key)
        return keys

    def pending(self) -> Collection[Key]:
        """Return the objects with writes that are not acknowledged yet."""
        return self._pending.keys()

    def count(self, resource: str) -> int:
        """Return how many objects a resource has."""
        return len(self._objects.get(resource, {}))

    def bytes_in(self, namespace: str) -> int:
        """Return how much memory the objects of a namespace take: their bytes, and ``OBJECT_BYTES`` for each."""
        return self._bytes[namespace]

    def snapshot(self, resource: str, namespace: str = "") -> Page:
        """Return every object of a resource, by namespace and name; in one namespace if that is not empty."""
        items = self._sorted.get(resource, [])
        first = bisect_left(items, Key(resource, namespace, ""), key=_key_of)
        # NUL sorts before every character of a namespace: the names in `a` end before those in `a-b`.
        last = bisect_left(items, Key(resource, f"{namespace}\0", ""), key=_key_of) if namespace else len(items)
        return Page(items[first:last], self._revision)

    async def page(self, resource: str, namespace: str, revision: int, after: tuple[str, str], limit: int) -> Page:
        """Return at most ``limit`` objects as they were at ``revision``, after a namespace and name; fewer large ones.

        :raises Compacted: if that revision is not kept any more.
        :raises FutureRevision: if it is not there yet.
        """
        self._require_kept(resource, revision)
        query = partial(self._database.snapshot, resource, namespace, revision, after, limit)
        found, more = await self._read(query)
        self._require_kept(resource, revision)
        return Page(found, revision, more)

    async def values(self, resource: str, revision: int, written: Sequence[int]) -> list[bytes]:
        """Return objects that :meth:`page` told of, by the revisions with which they were written.

        :raises Compacted: if ``revision``, which is that of the page, is not kept any more.
        """
        found = await self._read(partial(self._database.values, written))
        self._require_kept(resource, revision)
        if len(found) < len(written):
            raise Compacted(f"too old resource version: {revision}")
        return found

    def _require_kept(self, resource: str, revision: int) -> None:
        if revision > self._revision:
            raise FutureRevision(f"Too large resource version: {revision}, current: {self._revision}")
        if revision < (oldest := self.compacted(resource)):
            raise Compacted(f"too old resource version: {revision} ({oldest})")

    # writes

    def put(self, key: Key, value: Mapping[str, Any], previous: Stored | None) -> asyncio.Future[Stored]:
        """Create an object, or replace one.

        :param value: the object; ``metadata.resourceVersion`` is put into it.
        :param previous: what it was computed from, as :meth:`newest` told; None: it must not exist.
        :returns: what is stored, when it is on the disk. Cancelling that takes nothing back.
        :raises Conflict: if the object is another one by now.
        """
        kind = EventType.MODIFIED if previous else EventType.ADDED
        return self._enqueue(kind, key, value, previous)

    def delete(self, key: Key, value: Mapping[str, Any], previous: Stored) -> asyncio.Future[Stored]:
        """Remove an object; ``value`` is its last state, which watchers get. Otherwise as :meth:`put`."""
        return self._enqueue(EventType.DELETED, key, value, previous)

    def _enqueue(
        self, kind: EventType, key: Key, value: Mapping[str, Any], previous: Stored | None
    ) -> asyncio.Future[Stored]:
        newest = self.newest(key)
        if (newest.revision if newest else 0) != (previous.revision if previous else 0):
            raise Conflict(key, newest)
        # No await from the check to here: a second write to the object is held against this one.
        revision = self._assigned + 1
        metadata = {**value.get("metadata", {}), "resourceVersion": str(revision)}
        event = Event(kind, Stored(key, revision, _encode({**value, "metadata": metadata})), newest)
        self._assigned = revision
        future: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        self._pending[key] = event, future
        self._queue.append((event, future))
        if self._writer is None:
            self._writer = self._tasks.start(self._write())
        # Cancelling the caller must not cancel the write: its revision is assigned, and later writes may be computed
        # from it.
        return asyncio.shield(future)

    async def _write(self) -> None:
        """Write what is queued, a group after the other, until nothing is."""
        try:
            while self._queue:
                count = _group(self._queue)
                group, self._queue = self._queue[:count], self._queue[count:]
                try:
                    await self._on_thread(partial(self._database.commit, [event for event, _ in group]))
                except PodkeepError as error:
                    self._note(error)
                    self._fail(group, error)
                except BaseException as error:
                    # The task ends and its owner logs why; the next write starts another.
                    self._fail(group, Internal(f"the API's database cannot be written: {error}"))
                    raise
                else:
                    self._note(None)
                    self._acknowledge(group)
        finally:
            self._writer = None

    def _note(self, problem: PodkeepError | None) -> None:
        before, self.problem = self.problem, problem
        if str(before) != str(problem):
            self.on_problem()

    def _fail(self, group: list[_Write], error: PodkeepError) -> None:
        # Writes that are queued may have been computed from those that failed.
        queued, self._queue = self._queue, []
        self._pending.clear()
        for _, future in (*group, *queued):
            if not future.done():
                future.set_exception(error)

    def _acknowledge(self, group: list[_Write]) -> None:
        seen: dict[_Scope, list[Event]] = {}
        for event, future in group:
            key, revision, _ = event.stored
            # A later write of the same object may be pending by now; newest() has to go on telling of that one.
            if self._pending[key][0] is event:
                del self._pending[key]
            if event.type is EventType.DELETED:
                self._forget(key)
            else:
                self._remember(event.stored)
            self._revision = revision
            self._keep_in_history(event)
            self.past_bytes += len(event.previous.value) if event.previous else 0
            self.past_bytes += len(event.stored.value) if event.type is EventType.DELETED else 0
            for namespace in {"", key.namespace}:
                seen.setdefault((key.resource, namespace), []).append(event)
            if not future.done():
                future.set_result(event.stored)
        # Watchers see the group after memory has all of it; events are grouped by scope so that each watcher of a scope
        # shares one list.
        for scope, events in seen.items():
            added = sum(len(event.stored.value) for event in events)
            for watcher in list(self._watchers.get(scope, ())):
                watcher.put(events, added)
        for follower in list(self.followers):
            try:
                follower.catch_up()
            except Exception:
                # It is tried again, and told, when the index is asked; the writes are done.
                log.exception("an index of the API's objects cannot catch up")
        if self.past_bytes >= self._grown_at:
            self._grown.set()

    def _remember(self, stored: Stored) -> None:
        key = stored.key
        objects, items = self._objects.setdefault(key.resource, {}), self._sorted.setdefault(key.resource, [])
        place = bisect_left(items, key, key=_key_of)
        self._bytes[key.namespace] += _weight(stored)
        if key in objects:
            self._bytes[key.namespace] -= _weight(objects[key])
            items[place] = stored
        else:
            items.insert(place, stored)
        objects[key] = stored

    def _forget(self, key: Key) -> None:
        self._bytes[key.namespace] -= _weight(self._objects[key.resource].pop(key))
        if not self._bytes[key.namespace]:
            del self._bytes[key.namespace]
        items = self._sorted[key.resource]
        del items[bisect_left(items, key, key=_key_of)]

    # watches

    def watch(self, resource: str, after: int, namespace: str = "") -> Watcher:
        """Return the events of a resource after a revision; of one namespace if that is not empty.

        :raises Compacted: if that revision is not kept any more.
        :raises FutureRevision: if it is not there yet.
        """
        self._require_kept(resource, after)
        watcher = Watcher(resource, namespace, after, partial(self._past, self._revision), self._unwatch)
        self._watchers.setdefault((resource, namespace), set()).add(watcher)
        return watcher

    def _unwatch(self, watcher: Watcher) -> None:
        scope = watcher.resource, watcher.namespace
        self._watchers[scope].discard(watcher)
        if not self._watchers[scope]:
            del self._watchers[scope]

    async def _past(self, upto: int, resource: str, after: int) -> tuple[list[Event], int | None]:
        """Return events of a resource after a revision and up to another, and after which revision more of them are.

        They come from memory, and older ones from the disk.
        """
        self._require_kept(resource, after)
        if after >= self._history_start or after >= upto:
            recent = (event for event in self._history if after < event.stored.revision <= upto)
            return [event for event in recent if event.stored.key.resource == resource], None
        past = await self._read(partial(self._database.events, resource, after, upto, _DISK_EVENTS))
        self._require_kept(resource, after)
        return past

    def _keep_in_history(self, event: Event) -> None:
        self._history.append(event)
        self._history_bytes += len(event.stored.value)
        while len(self._history) > HISTORY_EVENTS or self._history_bytes > HISTORY_BYTES:
            oldest = self._history.popleft()
            self._history_bytes -= len(oldest.stored.value)
            self._history_start = oldest.stored.revision

    # keeping it small, and safe

    async def past_reaches(self, size: int) -> None:
        """Return once :attr:`past_bytes` is at least ``size``; one caller at a time."""
        self._grown_at = size
        while self.past_bytes < size:
            self._grown.clear()
            await self._grown.wait()

    async def compact(self, revision: int) -> None:
        """Give up every state before ``revision``, in small steps between which others are written.

        :raises ResourceExhausted: if the disk is full; likewise Unavailable if it fails.
        """
        revision = min(revision, self._revision)
        while self._compacted < revision:
            # Told before it is done: what is asked for meanwhile must not find half of it.
            told = self._compacted = min(revision, self._compacted + _COMPACT_BATCH)
            while await self._on_thread(partial(self._database.compact, told, _COMPACT_BATCH)) < told:
                pass  # large objects are removed in several steps

    async def compact_short_lived(self, revision: int) -> None:
        """Give up every state of ``SHORT_LIVED`` before ``revision``. Otherwise as :meth:`compact`."""
        revision = min(revision, self._revision)
        # Told before it is done, as in compact().
        self._short_compacted = max(self._short_compacted, revision)
        while (start := max(self._short_done, self._compacted)) < revision:
            end = min(revision, start + _COMPACT_BATCH)
            self._short_done = await self._on_thread(partial(self._database.compact_of, SHORT_LIVED, start, end))

    async def backup(self, path: Path) -> None:
        """Write a copy of everything that is acknowledged to a new file.

        :raises ResourceExhausted: if the disk there is full; likewise Unavailable if it fails.
        :raises FileExistsError: if there is such a file.
        """
        await self._on_thread(partial(self._database.backup, path))
