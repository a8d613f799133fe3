"""The life of pod sandboxes: records, addresses, and the order of a request's steps.

Owns: what happens to a sandbox's record and when its kernel side is made or removed. Does not own: the kernel side
(``sandbox_executor.py``), messages (``rpc/``). Runs on the event loop; blocking steps go to threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from podkeep.base import failpoints
from podkeep.base.concurrency.singleflight import SingleFlight
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.concurrency.threads import working_for
from podkeep.base.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PodkeepError,
    refused,
)
from podkeep.base.ids import HandlerName, SandboxID, new_id
from podkeep.runtime.class_resources.model import Level
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.lifecycle.handlers import HandlerTable
from podkeep.runtime.lifecycle.monitor import ExitMonitor, Watched
from podkeep.runtime.lifecycle.sandbox_executor import SandboxExecutor, namespace_kinds
from podkeep.runtime.model.layout import cgroup_parents
from podkeep.runtime.model.records import (
    NamespaceMode,
    Sandbox,
    SandboxConfig,
    SandboxState,
    SandboxStatus,
)
from podkeep.runtime.model.state import State
from podkeep.runtime.network.networks import Networks
from podkeep.runtime.oci import sysctls
from podkeep.runtime.oci.confinement import Confinement
from podkeep.runtime.oci.driver import Driver

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder(order="deterministic").encode


class ContainersOfSandboxes(Protocol):
    """What a sandbox needs of the containers in it: that they end, and that they go."""

    def give_up(self, sandbox_id: SandboxID) -> None:
        """Have creations in a sandbox that is to be stopped end soon."""
        ...

    async def end_all(self, sandbox_id: SandboxID) -> None:
        """Kill what still runs in a sandbox and wait for it."""
        ...

    async def remove(self, text: str) -> None:
        """Remove a container, killing it first if it runs; a missing one is no error."""
        ...


class Sandboxes:
    """The pod sandboxes of one runtime. Repeating a request joins the running one or finds its result."""

    def __init__(
        self,
        state: State,
        executor: SandboxExecutor,
        handlers: HandlerTable,
        networks: Networks,
        classes: ClassResources,
        confinement: Confinement,
    ) -> None:
        self._state = state
        self._executor = executor
        self._handlers = handlers
        self._networks = networks
        self._classes = classes
        self._confinement = confinement
        self._running: SingleFlight[SandboxID] = SingleFlight()
        self._ending: SingleFlight[None] = SingleFlight()
        self._infra_ends: ExitMonitor[SandboxID] = ExitMonitor(self._infra_ended)
        self._containers: ContainersOfSandboxes | None = None
        self._stopping = Tasks("stopping a sandbox whose infra process ended")
        self._locks: WeakValueDictionary[SandboxID, asyncio.Lock] = WeakValueDictionary()
        """A lock is here as long as somebody has it or waits for it."""

    def watch_all(self, containers: ContainersOfSandboxes) -> None:
        """Watch the infra processes; called once on the event loop, before requests are served.

        Without its infra process a sandbox is nothing: its end stops the sandbox, with its ``containers``.
        """
        self._containers = containers
        for sandbox in self._state.sandboxes():
            if sandbox.status.state is SandboxState.READY:
                self._watch(sandbox)

    def close(self) -> None:
        """Stop watching; sandboxes stay."""
        self._infra_ends.close()

    def _watch(self, sandbox: Sandbox) -> None:
        infra = sandbox.status.infra
        if infra is not None and self._containers is not None:
            self._infra_ends.watch(sandbox.id, Watched(process=infra, monitor=infra))

    def _infra_ended(self, sandbox_id: SandboxID) -> None:
        sandbox = self._state.find_sandbox(sandbox_id)
        if sandbox is None or sandbox.status.state is not SandboxState.READY:
            return
        log.warning("the infra process of sandbox %s ended; the sandbox is stopped", sandbox_id)
        status = msgspec.structs.replace(sandbox.status, state=SandboxState.NOTREADY)
        # At once, before the stop has its turn: nothing is created in a sandbox that is not READY.
        self._state.set_sandbox(sandbox_id, status, ending=True)
        with working_for(sandbox_id):
            self._stopping.start(self._stop_broken(sandbox_id))

    async def _stop_broken(self, sandbox_id: SandboxID) -> None:
        assert self._containers is not None
        try:
            await self.stop(sandbox_id, self._containers)
        except (PodkeepError, OSError) as error:
            log.warning("sandbox %s could not be stopped: %s", sandbox_id, error)

    def lock(self, sandbox: SandboxID) -> asyncio.Lock:
        """Return the lock that is held while a container of the sandbox is created, and while the sandbox ends."""
        return self._locks.setdefault(sandbox, asyncio.Lock())

    def driver(self, sandbox: Sandbox) -> Driver:
        """Return the driver of the sandbox's runtime handler.

        :raises FailedPrecondition: if the handler is not configured any more; not NotFound, which a client that stops
            or removes the sandbox would take for "gone".
        """
        try:
            return self._handlers.driver(sandbox.config.handler)
        except NotFound as error:
            raise FailedPrecondition(f"pod sandbox {sandbox.id}: {error.message}", hint=error.hint) from error

    def is_virtual_machine(self, handler: HandlerName) -> bool:
        """Return whether sandboxes of that handler are virtual machines, which have no user namespace."""
        return self._handlers.is_virtual_machine(handler)

    def require_idmap(self, sandbox: Sandbox) -> None:
        """Check that the sandbox's runtime handler does not ignore the mappings of a mount.

        :raises FailedPrecondition: if it does.
        """
        self._handlers.require_user_namespaces(sandbox.config.handler)

    def require_recursive_read_only(self, sandbox: Sandbox) -> None:
        """Check that the sandbox's runtime handler keeps everything below a mount read-only.

        :raises FailedPrecondition: if it does not.
        """
        self._handlers.require_recursive_read_only(sandbox.config.handler)

    async def run(self, config: SandboxConfig) -> SandboxID:
        """Make a sandbox, or return the one that an equal request made before.

        :raises AlreadyExists: if a different sandbox has this name.
        :raises PodkeepError: if it cannot be made; nothing is left.
        """
        # The whole request is the key: one that differs must not get the answer of this one.
        return await self._running.do(_encode(config), lambda: self._run(config))

    async def _run(self, config: SandboxConfig) -> SandboxID:
        driver = self._handlers.driver(config.handler)
        if config.namespaces.userns is not None:
            self._handlers.require_user_namespaces(config.handler)
        existing = self._state.sandbox_by_key(config.key())
        if existing is not None:
            return _same(existing, config)
        classes = self._classes.catalog.resolve(Level.POD, config.class_resources)
        sandbox = self._reserve(config, classes)
        # Its ID is known outside by now, to CNI plugins for example: a stop waits until there is something to stop.
        async with self.lock(sandbox.id):
            await self._make(sandbox, driver)
        return sandbox.id

    async def _make(self, sandbox: Sandbox, driver: Driver) -> None:
        try:
            made = await asyncio.to_thread(self._executor.create, sandbox, driver)
            sandbox = msgspec.structs.replace(sandbox, status=made)
            ready = self._state.set_sandbox(sandbox.id, msgspec.structs.replace(made, state=SandboxState.READY))
        except Exception as error:
            # Whatever it was, the record must not outlive it.
            await self._drop(sandbox)
            if isinstance(error, OSError):
                raise refused(f"pod sandbox {sandbox.config.key()}", error) from error
            raise
        self._watch(ready)

    def _reserve(self, config: SandboxConfig, classes: dict[str, str]) -> Sandbox:
        sandbox_id = SandboxID(new_id())
        made_cgroups = self._cgroups_to_make(config)
        status = SandboxStatus(
            state=SandboxState.CREATING,
            created_at=time.time_ns(),
            made_cgroups=made_cgroups,
            selinux_level=self._selinux_level(config),
            class_resources=classes,
        )
        try:
            status = self._networks.plan(sandbox_id, config, status)
            sandbox = Sandbox(id=sandbox_id, config=config, status=status)
            self._state.add_sandbox(sandbox)
        except BaseException:
            # No record names it, so nobody else would give it back before the next start.
            self._state.free_address(sandbox_id)
            raise
        return sandbox

    def _selinux_level(self, config: SandboxConfig) -> str:
        """Return a level that no other pod has, unless the pod names one."""
        if config.selinux.level:
            return ""
        others = self._state.sandboxes()
        taken = {level for item in others for level in (item.status.selinux_level, item.config.selinux.level) if level}
        return self._confinement.new_level(taken)

    def _cgroups_to_make(self, config: SandboxConfig) -> tuple[str, ...]:
        """Return the parents of the sandbox's cgroup that the runtime makes, or made for a sandbox that still has them.

        So each of the sandboxes in one has it in its record, and the last to go removes it; what a client made is in
        none.
        """
        missing = set(self._executor.missing_cgroups(config))
        made = {cgroup for sandbox in self._state.sandboxes() for cgroup in sandbox.status.made_cgroups}
        return tuple(cgroup for cgroup in cgroup_parents(config.cgroup_parent) if cgroup in missing | made)

    async def _drop(self, sandbox: Sandbox) -> None:
        """Forget a sandbox whose making failed, or keep it for RemovePodSandbox if its undo failed as well."""
        try:
            if not await asyncio.to_thread(self._executor.is_gone, sandbox):
                await asyncio.to_thread(self._executor.remove, sandbox, self.driver(sandbox))
        except (PodkeepError, OSError) as error:
            log.warning("sandbox %s could not be undone: %s", sandbox.id, error)
            status = msgspec.structs.replace(sandbox.status, state=SandboxState.NOTREADY)
            self._state.set_sandbox(sandbox.id, status, ending=True)
        else:
            self._state.forget_sandbox(sandbox.id)

    async def stop(self, text: str, containers: ContainersOfSandboxes) -> None:
        """End a sandbox's containers and give back its network and namespaces; a missing one is no error."""
        sandbox = self._state.find_sandbox(text)
        if sandbox is not None:
            await self._ending.do(("stop", sandbox.id), lambda: self._stop(sandbox.id, containers))

    async def _stop(self, sandbox_id: SandboxID, containers: ContainersOfSandboxes) -> None:
        containers.give_up(sandbox_id)
        async with self.lock(sandbox_id):
            sandbox = self._state.find_sandbox(sandbox_id)
            if sandbox is None:
                return
            await containers.end_all(sandbox_id)
            # It is about to be killed: that end is no reason for another stop.
            self._infra_ends.forget(sandbox_id)
            # As it is now: an update may have come to its end meanwhile.
            sandbox = self._state.sandbox(sandbox_id)
            # First: whatever happens from here on, nothing can be made in it any more.
            status = msgspec.structs.replace(sandbox.status, state=SandboxState.NOTREADY)
            self._state.set_sandbox(sandbox_id, status, ending=True)
            await asyncio.to_thread(self._executor.stop, sandbox, self.driver(sandbox))
            # In this order: a daemon killed in between must not find host ports of an address that is another pod's.
            status = ended_sandbox(status)
            self._state.set_sandbox(sandbox_id, status, ending=True)
            failpoints.reach("sandbox.stopped")
            self._state.free_address(sandbox_id)

    async def remove(self, text: str, containers: ContainersOfSandboxes) -> None:
        """Remove a sandbox with its containers, stopping it first if need be; a missing one is no error."""
        sandbox = self._state.find_sandbox(text)
        if sandbox is not None:
            await self._ending.do(("remove", sandbox.id), lambda: self._remove(sandbox.id, containers))

    async def _remove(self, sandbox_id: SandboxID, containers: ContainersOfSandboxes) -> None:
        # Before the lock, which it takes itself (asyncio.Lock is not reentrant). In between nothing can be made in the
        # sandbox, which is NOTREADY.
        await self._stop(sandbox_id, containers)
        async with self.lock(sandbox_id):
            sandbox = self._state.find_sandbox(sandbox_id)
            if sandbox is None:
                return
            for container in self._state.containers(sandbox_id):
                await containers.remove(container.id)
            status = msgspec.structs.replace(sandbox.status, state=SandboxState.REMOVING)
            self._state.set_sandbox(sandbox_id, status, ending=True)
            try:
                await asyncio.to_thread(self._executor.remove, sandbox, self.driver(sandbox))
            except (PodkeepError, OSError):
                # It is shown again, so that a client which removes what it sees in a list comes back for it.
                self._state.set_sandbox(sandbox_id, sandbox.status, ending=True)
                raise
            self._state.forget_sandbox(sandbox_id)


def ended_sandbox(status: SandboxStatus) -> SandboxStatus:
    """Return the status of a sandbox of which everything was given back but its files."""
    return msgspec.structs.replace(
        status, infra=None, made_cgroups=(), network=None, update_undo=(), class_resources={}, class_change={}
    )


def require_ready(sandbox: Sandbox) -> None:
    """Check that containers can be made in a sandbox.

    :raises FailedPrecondition: if it was stopped, or is not made yet.
    """
    if sandbox.status.state is not SandboxState.READY:
        raise FailedPrecondition(
            f"pod sandbox {sandbox.id} is {sandbox.status.state.value}", hint="run a new sandbox for the pod"
        )


def _same(existing: Sandbox, config: SandboxConfig) -> SandboxID:
    if existing.status.state is not SandboxState.READY or existing.config != config:
        raise AlreadyExists(
            f"pod sandbox {config.key()} exists as {existing.id} and is {existing.status.state.value}",
            hint="remove it, or raise metadata.attempt",
        )
    return existing.id


def check_namespaces(config: SandboxConfig) -> None:
    """Check a sandbox's namespace options; pure.

    :raises InvalidArgument: if they contradict each other (CRI: NamespaceOption; KEP-127: a pod with a user namespace
        of its own shares no other namespace with the host).
    """
    options = config.namespaces
    for name in ("network", "ipc", "pid"):
        mode = getattr(options, name)
        if mode is NamespaceMode.TARGET or (mode is NamespaceMode.CONTAINER and name != "pid"):
            raise InvalidArgument(f"namespace_options.{name}: {mode.name} is not possible for a sandbox")
        if options.userns is not None and mode is NamespaceMode.NODE:
            raise InvalidArgument(
                f"namespace_options.{name}: NODE cannot be combined with a user namespace of the pod's own",
                hint="the host's namespace is not owned by the pod's root",
            )
    if options.userns is not None:
        options.userns.validate()
    sysctls.check(config.sysctls, {kind.name for kind in namespace_kinds(config)})
    if config.hostname and options.network is NamespaceMode.NODE:
        return
    if len(config.hostname.encode()) > 64:
        raise InvalidArgument(f"hostname {config.hostname[:64]!r}: more than 64 bytes", hint="the kernel takes 64")
