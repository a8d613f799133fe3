"""Garbage collection: deletes or orphans the dependents of deleted owners (kube-controller-manager: garbagecollector).

An object goes when none of its owners is there any more. An owner that is deleted in the foreground waits for the
dependents that block it; one that orphans its dependents is taken out of their references first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from podkeep.apiserver.controllers.controller import (
    NOTHING,
    Change,
    Delete,
    Item,
    Metadata,
    OwnerReference,
    Patch,
    Plan,
    Write,
    revised,
    service_account,
)
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import FOREGROUND, ORPHAN, metadata
from podkeep.apiserver.storage.records import Key

Found = Mapping[str, Any]
_LARGE_BYTES = 16 << 10
"""Of an object, encoded, from which on what it is to its dependents is remembered."""


@lru_cache(maxsize=4096)
def _shared(owners: tuple[OwnerReference, ...]) -> tuple[OwnerReference, ...]:
    """Return the one of equal references that is kept: many objects have the same."""
    return owners


def _uids(owners: Iterable[OwnerReference]) -> set[str]:
    return {owner.uid for owner in owners}


def _blocked(owners: Iterable[OwnerReference]) -> set[str]:
    return {owner.uid for owner in owners if owner.block_owner_deletion}


class _Life(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What decides about the life of an object, as it is written in it."""

    uid: str
    resource_version: str
    deletion_timestamp: str = ""
    finalizers: list[str] = []
    owner_references: list[dict[str, Any]] = []


class _Dependent(msgspec.Struct, frozen=True):
    metadata: _Life


class _Owner(msgspec.Struct, frozen=True, rename="camel"):
    """What an owner's dependents ask of it."""

    uid: str
    deletion_timestamp: str = ""
    finalizers: tuple[str, ...] = ()

    @property
    def is_waiting(self) -> bool:
        return bool(self.deletion_timestamp) and FOREGROUND in self.finalizers


class _OwnerPart(msgspec.Struct, frozen=True):
    metadata: _Owner


class _Known(NamedTuple):
    """An owner as it was when the collector was told of it."""

    revision: int
    uid: str
    is_waiting: bool


class State(Enum):
    """What an owner is to a dependent."""

    THERE = auto()
    ABSENT = auto()
    WAITING = auto()
    """It is deleted in the foreground."""
    UNKNOWN = auto()
    """Nobody can tell: its kind is not served, or it could not own the dependent."""


class GarbageCollector:
    """The controller. It remembers which objects name which owners."""

    name = "generic-garbage-collector"
    user = service_account(name)
    resources = None

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._kinds = {(item.kind.api_version, item.kind.kind): item for item in resources}
        self._dependents: dict[str, dict[Key, None]] = {}
        self._blockers: dict[str, dict[Key, None]] = {}
        """Those of the dependents that block the deletion of their owner."""
        self._owners: dict[Key, tuple[OwnerReference, ...]] = {}
        self._told: dict[Key, int] = {}
        """The revision of each object with owners that the collector was told of."""
        self._waiting: dict[str, Key] = {}
        """Owners that are deleted in the foreground, by uid."""
        self._waiting_keys: set[Key] = set()
        self._ending: set[Key] = set()
        """Objects that are about to go."""
        self._large: dict[Key, _Known] = {}
        """What large objects are to their dependents: anybody may name them as owners, a thousand times in one object,
        and to read one takes a millisecond for each megabyte."""

    # What to look at

    def observe(self, change: Change) -> Iterator[Item]:
        """Return the object, its dependents or its owners, whichever may have to go."""
        found, key = change.metadata, change.key
        before = self._owners.get(key, ())
        self._remember(key, () if change.is_deletion else found.owner_references, change.revision)
        if change.is_deletion or change.size < _LARGE_BYTES:
            self._large.pop(key, None)
        else:
            part = _Owner(found.uid, found.deletion_timestamp, found.finalizers)
            self._large[key] = _Known(change.revision, part.uid, part.is_waiting)
        if found.deletion_timestamp and not change.is_deletion:
            self._ending.add(key)
        else:
            self._ending.discard(key)
        if change.is_deletion:
            self._wait_no_more(found.uid)
            yield from self._dependents.get(found.uid, ())
        else:
            if found.owner_references or found.deletion_timestamp:
                yield key
            yield from self._foreground(key, found)
        for owner in before:
            if owner.uid in self._waiting:
                yield self._waiting[owner.uid]

    def _remember(self, key: Key, owners: tuple[OwnerReference, ...], revision: int) -> None:
        before = self._owners.pop(key, ())
        self._told.pop(key, None)
        if owners:
            self._owners[key], self._told[key] = _shared(owners), revision
        for index, old, new in (
            (self._dependents, _uids(before), _uids(owners)),
            (self._blockers, _blocked(before), _blocked(owners)),
        ):
            for uid in old - new:
                index[uid].pop(key, None)
                if not index[uid]:
                    del index[uid]
            for uid in new - old:
                index.setdefault(uid, {})[key] = None

    def _foreground(self, key: Key, found: Metadata) -> Iterator[Item]:
        if not (found.deletion_timestamp and FOREGROUND in found.finalizers):
            self._wait_no_more(found.uid)
        elif found.uid not in self._waiting:
            self._waiting[found.uid] = key
            self._waiting_keys.add(key)
            yield from self._dependents.get(found.uid, ())

    def _wait_no_more(self, uid: str) -> None:
        if (key := self._waiting.pop(uid, None)) is not None:
            self._waiting_keys.discard(key)

    # What to do

    def reconcile(self, item: Item, lister: Lister, _now: object) -> Plan:
        assert isinstance(item, Key)
        states = self._states(self._owners.get(item, ()), item, lister)
        if states and set(states) == {State.THERE} and item not in self._ending:
            return NOTHING  # the object itself need not be read: there are many of them at the start
        found = lister.get(*item)
        if found is None:
            return NOTHING
        fields = found["metadata"]
        dependents = self._those_of(item, fields["uid"], lister)
        if "deletionTimestamp" in fields:
            finalizers = fields.get("finalizers", ())
            if ORPHAN in finalizers:
                return orphan(item, found, dependents)
            if FOREGROUND not in finalizers or self._is_blocked(item, fields["uid"]):
                return NOTHING
            # Of the others it is known that they do not block it.
            return foreground(item, found, self._those_of(item, fields["uid"], lister, untold=True))
        owners = msgspec.convert(fields.get("ownerReferences", ()), tuple[OwnerReference, ...])
        if not owners:
            return NOTHING
        states = self._states(owners, item, lister)
        return collect(item, found, states, dependents, lambda: self._has_waiting(item, fields["uid"], lister))

    def _those_of(self, owner: Key, uid: str, lister: Lister, *, untold: bool = False) -> Iterator[tuple[Key, Found]]:
        """Yield the dependents of an object, of each what :class:`_Life` has: whole, thousands would be gigabytes.

        What names it in another namespace than its own is none: who may write there could keep its deletion waiting.

        :param untold: only those that have changed since the collector was told of them.
        """
        for key in self._dependents.get(uid, ()):
            if owner.namespace not in ("", key.namespace):
                continue
            if untold and self._told.get(key) == lister.revision_of(*key):
                continue
            part = lister.part(*key, _Dependent)
            if part is not None and _reference(found := msgspec.to_builtins(part), uid):
                yield key, found

    def _has_waiting(self, owner: Key, uid: str, lister: Lister) -> bool:
        """Tell whether a dependent of an object is itself deleted in the foreground."""
        known = self._dependents.get(uid, {}).keys() & self._waiting_keys
        return any(owner.namespace in ("", key.namespace) for key in known) or any(
            _is_waiting(value) for _, value in self._those_of(owner, uid, lister, untold=True)
        )

    def _is_blocked(self, owner: Key, uid: str) -> bool:
        """Tell whether a dependent is known to block an owner: none of them has to be read then.

        When it goes, or does so no more, the owner is looked at again.
        """
        return any(owner.namespace in ("", key.namespace) for key in self._blockers.get(uid, ()))

    def _states(self, owners: Iterable[OwnerReference], dependent: Key, lister: Lister) -> list[State]:
        found: dict[Key, _Known | None] = {}
        states = []
        for owner in owners:
            resource = self._kinds.get((owner.api_version, owner.kind))
            if resource is None or (resource.namespaced and not dependent.namespace):
                states.append(State.UNKNOWN)
                continue
            key = resource.key(dependent.namespace, owner.name)
            if key not in found:
                found[key] = self._known(key, lister)
            known = found[key]
            if known is None or known.uid != owner.uid:
                states.append(State.ABSENT)
            else:
                states.append(State.WAITING if known.is_waiting else State.THERE)
        return states

    def _known(self, key: Key, lister: Lister) -> _Known | None:
        """Return what there is at a place; a large object is read only if it has changed since its change was told."""
        known, revision = self._large.get(key), lister.revision_of(*key)
        if known is not None and known.revision == revision:
            return known
        part = lister.part(*key, _OwnerPart)
        return None if part is None else _Known(revision, part.metadata.uid, part.metadata.is_waiting)


def collect(
    item: Key,
    found: Found,
    states: list[State],
    dependents: Iterator[tuple[Key, Found]],
    has_waiting: Callable[[], bool],
) -> Plan:
    """Return what to do about an object with owners, given what each of them is.

    :param has_waiting: says whether a dependent of the object is deleted in the foreground.
    """
    fields = metadata(found)
    owners = fields["ownerReferences"]
    # Nothing is deleted while an owner of it cannot be looked up.
    if State.UNKNOWN in states:
        return NOTHING
    if State.THERE in states:
        kept = [owner for owner, state in zip(owners, states, strict=True) if state is State.THERE]
        return NOTHING if len(kept) == len(owners) else Plan(writes=[_with_owners(item, found, kept)])
    if State.WAITING in states and next(dependents, None) is not None:
        delete = Delete(**_place(item), uid=fields["uid"], propagation="Foreground")
        if has_waiting():
            # Owners and dependents that wait for each other would wait for ever.
            freed = [{**owner, "blockOwnerDeletion": False} for owner in owners]
            if freed != owners:
                return Plan(writes=[_with_owners(item, found, freed)], then=(delete,))
        return Plan(writes=[delete])
    finalizers = fields.get("finalizers", ())
    propagation = "Orphan" if ORPHAN in finalizers else "Foreground" if FOREGROUND in finalizers else "Background"
    return Plan(
        # For this revision alone: somebody may have given it another owner meanwhile.
        writes=[Delete(**_place(item), uid=fields["uid"], revision=fields["resourceVersion"], propagation=propagation)]
    )


def orphan(item: Key, owner: Found, dependents: Iterable[tuple[Key, Found]]) -> Plan:
    """Take an owner out of its dependents' references, then let it go."""
    uid = metadata(owner)["uid"]
    writes: Iterator[Write] = (
        _with_owners(key, value, [one for one in metadata(value)["ownerReferences"] if one["uid"] != uid])
        for key, value in dependents
    )
    return Plan(writes=writes, then=(_without_finalizer(item, owner, ORPHAN),))


def foreground(item: Key, owner: Found, dependents: Iterable[tuple[Key, Found]]) -> Plan:
    """Let an owner go once nothing blocks it."""
    uid = metadata(owner)["uid"]
    if any((_reference(value, uid) or {}).get("blockOwnerDeletion") for _, value in dependents):
        return NOTHING
    return Plan(writes=[_without_finalizer(item, owner, FOREGROUND)])


def _is_waiting(found: Found) -> bool:
    fields = metadata(found)
    return "deletionTimestamp" in fields and FOREGROUND in fields.get("finalizers", ())


def _reference(found: Found, uid: str) -> Mapping[str, Any] | None:
    return next((owner for owner in metadata(found).get("ownerReferences", ()) if owner["uid"] == uid), None)


def _place(key: Key) -> dict[str, Any]:
    return {"resource": key.resource, "namespace": key.namespace, "name": key.name}


def _with_owners(key: Key, found: Found, owners: list[dict[str, Any]]) -> Patch:
    return Patch(**_place(key), patch=revised(found, {"metadata": {"ownerReferences": owners or None}}))


def _without_finalizer(key: Key, found: Found, name: str) -> Patch:
    kept = [finalizer for finalizer in metadata(found).get("finalizers", ()) if finalizer != name]
    return Patch(**_place(key), patch=revised(found, {"metadata": {"finalizers": kept or None}}))
