"""The end of namespaces: everything in one is deleted, pods first, then the namespace itself.

After kube-controller-manager's namespace controller, conditions and their texts included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from podkeep.apiserver.controllers.controller import (
    NOTHING,
    PAUSE,
    PIECE,
    Change,
    Delete,
    Item,
    Patch,
    Plan,
    revised,
    service_account,
    sized_parts,
    with_conditions,
)
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.meta.lister import Lister

NAMESPACES = "namespaces"
PODS = "pods"
FINALIZER = "kubernetes"
"""Of a namespace's ``spec``; it stands for this controller."""
MOST_DELETIONS = 50
"""Of one turn."""
MOST_FINALIZERS = 100
"""Whose names are told: whoever may write in a namespace may have given each object a hundred thousand others."""

_CONDITIONS = {
    "NamespaceDeletionDiscoveryFailure": ("ResourcesDiscovered", "All resources successfully discovered"),
    "NamespaceDeletionGroupVersionParsingFailure": (
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    "NamespaceDeletionContentFailure": (
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    "NamespaceContentRemaining": ("ContentRemoved", "All content successfully removed"),
    "NamespaceFinalizersRemaining": ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
}
"""The reason and message of each condition that is false."""


class _Fields(msgspec.Struct, frozen=True, rename="camel"):
    """What the end of a namespace asks of an object."""

    name: str
    uid: str
    deletion_timestamp: str = ""
    finalizers: tuple[str, ...] = ()


class _Part(msgspec.Struct, frozen=True):
    metadata: _Fields


class _Look:
    """A look at all that is in a namespace, a piece at a time: each resource as it is when its turn comes."""

    def __init__(self, lister: Lister, places: Iterable[str], name: str, told: int) -> None:
        self._name = name
        self._rest = (
            (resource, size, part.metadata)
            for resource in places
            for size, part in sized_parts(lister, resource, name, _Part)
        )
        self.told = told
        self.due: datetime | None = None
        self.has_deleted = False
        self.objects, self.finalizers = Counter[str](), Counter[str]()
        self.has_more_finalizers = False

    def look_on(self) -> tuple[list[Delete], bool]:
        """Return what of the next piece is to be deleted, and whether that was the last one."""
        deletions: list[Delete] = []
        left = PIECE
        for resource, size, fields in self._rest:
            self.objects[resource] += 1
            left -= size
            if fields.deletion_timestamp:
                self._note(fields.finalizers)
            else:
                deletions.append(Delete(resource=resource, namespace=self._name, name=fields.name, uid=fields.uid))
                self.has_deleted = True
            if left <= 0 or len(deletions) == MOST_DELETIONS:
                return deletions, False
        return deletions, True

    def _note(self, finalizers: Iterable[str]) -> None:
        for finalizer in finalizers:
            if finalizer in self.finalizers or len(self.finalizers) < MOST_FINALIZERS:
                self.finalizers[finalizer] += 1
            else:
                self.has_more_finalizers = True


class NamespaceDeletion:
    """The controller. It remembers which namespaces are about to go, and how far it has looked at each."""

    name = "namespace-controller"
    user = service_account(name)
    resources = None

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._resources = {
            item.storage_name: f"{item.plural}.{item.group}"
            for item in resources
            if item.namespaced and item.view is None and "delete" in item.verbs
        }
        """How messages name a resource, by its name in the store."""
        self._ending: dict[str, int] = {}
        """How many changes in each were told."""
        self._looks: dict[str, _Look] = {}

    def observe(self, change: Change) -> Iterator[Item]:
        """Return the namespace that is about to go, or the one of an object in it."""
        key = change.key
        if key.resource == NAMESPACES:
            if change.is_deletion:
                self._ending.pop(key.name, None)
                self._looks.pop(key.name, None)
            elif change.metadata.deletion_timestamp:
                self._ending.setdefault(key.name, 0)
                yield key.name
        elif key.namespace in self._ending:
            self._ending[key.namespace] += 1
            yield key.namespace

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        """Return what is left to be deleted; if nothing is, let the namespace go."""
        name = str(item)
        namespace = lister.get(NAMESPACES, "", name)
        if namespace is None or "deletionTimestamp" not in namespace["metadata"]:
            return NOTHING
        if namespace.get("status", {}).get("phase") != "Terminating":
            return Plan(writes=[_status(namespace, {"phase": "Terminating"})])
        finalizers = namespace.get("spec", {}).get("finalizers", [])
        if FINALIZER not in finalizers:
            return NOTHING
        look = self._looks.pop(name, None) or self._begun(name, lister)  # one that fails begins anew
        if look.due is not None and look.due > now:
            self._looks[name] = look
            return Plan(after=(look.due - now).total_seconds())
        deletions, is_last = look.look_on()
        if not is_last:
            pause = timedelta(0) if deletions else PAUSE
            self._looks[name], look.due = look, now + pause
            return Plan(writes=deletions, after=pause.total_seconds())
        if look.has_deleted:
            return Plan(writes=deletions, after=PAUSE.total_seconds())
        told = self._told(namespace, look, now)
        if look.objects:
            # What has changed since the look began may have been seen already, or not.
            is_old = look.told != self._ending.get(name, 0)
            return Plan(writes=told, after=PAUSE.total_seconds() if is_old else None)
        left = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        uid = {"uid": namespace["metadata"]["uid"]}
        last = Patch(
            resource=NAMESPACES,
            namespace="",
            name=name,
            subresource="finalize",
            patch={"metadata": uid, "spec": {"finalizers": left or None}},
        )
        return Plan(writes=told, then=(last,))

    def _begun(self, name: str, lister: Lister) -> _Look:
        # Pods first (KEP-5080): while they run, what restricts them, such as network policies, has to stay.
        has_pods = PODS in self._resources and next(iter(lister.sizes(PODS, name)), None) is not None
        return _Look(lister, [PODS] if has_pods else self._resources, name, self._ending.get(name, 0))

    def _told(self, namespace: Mapping[str, Any], look: _Look, now: datetime) -> list[Patch]:
        old = namespace.get("status", {}).get("conditions", [])
        objects = {self._resources[resource]: count for resource, count in look.objects.items()}
        others = ", and others" if look.has_more_finalizers else ""
        conditions = updated_conditions(old, objects, look.finalizers, now, others=others)
        return [] if conditions is None else [_status(namespace, {"conditions": conditions})]


def updated_conditions(
    old: list[dict[str, Any]],
    objects: Mapping[str, int],
    finalizers: Mapping[str, int],
    now: datetime,
    *,
    others: str = "",
) -> list[Mapping[str, Any]] | None:
    """Return a namespace's conditions; None if they are right.

    :param objects: how many there are still, by resource.
    :param finalizers: how many of them have each finalizer.
    :param others: what is told after them.
    """
    told = {name: ("False", *texts) for name, texts in _CONDITIONS.items()}
    if objects:
        shown = ", ".join(sorted(f"{name} has {count} resource instances" for name, count in objects.items()))
        told["NamespaceContentRemaining"] = (
            "True",
            "SomeResourcesRemain",
            f"Some resources are remaining: {shown}",
        )
    if finalizers:
        shown = ", ".join(sorted(f"{name} in {count} resource instances" for name, count in finalizers.items()))
        told["NamespaceFinalizersRemaining"] = (
            "True",
            "SomeFinalizersRemain",
            f"Some content in the namespace has finalizers remaining: {shown}{others}",
        )
    wanted = (
        {"type": name, "status": status, "reason": reason, "message": message}
        for name, (status, reason, message) in told.items()
    )
    return with_conditions(old, wanted, now)


def _status(namespace: Mapping[str, Any], status: Mapping[str, Any]) -> Patch:
    name = namespace["metadata"]["name"]
    patch = revised(namespace, {"status": status})
    return Patch(resource=NAMESPACES, namespace="", name=name, subresource="status", patch=patch)
