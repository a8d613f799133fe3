"""How many pods each PodDisruptionBudget covers, how many of them are healthy, and how many may be evicted.

After kube-controller-manager's disruption controller (``pkg/controller/disruption``). What an eviction takes of a
budget is in ``endpoints/evictions.py``. A pod that was to be disrupted, and stayed, loses the condition that says so.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from podkeep.apiserver.controllers.controller import (
    NOTHING,
    PAUSE,
    PIECE,
    Change,
    Item,
    Patch,
    Plan,
    Write,
    merge_patch,
    revised,
    service_account,
    sized_parts,
    with_condition,
)
from podkeep.apiserver.controllers.recorder import Told, event, is_due
from podkeep.apiserver.kinds.cells import selector_text
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import has_condition
from podkeep.apiserver.meta.selectors import LabelSelector
from podkeep.apiserver.storage.records import Key
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339

PODS, BUDGETS = "pods", "policy/poddisruptionbudgets"
NAME = "disruption-controller"
DELETION_TIMEOUT = timedelta(minutes=2)
"""How long an eviction counts that no deletion of its pod has followed (``DeletionTimeout``)."""
INTERVAL = timedelta(seconds=0.2)
"""How often the pods of a budget are counted, and those of a namespace read, at most."""
MOST_REQUIREMENTS = 20_000
"""Of the selectors of a namespace's budgets together, and one more for each: every change of a pod is held against all
of them. Budgets beyond that are not counted, and allow nothing."""
_MATCH = 200
"""Work of comparing a pod's labels with a selector, and with each further requirement of it, in bytes that are read."""

_SCALED = {
    ("v1", "ReplicationController"): "replicationcontrollers",
    ("apps/v1", "ReplicaSet"): "apps/replicasets",
    ("apps/v1", "StatefulSet"): "apps/statefulsets",
}
_UNSCALED = {
    ("apps/v1", "DaemonSet"): "daemonsets.apps",
    ("batch/v1", "Job"): "jobs.batch",
    ("batch/v1", "CronJob"): "cronjobs.batch",
}
_DEPLOYED, _DEPLOYMENT = ("apps/v1", "ReplicaSet"), ("apps/v1", "Deployment")
_TARGET = "DisruptionTarget"
_BY_KUBELET = "TerminationByKubelet"
"""Reason of a pod that its node ends, which may take as long as its grace period."""
_BEYOND = (
    "the PodDisruptionBudgets of the namespace have more than"
    f" {MOST_REQUIREMENTS} labels and expressions in their selectors together"
)
_UNMANAGED = (
    "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, the "
    "status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these "
    'pods please set ".spec.minAvailable" field of the PDB to an integer value.'
)


class _Uncountable(Exception):
    """It cannot be known how many pods there should be."""


class Expected(FrozenStruct, kw_only=True):
    """How many pods there should be, and how many of them have to be healthy."""

    pods: int
    healthy: int
    unmanaged: tuple[str, ...] = ()
    """Names of pods that no controller makes: it is not known how many of them there should be."""


class _Owner(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    uid: str = ""
    name: str = ""
    kind: str = ""
    api_version: str = ""
    controller: bool = False


class _Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str = ""
    status: str = ""


class _Fields(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str
    namespace: str
    uid: str
    resource_version: str
    creation_timestamp: str
    labels: dict[str, str] = {}
    deletion_timestamp: str = ""
    owner_references: list[_Owner] = []


class _Status(msgspec.Struct, frozen=True, omit_defaults=True):
    conditions: list[_Condition] = []


class _Pod(msgspec.Struct, frozen=True):
    """What is counted of a pod."""

    metadata: _Fields
    status: _Status = _Status()

    def counted(self) -> Mapping[str, Any]:
        """Return what is kept of it: its labels, which may be a hundred thousand, are not."""
        metadata = msgspec.structs.replace(
            self.metadata, labels={}, owner_references=[one for one in self.metadata.owner_references if one.controller]
        )
        conditions = [one for one in self.status.conditions if one.type == "Ready"]
        found: Mapping[str, Any] = msgspec.to_builtins(_Pod(metadata, _Status(conditions)))
        return found


class _Read(NamedTuple):
    """The pods of a namespace by the selectors of its budgets, and until when they are not read again."""

    until: datetime
    told: int
    """How many changes of them had been told when they were read."""
    took_turns: bool
    pods: Mapping[LabelSelector, Sequence[Mapping[str, Any]]]


class _Reading:
    """The pods of a namespace as they are at one moment, read a piece at a time."""

    def __init__(
        self, lister: Lister, namespace: str, told: int, wanted: Iterable[LabelSelector], now: datetime
    ) -> None:
        self._rest = sized_parts(lister, PODS, namespace, _Pod)
        self._told, self._begun = told, now
        self._pods: dict[LabelSelector, list[Mapping[str, Any]]] = {selector: [] for selector in wanted}
        self._matching = _MATCH * sum(1 + len(selector.requirements) for selector in self._pods)
        self.due = now

    def read_on(self, now: datetime) -> _Read | None:
        """Read the next pods, and return all if these were the last."""
        left = PIECE
        for size, pod in self._rest:
            labels, counted = pod.metadata.labels, None
            for selector, found in self._pods.items():
                if selector.matches(labels):
                    counted = counted or pod.counted()
                    found.append(counted)
            left -= size + self._matching
            if left <= 0:
                self.due = now + PAUSE
                return None
        return _Read(now + max(INTERVAL, now - self._begun), self._told, now > self._begun, self._pods)


class _Waiting:
    """The budgets of a namespace for whose selectors there is no room, by how much they take of it."""

    def __init__(self) -> None:
        self._sizes: dict[Key, int] = {}
        self._by_size: dict[int, dict[Key, None]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, key: Key, size: int) -> None:
        self.discard(key)
        self._sizes[key] = size
        self._by_size.setdefault(size, {})[key] = None

    def discard(self, key: Key) -> None:
        if (size := self._sizes.pop(key, None)) is not None:
            del self._by_size[size][key]
            if not self._by_size[size]:
                del self._by_size[size]

    def fitting(self, room: int) -> Key | None:
        """Return the smallest, the first of them, if there is room for it: if not, there is for none."""
        size = min(self._by_size, default=room + 1)
        return next(iter(self._by_size[size])) if size <= room else None


class DisruptionBudgets:
    """The controller. It remembers which pods each budget selects, and when it was counted last."""

    name = NAME
    user = service_account(name)
    resources = frozenset({PODS, BUDGETS})

    def __init__(self) -> None:
        self._selectors: dict[str, dict[Key, LabelSelector]] = {}
        self._requirements: dict[str, int] = {}
        """Of the selectors of each namespace, together."""
        self._beyond: dict[str, _Waiting] = {}
        self._counted: dict[Key, datetime] = {}
        self._told: dict[str, int] = {}
        """Changes of pods, by the namespaces that have budgets."""
        self._read: dict[str, _Read] = {}
        self._reading: dict[str, _Reading] = {}

    def observe(self, change: Change) -> Iterator[Item]:
        """Return the budgets that cover a pod, and the pod if it is to be disrupted; or the budget itself."""
        key = change.key
        if key.resource == PODS:
            if covering := self._selectors.get(key.namespace):
                self._told[key.namespace] = self._told.get(key.namespace, 0) + 1
                labels = change.value["metadata"].get("labels", {})
                yield from [budget for budget, selector in covering.items() if selector.matches(labels)]
            if _disrupted_at(change.value) is not None:
                yield key
            return
        self._forget(key)
        if change.is_deletion:
            self._counted.pop(key, None)
        else:
            selector = selectors.of_object(change.value.get("spec", {}).get("selector"))
            if selector is not None:
                self._note(key, selector)
            yield key
        room = MOST_REQUIREMENTS - self._requirements.get(key.namespace, 0)
        if (waiting := self._beyond.get(key.namespace)) and (first := waiting.fitting(room)) is not None:
            # One at a time: there may be very many. That it is counted is a change of it, after which the next one is
            # looked at.
            yield first
        if not self._selectors.get(key.namespace):
            for known in (self._selectors, self._requirements, self._told, self._read, self._reading):
                known.pop(key.namespace, None)

    def _note(self, key: Key, selector: LabelSelector) -> bool:
        """Have pods held against the selector of a budget, if there is room for it; return whether there is."""
        size = 1 + len(selector.requirements)
        requirements = self._requirements.get(key.namespace, 0) + size
        if requirements > MOST_REQUIREMENTS:
            self._beyond.setdefault(key.namespace, _Waiting()).add(key, size)
            return False
        self._selectors.setdefault(key.namespace, {})[key] = selector
        self._requirements[key.namespace] = requirements
        return True

    def _forget(self, key: Key) -> None:
        if waiting := self._beyond.get(key.namespace):
            waiting.discard(key)
            if not waiting:
                del self._beyond[key.namespace]
        selector = self._selectors.get(key.namespace, {}).pop(key, None)
        if selector is not None:
            self._requirements[key.namespace] -= 1 + len(selector.requirements)

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        """Return the status that a budget, or a pod, should have, if it has another."""
        assert isinstance(item, Key)
        value = lister.get(*item)
        if value is None:
            return NOTHING
        if item.resource == PODS:
            return _undisturbed(value, now)
        # Many pods that change at once are counted together: each count reads all pods of the namespace.
        left = (self._counted.get(item, now - INTERVAL) + INTERVAL - now).total_seconds()
        if left > 0:
            return Plan(after=left)
        selector = selectors.of_object(value.get("spec", {}).get("selector"))
        if selector is not None and item in self._beyond.get(item.namespace, ()):
            self._forget(item)
            if not self._note(item, selector):
                self._counted[item] = now
                return _count(value, (), lister, now, why_not=_BEYOND)
        if selector is None:
            self._counted[item] = now
            return _count(value, (), lister, now)
        found = self._pods(item.namespace, selector, lister, now)
        if not isinstance(found, _Read):
            return Plan(after=found.total_seconds())
        is_old = found.told != self._told.get(item.namespace, 0)
        # What took a while to read is old when it is there, as long as pods change.
        if is_old and not found.took_turns:
            return Plan(after=(found.until - now).total_seconds())
        self._counted[item] = now
        plan = _count(value, found.pods[selector], lister, now)
        return msgspec.structs.replace(plan, after=INTERVAL.total_seconds()) if is_old else plan

    def _pods(self, namespace: str, selector: LabelSelector, lister: Lister, now: datetime) -> _Read | timedelta:
        """Return the pods of a namespace, read lately or now, once for all of its budgets, which may be hundreds.

        Or after which time to ask again.
        """
        self._read = {name: read for name, read in self._read.items() if read.until > now}
        read, reading = self._read.get(namespace), self._reading.get(namespace)
        if reading is None:
            if read is not None:
                return read if selector in read.pods else read.until - now
            wanted = {selector, *self._selectors.get(namespace, {}).values()}
            reading = _Reading(lister, namespace, self._told.get(namespace, 0), wanted, now)
        elif reading.due > now:
            return reading.due - now
        self._reading.pop(namespace, None)  # one that fails begins anew
        if (read := reading.read_on(now)) is None:
            self._reading[namespace] = reading
            return PAUSE
        self._read[namespace] = read
        return read if selector in read.pods else read.until - now


def _count(
    budget: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], lister: Lister, now: datetime, *, why_not: str = ""
) -> Plan:
    metadata, old = budget["metadata"], budget.get("status", {})
    spec = budget.get("spec", {})  # a budget without one covers no pod
    evicted, late = unconfirmed(pods, old.get("disruptedPods", {}), now)
    text = f"Pod was expected by PDB {metadata['namespace']}/{metadata['name']} to be deleted but it wasn't"
    events = [_told(pod, "NotDeleted", text, lister, now) for pod in late]
    try:
        if why_not:
            raise _Uncountable(why_not)
        wanted = expected(spec, pods, lister)
    except _Uncountable as error:
        # Nothing may be evicted while it is not known how many pods there should be (``failSafe``).
        status = {**old, "disruptionsAllowed": 0, "observedGeneration": metadata["generation"]}
        condition = {"status": "False", "reason": "SyncFailed", "message": str(error)}
        why = f"Failed to calculate the number of expected pods: {error}"
        events.append(_told(budget, "CalculateExpectedPodCountFailed", why, lister, now))
    else:
        current = healthy(pods, evicted)
        allowed = max(current - wanted.healthy, 0) if wanted.pods > 0 else 0
        status = {
            **old,
            "currentHealthy": current,
            "desiredHealthy": wanted.healthy,
            "expectedPods": wanted.pods,
            "disruptionsAllowed": allowed,
            "disruptedPods": {name: rfc3339.of(moment) for name, moment in evicted.items()},
            "observedGeneration": metadata["generation"],
        }
        condition = {"status": "True", "reason": "SufficientPods", "message": ""}
        if not allowed:
            condition |= {"status": "False", "reason": "InsufficientPods"}
        if not pods:
            events.append(_told(budget, "NoPods", "No matching pods found", lister, now))
        if wanted.unmanaged:
            why = _UNMANAGED.format(selector=selector_text(spec.get("selector")))
            events.append(_told(budget, "UnmanagedPods", why, lister, now))
    condition |= {"type": "DisruptionAllowed", "observedGeneration": metadata["generation"]}
    conditions = with_condition(old.get("conditions", ()), condition, now)
    status |= {"conditions": old.get("conditions", []) if conditions is None else conditions}
    # Nobody waits: an empty one would be a difference to write.
    if not status.get("disruptedPods"):
        status.pop("disruptedPods", None)
    writes = [write for write in events if write is not None]
    if difference := merge_patch(old, status):
        writes.append(_status_patch(BUDGETS, budget, difference))
    until = [(moment + DELETION_TIMEOUT - now).total_seconds() for moment in evicted.values()]
    return Plan(writes=writes, after=max(min(until), 0) if until else None)


def expected(spec: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], lister: Lister) -> Expected:
    """Return how many pods there should be of those that a budget covers (``getExpectedPodCount``).

    With ``minAvailable`` as a number it is those that are there; else as many as their controllers are told to have.

    :param spec: of the budget.
    :raises _Uncountable: if the controller of a pod does not say how many.
    """
    if "maxUnavailable" in spec:
        total, unmanaged = _scale(pods, lister)
        return Expected(pods=total, healthy=max(total - _part(spec["maxUnavailable"], total), 0), unmanaged=unmanaged)
    least = spec.get("minAvailable")
    if isinstance(least, str):
        total, unmanaged = _scale(pods, lister)
        return Expected(pods=total, healthy=_part(least, total), unmanaged=unmanaged)
    return Expected(pods=0, healthy=0) if least is None else Expected(pods=len(pods), healthy=least)


def unconfirmed(
    pods: Sequence[Mapping[str, Any]], disrupted: Mapping[str, str], now: datetime
) -> tuple[dict[str, datetime], list[Mapping[str, Any]]]:
    """Return when each evicted pod that has not begun to end was evicted, by name; and those that should have by now.

    :param disrupted: when evictions were granted, by the pod's name (``disruptedPods`` of the status).
    """
    evicted, late = {}, []
    for pod in pods:
        metadata = pod["metadata"]
        if "deletionTimestamp" in metadata or (granted := disrupted.get(metadata["name"])) is None:
            continue
        moment = datetime.fromtimestamp(rfc3339.seconds(granted), UTC)
        if moment + DELETION_TIMEOUT < now:
            late.append(pod)
        else:
            evicted[metadata["name"]] = moment
    return evicted, late


def healthy(pods: Sequence[Mapping[str, Any]], evicted: Container[str]) -> int:
    """Return how many pods are ready, not about to end, and not evicted."""
    return sum(
        has_condition(pod.get("status", {}), "Ready")
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and pod["metadata"]["name"] not in evicted
    )


def _part(value: int | str, total: int) -> int:
    """Return a number, or so many percent of ``total``, rounded up."""
    return value if isinstance(value, int) else -(-int(value.removesuffix("%")) * total // 100)


def _scale(pods: Sequence[Mapping[str, Any]], lister: Lister) -> tuple[int, tuple[str, ...]]:
    """Return how many pods the controllers of pods are told to have, and which pods have none."""
    sizes: dict[str, int] = {}
    unmanaged = []
    for pod in pods:
        owner = _controller_of(pod)
        if owner is None:
            unmanaged.append(pod["metadata"]["name"])
        elif owner["uid"] not in sizes:
            found = _scaled(owner, pod["metadata"]["namespace"], lister)
            if found is None:
                raise _Uncountable(f'found no controllers for pod "{pod["metadata"]["name"]}"')
            # Pods of several replica sets of one Deployment are pods of that one.
            sizes[owner["uid"]] = 0
            sizes[found["metadata"]["uid"]] = found.get("spec", {}).get("replicas", 1)
    return sum(sizes.values()), tuple(unmanaged)


def _scaled(owner: Mapping[str, Any], namespace: str, lister: Lister) -> Mapping[str, Any] | None:
    """Return the object that says how many pods there are; None if it is gone."""
    kind = owner["apiVersion"], owner["kind"]
    if kind in _UNSCALED:
        raise _Uncountable(f"{_UNSCALED[kind]} does not implement the scale subresource")
    if kind not in _SCALED:
        raise _Uncountable(f'no matches for kind "{owner["kind"]}" in version "{owner["apiVersion"]}"')
    found = lister.get(_SCALED[kind], namespace, owner["name"])
    if found is None or found["metadata"]["uid"] != owner["uid"]:
        return None
    above = _controller_of(found)
    if above is not None and kind == _DEPLOYED and (above["apiVersion"], above["kind"]) == _DEPLOYMENT:
        deployment = lister.get("apps/deployments", namespace, above["name"])
        if deployment is not None and deployment["metadata"]["uid"] == above["uid"]:
            return deployment
    return found


def _controller_of(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    owners = value["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), None)


def _disrupted_at(pod: Mapping[str, Any]) -> datetime | None:
    """Return since when a pod is said to be disrupted that neither has ended nor is about to."""
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"] or status.get("phase") in ("Succeeded", "Failed"):
        return None
    conditions = status.get("conditions", ())
    found = next((item for item in conditions if (item.get("type"), item.get("status")) == (_TARGET, "True")), None)
    if found is None or found.get("reason") == _BY_KUBELET:
        return None
    return datetime.fromtimestamp(rfc3339.seconds(found.get("lastTransitionTime") or "1970-01-01T00:00:00Z"), UTC)


def _undisturbed(pod: Mapping[str, Any], now: datetime) -> Plan:
    since = _disrupted_at(pod)
    if since is None:
        return NOTHING
    left = (since + DELETION_TIMEOUT - now).total_seconds()
    if left > 0:
        return Plan(after=left)
    condition = {"type": _TARGET, "status": "False", "reason": "", "message": ""}
    conditions = with_condition(pod["status"]["conditions"], condition, now)
    return Plan(writes=[_status_patch(PODS, pod, {"conditions": conditions})])


def _status_patch(resource: str, value: Mapping[str, Any], status: Mapping[str, Any]) -> Patch:
    metadata, patch = value["metadata"], revised(value, {"status": status})
    place = metadata["namespace"], metadata["name"]
    return Patch(resource=resource, namespace=place[0], name=place[1], subresource="status", patch=patch)


def _told(value: Mapping[str, Any], reason: str, message: str, lister: Lister, now: datetime) -> Write | None:
    about = {} if reason == "NotDeleted" else {"about": "PodDisruptionBudget", "api_version": "policy/v1"}
    kind = "Normal" if reason == "NoPods" else "Warning"
    told = Told(component=NAME, kind=kind, reason=reason, action="", message=message, **about)
    return event(value, told, lister, now) if is_due(value, told, lister, now) else None
