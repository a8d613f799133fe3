"""The ConfigMaps and Secrets that a pod may name, as the agent knows them when it starts something of the pod.

Texts of errors are those a kubelet user knows; the pod's event carries them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from podkeep.api.configuration import ConfigMap, Secret
from podkeep.api.pod import Pod
from podkeep.base.errors import NotFound

Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """ConfigMaps and Secrets by (namespace, name)."""

    config_maps: Mapping[Key, ConfigMap] = field(default_factory=dict)
    secrets: Mapping[Key, Secret] = field(default_factory=dict)

    def config_map(self, namespace: str, name: str, *, optional: bool = False) -> Mapping[str, bytes]:
        """Return the content of a ConfigMap; nothing if it is missing and ``optional``.

        :raises NotFound: if it is missing.
        """
        found = self.config_maps.get((namespace, name))
        if found is None:
            return _missing("configmap", name, optional)
        return {key: text.encode() for key, text in found.data.items()} | found.binary_data

    def config_map_texts(self, namespace: str, name: str, *, optional: bool = False) -> Mapping[str, bytes]:
        """Return :meth:`config_map` without ``binaryData``, which ``envFrom`` passes over as a kubelet does.

        :raises NotFound: if it is missing.
        """
        found = self.config_maps.get((namespace, name))
        if found is None:
            return _missing("configmap", name, optional)
        return {key: text.encode() for key, text in found.data.items()}

    def config_map_value(self, namespace: str, name: str, key: str, *, optional: bool = False) -> bytes | None:
        """Return what :meth:`config_map` has of ``key``, without making the rest; ``None`` if there is no such key.

        :raises NotFound: if the ConfigMap is missing and not ``optional``.
        """
        found = self.config_maps.get((namespace, name))
        if found is None:
            return _missing("configmap", name, optional).get(key)
        text = found.data.get(key)
        return found.binary_data.get(key) if text is None else text.encode()

    def secret(self, namespace: str, name: str, *, optional: bool = False) -> Mapping[str, bytes]:
        """Return the content of a Secret; nothing if it is missing and ``optional``.

        :raises NotFound: if it is missing.
        """
        found = self.secrets.get((namespace, name))
        return _missing("secret", name, optional) if found is None else found.data


def _missing(kind: str, name: str, optional: bool) -> Mapping[str, bytes]:
    if optional:
        return {}
    raise NotFound(f'{kind} "{name}" not found', hint=f"put the {kind} into the manifest, or mark it `optional: true`")


class ObjectReader(Protocol):
    """Where the objects come from that pods refer to."""

    async def read(self, pod: Pod) -> Sources:
        """Return a snapshot of what ``pod`` refers to; what is missing is missing in it.

        :raises PodkeepError: if it cannot be known now.
        """

    def release(self, pod: Pod) -> None:
        """Forget ``pod``, which is gone."""


class StaticObjects:
    """The objects of a manifest: all there are, for as long as the process runs."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def read(self, pod: Pod) -> Sources:
        """See :class:`ObjectReader`."""
        return self._sources

    def release(self, pod: Pod) -> None:
        """See :class:`ObjectReader`."""
