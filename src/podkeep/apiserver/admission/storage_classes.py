"""Claims of storage: the class that they get if they name none, which may grow, and that none vanishes in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.apiserver.admission.attributes import AdmitAll, Attributes, Operation
from podkeep.apiserver.kinds.storage.storage_classes import is_default
from podkeep.apiserver.kinds.storage.volume_rules import CLASS_ANNOTATION
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import forbidden
from podkeep.base.text import quantity

CLAIMS = "persistentvolumeclaims"
CLASSES = "storage.k8s.io/storageclasses"
PROTECTION = {CLAIMS: "kubernetes.io/pvc-protection", "persistentvolumes": "kubernetes.io/pv-protection"}
"""The finalizer of what stays while it is used, by resource."""


def _is_claim(attributes: Attributes) -> bool:
    return attributes.target.resource.storage_name == CLAIMS and not attributes.target.subresource


class DefaultStorageClass(AdmitAll):
    """The plugin ``DefaultStorageClass``, which upstream has on."""

    def __init__(self, lister: Lister) -> None:
        self._lister = lister

    def mutate(self, attributes: Attributes) -> None:
        """Give a new claim the newest of the default classes, if it says nothing of a class."""
        value = attributes.value
        if value is None or attributes.operation is not Operation.CREATE or not _is_claim(attributes):
            return
        spec = value.setdefault("spec", {})
        if "storageClassName" in spec or CLASS_ANNOTATION in metadata(value).get("annotations", {}):
            return
        defaults = [found for found in self._lister.list(CLASSES) if is_default(found)]
        if defaults:
            # Of equal age the first by name; these are in order.
            newest = max(metadata(found).get("creationTimestamp", "") for found in defaults)
            spec["storageClassName"] = next(
                metadata(found)["name"] for found in defaults if metadata(found).get("creationTimestamp", "") == newest
            )


class StorageObjectInUseProtection(AdmitAll):
    """The plugin ``StorageObjectInUseProtection``, which upstream has on; a controller removes its finalizers."""

    def mutate(self, attributes: Attributes) -> None:
        """Give a new claim or volume the finalizer that keeps it while it is used."""
        target, value = attributes.target, attributes.value
        name = "" if target.subresource else PROTECTION.get(target.resource.storage_name, "")
        if not name or value is None or attributes.operation is not Operation.CREATE:
            return
        finalizers = metadata(value).setdefault("finalizers", [])
        if name not in finalizers:
            finalizers.append(name)


class PersistentVolumeClaimResize(AdmitAll):
    """The plugin ``PersistentVolumeClaimResize``, which upstream has on."""

    def __init__(self, lister: Lister) -> None:
        self._lister = lister

    def validate(self, attributes: Attributes) -> None:
        """Refuse a claim that grows though its class does not allow it.

        :raises StatusError: 403.
        """
        new, old = attributes.value, attributes.old
        if new is None or old is None or not _is_claim(attributes) or _size(new) <= _size(old):
            return
        if old.get("status", {}).get("phase") != "Bound":
            why = "Only bound persistent volume claims can be expanded"
        elif not self._allows(_class(new), _class(old)):
            why = (
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must"
                " support resize"
            )
        else:
            return
        target = attributes.target
        raise forbidden(target.resource.plural, target.resource.group, target.name, why)

    def _allows(self, name: str, old: str) -> bool:
        found = self._lister.get(CLASSES, "", name) if name and name == old else None
        return found is not None and bool(found.get("allowVolumeExpansion"))


def _size(claim: Mapping[str, Any]) -> Any:
    return quantity.parse(claim.get("spec", {}).get("resources", {}).get("requests", {}).get("storage", "0"))


def _class(claim: Mapping[str, Any]) -> str:
    named: str = metadata(claim).get("annotations", {}).get(CLASS_ANNOTATION, "")
    return named or claim.get("spec", {}).get("storageClassName", "")
