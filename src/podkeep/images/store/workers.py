"""The store's side of a worker process: start it, answer it, and see that nothing of it stays."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Generic, TypeVar

from podkeep.base import errors
from podkeep.base.concurrency.tasks import to_its_end
from podkeep.base.errors import Internal, PodkeepError
from podkeep.http.transport import abort
from podkeep.images import messages
from podkeep.images.layers.programs import ended
from podkeep.images.messages import Available, Done, Event, Failed, Request
from podkeep.kernel.process.forkserver import STATUS_BYTES, ForkServer, status_of

_MAX_LINE = 64 << 20
"""Bytes of one line: one image's documents in base64, with room."""
_MAX_STDERR = 4096
FORK_SERVER = "podkeep.images.worker.forkserver"
IDLE_S = 60.0
"""How long it stays without a worker: it takes some 20 MB, and a worker without it 0.1 s."""
MAX_WORKERS = 32
"""Workers at a time beyond the first of each registry: each takes some 25 MB, and may take its limit of memory."""
MAX_REGISTRIES = 32
"""Registries that have a worker of their own; beyond them, the first one that a tenant asks."""
WORKERS_A_REGISTRY = 8
"""Workers for one registry, its own among them."""
OWN_OF_TENANT = 8
"""Registries of one tenant that have a worker of their own: one that is slow may have any number of names."""
COMMON_OF_TENANT = 16
"""Workers of one tenant beyond these."""

Key = TypeVar("Key", bound=Hashable)
Handle = Callable[[Event], Awaitable[Available | None]]


class Workers:
    """How many workers run at a time; who comes later waits, in the order of asking.

    Each owner has one worker for itself and ``share`` in all; those beyond the first come out of what all have
    together, so that the pulls of one owner never delay the first one of another. A tenant has its own owners, of which
    it may have many, and a part of all that: so the pulls of one tenant do not keep those of others waiting. Nor do
    those of many tenants: each has one worker in any case.

    :param most: workers of all owners beyond their first ones.
    :param owners: how many owners have one for themselves.
    :param tenant_owners: how many owners of one tenant have that.
    :param tenant_most: workers of one tenant beyond these.
    """

    def __init__(
        self,
        most: int = MAX_WORKERS,
        share: int = WORKERS_A_REGISTRY,
        owners: int = MAX_REGISTRIES,
        tenant_owners: int = OWN_OF_TENANT,
        tenant_most: int = COMMON_OF_TENANT,
    ) -> None:
        self._free, self._free_of_tenant = owners, tenant_owners
        self._common = asyncio.Semaphore(most)
        self._owners: _Gates[tuple[str, str]] = _Gates(share)
        self._tenants: _Gates[str] = _Gates(tenant_most)
        self._served: set[tuple[str, str]] = set()

    @asynccontextmanager
    async def slot(self, owner: str, tenant: str = "") -> AsyncIterator[None]:
        """Wait until a worker may run for ``owner``, a registry's host or a verb's name, and let it run.

        :param tenant: who asks for it: the namespace of a pod, or nothing.
        """
        key = tenant, owner
        async with self._owners.passed(key):
            if key not in self._served and self._has_own(tenant):
                self._served.add(key)
                try:
                    yield
                finally:
                    self._served.discard(key)
            else:
                # The tenant's gate first: who waits there holds nothing of what all have in common.
                async with self._tenants.passed(tenant), self._common:
                    yield

    def _has_own(self, tenant: str) -> bool:
        of_tenant = sum(1 for other, _ in self._served if other == tenant)
        # Namespaces that have pods here are few, so that each may have one: if any number of them could use up what all
        # have, one more would wait for as long as their registries like.
        return not of_tenant or (len(self._served) < self._free and of_tenant < self._free_of_tenant)


class _Gates(Generic[Key]):
    """For each key, how many may pass at a time; nothing is kept of a key that nobody asks for."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._gates: dict[Key, asyncio.Semaphore] = {}
        self._asking: Counter[Key] = Counter()

    def __len__(self) -> int:
        return len(self._gates)

    @asynccontextmanager
    async def passed(self, key: Key) -> AsyncIterator[None]:
        gate = self._gates.setdefault(key, asyncio.Semaphore(self._width))
        self._asking[key] += 1
        try:
            async with gate:
                yield
        finally:
            self._asking[key] -= 1
            if not self._asking[key]:
                # Registries' names come from requests, and there is no end of them.
                del self._asking[key], self._gates[key]


class WorkerServer:
    """The fork server that workers are copies of: it is there while some run, and for a while longer.

    For one event loop at a time.

    :param server: one to use, which others use as well and end; None: one of its own.
    """

    def __init__(self, server: ForkServer | None = None) -> None:
        self._server, self._is_own = server or ForkServer(FORK_SERVER), server is None
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None

    @contextmanager
    def in_use(self) -> Iterator[ForkServer]:
        if self._idle is not None:
            self._idle.cancel()
        self._users += 1
        try:
            yield self._server
        finally:
            self._users -= 1
            if not self._users and self._is_own:
                loop = asyncio.get_running_loop()
                # On a thread: a busy machine may take a while to end a process.
                self._idle = loop.call_later(IDLE_S, lambda: loop.run_in_executor(None, self._server.let_go()))

    def end(self) -> None:
        """End the server; no worker may run. Blocks."""
        if self._is_own:
            self._server.let_go()()


async def run_worker(server: WorkerServer, request: Request, handle: Handle, *, lock: int) -> None:
    """Run one worker to its end.

    :param handle: awaited with each event but the last; an answer it returns is sent back.
    :param lock: descriptor the worker keeps open, so that the store's lock outlives a killed store while it works.
    :raises PodkeepError: what the worker reports, with its class; Internal if it ends without a word.
    """
    stderr: asyncio.Future[str] | None = None
    said = ""
    with server.in_use() as forks, ExitStack() as ending:
        with ExitStack() as theirs:
            # One for each way: what a worker said before it ended is read also if it did not read all that it was told.
            pairs = [socket.socketpair() for _ in range(3)]
            for ours, other in pairs:
                ending.callback(ours.close)
                theirs.callback(other.close)
            # A store that is killed leaves its lock with the workers: the next store must not write beside them.
            worker = forks.start("worker", [*(other.fileno() for _, other in pairs), lock])
        ending.callback(worker.close)
        worker.control.setblocking(False)
        try:
            (_, requests), (events, _), (errors, _) = [await _opened(ours, ending) for ours, _ in pairs]
            stderr = asyncio.ensure_future(_tail(errors))
            outcome = await _converse(requests, events, request, handle)
        finally:
            worker.kill()
            told = asyncio.get_running_loop().sock_recv(worker.control, STATUS_BYTES)
            status = status_of(await to_its_end(told))
            if stderr is not None:
                said = await stderr
    if outcome is None:
        # What is killed says nothing; what is there then is of the processes it had started.
        raise Internal(f"the image worker {ended(status)}" + (f": {said}" if said and status >= 0 else ""))
    if isinstance(outcome, Failed):
        raise _error(outcome)


async def _opened(connection: socket.socket, ending: ExitStack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_MAX_LINE)
    # The lambda keeps a reference to the writer: a StreamWriter that is collected closes its transport.
    ending.callback(lambda: abort(writer.transport))
    return reader, writer


async def _converse(
    requests: asyncio.StreamWriter, events: asyncio.StreamReader, request: Request, handle: Handle
) -> Done | Failed | None:
    with suppress(BrokenPipeError, ConnectionResetError):  # it died; what it said on standard error tells why
        await _send(requests, request)
        while line := await events.readline():
            event = messages.decode_event(line)
            if isinstance(event, (Done, Failed)):
                return event
            answer = await handle(event)
            if answer is not None:
                await _send(requests, answer)
    return None


async def _send(requests: asyncio.StreamWriter, message: Request | Available) -> None:
    requests.write(messages.encode(message))
    await requests.drain()


async def _tail(errors: asyncio.StreamReader) -> str:
    kept = b""
    while piece := await errors.read(_MAX_STDERR):
        kept = (kept + piece)[-_MAX_STDERR:]
    lines = kept.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _error(failed: Failed) -> PodkeepError:
    # The name comes from a process that reads what is hostile: only error classes whose constructor is known are made.
    kind = getattr(errors, failed.error, Internal)
    if not (isinstance(kind, type) and issubclass(kind, PodkeepError)) or kind in (
        errors.KernelCallError,
        errors.CommandFailed,
    ):
        kind = Internal
    return kind(failed.message, hint=failed.hint)
