"""Where the content of a PersistentVolume is: exactly one of many sources, and the rules of each.

Kubernetes: pkg/apis/core/validation. Sources that no node of ours can mount are stored all the same, as upstream does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.field_rules import required
from podkeep.apiserver.kinds.pods.validation.fields import no_backsteps
from podkeep.apiserver.kinds.pods.validation.volumes import validate_driver_name, validate_source

Source: TypeAlias = Mapping[str, Any]
_Rule: TypeAlias = Callable[[Source, str, FieldErrors], None]

_KINDS = (
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
)
"""In upstream's order: the first one that is there counts."""
_VALIDATED_AS = {"gcePersistentDisk": "persistentDisk"}
_FORBIDDEN_AS = {"cephfs": "cephFS"}
"""Where messages do not name the field as it is."""
_CSI_SECRETS = (
    "controllerPublishSecretRef",
    "controllerExpandSecretRef",
    "nodePublishSecretRef",
    "nodeExpandSecretRef",
)
_INITIATOR = (
    "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if"
    " iscsi.initiatorName is specified."
)
MOUNT_OPTIONS = frozenset(
    {
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "gcePersistentDisk",
        "glusterfs",
        "iscsi",
        "nfs",
        "photonPersistentDisk",
        "quobyte",
        "rbd",
        "vsphereVolume",
    }
)
"""Sources that can be mounted with options of the old annotation."""
DEPRECATED = {
    "cephfs": "spec.cephfs: deprecated in v1.28, non-functional in v1.31+",
    "photonPersistentDisk": "spec.photonPersistentDisk: deprecated in v1.11, non-functional in v1.16+",
    "scaleIO": "spec.scaleIO: deprecated in v1.16, non-functional in v1.22+",
    "storageos": "spec.storageOS: deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "spec.glusterfs: deprecated in v1.25, non-functional in v1.26+",
    "rbd": "spec.rbd: deprecated in v1.28, non-functional in v1.31+",
}
"""What to say of sources that nothing mounts any more."""


def source(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields of a volume's spec that say where its content is."""
    return {name: value for name, value in spec.items() if name in _KINDS}


def validate(spec: Mapping[str, Any], volume_name: str, path: str, errors: FieldErrors) -> None:
    """Note what is wrong with the source of a volume, and more or fewer than one of them."""
    found = False
    for kind in _KINDS:
        if kind not in spec:
            continue
        if found and kind != "flexVolume":  # upstream does not count that one
            errors.forbidden(f"{path}.{_FORBIDDEN_AS.get(kind, kind)}", "may not specify more than 1 volume type")
            continue
        found = True
        where = f"{path}.{_VALIDATED_AS.get(kind, kind)}"
        if kind not in ("csi", "local"):
            validate_source(kind, spec[kind], where, errors)
        if kind in _MORE:
            _MORE[kind](spec[kind], where, errors)
    if not found:
        required(path, "must specify a volume type", errors)
    if "local" in spec and "nodeAffinity" not in spec:
        required(f"{path}.nodeAffinity", "Local volume requires node affinity", errors)
    iscsi = spec.get("iscsi", {})
    portal = iscsi.get("targetPortal", "")
    if "initiatorName" in iscsi and len(f"{volume_name}:{portal}") > 64:
        errors.invalid(f"{path}.iscsi.targetportal", portal, _INITIATOR)


def _secret(*fields: str) -> _Rule:
    """Return the rule that fields of ``secretRef`` are there."""

    def rule(given: Source, path: str, errors: FieldErrors) -> None:
        for name in fields if "secretRef" in given else ():
            errors.required(f"{path}.secretRef.{name}", given["secretRef"].get(name))

    return rule


def _glusterfs(given: Source, path: str, errors: FieldErrors) -> None:
    namespace = given.get("endpointsNamespace")
    if namespace is None:
        return
    why = names.dns_label(namespace)
    if not namespace:
        why = "if the endpointnamespace is set, it must be a valid namespace name"
    if why:
        errors.invalid(f"{path}.endpointsNamespace", namespace, why)


def _azure_file(given: Source, path: str, errors: FieldErrors) -> None:
    if "secretNamespace" in given:
        errors.required(f"{path}.secretNamespace", given["secretNamespace"])


def _local(given: Source, path: str, errors: FieldErrors) -> None:
    target = given.get("path", "")
    if errors.required(f"{path}.path", target):
        no_backsteps(f"{path}.path", target, errors)


def _csi(given: Source, path: str, errors: FieldErrors) -> None:
    validate_driver_name(given.get("driver", ""), f"{path}.driver", errors)
    errors.required(f"{path}.volumeHandle", given.get("volumeHandle"))
    for field in _CSI_SECRETS:
        if field not in given:
            continue
        for name, rule in (("name", names.dns_subdomain), ("namespace", names.dns_label)):
            value, where = given[field].get(name, ""), f"{path}.{field}.{name}"
            if errors.required(where, value) and (why := rule(value)):
                errors.invalid(where, value, why)


_MORE: Mapping[str, _Rule] = {
    "azureFile": _azure_file,
    "cinder": _secret("namespace"),
    "csi": _csi,
    "glusterfs": _glusterfs,
    "iscsi": _secret("name"),
    "local": _local,
    "storageos": _secret("namespace"),
}
"""Rules that volumes of pods do not have."""
