"""What happens to containers and sandboxes, told to everybody who listens (CRI: GetContainerEvents).

Owns: which change of a record is which event, and a queue per reader. Does not own: messages (``rpc/events.py``) or the
records. ``state.py`` reports every change where it writes it, so the order of events is the order of the records; that
includes the ends that are noticed when a daemon starts. Used on the event loop's thread, and before there is a loop.

Publishing never waits. A reader that falls behind by more than its queue loses the oldest of its events; those it gets
stay in order. What happens while nobody listens is kept for the next reader, up to a number and an age: a client that
connects again after the daemon was restarted learns what was found then.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.model.records import Container, ContainerState, Sandbox, SandboxState
from podkeep.runtime.model.state import State

log = logging.getLogger(__name__)

QUEUE_LENGTH = 1024
"""Events that a reader may be behind."""
QUEUE_BYTES = 32 << 20
"""Bytes of the records in those events, as they are written: a client, or an image, may give each some mebibytes."""
RETENTION_S = 300.0
"""How long an event waits for a first reader."""


class EventKind(enum.IntEnum):
    """CRI: ContainerEventType."""

    CREATED = 0
    STARTED = 1
    STOPPED = 2
    DELETED = 3


class Event(FrozenStruct, kw_only=True):
    """One change, with the pod as it was right after it.

    ``subject`` is the ID of a container or of a sandbox; ``at`` in nanoseconds since the epoch. ``sandbox`` is None
    only if its record is gone; ``containers`` are those that clients are shown.
    """

    kind: EventKind
    subject: str
    at: int
    sandbox: Sandbox | None
    containers: tuple[Container, ...]
    size: int
    """Bytes of its records as they were written last; one that several events hold counts in each."""


class _Queue:
    """Events in their order; the oldest go when they are too many or too large."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._events: deque[Event] = deque()
        self._bytes = 0

    def append(self, event: Event) -> int:
        """Add an event and return how many were lost for it."""
        self._events.append(event)
        self._bytes += event.size
        lost = 0
        # The newest stays, however large it is: a pod with large records would otherwise have no events at all.
        while len(self._events) > 1 and (len(self._events) > self._length or self._bytes > QUEUE_BYTES):
            self.popleft()
            lost += 1
        return lost

    def popleft(self) -> Event:
        event = self._events.popleft()
        self._bytes -= event.size
        return event

    def forget(self, oldest: int) -> None:
        """Remove what is older than that time."""
        while self._events and self._events[0].at < oldest:
            self.popleft()

    def __len__(self) -> int:
        return len(self._events)


_CONTAINER_STEPS = {
    ContainerState.CREATING: 0,
    ContainerState.CREATED: 1,
    ContainerState.RUNNING: 2,
    ContainerState.EXITED: 3,
    ContainerState.REMOVING: 3,
}
_SANDBOX_STEPS = {
    SandboxState.CREATING: 0,
    SandboxState.READY: 2,
    SandboxState.NOTREADY: 3,
    SandboxState.REMOVING: 3,
}


def kinds_between(before: int, after: int | None) -> tuple[EventKind, ...]:
    """Return the events of a change from one step to another; None: the record is deleted. Pure.

    Steps: 0 not shown yet, 1 created, 2 running (ready), 3 ended. What was never shown has no events.
    """
    if after is None:
        return () if before == 0 else (EventKind.DELETED,)
    result = []
    if before < 1 <= after:
        result.append(EventKind.CREATED)
    # What ended without having run has no start: a start that failed is told as one event.
    if before < 2 <= after and after != 3:
        result.append(EventKind.STARTED)
    if before < 3 <= after:
        result.append(EventKind.STOPPED)
    return tuple(result)


class EventHub:
    """Passes events to readers. ``dropped`` counts those that slow readers lost; ``on_drop`` is called for each."""

    def __init__(self, *, queue_length: int = QUEUE_LENGTH, retention_s: float = RETENTION_S) -> None:
        self._queue_length = queue_length
        self._retention_ns = int(retention_s * 1e9)
        self._readers: set[EventReader] = set()
        self._unheard = _Queue(queue_length)
        self._closed = False
        self.dropped = 0
        self.on_drop: Callable[[], None] = lambda: None

    def attach(self, state: State) -> None:
        """Publish every change of the records of ``state`` from now on."""
        state.observers.append(partial(self._changed, state))

    def _changed(self, state: State, before: Sandbox | Container | None, after: Sandbox | Container | None) -> None:
        # What was deleted is in the state no more: listeners get its last form.
        record = after if after is not None else before
        assert record is not None
        sandbox_id = record.id if isinstance(record, Sandbox) else record.sandbox_id
        kinds = kinds_between(_step(before) or 0, _step(after))
        if not kinds:
            return
        sandbox = record if isinstance(record, Sandbox) else state.find_sandbox(sandbox_id)
        containers = tuple(item for item in state.containers(sandbox_id) if item.status.state.shown)
        size = sum(map(state.size, containers)) + (0 if sandbox is None else state.size(sandbox))
        for kind in kinds:
            at = time.time_ns()
            self.publish(Event(kind=kind, subject=record.id, at=at, sandbox=sandbox, containers=containers, size=size))

    def publish(self, event: Event) -> None:
        """Hand an event to every reader; never waits."""
        if not self._readers:
            self._unheard.append(event)
            self._forget_old()
            return
        for reader in self._readers:
            for _ in range(reader.put(event)):
                self.dropped += 1
                self.on_drop()

    def subscribe(self) -> EventReader:
        """Return a new reader, to be used as a context manager on the event loop."""
        reader = EventReader(self._readers.discard, self._queue_length)
        self._forget_old()
        while self._unheard:
            reader.put(self._unheard.popleft())
        if self._closed:  # its request was under way when the daemon began to stop, which would wait for it
            reader.end()
        self._readers.add(reader)
        return reader

    def _forget_old(self) -> None:
        """Most clients never listen; what is kept for them are whole records of pods that are long gone."""
        self._unheard.forget(time.time_ns() - self._retention_ns)

    @property
    def readers(self) -> int:
        return len(self._readers)

    def close(self) -> None:
        """Let every reader, also one that comes later, take what is in its queue and end; the daemon stops."""
        self._closed = True
        for reader in self._readers:
            reader.end()


class EventReader:
    """One listener: an asynchronous iterator over the events published while it exists."""

    def __init__(self, leave: Callable[[EventReader], None], queue_length: int) -> None:
        self._leave = leave
        self._queue = _Queue(queue_length)
        self._news = asyncio.Event()
        self._ended = False
        self._behind = False
        self.dropped = 0

    def put(self, event: Event) -> int:
        """Queue an event and return how many of the oldest were lost for it."""
        lost = self._queue.append(event)
        self._news.set()
        self.dropped += lost
        # One line of the log for each time that it falls behind, not one for each event.
        if lost and not self._behind:
            self._behind = True
            log.warning("a reader of container events is more than %d behind and loses its oldest", len(self._queue))
        return lost

    def end(self) -> None:
        """Let the iteration end when the queue is empty."""
        self._ended = True
        self._news.set()

    def __enter__(self) -> EventReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(self)

    def __aiter__(self) -> EventReader:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._behind:
                self._behind = False
                log.info("the reader of container events has caught up; it lost %d since it came", self.dropped)
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._queue.popleft()


def _step(record: Sandbox | Container | None) -> int | None:
    if record is None:
        return None
    if isinstance(record, Sandbox):
        return _SANDBOX_STEPS[record.status.state]
    return _CONTAINER_STEPS[record.status.state]
