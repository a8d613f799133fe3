"""Binds claims to volumes that an administrator made (kube-controller-manager: persistent-volume-binder).

A claim gets the volume that it names, or the smallest that fits: class, access modes, mode, labels and size. Both
then name each other, and the phases of both say so. A claim whose class waits for its first consumer is bound once a
pod refers to it. No volume is made, emptied or removed: one whose claim is gone is Released, and Failed if it was to be
deleted with the claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from podkeep.apiserver.controllers.controller import (
    CLAIMS,
    NOTHING,
    Change,
    Item,
    Patch,
    Plan,
    PodsOfClaims,
    Write,
    revised,
    service_account,
)
from podkeep.apiserver.controllers.recorder import REPEATED, Told, event, is_due
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.selectors import LabelSelector
from podkeep.apiserver.storage.records import Key
from podkeep.base.text import quantity

VOLUMES, CLASSES, PODS = "persistentvolumes", "storage.k8s.io/storageclasses", "pods"
_BOUND_BY_US = "pv.kubernetes.io/bound-by-controller"
_COMPLETED = "pv.kubernetes.io/bind-completed"
_WAITS = "WaitForFirstConsumer"
_COMPONENT = "persistentvolume-controller"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_EXTERNAL = (
    "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system administrator"
    ". If volume creation is delayed, please verify that the provisioner is running and correctly registered."
)
Value = Mapping[str, Any]


class VolumeBinder:
    """The controller. It remembers which claims there are, and which pods name them; the rest is in the objects."""

    name = "persistent-volume-binder"
    user = service_account(name)
    resources = frozenset({CLAIMS, VOLUMES, CLASSES, PODS})

    def __init__(self) -> None:
        self._claims: dict[Key, None] = {}
        self._pods = PodsOfClaims()

    def observe(self, change: Change) -> Iterator[Item]:
        """Return claims and volumes that may not be what they should be."""
        key = change.key
        if key.resource == CLAIMS:
            if change.is_deletion:
                self._claims.pop(key, None)
            else:
                self._claims[key] = None
                yield key
            volume = change.value.get("spec", {}).get("volumeName", "")
            if volume:
                yield Key(VOLUMES, "", volume)
        elif key.resource == VOLUMES:
            if not change.is_deletion:
                yield key
            yield from list(self._claims)
        elif key.resource == PODS:
            _, named = self._pods.note(change)
            if not change.is_deletion:
                yield from [claim for claim in named if claim in self._claims]
        # Whether a claim waits for its consumer, and what it is told, depends on its class.
        elif key.resource == CLASSES:
            yield from list(self._claims)

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        """Return the next write that a claim or a volume lacks."""
        assert isinstance(item, Key)
        value = lister.get(*item)
        if value is None:
            return NOTHING
        if item.resource == VOLUMES:
            return _volume(value, lister)
        # A pod that was not told yet is told soon, and the claim looked at again.
        return _claim(value, lister, now, is_wanted=bool(self._pods.users(item)))


def _claim(claim: Value, lister: Lister, now: datetime, *, is_wanted: bool) -> Plan:
    if "deletionTimestamp" in claim["metadata"]:
        return NOTHING
    spec, status = claim.get("spec", {}), claim.get("status", {})
    name = spec.get("volumeName", "")
    volume = lister.get(VOLUMES, "", name) if name else _found(claim, lister, is_wanted=is_wanted)
    if volume is None:
        lost = bool(name) and _COMPLETED in claim["metadata"].get("annotations", {})
        phase = _phase(CLAIMS, claim, "Lost" if lost else "Pending")
        if name:
            return phase
        return Plan(
            writes=[*phase.writes, *_told(claim, lister, now, is_wanted=is_wanted)], after=REPEATED.total_seconds()
        )
    if not _may_have(volume, claim) or (
        volume["spec"].get("claimRef") is None and not fits(volume, claim, _selector(claim))
    ):
        return _phase(CLAIMS, claim, "Pending")
    if volume["spec"].get("claimRef", {}).get("uid") != claim["metadata"]["uid"]:
        # First the volume's side: of two claims that want it, one write succeeds.
        return Plan(writes=[_patch(VOLUMES, volume, {"spec": {"claimRef": reference(claim)}})])
    if name != volume["metadata"]["name"] or _COMPLETED not in claim["metadata"].get("annotations", {}):
        annotations = {_COMPLETED: "yes"} | ({} if name else {_BOUND_BY_US: "yes"})
        change = {"metadata": {"annotations": annotations}, "spec": {"volumeName": volume["metadata"]["name"]}}
        return Plan(writes=[_patch(CLAIMS, claim, change)])
    wanted = {
        "phase": "Bound",
        "accessModes": volume["spec"].get("accessModes", []),
        "capacity": {"storage": volume["spec"].get("capacity", {}).get("storage", "0")},
    }
    if all(status.get(field) == value for field, value in wanted.items()):
        return NOTHING
    return Plan(writes=[_patch(CLAIMS, claim, {"status": wanted}, subresource="status")])


def reference(claim: Value) -> dict[str, str]:
    """Return ``claimRef`` of the volume that a claim gets."""
    metadata = claim["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def _volume(volume: Value, lister: Lister) -> Plan:
    held = volume["spec"].get("claimRef")
    if held is None or not held.get("uid"):
        # Without a uid an administrator keeps it for a claim that may not be there yet.
        return _phase(VOLUMES, volume, "Available")
    claim = lister.get(CLAIMS, held.get("namespace", ""), held.get("name", ""))
    if claim is not None and claim["metadata"]["uid"] == held["uid"]:
        own = claim.get("spec", {}).get("volumeName", "") == volume["metadata"]["name"]
        return _phase(VOLUMES, volume, "Bound") if own else NOTHING
    if volume["spec"].get("persistentVolumeReclaimPolicy", "Retain") != "Delete":
        return _phase(VOLUMES, volume, "Released")
    name = volume["metadata"]["name"]
    why = f'Error getting deleter volume plugin for volume "{name}": no deletable volume plugin matched'
    return _phase(VOLUMES, volume, "Failed", message=why)


def _found(claim: Value, lister: Lister, *, is_wanted: bool) -> Value | None:
    """Return the volume for a claim that names none: one that is kept for it, or the smallest that fits.

    Of one that is kept for it class and labels do not count (``FindMatchingVolume``).
    """
    volumes = [volume for volume in lister.list(VOLUMES) if _may_have(volume, claim) and _holds(volume, claim)]
    kept = [volume for volume in volumes if volume["spec"].get("claimRef")]
    if kept:
        return kept[0]
    if not is_wanted and _waits(claim, lister):
        return None
    # Read once: there may be hundreds of volumes, and thousands of expressions.
    selector = _selector(claim)
    fitting = [volume for volume in volumes if fits(volume, claim, selector)]
    return min(fitting, key=lambda volume: (_size(volume), volume["metadata"]["name"]), default=None)


def _told(claim: Value, lister: Lister, now: datetime, *, is_wanted: bool) -> Iterator[Write]:
    """Yield the event that says why a claim has no volume, now and then (upstream: ``syncUnboundClaim``)."""
    name = _class(claim)
    kind = lister.get(CLASSES, "", name) if name else None
    provisioner = kind.get("provisioner", "") if kind else ""
    if not is_wanted and _waits(claim, lister):
        said = "Normal", _WAITS, "waiting for first consumer to be created before binding"
    elif not name:
        said = "Normal", "FailedBinding", "no persistent volumes available for this claim and no storage class is set"
    elif kind is None:
        said = "Warning", "ProvisioningFailed", f'storageclass.storage.k8s.io "{name}" not found'
    elif provisioner == _NO_PROVISIONER:
        said = "Warning", "ProvisioningFailed", f"no volume plugin matched name: {provisioner}"
    else:
        said = "Normal", "ExternalProvisioning", _EXTERNAL.format(provisioner)
    level, reason, message = said
    told = Told(
        component=_COMPONENT, kind=level, reason=reason, action="", message=message, about="PersistentVolumeClaim"
    )
    if is_due(claim, told, lister, now):
        yield event(claim, told, lister, now)


def _waits(claim: Value, lister: Lister) -> bool:
    """Return whether a claim is bound only when a pod names it."""
    kind = lister.get(CLASSES, "", _class(claim))
    return kind is not None and kind.get("volumeBindingMode") == _WAITS


def _may_have(volume: Value, claim: Value) -> bool:
    """Return whether a volume is free for a claim: it is bound to no other, and reserved for no other."""
    held = volume["spec"].get("claimRef")
    if held is None:
        return "deletionTimestamp" not in volume["metadata"]
    metadata = claim["metadata"]
    same = (held.get("namespace"), held.get("name")) == (metadata["namespace"], metadata["name"])
    return same and held.get("uid", "") in ("", metadata["uid"])


def _holds(volume: Value, claim: Value) -> bool:
    """Return whether a volume is what a claim asks for by its mode, its accesses and its size, and stays."""
    has, asks = volume["spec"], claim.get("spec", {})
    if "deletionTimestamp" in volume["metadata"]:
        return False
    if has.get("volumeMode", "Filesystem") != asks.get("volumeMode", "Filesystem"):
        return False
    if not set(asks.get("accessModes", ())) <= set(has.get("accessModes", ())):
        return False
    wanted = asks.get("resources", {}).get("requests", {}).get("storage", "0")
    return bool(_size(volume) >= quantity.parse(wanted))


def _selector(claim: Value) -> LabelSelector | None:
    return selectors.of_object(claim.get("spec", {}).get("selector"))


def fits(volume: Value, claim: Value, selector: LabelSelector | None) -> bool:
    """Return whether a volume is what a claim asks for, given what the claim's selector means."""
    if _class(volume) != _class(claim) or not _holds(volume, claim):
        return False
    return selector is None or selector.matches(volume["metadata"].get("labels", {}))


def _size(volume: Value) -> Any:
    return quantity.parse(volume["spec"].get("capacity", {}).get("storage", "0"))


def _class(value: Value) -> str:
    # The old annotation comes before the field, as upstream (GetPersistentVolumeClaimClass).
    annotated = value["metadata"].get("annotations", {}).get("volume.beta.kubernetes.io/storage-class", "")
    return str(annotated or value.get("spec", {}).get("storageClassName", ""))


def _phase(resource: str, value: Value, phase: str, message: str = "") -> Plan:
    status = value.get("status", {})
    if status.get("phase") == phase and status.get("message", "") == message:
        return NOTHING
    change = {"status": {"phase": phase} | ({"message": message} if resource == VOLUMES else {})}
    return Plan(writes=[_patch(resource, value, change, subresource="status")])


def _patch(resource: str, value: Value, change: Mapping[str, Any], subresource: str = "") -> Patch:
    metadata = value["metadata"]
    return Patch(
        resource=resource,
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        patch=revised(value, change),
        subresource=subresource,
    )
