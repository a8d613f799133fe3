"""What a pod refers to, as the agent knows it when it starts something of the pod: a frozen snapshot.

ConfigMaps, Secrets, tokens of the pod's service account, and claims with their volumes. Whoever makes the snapshot
reads everything that ``references.of`` names once; what follows from it is pure. Texts of errors are those a kubelet
user knows; the pod's event carries them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from podkeep.api.configuration import ConfigMap, Secret
from podkeep.api.pod import Pod
from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.base.frozen import FrozenStruct

Key = tuple[str, str]
"""Namespace and name."""
TokenKey = tuple[str, int]
"""Audience, empty for that of the API server, and ``expirationSeconds`` as the pod asks for it."""


class Claim(FrozenStruct, kw_only=True):
    """A PersistentVolumeClaim and the PersistentVolume that it names, as their JSON; ``None`` for what is not there."""

    claim: Mapping[str, Any] | None = None
    volume: Mapping[str, Any] | None = None


class Sources(FrozenStruct, kw_only=True):
    """What was read for one pod.

    ConfigMaps, Secrets and claims by (namespace, name); tokens are of the pod's own service account, bound to the pod.
    ``failures`` says why something could not be read, by :func:`failure_key`: what is in no mapping and has no failure
    does not exist.
    """

    config_maps: Mapping[Key, ConfigMap] = msgspec.field(default_factory=dict)
    secrets: Mapping[Key, Secret] = msgspec.field(default_factory=dict)
    tokens: Mapping[TokenKey, str] = msgspec.field(default_factory=dict)
    claims: Mapping[Key, Claim] = msgspec.field(default_factory=dict)
    services: Mapping[Key, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    """As their JSON: those of the pod's namespace, and ``default/kubernetes``."""
    failures: Mapping[str, str] = msgspec.field(default_factory=dict)

    def config_map(self, namespace: str, name: str, *, optional: bool = False) -> Mapping[str, bytes]:
        """Return the content of a ConfigMap; nothing if it is missing and ``optional``.

        :raises NotFound: if it is missing.
        :raises FailedPrecondition: if it could not be read.
        """
        texts = self.config_map_texts(namespace, name, optional=optional)
        found = self.config_maps.get((namespace, name))
        return texts if found is None else {**texts, **found.binary_data}

    def config_map_texts(self, namespace: str, name: str, *, optional: bool = False) -> Mapping[str, bytes]:
        """Return :meth:`config_map` without ``binaryData``, which ``envFrom`` passes over as a kubelet does.

        :raises NotFound: if it is missing.
        :raises FailedPrecondition: if it could not be read.
        """
        found = self.config_maps.get((namespace, name))
        if found is None:
            return self._missing("configmap", name, optional)
        return {key: text.encode() for key, text in found.data.items()}

    def config_map_value(self, namespace: str, name: str, key: str, *, optional: bool = False) -> bytes | None:
        """Return what :meth:`config_map` has of ``key``, without making the rest; ``None`` if there is no such key.

        :raises NotFound: if the ConfigMap is missing and not ``optional``.
        :raises FailedPrecondition: if it could not be read.
        """
        found = self.config_maps.get((namespace, name))
        if found is None:
            return self._missing("configmap", name, optional).get(key)
        text = found.data.get(key)
        return found.binary_data.get(key) if text is None else text.encode()

    def secret(self, namespace: str, name: str, *, optional: bool = False) -> Mapping[str, bytes]:
        """Return the content of a Secret; nothing if it is missing and ``optional``.

        :raises NotFound: if it is missing.
        :raises FailedPrecondition: if it could not be read.
        """
        found = self.secrets.get((namespace, name))
        return self._missing("secret", name, optional) if found is None else found.data

    def token(self, audience: str, expiration: int) -> str:
        """Return a token of the pod's service account.

        :raises FailedPrecondition: if there is none, with the API server's reason.
        """
        found = self.tokens.get((audience, expiration))
        if found is not None:
            return found
        why = self.failures.get(failure_key("token", audience), "there is no API server that issues tokens")
        raise FailedPrecondition(f"failed to fetch token: {why}", hint="service account tokens come from an API server")

    def claim(self, namespace: str, name: str) -> Claim:
        """Return a PersistentVolumeClaim and its volume.

        :raises FailedPrecondition: if they could not be read.
        """
        why = self.failures.get(failure_key("persistentvolumeclaim", name))
        if why is not None:
            raise FailedPrecondition(why)
        return self.claims.get((namespace, name), Claim())

    def known_services(self) -> Mapping[Key, Mapping[str, Any]]:
        """Return :attr:`services`.

        :raises FailedPrecondition: if they could not be read.
        """
        why = self.failures.get(failure_key("service", ""))
        if why is not None:
            raise FailedPrecondition(why)
        return self.services

    def _missing(self, kind: str, name: str, optional: bool) -> Mapping[str, bytes]:
        why = self.failures.get(failure_key(kind, name))
        if why is not None:
            raise FailedPrecondition(why)
        if optional:
            return {}
        hint = f"put the {kind} into the manifest, or mark it `optional: true`"
        raise NotFound(f'{kind} "{name}" not found', hint=hint)


def failure_key(kind: str, name: str) -> str:
    """Return the key in ``Sources.failures`` of an object of the pod's namespace, or of a token by its audience.

    :param kind: ``configmap``, ``secret``, ``token``, ``persistentvolumeclaim``, ``service`` with no
        name, for all of them.
    """
    return f"{kind}/{name}"


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
