"""Which files a ConfigMap or Secret volume holds: a pure function from its source to paths, bytes and modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from podkeep.agent.sources import Sources
from podkeep.api.defaults import FILE_MODE
from podkeep.api.volumes import KeyToPath, Volume
from podkeep.base.errors import InvalidArgument, NotFound


@dataclass(frozen=True, kw_only=True)
class File:
    """Content and permission bits of one file in a volume."""

    data: bytes
    mode: int


Payload = Mapping[str, File]
"""Files by their path inside the volume."""


MAX_BYTES = 16 << 20
"""Of the files of a volume. What an API server takes has 1 MiB, and each path may name the same key of it."""


def payload(volume: Volume, namespace: str, sources: Sources) -> Payload:
    """Return the files of a ConfigMap or Secret volume.

    :raises NotFound: if the ConfigMap, the Secret or a key that ``items`` names is missing and not optional.
    :raises InvalidArgument: if the volume is of another kind, or its files have more than :data:`MAX_BYTES`.
    """
    if volume.config_map is not None:
        config_map = volume.config_map
        data = sources.config_map(namespace, config_map.name, optional=bool(config_map.optional))
        what = f'configmap "{config_map.name}"'
        return _bounded(what, _project(what, data, config_map.items, config_map.default_mode, config_map.optional))
    if volume.secret is not None:
        secret = volume.secret
        data = sources.secret(namespace, secret.secret_name, optional=bool(secret.optional))
        what = f'secret "{secret.secret_name}"'
        return _bounded(what, _project(what, data, secret.items, secret.default_mode, secret.optional))
    raise InvalidArgument(f"volume {volume.name} holds no files of a ConfigMap or Secret")


def _bounded(what: str, files: Payload) -> Payload:
    size = sum(len(file.data) for file in files.values())
    if size > MAX_BYTES:
        raise InvalidArgument(f"the files made of {what} have {size} bytes, more than {MAX_BYTES}")
    return files


def _project(
    what: str, data: Mapping[str, bytes], items: tuple[KeyToPath, ...], mode: int | None, optional: bool | None
) -> Payload:
    default = FILE_MODE if mode is None else mode
    if not items:
        return {key: File(data=content, mode=default) for key, content in data.items()}
    files = {}
    for item in items:
        if item.key in data:
            files[item.path] = File(data=data[item.key], mode=default if item.mode is None else item.mode)
        elif not optional:
            raise NotFound(f"{what} references non-existent key: {item.key}")
    return files
