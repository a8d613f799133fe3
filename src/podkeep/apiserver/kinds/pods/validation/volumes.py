"""Validation of a pod's volumes, of every type (core/validation: ``ValidateVolumes``).

A path that names a field otherwise than the API does is kube-apiserver's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.apiserver.kinds.pods.validation.containers import (
    PULL_POLICIES,
    VOLUME_FIELDS,
    validate_field_ref,
    validate_resource_ref,
)
from podkeep.apiserver.kinds.pods.validation.projected import validate_projected
from podkeep.apiserver.kinds.storage.claim_spec import validate_claim_template
from podkeep.base.text import quantity

_HOST_PATH_TYPES = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")
_CACHING = ("None", "ReadOnly", "ReadWrite")
_DISKS = ("Dedicated", "Managed", "Shared")
_MANAGED_URI = ("/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",)
_BLOB_URI = ("https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",)
# The dots of the last two stand for any character: upstream's do.
_INITIATORS = {
    "iqn": re.compile(r"iqn\.[0-9]{4}-[0-9]{2}\.[a-zA-Z0-9.-]+:[^,;*&$|\s]+"),
    "eui": re.compile(r"eui.[a-zA-Z0-9]{16}"),
    "naa": re.compile(r"naa.[a-zA-Z0-9]{32}"),
}
_REGISTRY = "must be a host:port pair or multiple pairs separated by commas"
_HOST_PORT = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*):[^:\[\]]*")

Values = Mapping[str, Any]
Rule = Callable[[Values, str, FieldErrors], None]


def validate_volumes(
    volumes: Sequence[Values], path: str, errors: FieldErrors, *, pod_name: str, is_pod: bool
) -> dict[str, Values]:
    """Note every rule that ``volumes`` break; return those without errors by name.

    :param pod_name: the pod's name, which claims of ephemeral volumes begin with; empty for a template.
    """
    created = {f"{pod_name}-{volume.get('name', '')}" for volume in volumes if pod_name and "ephemeral" in volume}
    good: dict[str, Values] = {}
    for index, volume in enumerate(volumes):
        where = f"{path}[{index}]"
        before = len(errors.found)
        name = volume.get("name", "")
        _source(volume, where, errors, pod_name=pod_name, is_pod=is_pod)
        pod_fields.name(f"{where}.name", name, errors)
        if name in good:
            errors.duplicate(f"{where}.name", name)
        if len(errors.found) == before:
            good[name] = volume
        claim = volume.get("persistentVolumeClaim", {}).get("claimName", "")
        if claim in created:
            why = "must not reference a PVC that gets created for an ephemeral volume"
            errors.invalid(f"{where}.persistentVolumeClaim.claimName", claim, why)
    return good


def _source(volume: Values, path: str, errors: FieldErrors, *, pod_name: str, is_pod: bool) -> None:
    given = [kind for kind in _RULES if kind in volume]
    if not given:
        required(path, "must specify a volume type", errors)
        return
    kind = given[0]
    _RULES[kind](volume[kind], f"{path}.{_SHOWN.get(kind, kind)}", errors)
    for extra in given[1:]:
        errors.forbidden(f"{path}.{_SHOWN_EXTRA.get(extra, extra)}", "may not specify more than 1 volume type")
    name = volume.get("name", "")
    if kind == "image" and is_pod:
        errors.required(f"{path}.image.reference", volume["image"].get("reference"))
    elif kind == "iscsi" and "initiatorName" in volume["iscsi"]:
        if len(f"{name}:{volume['iscsi'].get('targetPortal', '')}") > 64:
            why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if"
            errors.invalid(f"{path}.name", name, f"{why} iscsi.initiatorName is specified.")
    elif kind == "ephemeral" and pod_name and name:
        claim = f"{pod_name}-{name}"
        if why := names.dns_subdomain(claim):
            errors.invalid(f"{path}.name", name, f'PVC name "{claim}": {why}')


def _needs(*fields: str) -> Rule:
    """Return a rule that these fields must not be empty."""

    def rule(source: Values, path: str, errors: FieldErrors) -> None:
        for field in fields:
            errors.required(f"{path}.{field}", source.get(field))

    return rule


def _empty_dir(source: Values, path: str, errors: FieldErrors) -> None:
    if quantity.parse(source.get("sizeLimit", "0")) < 0:
        errors.forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")


def _host_path(source: Values, path: str, errors: FieldErrors) -> None:
    target = source.get("path", "")
    if errors.required(f"{path}.path", target):
        pod_fields.no_backsteps(f"{path}.path", target, errors)
        pod_fields.supported(f"{path}.type", source.get("type", ""), _HOST_PATH_TYPES, errors)


def _git_repo(source: Values, path: str, errors: FieldErrors) -> None:
    errors.required(f"{path}.repository", source.get("repository"))
    pod_fields.descending(f"{path}.directory", source.get("directory", ""), errors)


def _disk(field: str) -> Rule:
    """Return the rule for a cloud's disk, which ``field`` names."""

    def rule(source: Values, path: str, errors: FieldErrors) -> None:
        errors.required(f"{path}.{field}", source.get(field))
        if not 0 <= source.get("partition", 0) <= 255:
            pod_fields.in_range(f"{path}.partition", source["partition"], 1, 255, errors)

    return rule


def _key_files(name: str) -> Rule:
    """Return the rule for files made from the keys of an object, which ``name`` names."""

    def rule(source: Values, path: str, errors: FieldErrors) -> None:
        errors.required(f"{path}.{name}", source.get(name))
        pod_fields.mode(f"{path}.defaultMode", source.get("defaultMode"), errors)
        for index, item in enumerate(source.get("items", ())):
            validate_item(item, f"{path}.items[{index}]", errors)

    return rule


def validate_item(item: Values, path: str, errors: FieldErrors) -> None:
    """Note what is wrong with a file that is made from a key (``KeyToPath``)."""
    errors.required(f"{path}.key", item.get("key"))
    target = item.get("path", "")
    if errors.required(f"{path}.path", target):
        pod_fields.not_reserved(f"{path}.path", target, errors)
    pod_fields.mode(f"{path}.mode", item.get("mode"), errors)


def validate_downward_file(item: Values, path: str, errors: FieldErrors) -> None:
    """Note what is wrong with a file that is made from a field of the pod (``DownwardAPIVolumeFile``)."""
    target = item.get("path", "")
    if errors.required(f"{path}.path", target):
        pod_fields.not_reserved(f"{path}.path", target, errors)
    if "fieldRef" in item:
        validate_field_ref(item["fieldRef"], f"{path}.fieldRef", VOLUME_FIELDS, errors)
        if "resourceFieldRef" in item:
            errors.invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
    elif "resourceFieldRef" in item:
        validate_resource_ref(item["resourceFieldRef"], f"{path}.resourceFieldRef", errors, in_volume=True)
    else:
        required(path, "one of fieldRef and resourceFieldRef is required", errors)
    pod_fields.mode(f"{path}.mode", item.get("mode"), errors)


def _downward(source: Values, path: str, errors: FieldErrors) -> None:
    pod_fields.mode(f"{path}.defaultMode", source.get("defaultMode"), errors)
    for item in source.get("items", ()):
        validate_downward_file(item, path, errors)


def _projected(source: Values, path: str, errors: FieldErrors) -> None:
    validate_projected(source, path, errors, item=validate_item, downward_file=validate_downward_file)


def _nfs(source: Values, path: str, errors: FieldErrors) -> None:
    _needs("server", "path")(source, path, errors)
    if not source.get("path", "").startswith("/"):
        errors.invalid(f"{path}.path", source.get("path", ""), "must be an absolute path")


def _iscsi(source: Values, path: str, errors: FieldErrors) -> None:
    errors.required(f"{path}.targetPortal", source.get("targetPortal"))
    if errors.required(f"{path}.iqn", source.get("iqn")):
        named(f"{path}.iqn", source["iqn"], _initiator_problem(source["iqn"]), errors)
    pod_fields.in_range(f"{path}.lun", source.get("lun", 0), 0, 255, errors)
    if (source.get("chapAuthDiscovery") or source.get("chapAuthSession")) and "secretRef" not in source:
        errors.required(f"{path}.secretRef", "")
    if "initiatorName" in source:
        name = source["initiatorName"]
        named(f"{path}.initiatorname", name, _initiator_problem(name), errors)


def _initiator_problem(name: str) -> str:
    pattern = _INITIATORS.get(name[:3])
    if pattern is None:
        return "must be valid format starting with iqn, eui, or naa"
    return "" if pattern.fullmatch(name) else "must be valid format"


def _flocker(source: Values, path: str, errors: FieldErrors) -> None:
    name, uid = source.get("datasetName", ""), source.get("datasetUUID", "")
    if not name and not uid:
        required(path, "one of datasetName and datasetUUID is required", errors)
    if name and uid:
        errors.invalid(path, "resource", "datasetName and datasetUUID can not be specified simultaneously")
    if "/" in name:
        errors.invalid(f"{path}.datasetName", name, "must not contain '/'")


def _cinder(source: Values, path: str, errors: FieldErrors) -> None:
    errors.required(f"{path}.volumeID", source.get("volumeID"))
    _secret_ref(source, path, errors)


def _secret_ref(source: Values, path: str, errors: FieldErrors) -> None:
    if "secretRef" in source:
        errors.required(f"{path}.secretRef.name", source["secretRef"].get("name"))


def _quobyte(source: Values, path: str, errors: FieldErrors) -> None:
    registry = source.get("registry", "")
    if not registry:
        required(f"{path}.registry", _REGISTRY, errors)
    elif len(source.get("tenant", "")) >= 65:
        required(f"{path}.tenant", "must be a UUID and may not exceed a length of 64 characters", errors)
    elif not all(_HOST_PORT.fullmatch(pair) for pair in registry.split(",")):
        errors.invalid(f"{path}.registry", registry, _REGISTRY)
    errors.required(f"{path}.volume", source.get("volume"))


def _fibre_channel(source: Values, path: str, errors: FieldErrors) -> None:
    targets, ids = source.get("targetWWNs", ()), source.get("wwids", ())
    if not targets and not ids:
        required(f"{path}.targetWWNs", "must specify either targetWWNs or wwids, but not both", errors)
    if targets and ids:
        why = "targetWWNs and wwids can not be specified simultaneously"
        errors.invalid(f"{path}.targetWWNs", targets, why)
    if targets and "lun" not in source:
        required(f"{path}.lun", "lun is required if targetWWNs is specified", errors)
    elif targets:
        pod_fields.in_range(f"{path}.lun", source["lun"], 0, 255, errors)


def _flex_volume(source: Values, path: str, errors: FieldErrors) -> None:
    errors.required(f"{path}.driver", source.get("driver"))
    for key in source.get("options", ()):
        domain = f".{key.partition('/')[0].lower()}"
        if domain.endswith((".kubernetes.io", ".k8s.io")):
            why = "kubernetes.io and k8s.io namespaces are reserved"
            errors.invalid(f"{path}.options[{key}]", key, why)


def _azure_disk(source: Values, path: str, errors: FieldErrors) -> None:
    _needs("diskName", "diskURI")(source, path, errors)
    uri, kind = source.get("diskURI", ""), source.get("kind", "")
    pod_fields.supported(f"{path}.cachingMode", source.get("cachingMode", ""), _CACHING, errors)
    pod_fields.supported(f"{path}.kind", kind, _DISKS, errors)
    prefix, known = ("/subscriptions/", _MANAGED_URI) if kind == "Managed" else ("https://", _BLOB_URI)
    if not uri.startswith(prefix):
        pod_fields.supported(f"{path}.diskURI", uri, known, errors)


def _storage_os(source: Values, path: str, errors: FieldErrors) -> None:
    pod_fields.name(f"{path}.volumeName", source.get("volumeName", ""), errors)
    namespace = source.get("volumeNamespace", "")
    if namespace:
        named(f"{path}.volumeNamespace", namespace, names.dns_label(namespace), errors)
    _secret_ref(source, path, errors)


def _csi(source: Values, path: str, errors: FieldErrors) -> None:
    validate_driver_name(source.get("driver", ""), f"{path}.driver", errors)
    if "nodePublishSecretRef" in source:
        name = source["nodePublishSecretRef"].get("name", "")
        if errors.required(f"{path}.nodePublishSecretRef.name", name):
            named(f"{path}.name", name, names.dns_subdomain(name), errors)


def validate_driver_name(name: str, path: str, errors: FieldErrors) -> None:
    """Note what is wrong with the name of a CSI driver."""
    if not errors.required(path, name):
        return
    field_rules.too_long(path, name, 63, errors)
    named(path, name, names.dns_subdomain(name.lower()), errors)


def _ephemeral(source: Values, path: str, errors: FieldErrors) -> None:
    where = f"{path}.volumeClaimTemplate"
    if "volumeClaimTemplate" not in source:
        errors.required(where, "")
    else:
        validate_claim_template(source["volumeClaimTemplate"], where, errors)


def _image(source: Values, path: str, errors: FieldErrors) -> None:
    field_rules.one_of(f"{path}.pullPolicy", source.get("pullPolicy", ""), PULL_POLICIES, errors)


_RULES: Mapping[str, Rule] = {
    "emptyDir": _empty_dir,
    "hostPath": _host_path,
    "gitRepo": _git_repo,
    "gcePersistentDisk": _disk("pdName"),
    "awsElasticBlockStore": _disk("volumeID"),
    "secret": _key_files("secretName"),
    "nfs": _nfs,
    "iscsi": _iscsi,
    "glusterfs": _needs("endpoints", "path"),
    "flocker": _flocker,
    "persistentVolumeClaim": _needs("claimName"),
    "rbd": _needs("monitors", "image"),
    "cinder": _cinder,
    "cephfs": _needs("monitors"),
    "quobyte": _quobyte,
    "downwardAPI": _downward,
    "fc": _fibre_channel,
    "flexVolume": _flex_volume,
    "configMap": _key_files("name"),
    "azureFile": _needs("secretName", "shareName"),
    "vsphereVolume": _needs("volumePath"),
    "photonPersistentDisk": _needs("pdID"),
    "portworxVolume": _needs("volumeID"),
    "azureDisk": _azure_disk,
    "storageos": _storage_os,
    "projected": _projected,
    "scaleIO": _needs("gateway", "system", "volumeName"),
    "csi": _csi,
    "ephemeral": _ephemeral,
    "image": _image,
}
"""The rule of each type. Of two types the second one in this order is one too many."""
_SHOWN = {"gcePersistentDisk": "persistentDisk"}
_SHOWN_EXTRA = {"cephfs": "cephFS", "downwardAPI": "downwarAPI"}


def validate_source(kind: str, source: Values, path: str, errors: FieldErrors) -> None:
    """Note what is wrong with a source of one type, as pods have it; PersistentVolumes have more rules for some."""
    _RULES[kind](source, path, errors)
