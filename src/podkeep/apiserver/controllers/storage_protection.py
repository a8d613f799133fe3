"""Keeps claims that pods of a node use, and volumes that claims have, until nobody does.

kube-controller-manager's pvc-protection-controller and pv-protection-controller. The finalizers come from the admission
plugin ``StorageObjectInUseProtection``; objects that are older than it get them here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from datetime import datetime
from itertools import chain
from typing import Any

import msgspec

from podkeep.apiserver.admission.storage_classes import PROTECTION
from podkeep.apiserver.controllers.controller import (
    CLAIMS,
    NOTHING,
    Change,
    Item,
    Patch,
    Plan,
    PodsOfClaims,
    revised,
    service_account,
)
from podkeep.apiserver.controllers.volume_binder import PODS, VOLUMES
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.storage.records import Key

Value = Mapping[str, Any]


class _Metadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str
    uid: str
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    node_name: str = ""
    volumes: list[dict[str, Any]] = []


class ClaimingPod(msgspec.Struct, frozen=True):
    """What of a pod says which claims it has or uses: it may be large."""

    metadata: _Metadata
    spec: _Spec = _Spec()


class StorageProtection:
    """The controller. It remembers which claims are being deleted, and which pods name which claims."""

    name = "pvc-protection-controller"
    user = service_account(name)
    resources = frozenset({CLAIMS, VOLUMES, PODS})

    def __init__(self) -> None:
        self._going: set[Key] = set()
        self._pods = PodsOfClaims()
        self._told: dict[Key, int] = {}
        """The revision of each pod that the controller was told of."""

    def observe(self, change: Change) -> Iterator[Item]:
        """Return what may have to get or lose its finalizer."""
        key = change.key
        if key.resource == PODS:
            yield from sorted(self._going & self._named_before_and_now(change))
        elif change.is_deletion:
            self._going.discard(key)
        elif change.metadata.deletion_timestamp:
            if key.resource == CLAIMS:
                self._going.add(key)
            yield key
        elif PROTECTION[key.resource] not in change.metadata.finalizers:
            yield key

    def _named_before_and_now(self, change: Change) -> Set[Key]:
        key = change.key
        if change.is_deletion:
            self._told.pop(key, None)
        else:
            self._told[key] = change.revision
        old, named = self._pods.note(change)
        return old | named

    def _is_used(self, key: Key, value: Value, lister: Lister) -> bool:
        if key.resource == VOLUMES:
            return bool(value.get("status", {}).get("phase") == "Bound")
        # Those that are known to name it, and those whose last write may not have been told yet. The others are not
        # read: the pods of a namespace may be hundreds of megabytes.
        there = (Key(PODS, key.namespace, name) for name, _ in lister.sizes(PODS, key.namespace))
        untold = (pod for pod in there if self._told.get(pod) != lister.revision_of(*pod))
        pods = (lister.part(*pod, ClaimingPod) for pod in chain(self._pods.users(key), untold))
        return any(pod is not None and _uses(msgspec.to_builtins(pod), value) for pod in pods)

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        """Return the write that adds or removes the finalizer, if it is due."""
        assert isinstance(item, Key)
        value = lister.get(*item)
        if value is None:
            return NOTHING
        ours, metadata = PROTECTION[item.resource], value["metadata"]
        others = [name for name in metadata.get("finalizers", ()) if name != ours]
        is_protected = ours in metadata.get("finalizers", ())
        if "deletionTimestamp" not in metadata:
            return NOTHING if is_protected else _written(item, value, [*others, ours])
        if not is_protected or self._is_used(item, value, lister):
            return NOTHING
        return _written(item, value, others)


def _written(key: Key, value: Value, finalizers: list[str]) -> Plan:
    patch = revised(value, {"metadata": {"finalizers": finalizers}})
    return Plan(writes=[Patch(resource=key.resource, namespace=key.namespace, name=key.name, patch=patch)])


def _uses(pod: Value, claim: Value) -> bool:
    """Tell whether a pod has, or may have, a claim (``podUsesPVCForDeletion``)."""
    spec, metadata, name = pod.get("spec", {}), pod["metadata"], claim["metadata"]["name"]
    # A kubelet starts no pod whose claim is being deleted, so that one which is not bound yet holds nothing.
    if not spec.get("nodeName"):
        return False
    has_ended = "deletionTimestamp" in metadata and not metadata.get("deletionGracePeriodSeconds")
    is_owner = any(
        owner.get("controller") and owner.get("uid") == metadata["uid"]
        for owner in claim["metadata"].get("ownerReferences", ())
    )
    for volume in spec.get("volumes", ()):
        if volume.get("persistentVolumeClaim", {}).get("claimName") == name:
            return True
        if "ephemeral" in volume and f"{metadata['name']}-{volume['name']}" == name and is_owner and not has_ended:
            return True
    return False
