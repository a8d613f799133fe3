"""Validation of ``spec.volumes``: names, one source each, paths inside ConfigMap and Secret volumes."""

from __future__ import annotations

from podkeep.api import names
from podkeep.api.defaults import sources
from podkeep.api.fields import FieldErrors
from podkeep.api.structs import json_name
from podkeep.api.volumes import EmptyDirVolumeSource, KeyToPath, Volume
from podkeep.base import quantity

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


def _empty_dir(source: EmptyDirVolumeSource, path: str, errors: FieldErrors) -> None:
    if source.medium and source.medium not in _MEDIA:
        errors.unsupported(f"{path}.medium", source.medium, _MEDIA)
    if source.size_limit and quantity.parse(source.size_limit) < 0:
        errors.invalid(f"{path}.sizeLimit", source.size_limit, "must be 0 or greater")


def _items(items: tuple[KeyToPath, ...], path: str, errors: FieldErrors) -> None:
    paths: set[str] = set()
    for index, item in enumerate(items):
        where = f"{path}.items[{index}]"
        errors.required(f"{where}.key", item.key)
        if errors.required(f"{where}.path", item.path):
            if why := inner_path(item.path):
                errors.invalid(f"{where}.path", item.path, why)
            if item.path in paths:
                errors.duplicate(f"{where}.path", item.path)
            paths.add(item.path)
        validate_mode(item.mode, f"{where}.mode", errors)


def inner_path(path: str) -> str:
    """Return why ``path`` cannot be a path inside a volume, or nothing."""
    if path.startswith("/"):
        return "must be a relative path"
    if ".." in path.split("/"):
        return "must not contain '..'"
    return "must not start with '..'" if path.startswith("..") else ""


def validate_mode(mode: int | None, path: str, errors: FieldErrors) -> None:
    """Note permission bits that are out of range."""
    if mode is not None and not 0 <= mode <= 0o777:
        errors.invalid(path, mode, "must be between 0 and 0777 (octal), both inclusive")
