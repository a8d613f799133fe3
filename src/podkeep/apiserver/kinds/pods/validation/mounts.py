"""Validation of what containers mount of a pod's volumes (core/validation: ``ValidateVolumeMounts``).

Some paths lack the index of their mount: kube-apiserver has them so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.apiserver.kinds.pods.validation.fields import Context

_PROPAGATION = ("Bidirectional", "HostToContainer", "None")
_RECURSIVE = ("Disabled", "Enabled", "IfPossible")

Values = Mapping[str, Any]


def validate_mounts(container: Values, path: str, context: Context) -> None:
    """Note every rule that ``volumeMounts`` and ``volumeDevices`` of a container break."""
    mounts, devices = container.get("volumeMounts", ()), container.get("volumeDevices", ())
    if not mounts and not devices:
        return
    errors = context.errors
    device_names = {device.get("name", ""): device.get("devicePath", "") for device in devices}
    device_paths = frozenset(device_names.values())
    paths: set[str] = set()
    for index, mount in enumerate(mounts):
        where = f"{path}.volumeMounts[{index}]"
        name, target = mount.get("name", ""), mount.get("mountPath", "")
        errors.required(f"{where}.name", name)
        if name not in context.volumes:
            errors.not_found(f"{where}.name", name)
        errors.required(f"{where}.mountPath", target)
        if target in paths:
            errors.invalid(f"{where}.mountPath", target, "must be unique")
        paths.add(target)
        if name in device_names:
            errors.invalid(f"{where}.name", name, "must not already exist in volumeDevices")
        if target in device_paths:
            errors.invalid(f"{where}.mountPath", target, "must not already exist as a path in volumeDevices")
        _inner(mount, where, f"{path}.volumeMounts", context)
        _kind(mount, container, f"{path}.volumeMounts", context)
    if devices:
        _devices(container, path, context)


def _inner(mount: Values, path: str, group: str, context: Context) -> None:
    errors = context.errors
    if inner := mount.get("subPath"):
        pod_fields.descending(f"{group}.subPath", inner, errors)
    if expression := mount.get("subPathExpr"):
        if mount.get("subPath"):
            why = "subPathExpr and subPath are mutually exclusive"
            errors.invalid(f"{path}.subPathExpr", expression, why)
        pod_fields.descending(f"{group}.subPathExpr", expression, errors)


def _kind(mount: Values, container: Values, group: str, context: Context) -> None:
    errors = context.errors
    propagation = mount.get("mountPropagation")
    if propagation is not None:
        pod_fields.supported(f"{group}.mountPropagation", propagation, _PROPAGATION, errors)
        if propagation == "Bidirectional" and not container.get("securityContext", {}).get("privileged"):
            why = "Bidirectional mount propagation is available only to privileged containers"
            errors.forbidden(f"{group}.mountPropagation", why)
    recursive = mount.get("recursiveReadOnly")
    if recursive is None or not pod_fields.supported(f"{group}.recursiveReadOnly", recursive, _RECURSIVE, errors):
        return
    if recursive != "Disabled":
        if not mount.get("readOnly"):
            errors.forbidden(f"{group}.recursiveReadOnly", "may only be specified when readOnly is true")
        if propagation not in (None, "None"):
            why = "may only be specified when mountPropagation is None or not specified"
            errors.forbidden(f"{group}.recursiveReadOnly", why)


def _devices(container: Values, path: str, context: Context) -> None:
    errors = context.errors
    mounts = {mount.get("name", ""): mount.get("mountPath", "") for mount in container.get("volumeMounts", ())}
    mount_paths = frozenset(mounts.values())
    seen_names: set[str] = set()
    seen_paths: set[str] = set()
    for index, device in enumerate(container["volumeDevices"]):
        where = f"{path}.volumeDevices[{index}]"
        name, target = device.get("name", ""), device.get("devicePath", "")
        errors.required(f"{where}.name", name)
        if name in seen_names:
            errors.invalid(f"{where}.name", name, "must be unique")
        if name not in context.volumes:
            errors.not_found(f"{where}.name", name)
        elif not context.volumes[name].keys() & {"persistentVolumeClaim", "ephemeral"}:
            why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            errors.invalid(f"{where}.name", name, why)
        errors.required(f"{where}.devicePath", target)
        if target in seen_paths:
            errors.invalid(f"{where}.devicePath", target, "must be unique")
        if ".." in target.split("/"):
            errors.invalid(f"{where}.devicePath", target, "can not contain backsteps ('..')")
        if name in mounts:
            errors.invalid(f"{where}.name", name, "must not already exist in volumeMounts")
        if target in mount_paths:
            errors.invalid(f"{where}.devicePath", target, "must not already exist as a path in volumeMounts")
        seen_names |= {name} - {""}
        if ".." not in target.split("/"):
            seen_paths.add(target)
