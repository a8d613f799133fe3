"""What a controller is: it is told changes, names what to look at, and returns the writes that are missing."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from sys import intern
from typing import Any, Protocol, TypeAlias

import msgspec

from podkeep.apiserver.auth.pod_references import claims
from podkeep.apiserver.auth.user import (
    AUTHENTICATED,
    SYSTEM_NAMESPACE,
    User,
    service_account_groups,
    service_account_name,
)
from podkeep.apiserver.meta.lister import Lister, Part
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.storage.records import Event, EventType, Key
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339

Item: TypeAlias = Hashable
"""What a controller looks at in one turn: mostly a key of the store."""


class OwnerReference(msgspec.Struct, frozen=True, rename="camel"):
    """A reference to an object that owns another."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    block_owner_deletion: bool = False


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """What decides about the life of any object."""

    uid: str = ""
    deletion_timestamp: str = ""
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class _Envelope(msgspec.Struct, frozen=True):
    metadata: Metadata


_metadata = msgspec.json.Decoder(_Envelope).decode
CLAIMS = "persistentvolumeclaims"
PIECE = 2 << 20
"""Bytes of objects that are read in one turn of the event loop: some milliseconds. A namespace may have hundreds of
megabytes."""
PAUSE = timedelta(seconds=0.1)
"""Between two such turns."""


def sized_parts(lister: Lister, resource: str, namespace: str, of: type[Part]) -> Iterator[tuple[int, Part]]:
    """Return the bytes of each object of a namespace as they are now, and what of it is read: a piece at a time."""
    # Both are of one moment, and in one order: nothing can be written between the two.
    both = zip(lister.sizes(resource, namespace), lister.parts(resource, namespace, of), strict=True)
    return ((size, part) for (_, size), part in both)


class Change:
    """A write, decoded as far as somebody asks. ``at`` is when it was seen; an object that is there is ``ADDED``."""

    def __init__(self, event: Event, at: datetime) -> None:
        self._event = event
        self.at = at

    @property
    def key(self) -> Key:
        return self._event.stored.key

    @property
    def is_deletion(self) -> bool:
        return self._event.type is EventType.DELETED

    @property
    def revision(self) -> int:
        return self._event.stored.revision

    @property
    def size(self) -> int:
        """How many bytes the object has, encoded."""
        return len(self._event.stored.value)

    @cached_property
    def metadata(self) -> Metadata:
        """Of the object as it is, or was last."""
        return _metadata(self._event.stored.value).metadata

    @cached_property
    def value(self) -> Mapping[str, Any]:
        """The object as it is, or was last."""
        found: Mapping[str, Any] = msgspec.json.decode(self._event.stored.value)
        return found


class Create(FrozenStruct, kw_only=True):
    """An object to be created; ``resource`` is the name that the store has."""

    resource: str
    namespace: str
    value: Object


class Patch(FrozenStruct, kw_only=True):
    """A merge patch. With ``metadata.resourceVersion`` or ``metadata.uid`` in it, it is for that revision or object."""

    resource: str
    namespace: str
    name: str
    patch: Mapping[str, Any]
    subresource: str = ""


class Delete(FrozenStruct, kw_only=True):
    """An object to be deleted, if it has this uid, and this revision if one is given."""

    resource: str
    namespace: str
    name: str
    uid: str
    revision: str = ""
    propagation: str = "Background"
    grace_period: int | None = None


class Bind(FrozenStruct, kw_only=True):
    """A pod to be bound to a node, if it has this uid (``pods/binding``)."""

    namespace: str
    name: str
    uid: str
    node: str


Write: TypeAlias = Create | Patch | Delete | Bind


class Plan(FrozenStruct, kw_only=True):
    """What is to be written: ``writes`` in any order, and when all of them are done ``then``.

    The item is looked at again ``after`` so many seconds; None: when something changes.
    """

    writes: Iterable[Write] = ()
    then: tuple[Write, ...] = ()
    after: float | None = None


NOTHING = Plan()


class Controller(Protocol):
    """A controller. It is told every change of its resources in order, first of all objects that are there.

    How a claim gets a volume, as ``runner`` has ``volume_binder`` do it::

        items = controller.observe(change)               # the claim was created: look at it
        plan = controller.reconcile(item, lister, now)   # one patch: a volume that fits is reserved for it
        ...                                              # written as any client writes; if that fails, `item` again
        items = controller.observe(change)               # of the volume: look at the claim once more
        plan = controller.reconcile(item, lister, now)   # the next patch: the claim names its volume

    One that could not follow is thrown away with all that it remembers, and a new one is told everything.
    """

    @property
    def name(self) -> str:
        """In the log, and as field manager of its writes."""
        ...

    @property
    def user(self) -> User:
        """Who writes."""
        ...

    @property
    def resources(self) -> frozenset[str] | None:
        """Which it is told of, by the name that the store has; None: all of them."""
        ...

    def observe(self, change: Change) -> Iterable[Item]:
        """Return what to look at because of a change."""
        ...

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        """Return what is missing."""
        ...


def service_account(name: str) -> User:
    """Return the user that a controller of kube-controller-manager is."""
    groups = (*service_account_groups(SYSTEM_NAMESPACE), AUTHENTICATED)
    return User(name=service_account_name(SYSTEM_NAMESPACE, name), groups=groups)


def revised(value: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a patch that is for this revision of an object alone."""
    found = value["metadata"]
    revision = {"resourceVersion": found["resourceVersion"], "uid": found["uid"]}
    return {**patch, "metadata": {**patch.get("metadata", {}), **revision}}


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch (RFC 7396) that makes ``new`` of ``old``."""
    # A null takes a field away.
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := merge_patch(before, value):
                patch[name] = inner
        elif value != before:
            patch[name] = value
    return patch


def with_condition(
    conditions: Iterable[Mapping[str, Any]], condition: Mapping[str, Any], now: datetime
) -> list[Mapping[str, Any]] | None:
    """Return conditions with one of them set, its transition at ``now`` if the status is another; None if it is set."""
    found = list(conditions)
    place = next((index for index, item in enumerate(found) if item.get("type") == condition["type"]), None)
    old: Mapping[str, Any] = {} if place is None else found[place]
    if all(old.get(name, "") == text for name, text in condition.items()):
        return None
    same = old.get("status") == condition["status"]
    since = old.get("lastTransitionTime") if same and old.get("lastTransitionTime") else rfc3339.of(now)
    new = {**old, **condition, "lastTransitionTime": since}
    if place is None:
        found.append(new)
    else:
        found[place] = new
    return found


def with_conditions(
    conditions: Iterable[Mapping[str, Any]], wanted: Iterable[Mapping[str, Any]], now: datetime
) -> list[Mapping[str, Any]] | None:
    """Return conditions with several of them set, as :func:`with_condition` does; None if all are."""
    found = list(conditions)
    changed = False
    for condition in wanted:
        if (new := with_condition(found, condition, now)) is not None:
            found, changed = new, True
    return found if changed else None


class PodsOfNodes:
    """Which pods each node has, for controllers that look at pods when a node changes.

    Each of them has its own: it sees the changes of pods at its time.
    """

    def __init__(self) -> None:
        self._pods: dict[str, dict[Key, None]] = {}
        self._nodes: dict[Key, str] = {}

    def note(self, change: Change) -> tuple[str, str]:
        """Take in the change of a pod, and return the node that it was bound to and the one that it is; empty: none."""
        key = change.key
        node = "" if change.is_deletion else change.value.get("spec", {}).get("nodeName", "")
        before = self._nodes.pop(key, "")
        if before and before != node:
            self._pods[before].pop(key, None)
            if not self._pods[before]:
                del self._pods[before]
        if node:
            self._nodes[key] = intern(node)
            self._pods.setdefault(node, {})[key] = None
        return before, node

    def pods(self, node: str) -> list[Key]:
        return list(self._pods.get(node, ()))

    def node(self, pod: Key) -> str:
        """Return the node of a pod; empty if it has none, or is gone."""
        return self._nodes.get(pod, "")


class PodsOfClaims:
    """Which pods name each claim of a volume, for controllers that look at a claim: the pods of a namespace, hundreds
    of megabytes, perhaps, need not be read for it.

    Each of them has its own, as of :class:`PodsOfNodes`.
    """

    def __init__(self) -> None:
        self._named: dict[Key, frozenset[Key]] = {}
        """By pods."""
        self._users: dict[Key, dict[Key, None]] = {}
        """By claims."""

    def note(self, change: Change) -> tuple[frozenset[Key], frozenset[Key]]:
        """Take in the change of a pod, and return the claims that it named and those that it names.

        Of a pod that is gone these are what it named last.
        """
        key = change.key
        named = frozenset(Key(CLAIMS, key.namespace, name) for name in claims(change.value))
        old, new = self._named.pop(key, frozenset()), frozenset() if change.is_deletion else named
        if new:
            self._named[key] = new
        for claim in old - new:
            del self._users[claim][key]
            if not self._users[claim]:
                del self._users[claim]
        for claim in new - old:
            self._users.setdefault(claim, {})[key] = None
        return old, named

    def users(self, claim: Key) -> list[Key]:
        return list(self._users.get(claim, ()))
