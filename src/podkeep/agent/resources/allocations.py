"""The resources that each pod of the node was granted, and has: kept in its directory, changed one at a time.

Owns ``allocation.json`` of a pod: what it was granted, and what it has as long as that is something else. Without it
both are what the specification names of a new pod, and of one that an earlier process took on, what it named when that
process saw it last. Who may have what is decided over all pods at once, on the event loop, so that no two pods are
granted the same. Does not own the decision (``predicates``, ``resize``), or giving a running container what it was
granted (``resizer.py``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from podkeep.agent.events import Event
from podkeep.agent.poddirs import PodDirs
from podkeep.agent.resources import critical, qos, resize
from podkeep.agent.resources.predicates import Preempt, Rejection
from podkeep.agent.resources.resize import Allocation, Refused
from podkeep.api.containers import ResourceRequirements
from podkeep.api.pod import Pod
from podkeep.api.status import PodCondition
from podkeep.base.ids import PodUID

log = logging.getLogger(__name__)

FILE_NAME = "allocation.json"
_MAX_BYTES = 1 << 20

Immutable = Mapping[Literal["pod", "container"], frozenset[str]]
Judge = Callable[[Pod], Rejection | Preempt | None]
"""Says whether a pod may have what it asks for, beside all others."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    granted: Allocation
    actuated: Allocation | None = None
    """``None``: what was granted."""


@dataclass(kw_only=True, eq=False)
class PodAllocation:
    """What one pod was granted, and has."""

    granted: Allocation
    actuated: Allocation
    refused: Refused | None = None
    refused_generation: int = 0
    since: float = 0.0
    """When it was first refused, by a clock that never jumps; 0: it is not."""
    in_progress: int | None = None
    """Generation of the change that is being made."""
    resumed: bool = False
    """An earlier process granted it, and this one has changed nothing yet: that nothing is left to be done was told."""
    error: str = ""
    told: set[tuple[str, int]] = field(default_factory=set)
    over: frozenset[str] = frozenset()
    """Containers that have ended for good: there is nothing to be given to them (kubelet, IsPodResizeInProgress)."""

    @property
    def complete(self) -> bool:
        return resize.same(resize.without(self.granted, self.over), resize.without(self.actuated, self.over))

    def has(self, container: str) -> bool:
        """Return whether a container has what it was granted, or cannot be granted anything."""
        return self.granted.containers.get(container) == self.actuated.containers.get(container)

    def conditions(self, pod: Pod) -> tuple[PodCondition, ...]:
        """Return what the pod's status says about it."""
        found = []
        if self.refused is not None:
            found.append(resize.pending_condition(pod, self.refused))
        if self.in_progress is not None:
            found.append(resize.progress_condition(self.in_progress, self.error))
        return tuple(found)


class Allocations:
    """The allocations of all pods of this node. Used on the event loop; a file is a few hundred bytes.

    :ivar judge: says whether a pod that asks for more may have it; set by whoever has all pods.
    """

    def __init__(self, dirs: PodDirs, immutable: Callable[[], Immutable]) -> None:
        """Keep allocations in the directories of pods.

        :param immutable: returns the types of class resources whose class cannot change.
        """
        self._dirs = dirs
        self._immutable = immutable
        self._pods: dict[str, PodAllocation] = {}
        self.judge: Judge = _nobody_minds

    def take(self, pod: Pod, kept: Callable[[], Pod | None] | None = None) -> PodAllocation:
        """Return the allocation of a pod that is taken on: the one an earlier process noted, or what it asks for.

        :param kept: returns the pod as the earlier process saw it last, if there was one. What the pod asks for by now
            may be a resize that came while no agent ran, which is neither granted nor done.
        """
        uid = pod.metadata.uid
        found = self._pods.get(uid)
        if found is None:
            record = self._read(uid)
            before = kept() if record is None and kept is not None else None
            granted = resize.of(before or pod) if record is None else resize.filled(record.granted, pod)
            actuated = granted if record is None or record.actuated is None else resize.filled(record.actuated, pod)
            found = self._pods[uid] = PodAllocation(granted=granted, actuated=actuated)
            # An earlier process had granted it and was not done.
            if not found.complete:
                found.in_progress, found.resumed = pod.metadata.generation, True
        return found

    def note(self, uid: str) -> None:
        """Keep the allocation of a pod whose directory was made, for the next process.

        A pod that has nothing costs no file: it stays BestEffort, so that a resize can give it classes alone, and the
        object that is kept of it says that it had none. There is no such object before the pod has a sandbox, so one
        that was refused a resize has a file.
        """
        found = self._pods.get(uid)
        if found is not None and (found.refused is not None or _has_any(found.granted)):
            self._write(uid, found)

    def get(self, uid: str) -> PodAllocation | None:
        return self._pods.get(uid)

    def forget(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def allocated(self, pod: Pod) -> Pod:
        """Return a pod with the resources that it was granted; one that is not taken on, as it is."""
        found = self._pods.get(pod.metadata.uid)
        return pod if found is None else resize.allocated(pod, found.granted)

    def request(self, pod: Pod, now: float) -> list[Event] | Preempt:
        """Grant a pod what its specification asks for by now, if it can be; return the events of it.

        :param now: seconds of a clock that never jumps.
        :returns: the pods that are to be ended first, if the pod is critical: then it is granted nothing yet.
        """
        found = self.take(pod)
        wanted = resize.of(pod)
        generation = pod.metadata.generation
        if wanted == found.granted or resize.same(wanted, found.granted):
            found.refused, found.since = None, 0.0
            return []
        refused = self._refusal(pod, found)
        if isinstance(refused, Preempt):
            return refused
        if refused is not None:
            return self._defer(pod, found, refused, now)
        # No await between the judgement and this: no other pod can have been granted the same meanwhile.
        found.granted = wanted
        found.refused, found.since = None, 0.0
        found.in_progress, found.resumed, found.error = generation, False, ""
        self._write(pod.metadata.uid, found)
        return [Event(type="Normal", reason="ResizeStarted", message=resize.started_text(pod))]

    def _refusal(self, pod: Pod, found: PodAllocation) -> Refused | Preempt | None:
        before = resize.allocated(pod, found.granted)
        problem = resize.immutable_change(pod, before, self._immutable())
        if problem:
            return Refused(kind="Infeasible", message=problem)
        if qos.qos_class(pod) != qos.qos_class(before):
            # An API server refuses this; a manifest of the node may say it.
            return Refused(kind="Infeasible", message="Pod QOS Class may not change as a result of resizing")
        if critical.is_static(pod):
            return Refused(kind="Infeasible", message="static pods cannot be resized")
        answer = self.judge(pod)
        if isinstance(answer, Rejection):
            kind: Literal["Infeasible", "Deferred"] = "Infeasible" if answer.reason == resize.INFEASIBLE else "Deferred"
            return Refused(kind=kind, message=answer.message)
        return answer

    def _defer(self, pod: Pod, found: PodAllocation, refused: Refused, now: float) -> list[Event]:
        generation = pod.metadata.generation
        before = found.refused
        known = before is not None and (before.kind, found.refused_generation) == (refused.kind, generation)
        found.refused, found.refused_generation = refused, generation
        found.since = found.since or now
        if known:
            return []
        # Without it the next process may take what was refused as granted: see note().
        self._write(pod.metadata.uid, found)
        reason = f"Resize{refused.kind}"
        return [Event(type="Warning", reason=reason, message=resize.pending_text(pod, refused))]

    def waiting(self, pods: Iterable[Pod]) -> list[Pod]:
        """Return those of ``pods`` that wait for what they asked for, in the order in which they are to be asked again.

        First who needs no more than before, then by priority, QoS class and how long they have waited.
        """

        def key(pod: Pod) -> tuple[bool, int, bool, float]:
            found = self._pods[pod.metadata.uid]
            more = resize.grows(pod, resize.allocated(pod, found.granted))
            return more, -critical.priority(pod), qos.qos_class(pod) != "Guaranteed", found.since

        pending = [pod for pod in pods if self._is_deferred(pod.metadata.uid)]
        return sorted(pending, key=key)

    def _is_deferred(self, uid: str) -> bool:
        found = self._pods.get(uid)
        return found is not None and found.refused is not None and found.refused.kind == resize.DEFERRED

    def started(self, uid: str, container: str, resources: ResourceRequirements) -> None:
        """Note with what a container was started: pulling its image, or its postStart hook, may have taken long, and
        what it is granted may be something else by now."""
        found = self._pods.get(uid)
        if found is not None and container in found.granted.containers:
            self.actuated(uid, container, resources)

    def actuated(self, uid: str, container: str, resources: ResourceRequirements) -> None:
        """Note what a running container has been given."""
        found = self._pods.get(uid)
        if found is None or found.actuated.containers.get(container) == resources:
            return
        found.resumed = False
        containers = found.actuated.containers | {container: resources}
        found.actuated = msgspec.structs.replace(found.actuated, containers=containers)
        self._write(uid, found)

    def pod_actuated(self, uid: str, resources: ResourceRequirements | None) -> None:
        """Note what the cgroup of a pod has been given, which it was granted as a whole."""
        found = self._pods.get(uid)
        if found is not None and found.actuated.pod != resources:
            found.resumed = False
            found.actuated = msgspec.structs.replace(found.actuated, pod=resources)
            self._write(uid, found)

    def in_progress(self, uid: str) -> bool:
        """Return whether a pod is being given what it was granted."""
        found = self._pods.get(uid)
        return found is not None and found.in_progress is not None

    def over(self, uid: str, containers: frozenset[str]) -> None:
        """Note which containers of a pod have ended for good, as far as is known now."""
        if (found := self._pods.get(uid)) is not None:
            found.over = containers

    def finish(self, pod: Pod) -> Event | None:
        """Note that a pod has what it was granted, if it has; return the event of it."""
        found = self._pods.get(pod.metadata.uid)
        if found is None or found.in_progress is None or not found.complete:
            return None
        generation, found.in_progress, found.error = found.in_progress, None, ""
        if found.resumed:
            return None
        return Event(type="Normal", reason="ResizeCompleted", message=resize.completed_text(pod, generation))

    def fail(self, pod: Pod, error: str) -> Event | None:
        """Note that a change could not be made; return the event of it, once for each change and error."""
        found = self._pods.get(pod.metadata.uid)
        if found is None:
            return None
        generation = pod.metadata.generation if found.in_progress is None else found.in_progress
        found.in_progress = generation
        if found.error == error:
            return None
        found.error = error
        return Event(type="Warning", reason="ResizeError", message=resize.error_text(pod, generation, error))

    def _path(self, uid: str) -> Path:
        return self._dirs.directory(PodUID(uid)).path / FILE_NAME

    def _read(self, uid: str) -> _Record | None:
        path = self._path(uid)
        try:
            data = path.read_bytes()
            return msgspec.json.decode(data, type=_Record) if len(data) <= _MAX_BYTES else None
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read, so the pod has what it asked for when it was seen last: %s", path, error)
            return None

    def _write(self, uid: str, found: PodAllocation) -> None:
        actuated = None if found.actuated == found.granted else found.actuated
        path = self._path(uid)
        temporary = path.with_name(f".{FILE_NAME}")
        try:
            # Without fsync: a machine that loses power starts every container anew anyway.
            temporary.write_bytes(msgspec.json.encode(_Record(granted=found.granted, actuated=actuated)))
            os.replace(temporary, path)
        except FileNotFoundError:
            return  # the pod's directory is not made yet, or gone
        except OSError as error:
            log.warning("%s cannot be written: %s", path, error)


def _has_any(granted: Allocation) -> bool:
    """Return whether a pod was granted anything, as a whole or for a container."""
    given = (granted.pod or ResourceRequirements(), *granted.containers.values())
    return any(item.requests or item.limits or item.classes for item in given)


def _nobody_minds(_: Pod) -> None:
    """Grant everything: there are no other pods."""
