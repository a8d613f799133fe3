"""What each quota is used for now, with the writes that are on their way to the disk: sums that are kept, not computed.

A sum changes by the objects that were written since it was asked for last; until then it is noted which these are.
What was counted of a write that is not acknowledged yet is looked at again each time, since that write may fail; so is
a pod whose grace period runs.

A namespace is counted from the beginning when its quotas are asked for first, and when one means something else. It may
have hundreds of megabytes of pods, 0.3 s each: they are counted in portions, between which others have their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from podkeep.apiserver.admission.quota import usage as quota_usage
from podkeep.apiserver.admission.quota.usage import CLAIMS, PODS, QUOTAS, SERVICES, Amounts, Object
from podkeep.apiserver.meta.lister import NewestLister
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import StatusError, too_many_requests
from podkeep.base.concurrency.turns import Turns

PORTION_BYTES = 256 << 10
"""Of objects that are counted in one turn of the event loop: up to 80 ms."""
OBJECT_BYTES = 1 << 10
"""What an object counts of these beside its own bytes."""
READY_S = 30.0
"""For which a write waits until its namespace is counted."""
_Key = tuple[str, str, str]


class _Metadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str
    resource_version: str
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None


class _Container(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A container or, in a status, what it has."""

    name: str = ""
    restart_policy: str = ""
    resources: dict[str, Any] | None = None
    allocated_resources: dict[str, str] = {}


class _PodSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    containers: list[_Container] = []
    init_containers: list[_Container] = []
    resources: dict[str, Any] | None = None
    overhead: dict[str, str] = {}
    active_deadline_seconds: int | None = None
    priority_class_name: str = ""
    affinity: dict[str, Any] = {}


class _PodStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    phase: str = ""
    conditions: list[dict[str, Any]] = []
    container_statuses: list[_Container] = []
    init_container_statuses: list[_Container] = []


class _Named(msgspec.Struct, frozen=True):
    """Of most objects their number counts alone."""

    metadata: _Metadata


class _Pod(_Named, frozen=True):
    """What of a pod is counted, and says whether it is in a quota's scopes."""

    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class _Whole(_Named, frozen=True):
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


_PARTS: Mapping[str, type[_Named]] = {PODS: _Pod, SERVICES: _Whole, CLAIMS: _Whole}


class _Counted(NamedTuple):
    """An object as it was counted, and by which quotas."""

    revision: str
    charged: bool
    usage: Amounts
    quotas: tuple[str, ...]


@dataclass(slots=True)
class _Namespace:
    """The quotas of a namespace, what is used of each, and the objects that were counted for that."""

    quotas: dict[str, Object] = field(default_factory=dict)
    used: dict[str, Amounts] = field(default_factory=dict)
    counted: dict[tuple[str, str], _Counted] = field(default_factory=dict)
    resources: set[str] = field(default_factory=set)
    """Whose objects the quotas count."""
    waiting: list[tuple[str, str, int]] | None = None
    """What is still to be counted: resource, name and bytes of each; None: counting has not begun, or is done."""
    changed: dict[tuple[str, str], None] = field(default_factory=dict)
    """What was written since it was counted."""
    deleting: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """Pods that are charged until their grace period is over, and when that is."""
    is_counted: bool = False

    @property
    def is_begun(self) -> bool:
        """Whether what is written has to be counted as well."""
        return self.is_counted or self.waiting is not None

    def mean(self) -> None:
        """Take in that the quotas are others than before: everything is to be counted again."""
        hard = {name for quota in self.quotas.values() for name in quota.get("spec", {}).get("hard", ())}
        self.resources = quota_usage.counted_resources(hard)
        self.waiting, self.is_counted = None, False
        self.changed = {}


def _uncounted(namespace: str) -> StatusError:
    return too_many_requests(message=f"what the quotas of namespace {namespace} count is being counted")


def _utc() -> datetime:
    return datetime.now(UTC)


class QuotaLedger:
    """The quotas of all namespaces with what is used of them.

    :param now: tells the time.
    """

    def __init__(self, lister: NewestLister, now: Callable[[], datetime] = _utc) -> None:
        self._lister = lister
        self._now = now
        self._namespaces: dict[str, _Namespace] | None = None
        self._revision = 0
        self._open: frozenset[_Key] = frozenset()
        self._turns = Turns(0, 1)
        lister.follow(self)

    def catch_up(self) -> None:
        """Note what was written, if anybody has asked for a quota: a group of writes may take seconds to count."""
        if self._namespaces is None:
            return
        if (changes := self._lister.changes(self._revision)) is None:
            self._current()
        else:
            self._revision = self._lister.revision
            self._take_in(changes)

    def quotas(self, namespace: str) -> list[Object]:
        """Return the quotas of a namespace by name, as the next write to them finds them."""
        found = self._current().get(namespace)
        return [] if found is None else [quota for _, quota in sorted(found.quotas.items())]

    async def ready(self, namespace: str, resource: str) -> None:
        """Wait until all of a namespace is counted, if its quotas concern a resource.

        :raises StatusError: 429, if that takes long: each change of a quota begins it anew.
        """
        given_up = asyncio.get_running_loop().time() + READY_S
        while (found := self._current().get(namespace)) is not None:
            if (found.is_counted and not found.changed) or resource not in found.resources:
                return
            if asyncio.get_running_loop().time() > given_up:
                raise _uncounted(namespace)
            await self._turns.wait(namespace, PORTION_BYTES)
            self.count_some(namespace)

    def used(self, namespace: str, name: str) -> Mapping[str, Decimal]:
        """Return what is used of a quota.

        :raises StatusError: 429, if the namespace is not counted: a quota has changed since who asks waited for that.
        """
        found = self._current()[namespace]
        if not found.is_counted:
            raise _uncounted(namespace)
        # Few: who asks has waited for the rest.
        for resource, item in found.changed:
            self._recount(found, (resource, namespace, item))
        found.changed.clear()
        # The others need not be read: a hundred of them may have 150 MiB.
        now = self._now()
        for resource, item in sorted(place for place, until in found.deleting.items() if until < now):
            self._recount(found, (resource, namespace, item))
        return found.used[name]

    def _current(self) -> dict[str, _Namespace]:
        """Return every namespace with quotas, after what was written since the last time."""
        pending = frozenset(self._lister.pending())
        changes = None if self._namespaces is None else self._lister.changes(self._revision)
        if self._namespaces is None or changes is None:
            self._namespaces = {}
            keys: set[_Key] = {
                (QUOTAS, metadata(quota)["namespace"], metadata(quota)["name"]) for quota in self._lister.list(QUOTAS)
            }
            keys.update(pending)
        else:
            self._take_in(changes)
            # What was queued at the last look may have failed since: it is counted as it is now.
            keys = {*pending, *self._open}
        # Nothing is awaited in this function: changes, queued writes and the revision are of one moment.
        self._revision, self._open = self._lister.revision, pending
        # Quotas first: one that is new or means something else has its namespace counted from the beginning.
        for key in keys:
            if key[0] == QUOTAS:
                self._note_quota(key)
        for key in keys:
            found = self._namespaces.get(key[1])
            if found is not None and found.is_begun:
                self._recount(found, key)
        return self._namespaces

    def _take_in(self, changes: Iterable[_Key]) -> None:
        """Note what was written, to be counted when it is asked for."""
        assert self._namespaces is not None
        changes = set(changes)
        for key in changes:
            if key[0] == QUOTAS:
                self._note_quota(key)
        for resource, namespace, name in changes:
            found = self._namespaces.get(namespace)
            if found is not None and found.is_begun and resource in found.resources:
                found.changed[resource, name] = None

    def _note_quota(self, key: _Key) -> None:
        _, namespace, name = key
        assert self._namespaces is not None
        quota, found = self._lister.newest(*key), self._namespaces.get(namespace)
        if quota is None:
            if found is not None and found.quotas.pop(name, None) is not None:
                found.mean()
                if not found.quotas:
                    del self._namespaces[namespace]
            return
        found = self._namespaces.setdefault(namespace, _Namespace())
        before = found.quotas.get(name)
        found.quotas[name] = quota
        # The specification alone: the status is written after each count, and must not cause another one.
        if before is None or before.get("spec") != quota.get("spec"):
            found.mean()

    def count_some(self, namespace: str) -> bool:
        """Count a portion of what the quotas of a namespace concern; return whether nothing is left."""
        found = self._current().get(namespace)
        if found is None:
            return True
        if found.waiting is None and not found.is_counted:
            found.counted, found.deleting = {}, {}
            found.used = {name: {} for name in found.quotas}
            found.waiting = [
                (resource, name, size)
                for resource in found.resources
                for name, size in self._lister.sizes(resource, namespace)
            ]
        left = PORTION_BYTES
        while found.waiting and left > 0:
            resource, name, size = found.waiting.pop()
            left -= size + OBJECT_BYTES
            # Not whole: most of a large object does not count. What was written meanwhile is counted already.
            if (resource, name) in found.counted:
                continue
            part = self._lister.part(resource, namespace, name, _PARTS.get(resource, _Named))
            if part is not None:
                self._note(found, (resource, name), msgspec.to_builtins(part))
        if found.waiting:
            return False
        if not found.is_counted:
            found.waiting, found.is_counted = None, True
            for key in [key for key in self._lister.pending() if key[1] == namespace]:
                self._recount(found, key)
        while found.changed and left > 0:
            resource, name = next(iter(found.changed))
            del found.changed[resource, name]
            left -= self._lister.size(resource, namespace, name) + OBJECT_BYTES
            self._recount(found, (resource, namespace, name))
        return not found.changed

    def _recount(self, found: _Namespace, key: _Key) -> None:
        """Count an object again, if it changed since."""
        resource, _, name = key
        if resource in found.resources:
            self._note(found, (resource, name), self._lister.newest(*key))

    def _note(self, found: _Namespace, place: tuple[str, str], value: Object | None) -> None:
        resource, now = place[0], self._now()
        before = found.counted.get(place)
        charged = value is not None and (resource != PODS or quota_usage.is_charged(value, now))
        revision = "" if value is None else metadata(value)["resourceVersion"]
        # A pod stops to be charged when its grace period is over, without another revision of it.
        if before is not None and before.revision == revision and before.charged == charged:
            return
        if before is not None:
            _add(found, before, -1)
            del found.counted[place]
        found.deleting.pop(place, None)
        if value is None:
            return
        # Remembered: what is subtracted later must be what is added now, and by then the object may be in other scopes.
        quotas = tuple(name for name, quota in found.quotas.items() if quota_usage.in_scope(quota, resource, value))
        counted = _Counted(revision, charged, quota_usage.usage(resource, value, now), quotas)
        found.counted[place] = counted
        _add(found, counted, 1)
        if resource == PODS and charged and (until := quota_usage.charged_until(value)) is not None:
            found.deleting[place] = until


def _add(found: _Namespace, counted: _Counted, sign: int) -> None:
    for name in counted.quotas:
        used: dict[str, Any] = found.used[name]
        for resource, amount in counted.usage.items():
            used[resource] = used.get(resource, Decimal(0)) + sign * amount
