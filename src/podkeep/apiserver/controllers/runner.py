"""Runs controllers on the objects of a store: told of changes in process, writing as any client does.

Each controller has a queue and works on a few items at a time, on each of them once. If a watch is ended, all
controllers are made anew, since what they remember may be incomplete; so they are when the clock is set, since they
remember when they saw something: a node that was heard of a moment ago must not be one that was silent for an hour.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice

from podkeep.apiserver.controllers.controller import Bind, Change, Controller, Create, Item, Patch, Write
from podkeep.apiserver.controllers.work_queue import WorkQueue
from podkeep.apiserver.kinds.pods.binding import bind
from podkeep.apiserver.kinds.resources import Resource, Target
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.registry.registry import DeleteOptions, PatchType, Registry, Request
from podkeep.apiserver.storage.records import Event, EventType
from podkeep.apiserver.storage.store import Slow, Store, Watcher
from podkeep.base.concurrency.clock import TimeOfDay
from podkeep.base.concurrency.tasks import Tasks

log = logging.getLogger(__name__)

MAX_WRITES = 50
"""Of one item in one turn; the item is looked at again for the others."""
OBJECTS_AT_ONCE = 25
"""That controllers are told of before others get their turn: some 2 ms for pods."""
MAX_TURNS = 16
"""Of a controller at a time: while one waits for the disk, others join its commit."""
RESTART_DELAY = 1.0
"""Seconds until controllers begin anew."""
_STEP_S = 1.0
"""By so much the clock may be set without that being noticed."""


def _utc() -> datetime:
    return datetime.now(UTC)


class Runner:
    """Controllers at work. An asynchronous context manager: they run inside of it.

    :param resources: all that are served.
    :param make: makes the controllers, each time they begin.
    :param now: tells the time.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        lister: Lister,
        resources: Iterable[Resource],
        make: Callable[[], Sequence[Controller]],
        now: Callable[[], datetime] = _utc,
    ) -> None:
        self._store = store
        self._registry = registry
        self._lister = lister
        self._resources = {resource.storage_name: resource for resource in resources if resource.view is None}
        self._make = make
        self._now = now
        self._time = TimeOfDay(_STEP_S, lambda: now().timestamp())
        self._clock_set = asyncio.Event()
        self._tasks = Tasks("controllers")

    async def __aenter__(self) -> Runner:
        self._tasks.start(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            # Its end cancels all feeds and turns of this round: none of them writes beside those of the next one.
            async with Tasks("controllers") as tasks:
                await asyncio.wait({tasks.start(self._round(tasks))})
            await asyncio.sleep(RESTART_DELAY)

    async def _round(self, tasks: Tasks) -> None:
        """Make controllers, and let them work until one of their watches ends, or the clock is set."""
        self._time.note()
        self._clock_set.clear()
        queues = {controller: WorkQueue() for controller in self._make()}
        watching = [tasks.start(self._until_clock_is_set())]
        for resource in self._resources:
            told = {
                controller: queue
                for controller, queue in queues.items()
                if controller.resources is None or resource in controller.resources
            }
            if told:
                watching.append(tasks.start(self._feed(await self._begin(resource, told), told)))
        for controller, queue in queues.items():
            tasks.keep(partial(self._work, controller, queue))
        await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)

    async def _until_clock_is_set(self) -> None:
        await self._clock_set.wait()

    async def _begin(self, resource: str, told: Mapping[Controller, WorkQueue]) -> Watcher:
        """Tell controllers what is there of a resource, and return the watch of what follows."""
        # The watch begins before the first object is told: what is written meanwhile waits in its queue.
        page = self._store.snapshot(resource)
        watcher = self._store.watch(resource, page.revision)
        for index, stored in enumerate(page.items):
            self._tell(Event(EventType.ADDED, stored, None), told)
            if index % OBJECTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return watcher

    def _tell(self, event: Event, told: Mapping[Controller, WorkQueue]) -> None:
        change = Change(event, self._now())
        for controller, queue in told.items():
            try:
                for item in controller.observe(change):
                    queue.add(item)
            except Exception:
                # An object of one user, at which one controller fails, must not end the work of all of them.
                log.exception("controller %s cannot read %s", controller.name, change.key)

    async def _feed(self, watcher: Watcher, told: Mapping[Controller, WorkQueue]) -> None:
        try:
            async for event in watcher:
                self._tell(event, told)
        except Slow:
            log.warning("controllers are restarted: they were too slow to follow %s", watcher.resource)
        finally:
            watcher.end()

    # Working

    async def _work(self, controller: Controller, queue: WorkQueue) -> None:
        # Each turn is a task: what fails in it is logged there, and tried again.
        async with Tasks(f"controller {controller.name}") as tasks:
            turns: set[asyncio.Task[None]] = set()
            while True:
                item = await queue.next()
                turn = tasks.start(self._turn(controller, queue, item))
                turn.add_done_callback(partial(_end_turn, queue, item))
                turns.add(turn)
                if len(turns) >= MAX_TURNS:
                    await asyncio.wait(turns, return_when=asyncio.FIRST_COMPLETED)
                turns = {turn for turn in turns if not turn.done()}

    async def _turn(self, controller: Controller, queue: WorkQueue, item: Item) -> None:
        if self._time.was_set():
            if not self._clock_set.is_set():
                log.warning("controllers are restarted: the clock was set")
                self._clock_set.set()
            return
        plan = controller.reconcile(item, self._lister, self._now())
        writes = list(islice(plan.writes, MAX_WRITES + 1))
        more = len(writes) > MAX_WRITES
        done = await self._all(controller, writes[:MAX_WRITES])
        if done and not more:
            done = await self._all(controller, plan.then)
        if not done:
            queue.failed(item)
            return
        queue.succeeded(item)
        if more:
            queue.add(item)
        elif plan.after is not None:
            queue.add(item, plan.after)

    async def _all(self, controller: Controller, writes: Iterable[Write]) -> bool:
        """Carry writes out, all at once, so that they share what a commit costs; return whether none has failed."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(controller, write)) for write in writes]
        return all(task.result() for task in tasks)

    async def _one(self, controller: Controller, write: Write) -> bool:
        request = Request(field_manager=controller.name, user=controller.user)
        try:
            await self._carry_out(write, request)
        except StatusError as error:
            if error.code == 404 or _is_terminating(error):
                return True  # what was to be changed is gone, or everything around it is about to be
            # A conflict needs no word: the object has changed, and the item is tried again with what it is now.
            if error.code != 409:
                log.warning("%s: %s", controller.name, error.message)
            return False
        return True

    async def _carry_out(self, write: Write, request: Request) -> None:
        if isinstance(write, Bind):
            binding = {
                "metadata": {"name": write.name, "uid": write.uid},
                "target": {"kind": "Node", "name": write.node},
            }
            target = Target(self._resources["pods"], write.namespace, write.name, "binding")
            await self._registry.change(target, binding, bind, request)
            return
        resource = self._resources[write.resource]
        if isinstance(write, Create):
            await self._registry.create(Target(resource, write.namespace), write.value, request)
        elif isinstance(write, Patch):
            target = Target(resource, write.namespace, write.name, write.subresource)
            await self._registry.patch(target, write.patch, PatchType.MERGE, request)
        else:
            target = Target(resource, write.namespace, write.name)
            options = DeleteOptions(
                grace_period=write.grace_period,
                uid=write.uid,
                resource_version=write.revision,
                propagation=write.propagation,
            )
            await self._registry.delete(target, options, request)


def _end_turn(queue: WorkQueue, item: Item, turn: asyncio.Task[None]) -> None:
    if turn.cancelled() or turn.exception() is not None:
        queue.failed(item)
    # After failed(): until then an item that is to be tried again counts as taken, and two turns never have it.
    queue.finish(item)


def _is_terminating(error: StatusError) -> bool:
    causes = error.details.get("causes", ())
    return error.code == 403 and any(cause.get("reason") == "NamespaceTerminating" for cause in causes)
