"""Validation of ``spec.volumes``: names, one source each, paths inside ConfigMap and Secret volumes."""

from __future__ import annotations

from podkeep.api import names
from podkeep.api.defaults import sources
from podkeep.api.fields import FieldErrors
from podkeep.api.structs import json_name
from podkeep.api.volumes import (
    DownwardAPIVolumeFile,
    EmptyDirVolumeSource,
    KeyToPath,
    ProjectedVolumeSource,
    Volume,
)
from podkeep.base.text import quantity

FIELDS = ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
"""What a file of a volume may hold of the pod, besides ``metadata.labels['k']`` and ``annotations``."""
_KEYED = ("metadata.labels['", "metadata.annotations['")
_MEDIA = ("Memory", "HugePages", "HugePages-2Mi", "HugePages-1Gi")


def validate_volumes(volumes: tuple[Volume, ...], errors: FieldErrors) -> dict[str, Volume]:
    """Note every rule that ``volumes`` break; return them by name."""
    by_name: dict[str, Volume] = {}
    for index, volume in enumerate(volumes):
        path = f"spec.volumes[{index}]"
        if errors.required(f"{path}.name", volume.name) and (why := names.dns_label(volume.name)):
            errors.invalid(f"{path}.name", volume.name, why)
        if volume.name in by_name:
            errors.duplicate(f"{path}.name", volume.name)
        by_name[volume.name] = volume
        for extra in sources(volume)[1:]:
            errors.forbidden(f"{path}.{json_name(extra)}", "may not specify more than 1 volume type")
        _source(volume, path, errors)
    return by_name


def _source(volume: Volume, path: str, errors: FieldErrors) -> None:
    if volume.host_path is not None:
        where = f"{path}.hostPath.path"
        host_path = volume.host_path.path
        if errors.required(where, host_path) and ".." in host_path.split("/"):
            errors.invalid(where, host_path, "must not contain '..'")
    if volume.empty_dir is not None:
        _empty_dir(volume.empty_dir, f"{path}.emptyDir", errors)
    if volume.config_map is not None:
        errors.required(f"{path}.configMap.name", volume.config_map.name)
        validate_mode(volume.config_map.default_mode, f"{path}.configMap.defaultMode", errors)
        _items(volume.config_map.items, f"{path}.configMap", errors)
    if volume.image is not None:
        errors.required(f"{path}.image.reference", volume.image.reference)
    if volume.secret is not None:
        errors.required(f"{path}.secret.secretName", volume.secret.secret_name)
        validate_mode(volume.secret.default_mode, f"{path}.secret.defaultMode", errors)
        _items(volume.secret.items, f"{path}.secret", errors)
    if volume.downward_api is not None:
        validate_mode(volume.downward_api.default_mode, f"{path}.downwardAPI.defaultMode", errors)
        _downward(volume.downward_api.items, f"{path}.downwardAPI", set(), errors)
    if volume.projected is not None:
        _projected(volume.projected, f"{path}.projected", errors)


def _downward(items: tuple[DownwardAPIVolumeFile, ...], path: str, paths: set[str], errors: FieldErrors) -> None:
    for index, item in enumerate(items):
        where = f"{path}.items[{index}]"
        _inner(item.path, f"{where}.path", paths, errors)
        if (item.field_ref is None) is (item.resource_field_ref is None):
            errors.add(where, "Invalid value: must name exactly one of fieldRef and resourceFieldRef")
        elif item.field_ref is not None:
            field_path = item.field_ref.field_path
            keyed = field_path.startswith(_KEYED) and field_path.endswith("']")
            if field_path not in FIELDS and not keyed:
                errors.unsupported(f"{where}.fieldRef.fieldPath", field_path, FIELDS)
        elif item.resource_field_ref is not None:
            errors.required(f"{where}.resourceFieldRef.containerName", item.resource_field_ref.container_name)
            errors.required(f"{where}.resourceFieldRef.resource", item.resource_field_ref.resource)
        validate_mode(item.mode, f"{where}.mode", errors)


def _projected(volume: ProjectedVolumeSource, path: str, errors: FieldErrors) -> None:
    validate_mode(volume.default_mode, f"{path}.defaultMode", errors)
    paths: set[str] = set()
    for index, source in enumerate(volume.sources):
        where = f"{path}.sources[{index}]"
        given = [name for name in source.__struct_fields__ if getattr(source, name) is not None]
        if len(given) != 1:
            errors.add(where, "Invalid value: must name exactly one source")
        for kept, name in ((source.config_map, "configMap"), (source.secret, "secret")):
            if kept is not None:
                errors.required(f"{where}.{name}.name", kept.name)
                _items(kept.items, f"{where}.{name}", errors, paths)
        if source.downward_api is not None:
            _downward(source.downward_api.items, f"{where}.downwardAPI", paths, errors)
        if source.service_account_token is not None:
            _inner(source.service_account_token.path, f"{where}.serviceAccountToken.path", paths, errors)


def _inner(path: str, where: str, paths: set[str], errors: FieldErrors) -> None:
    """Note what is wrong with the path of a file in a volume, and put it into ``paths``."""
    if not errors.required(where, path):
        return
    if why := inner_path(path):
        errors.invalid(where, path, why)
    if path in paths:
        errors.duplicate(where, path)
    paths.add(path)


def _empty_dir(source: EmptyDirVolumeSource, path: str, errors: FieldErrors) -> None:
    if source.medium and source.medium not in _MEDIA:
        errors.unsupported(f"{path}.medium", source.medium, _MEDIA)
    if source.size_limit and quantity.parse(source.size_limit) < 0:
        errors.invalid(f"{path}.sizeLimit", source.size_limit, "must be 0 or greater")


def _items(items: tuple[KeyToPath, ...], path: str, errors: FieldErrors, taken: set[str] | None = None) -> None:
    paths = set() if taken is None else taken
    for index, item in enumerate(items):
        where = f"{path}.items[{index}]"
        errors.required(f"{where}.key", item.key)
        _inner(item.path, f"{where}.path", paths, errors)
        validate_mode(item.mode, f"{where}.mode", errors)


def descending_path(path: str) -> str:
    """Return why ``path`` is not below a directory, or nothing (core/validation: validateLocalDescendingPath)."""
    if path.startswith("/"):
        return "must be a relative path"
    return "must not contain '..'" if ".." in path.split("/") else ""


def inner_path(path: str) -> str:
    """Return why ``path`` cannot be that of a file of a volume, or nothing (validateLocalNonReservedPath)."""
    if why := descending_path(path):
        return why
    # The kubelet's atomic writer reserves such names for its own: `..data` and the directories it points to.
    return "must not start with '..'" if path.startswith("..") else ""


def validate_mode(mode: int | None, path: str, errors: FieldErrors) -> None:
    """Note permission bits that are out of range."""
    if mode is not None and not 0 <= mode <= 0o777:
        errors.invalid(path, mode, "must be between 0 and 0777 (octal), both inclusive")
