"""The end of namespaces: everything in one is deleted, pods first, then the namespace itself.

After kube-controller-manager's namespace controller, conditions and their texts included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any

import msgspec

from podkeep.apiserver.controllers.controller import (
    NOTHING,
    Change,
    Delete,
    Item,
    Patch,
    Plan,
    revised,
    service_account,
    with_conditions,
)
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.meta.lister import Lister

NAMESPACES = "namespaces"
PODS = "pods"
FINALIZER = "kubernetes"
"""Of a namespace's ``spec``; it stands for this controller."""

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


class NamespaceDeletion:
    """The controller. It remembers which namespaces are about to go."""

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
        self._ending: set[str] = set()

    def observe(self, change: Change) -> Iterator[Item]:
        """Return the namespace that is about to go, or the one of an object in it."""
        key = change.key
        if key.resource == NAMESPACES:
            if change.is_deletion:
                self._ending.discard(key.name)
            elif change.metadata.deletion_timestamp:
                self._ending.add(key.name)
                yield key.name
        elif key.namespace in self._ending:
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
        # Pods first (KEP-5080): while they run, what restricts them, such as network policies, has to stay.
        places: Iterable[str] = [PODS] if any(self._remaining(lister, [PODS], name)) else self._resources
        # As many as one turn deletes are looked for; what follows from them comes back as changes.
        deletions = (
            Delete(resource=resource, namespace=name, name=fields.name, uid=fields.uid)
            for resource, fields in self._remaining(lister, places, name)
            if not fields.deletion_timestamp
        )
        if (first := next(deletions, None)) is not None:
            return Plan(writes=chain([first], deletions))
        objects, kept = Counter[str](), Counter[str]()
        for resource, fields in self._remaining(lister, places, name):
            objects[self._resources[resource]] += 1
            kept.update(fields.finalizers)
        told = self._told(namespace, objects, kept, now)
        if objects:
            return Plan(writes=told)
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

    def _remaining(self, lister: Lister, places: Iterable[str], name: str) -> Iterator[tuple[str, _Fields]]:
        for resource in places:
            if resource in self._resources:
                for part in lister.parts(resource, name, _Part):
                    yield resource, part.metadata

    def _told(
        self, namespace: Mapping[str, Any], objects: Mapping[str, int], finalizers: Mapping[str, int], now: datetime
    ) -> list[Patch]:
        old = namespace.get("status", {}).get("conditions", [])
        conditions = updated_conditions(old, objects, finalizers, now)
        return [] if conditions is None else [_status(namespace, {"conditions": conditions})]


def updated_conditions(
    old: list[dict[str, Any]], objects: Mapping[str, int], finalizers: Mapping[str, int], now: datetime
) -> list[Mapping[str, Any]] | None:
    """Return a namespace's conditions; None if they are right.

    :param objects: how many there are still, by resource.
    :param finalizers: how many of them have each finalizer.
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
            f"Some content in the namespace has finalizers remaining: {shown}",
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
