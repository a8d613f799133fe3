"""The store's side of a worker process: start it, answer it, and see that nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

from podkeep.base import errors
from podkeep.base.concurrency.tasks import finished
from podkeep.base.errors import Internal, PodkeepError
from podkeep.base.spawn import own_command
from podkeep.images import messages
from podkeep.images.layers.programs import ended
from podkeep.images.messages import Available, Done, Event, Failed, Request

_MAX_LINE = 64 << 20
"""Bytes of one line: one image's documents in base64, with room."""
_MAX_STDERR = 4096
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


async def run_worker(request: Request, handle: Handle, *, lock: int) -> None:
    """Run one worker to its end.

    :param handle: awaited with each event but the last; an answer it returns is sent back.
    :param lock: descriptor the worker keeps open, so that the store's lock outlives a killed store while it works.
    :raises PodkeepError: what the worker reports, with its class; Internal if it ends without a word.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *own_command("podkeep.images.worker.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_MAX_LINE,
            # A process group of its own: one signal ends the worker with all that it started.
            start_new_session=True,
            # A store that is killed leaves its lock with the workers: the next store must not write beside them.
            pass_fds=(lock,),
        )
    )
    try:
        # asyncio may wait for ever for a process whose start was cancelled half-way.
        await finished(starting)
    except asyncio.CancelledError:
        if not starting.cancelled() and starting.exception() is None:
            await _kill(starting.result())
        raise
    process = starting.result()
    stderr = asyncio.ensure_future(_tail(process))
    try:
        outcome = await _converse(process, request, handle)
    finally:
        await _kill(process)
        said = await stderr
    if outcome is None:
        status = process.returncode if process.returncode is not None else 0
        # What is killed says nothing; what is there then is of the processes it had started.
        raise Internal(f"the image worker {ended(status)}" + (f": {said}" if said and status >= 0 else ""))
    if isinstance(outcome, Failed):
        raise _error(outcome)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End a worker and what it started, and wait for its end."""
    if process.returncode is None:  # the pid is still its own, and its group is all it started
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(process.wait())


async def _converse(process: asyncio.subprocess.Process, request: Request, handle: Handle) -> Done | Failed | None:
    if process.stdin is None or process.stdout is None:
        raise Internal("the image worker was started without pipes")
    try:
        await _send(process.stdin, request)
        while line := await process.stdout.readline():
            event = messages.decode_event(line)
            if isinstance(event, (Done, Failed)):
                return event
            answer = await handle(event)
            if answer is not None:
                await _send(process.stdin, answer)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it died; what it said on standard error tells why
    return None


async def _send(pipe: asyncio.StreamWriter, message: Request | Available) -> None:
    pipe.write(messages.encode(message))
    await pipe.drain()


async def _tail(process: asyncio.subprocess.Process) -> str:
    kept = b""
    if process.stderr is not None:
        while piece := await process.stderr.read(_MAX_STDERR):
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
