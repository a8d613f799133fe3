"""The end of namespaces: everything in one is deleted, pods first, then the namespace itself.

After kube-controller-manager's namespace controller, conditions and their texts included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

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
        remaining = {PODS: list(lister.list(PODS, name))} if PODS in self._resources else {}
        if not any(remaining.values()):
            remaining = {resource: list(lister.list(resource, name)) for resource in self._resources}
        deletions = [
            Delete(resource=resource, namespace=name, name=value["metadata"]["name"], uid=value["metadata"]["uid"])
            for resource, values in remaining.items()
            for value in values
            if "deletionTimestamp" not in value["metadata"]
        ]
        if deletions:
            # What follows from them comes back as changes.
            return Plan(writes=deletions)
        told = self._told(namespace, remaining, now)
        if any(remaining.values()):
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

    def _told(
        self, namespace: Mapping[str, Any], remaining: Mapping[str, list[Mapping[str, Any]]], now: datetime
    ) -> list[Patch]:
        objects = {self._resources[resource]: len(values) for resource, values in remaining.items() if values}
        finalizers = Counter(
            finalizer
            for values in remaining.values()
            for value in values
            for finalizer in value["metadata"].get("finalizers", ())
        )
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
