"""Changing what exists: UpdateContainerResources, UpdatePodSandboxResources and UpdatePodSandboxConfig.

Owns: the transaction over limits and classes. What the files hold, and the classes that are asked for, are noted in the
record before the first is changed, so that a refusal, or a daemon that is killed half-way, leaves a container or a
sandbox with the limits and classes it had. Does not own: which values are right and in which order they are written
(``resource_plan.py``), what a class means (``class_resources/``).

The files are written here and not by the OCI runtime's ``update``: it takes back nothing when the kernel refuses a
later value, does not say which one, and costs a process. What it would do besides, changing its copy of the
configuration, has no reader.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from podkeep.base import failpoints
from podkeep.base.concurrency.singleflight import SingleFlight
from podkeep.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    KernelCallError,
    PodkeepError,
    ResourceExhausted,
    Unavailable,
)
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID, SandboxID
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.tables import GONE
from podkeep.runtime.class_resources.model import Level, Target
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.class_resources.targets import container_target, sandbox_target
from podkeep.runtime.lifecycle import resource_plan
from podkeep.runtime.lifecycle.resource_plan import Write
from podkeep.runtime.lifecycle.sandboxes import require_ready
from podkeep.runtime.model.layout import sandbox_cgroup
from podkeep.runtime.model.records import Resources, Sandbox, SandboxState
from podkeep.runtime.model.state import State
from podkeep.runtime.oci.resources import UNLIMITED

log = logging.getLogger(__name__)

_VALUE_ERRORS = frozenset({errno.EINVAL, errno.ERANGE, errno.EACCES, errno.ENOSPC, errno.EOVERFLOW})
"""What the kernel says to a value that contradicts the parent's or is none."""

_IDLE: Mapping[str, Any] = {"update_undo": (), "class_change": {}}
"""What a status says while no update is under way."""

_encode = msgspec.json.Encoder(order="deterministic").encode


class _Subject(FrozenStruct, kw_only=True):
    """A container or a pod sandbox that is updated."""

    target: Target
    held: Mapping[str, str]
    """The classes in force before."""
    lives: Callable[[], bool]
    """Whether it has not ended, and is there."""
    note: Callable[..., None]
    """Changes fields of its record's status, if it is there."""
    ended: str
    """The message if it ends meanwhile."""


class Updates:
    """Updates of one runtime. Those of one container or sandbox come one after the other."""

    def __init__(self, state: State, cgroups: Cgroups, classes: ClassResources) -> None:
        self._state = state
        self._cgroups = cgroups
        self._classes = classes
        self._running: SingleFlight[None] = SingleFlight()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """A lock is here as long as somebody has it or waits for it."""

    async def update_container(self, text: str, asked: Resources, classes: Mapping[str, str]) -> None:
        """Change limits and classes of a container that did not end, all of them or none.

        :param classes: types to classes; the others stay as they are.
        :raises NotFound: if there is no such container.
        :raises FailedPrecondition: if it ended, or uses more memory than the new limit, or a class is not available.
        :raises InvalidArgument: if a value is invalid, or the cgroups above do not allow it; if a class does not
            exist, or a type is immutable.
        """
        container_id = self._state.container(text).id
        key = ("container", container_id, _encode((asked, classes)))
        operation = self._update_container
        await self._running.do(key, lambda: self._locked(container_id, operation(container_id, asked, classes)))

    async def update_sandbox_classes(self, text: str, classes: Mapping[str, str]) -> None:
        """Change classes of a pod as a whole, all of them or none.

        :param classes: types to classes; the others stay as they are.
        :raises NotFound: if there is no such sandbox.
        :raises FailedPrecondition: if it is not ready, or a class is not available.
        :raises InvalidArgument: if there is no such class, or a type is immutable.
        """
        sandbox_id = self._state.sandbox(text).id
        key = ("classes", sandbox_id, _encode(classes))
        operation = self._update_sandbox_classes
        await self._running.do(key, lambda: self._locked(sandbox_id, operation(sandbox_id, classes)))

    async def update_sandbox(self, text: str, resources: Resources, overhead: Resources) -> None:
        """Limit the cgroup of a sandbox to what its containers and its overhead may use together.

        :raises NotFound: if there is no such sandbox.
        :raises FailedPrecondition: if it is not ready, or uses more memory than it may from now on.
        :raises InvalidArgument: if a value is invalid, or the cgroups above do not allow it.
        """
        sandbox_id = self._state.sandbox(text).id
        key = ("sandbox", sandbox_id, _encode((resources, overhead)))
        operation = self._update_sandbox
        await self._running.do(key, lambda: self._locked(sandbox_id, operation(sandbox_id, resources, overhead)))

    async def _locked(self, identity: str, operation: Coroutine[Any, Any, None]) -> None:
        # This name keeps it alive until the end: the dictionary refers to it weakly.
        lock = self._locks.setdefault(identity, asyncio.Lock())
        async with lock:
            await operation

    async def _update_container(self, container_id: ContainerID, asked: Resources, classes: Mapping[str, str]) -> None:
        container = self._state.container(container_id)
        if not container.status.state.lives:
            raise FailedPrecondition(f"container {container_id} is {container.status.state.value}")
        merged = resource_plan.merge(container.status.resources or container.config.resources, asked)
        sandbox = self._state.sandbox(container.sandbox_id)
        target = await asyncio.to_thread(container_target, self._cgroups, sandbox, container)
        held = container.status.class_resources
        wanted = self._resolve(Level.CONTAINER, held, classes)
        writes = await asyncio.to_thread(prepare, self._cgroups, target.cgroup, asked, merged)
        subject = _Subject(
            target=target,
            held=held,
            lives=partial(self._changeable, container_id),
            note=partial(self._note, container_id),
            ended=f"container {container_id} ended",
        )
        await self._change(subject, writes, wanted, done={"resources": merged})

    async def _change(
        self,
        subject: _Subject,
        writes: Sequence[Write],
        wanted: Mapping[str, str],
        *,
        done: Mapping[str, Any],
    ) -> None:
        """Change limits and classes, all of them or none, and the record last.

        :param wanted: resolved classes.
        :param done: what the record says afterwards, besides the classes.
        """
        in_force = {**subject.held, **wanted}
        take_back: Callable[[], None] = _nothing
        if writes or wanted:
            undo = tuple((write.file, write.before) for write in reversed(writes))
            subject.note(update_undo=undo, class_change=wanted)
            failpoints.reach("update.noted")
            try:
                take_back = await asyncio.to_thread(self._carry_out, subject.target, writes, subject.held, wanted)
            except Exception:
                # Not if the daemon stops, while the thread goes on writing: the next one takes the update back.
                subject.note(**_IDLE)
                await self._release_ended(subject, in_force)
                raise
        failpoints.reach("update.written")
        if in_force and not subject.lives():
            await self._release_ended(subject, in_force)
            subject.note(**_IDLE)
            raise FailedPrecondition(subject.ended)
        changes = {"class_resources": in_force} if wanted else {}
        try:
            subject.note(**_IDLE, **done, **changes)
        except (ResourceExhausted, Unavailable):
            # What cannot be stored is not in force either.
            await asyncio.to_thread(take_back)
            await self._release_ended(subject, in_force)
            raise

    async def _release_ended(self, subject: _Subject, classes: Mapping[str, str]) -> None:
        """Release what ended during an update: whoever noted its end released it from what it had by then."""
        if not classes or subject.lives():
            return
        try:
            await asyncio.to_thread(self._classes.release, subject.target, classes)
        except PodkeepError as error:
            log.warning("%s, which ended, keeps a class: %s", subject.target.name, error)

    def _changeable(self, container_id: ContainerID) -> bool:
        latest = self._state.find_container(container_id)
        return latest is not None and latest.status.state.lives

    def _resolve(self, level: Level, held: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
        wanted = self._classes.catalog.resolve(level, asked)
        self._classes.catalog.check_change(level, held, wanted)
        return wanted

    def _carry_out(
        self, target: Target, writes: Sequence[Write], held: Mapping[str, str], wanted: Mapping[str, str]
    ) -> Callable[[], None]:
        """Change limits and classes, or nothing, and return what takes it back; both block."""
        # Limits before classes, which have the last word on a file that both name.
        carry_out(self._cgroups, target.cgroup, writes)
        try:
            failpoints.reach("update.limited")
            classes_back = self._classes.change(target, held, wanted)
        except BaseException:
            _take_back_writes(self._cgroups, target.cgroup, writes)
            raise

        def take_back() -> None:
            # Classes before limits: one may have noted a limit of this update as what its file held, and put that back.
            classes_back()
            if held:
                try:
                    self._classes.restore(target, held, {})
                except PodkeepError as error:
                    log.warning("%s keeps a class of a failed update: %s", target.name, error)
            _take_back_writes(self._cgroups, target.cgroup, writes)

        if held or wanted:
            try:
                # What was changed is in force, and a class has the last word on a file that limits name as well.
                self._classes.restore(target, {**held, **wanted}, {})
            except BaseException:
                take_back()
                raise
        return take_back

    def _note(self, container_id: ContainerID, **changes: Any) -> None:
        latest = self._state.find_container(container_id)
        if latest is not None:
            self._state.set_container(container_id, msgspec.structs.replace(latest.status, **changes))

    async def _update_sandbox(self, sandbox_id: SandboxID, resources: Resources, overhead: Resources) -> None:
        sandbox = self._state.sandbox(sandbox_id)
        require_ready(sandbox)
        held = resource_plan.total(sandbox.status.resources or Resources(), sandbox.status.overhead or Resources())
        asked = resource_plan.total(resources, overhead)
        merged = resource_plan.merge(held, asked)
        cgroup = sandbox_cgroup(sandbox.config.cgroup_parent, sandbox_id)
        writes = await asyncio.to_thread(self._prepare_sandbox, cgroup, asked, merged)
        await self._change(self._pod(sandbox), writes, {}, done={"resources": resources, "overhead": overhead})

    def _prepare_sandbox(self, cgroup: str, asked: Resources, merged: Resources) -> tuple[Write, ...]:
        above = quota_above(self._cgroups, cgroup) if self._cgroups.version == 1 else None
        if above is not None:
            asked = resource_plan.within(asked, above, merged.cpu_period)
        return prepare(self._cgroups, cgroup, asked, merged)

    async def _update_sandbox_classes(self, sandbox_id: SandboxID, classes: Mapping[str, str]) -> None:
        sandbox = self._state.sandbox(sandbox_id)
        require_ready(sandbox)
        subject = self._pod(sandbox)
        wanted = self._resolve(Level.POD, subject.held, classes)
        if wanted:
            await self._change(subject, (), wanted, done={})

    def _pod(self, sandbox: Sandbox) -> _Subject:
        return _Subject(
            target=sandbox_target(sandbox),
            held=sandbox.status.class_resources,
            lives=partial(self._ready, sandbox.id),
            note=partial(self._note_sandbox, sandbox.id),
            ended=f"pod sandbox {sandbox.id} was stopped",
        )

    def _ready(self, sandbox_id: SandboxID) -> bool:
        latest = self._state.find_sandbox(sandbox_id)
        return latest is not None and latest.status.state is SandboxState.READY

    def _note_sandbox(self, sandbox_id: SandboxID, **changes: Any) -> None:
        latest = self._state.find_sandbox(sandbox_id)
        if latest is not None:
            self._state.set_sandbox(sandbox_id, msgspec.structs.replace(latest.status, **changes))


def _nothing() -> None:
    """Take nothing back: there was no change."""


def prepare(cgroups: Cgroups, cgroup: str, asked: Resources, merged: Resources) -> tuple[Write, ...]:
    """Look at a cgroup and return what is to be written; blocks, changes nothing.

    :raises FailedPrecondition: if the cgroup is gone, lacks a controller, or uses too much memory.
    :raises InvalidArgument: if CPUs or memory nodes are asked for that the cgroup above does not have.
    """
    if not cgroups.exists(cgroup):
        raise FailedPrecondition(f"cgroup {cgroup} is gone", hint="somebody else removed it")
    above = cgroup.rpartition("/")[0] or "/"
    for file, text in (("cpuset.cpus", asked.cpuset_cpus), ("cpuset.mems", asked.cpuset_mems)):
        name = f"{file}.effective" if cgroups.version == 2 else file.replace(".", ".effective_")
        # Version 2 takes CPUs and nodes that the parent does not have, and leaves them out without an error
        # (cgroup-v2.rst, cpuset.cpus).
        available = cgroups.read(above, name) if text else None
        if available is not None:
            resource_plan.check_subset(file.replace(".", "_"), text, available)
    # Version 1 refuses a limit below what is in use (EBUSY); version 2 takes it and kills.
    if cgroups.version == 2 and asked.memory_limit > 0:
        in_use = cgroups.read(cgroup, "memory.current")
        if in_use is not None:
            resource_plan.check_usage(asked.memory_limit, int(in_use), page_cache(cgroups.read(cgroup, "memory.stat")))
    held = {}
    for name in resource_plan.files(cgroups.version, asked):
        content = cgroups.read(cgroup, name)
        if content is not None:
            held[name] = content
    return resource_plan.plan(cgroups.version, held, asked, merged)


def quota_above(cgroups: Cgroups, cgroup: str) -> tuple[int, int] | None:
    """Return CPU quota and period in µs of the nearest cgroup of version 1 above that has a quota; None: none has."""
    above = cgroup
    while above := above.rpartition("/")[0]:
        quota = int(cgroups.read(above, "cpu.cfs_quota_us") or UNLIMITED)
        if quota > 0:
            return quota, int(cgroups.read(above, "cpu.cfs_period_us") or resource_plan.DEFAULT_PERIOD_US)
    return None


def page_cache(stat: str | None) -> int:
    """Return the bytes of page cache in memory.stat of version 2, which the kernel can take back."""
    lines = (line.partition(" ") for line in (stat or "").splitlines())
    return sum(int(value) for name, _, value in lines if name in {"active_file", "inactive_file"})


def carry_out(cgroups: Cgroups, cgroup: str, writes: Sequence[Write]) -> None:
    """Write in order; if the kernel refuses one, write back those before it. Blocks.

    :raises FailedPrecondition: if more memory is in use than the new limit.
    :raises InvalidArgument: if the kernel takes a value for wrong.
    :raises KernelCallError: if it refuses for another reason.
    """
    for number, write in enumerate(writes):
        try:
            cgroups.write(cgroup, write.file, write.text)
        except KernelCallError as error:
            _take_back_writes(cgroups, cgroup, writes[:number])
            if error.errno == errno.EBUSY:
                hint = "more memory is in use" if write.file.startswith("memory.") else "what is below needs more"
                raise FailedPrecondition(f"{write.file} of {cgroup} cannot be {write.text}", hint=hint) from error
            if error.errno in GONE:
                raise FailedPrecondition(
                    f"cgroup {cgroup} is gone", hint="the container ended or is removed"
                ) from error
            if error.errno in _VALUE_ERRORS:
                raise InvalidArgument(
                    f"{write.file} of {cgroup} cannot be {write.text[:80]!r}: {error}",
                    hint="the cgroups above may not allow it",
                ) from error
            raise


def _take_back_writes(cgroups: Cgroups, cgroup: str, writes: Sequence[Write]) -> None:
    roll_back(cgroups, cgroup, [(write.file, write.before) for write in reversed(writes)])


def roll_back(cgroups: Cgroups, cgroup: str, undo: Sequence[tuple[str, str]]) -> None:
    """Write back what files held; goes on after a failure, which is logged. Blocks."""
    for file, text in undo:
        try:
            cgroups.write(cgroup, file, text)
        except KernelCallError as error:
            log.warning("cgroup %s keeps a limit of a failed update: %s", cgroup, error)
