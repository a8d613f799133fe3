"""Which user namespace a pod gets: the node's, one with a block of its own, or one with the node's mapping. Pure.

Owns the rules of both designs of KEP-127 on one node. ``hostUsers: false`` is a user namespace whatever else is asked
for; only a pod that says nothing is defaulted to the node's (KEP-127 draft, risks and mitigations).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto

from podkeep.api.containers import Container, EphemeralContainer
from podkeep.api.feature_gates import NO_HOST_DEFAULTING, FeatureGates
from podkeep.api.pod import Pod
from podkeep.api.structs import json_name
from podkeep.api.volumes import Volume
from podkeep.base.frozen import FrozenStruct

_POWERLESS = frozenset({"SYS_TIME", "SYS_MODULE", "MKNOD", "ALL"})
"""Capabilities that a process has in the node's user namespace or not at all, and what adds them with all others."""
_OWNER_CAN_CHANGE = frozenset({"config_map", "downward_api", "empty_dir", "projected", "secret"})
"""Volumes whose files the agent gives to whom it wants, by their attributes (kubelet: SetVolumeOwnership)."""
_BY_RUNTIME = frozenset({"image"})
"""Volumes that the runtime maps as it maps the root file system."""
_CLAIMED = frozenset({"persistent_volume_claim", "ephemeral"})
_LOCAL = "local"


class Outcome(Enum):
    """In which user namespace a pod is."""

    HOST = auto()
    BLOCK = auto()
    NODE_MAPPING = auto()


class Choice(FrozenStruct, kw_only=True):
    """What was decided. ``triggers`` say why a pod that asked for nothing shares the node's user namespace."""

    outcome: Outcome
    triggers: tuple[str, ...] = ()

    @property
    def own(self) -> bool:
        """Whether the pod has a user namespace of its own."""
        return self.outcome is not Outcome.HOST


class BoundSource(FrozenStruct, kw_only=True):
    """What is behind a claim: the field of the PersistentVolume that says what it is (``local``, ``nfs``)."""

    kind: str


def is_undecided(pod: Pod) -> bool:
    """Say whether a pod asks for no user namespace, neither the node's nor its own."""
    return pod.spec.host_users is None and not pod.spec.user_host_namespace


def needs_claims(pod: Pod, *, one_mapping: bool, gates: FeatureGates) -> bool:
    """Say whether the choice depends on what is behind the pod's claims."""
    # Claims are read from the API, and a pod waits until they are bound: only where that can change the answer.
    if not one_mapping or not is_undecided(pod) or gates.enabled(NO_HOST_DEFAULTING):
        return False
    return any(_kind(volume) in _CLAIMED for volume in pod.spec.volumes) and not any(_triggers(pod, {}))


def choose(
    pod: Pod, *, one_mapping: bool, gates: FeatureGates, claims: Mapping[str, BoundSource] | None = None
) -> Choice:
    """Return which user namespace ``pod`` gets.

    :param one_mapping: the node has one mapping for all its pods.
    :param claims: what is behind the volumes that are claims, by the volumes' names; needed if :func:`needs_claims`.
    """
    if pod.spec.host_users is False:
        return Choice(outcome=Outcome.NODE_MAPPING if one_mapping else Outcome.BLOCK)
    if not one_mapping or not is_undecided(pod):
        return Choice(outcome=Outcome.HOST)
    triggers = () if gates.enabled(NO_HOST_DEFAULTING) else tuple(_triggers(pod, claims or {}))
    return Choice(outcome=Outcome.HOST if triggers else Outcome.NODE_MAPPING, triggers=triggers)


def _triggers(pod: Pod, claims: Mapping[str, BoundSource]) -> Iterator[str]:
    """Yield what in a pod does not work in a user namespace, with words that say where it is."""
    spec = pod.spec
    for field, shared in (("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)):
        if shared:
            yield field
    for container in spec.all_containers:
        yield from _of_container(container)
    for volume in spec.volumes:
        yield from _of_volume(volume, claims)


def _of_container(container: Container | EphemeralContainer) -> Iterator[str]:
    where = f'container "{container.name}"'
    security = container.security_context
    if security is not None and security.privileged:
        yield f"{where} is privileged"
    added = () if security is None or security.capabilities is None else security.capabilities.add
    for name in added:
        plain = name.upper().removeprefix("CAP_")
        if plain in _POWERLESS:
            yield f"{where} adds capability {plain}"
    if container.volume_devices:
        yield f"{where} has block devices"


def _of_volume(volume: Volume, claims: Mapping[str, BoundSource]) -> Iterator[str]:
    kind = _kind(volume)
    if kind in _OWNER_CAN_CHANGE or kind in _BY_RUNTIME:
        return
    if kind not in _CLAIMED:
        yield f'volume "{volume.name}" ({json_name(kind)}), whose owner cannot be changed'
        return
    source = claims.get(volume.name)
    if source is not None and source.kind != _LOCAL:
        yield f'volume "{volume.name}" (a claim for {source.kind}), whose owner cannot be changed'


def _kind(volume: Volume) -> str:
    """Return the attribute of the volume's source."""
    attributes = (name for name in volume.__struct_fields__ if name != "name")
    return next((name for name in attributes if getattr(volume, name) is not None), "empty_dir")
