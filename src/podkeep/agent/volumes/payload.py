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


def payload(volume: Volume, namespace: str, sources: Sources) -> Payload:
    """Return the files of a ConfigMap or Secret volume.

    :raises NotFound: if the ConfigMap, the Secret or a key that ``items`` names is missing and not optional.
    :raises InvalidArgument: if the volume is of another kind.
    """
    if volume.config_map is not None:
        config_map = volume.config_map
        data = sources.config_map(namespace, config_map.name, optional=bool(config_map.optional))
        return _project(
            f'configmap "{config_map.name}"', data, config_map.items, config_map.default_mode, config_map.optional
        )
    if volume.secret is not None:
        secret = volume.secret
        data = sources.secret(namespace, secret.secret_name, optional=bool(secret.optional))
        return _project(f'secret "{secret.secret_name}"', data, secret.items, secret.default_mode, secret.optional)
    raise InvalidArgument(f"volume {volume.name} holds no files of a ConfigMap or Secret")


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
