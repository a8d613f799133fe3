"""What a pod refers to and an API server has: ConfigMaps, Secrets, tokens, claims. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from podkeep.agent.objects.sources import TokenKey
from podkeep.api.containers import Container, EphemeralContainer
from podkeep.api.pod import Pod
from podkeep.api.volumes import Volume, VolumeProjection
from podkeep.base.frozen import FrozenStruct

TOKEN_EXPIRATION_S = 3600
"""``expirationSeconds`` of a projected token that has none (Kubernetes: defaults)."""


class References(FrozenStruct, kw_only=True):
    """Names in the pod's namespace, and tokens of its service account."""

    config_maps: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    tokens: frozenset[TokenKey] = frozenset()
    claims: frozenset[str] = frozenset()


def of(pod: Pod) -> References:
    """Return everything that the pod's volumes, environments and pull secrets refer to."""
    config_maps: set[str] = set()
    secrets = {reference.name for reference in pod.spec.image_pull_secrets}
    tokens: set[TokenKey] = set()
    claims: set[str] = set()
    for container in pod.spec.all_containers:
        for kind, name in _environment(container):
            (config_maps if kind == "configmap" else secrets).add(name)
    for volume in pod.spec.volumes:
        if volume.config_map is not None:
            config_maps.add(volume.config_map.name)
        if volume.secret is not None:
            secrets.add(volume.secret.secret_name)
        claim = claim_name(pod, volume)
        if claim:
            claims.add(claim)
        for source in () if volume.projected is None else volume.projected.sources:
            _projection(source, config_maps, secrets, tokens)
    return References(
        config_maps=frozenset(config_maps - {""}),
        secrets=frozenset(secrets - {""}),
        tokens=frozenset(tokens),
        claims=frozenset(claims),
    )


def claim_name(pod: Pod, volume: Volume) -> str:
    """Return the name of the claim behind a volume; empty if it is of another kind.

    That of a generic ephemeral volume follows from the names of pod and volume.
    """
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else ""


def _environment(container: Container | EphemeralContainer) -> Iterator[tuple[str, str]]:
    for source in container.env_from:
        if source.config_map_ref is not None:
            yield "configmap", source.config_map_ref.name
        if source.secret_ref is not None:
            yield "secret", source.secret_ref.name
    for variable in container.env:
        if variable.value_from is None:
            continue
        if variable.value_from.config_map_key_ref is not None:
            yield "configmap", variable.value_from.config_map_key_ref.name
        if variable.value_from.secret_key_ref is not None:
            yield "secret", variable.value_from.secret_key_ref.name


def _projection(source: VolumeProjection, config_maps: set[str], secrets: set[str], tokens: set[TokenKey]) -> None:
    if source.config_map is not None:
        config_maps.add(source.config_map.name)
    if source.secret is not None:
        secrets.add(source.secret.name)
    if source.service_account_token is not None:
        tokens.add(
            (source.service_account_token.audience, token_expiration(source.service_account_token.expiration_seconds))
        )


def token_expiration(seconds: int | None) -> int:
    """Return for how long a token is asked for, in seconds."""
    return TOKEN_EXPIRATION_S if seconds is None else seconds
