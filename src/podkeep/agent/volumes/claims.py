"""PersistentVolumeClaims: which PersistentVolume is behind one, and whether the pod may have it here. Pure.

Volumes of the node itself are carried out: ``local`` and ``hostPath``. The order of the checks and their texts are a
kubelet's (volume manager, operation executor).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from podkeep.agent.objects import references
from podkeep.agent.objects.sources import Sources
from podkeep.agent.resources import node_selection
from podkeep.api.pod import Pod
from podkeep.api.scheduling import NodeSelector
from podkeep.api.volumes import HostPathVolumeSource, Volume
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import quoted

_PROTECTION = "kubernetes.io/pvc-protection"
_GID = "pv.beta.kubernetes.io/gid"
_NUMBER = re.compile(r"[0-9]{1,18}")
_ONE_POD = "ReadWriteOncePod"
_NO_SOURCES = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
)
"""Fields of a PersistentVolume's specification beside its source."""

Struct = TypeVar("Struct", bound=msgspec.Struct)


class _Owner(msgspec.Struct, frozen=True, kw_only=True):
    uid: str = ""
    controller: bool = False


class _Meta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str = ""
    uid: str = ""
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    deletion_timestamp: str | None = None
    owner_references: list[_Owner] = []


class _ClaimSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    volume_name: str = ""


class _ClaimStatus(msgspec.Struct, frozen=True, kw_only=True):
    phase: str = ""


class _Claim(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Meta = _Meta()
    spec: _ClaimSpec = _ClaimSpec()
    status: _ClaimStatus = _ClaimStatus()


class _ClaimRef(msgspec.Struct, frozen=True, kw_only=True):
    uid: str = ""


class _Local(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    path: str = ""


class _NodeAffinity(msgspec.Struct, frozen=True, kw_only=True):
    required: NodeSelector | None = None


class _VolumeSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    access_modes: list[str] = []
    claim_ref: _ClaimRef | None = None
    volume_mode: str = "Filesystem"
    mount_options: list[str] = []
    node_affinity: _NodeAffinity | None = None
    local: _Local | None = None
    host_path: HostPathVolumeSource | None = None


class _Volume(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Meta = _Meta()
    spec: _VolumeSpec = _VolumeSpec()


class BoundVolume(FrozenStruct, kw_only=True):
    """The volume behind a claim: a directory, or with ``block`` a device of the node.

    ``group`` is one that every container of the pod gets (annotation ``pv.beta.kubernetes.io/gid``); ``exclusive``
    is that only one pod may use it at a time (ReadWriteOncePod).
    """

    name: str
    host_path: HostPathVolumeSource | None
    local: str
    read_only: bool
    block: bool
    exclusive: bool
    group: int | None


class NotProcessed(FailedPrecondition):
    """It is not known yet what to mount; the pod's event lists the volume among those that failed to be processed."""


class MountCheckFailed(FailedPrecondition):
    """A volume must not be mounted here. ``step`` is what a kubelet calls the check, ``volume`` the volume's name."""

    def __init__(self, message: str, *, step: str, volume: str) -> None:
        super().__init__(message)
        self.step = step
        self.volume = volume


class PodClaims:
    """The claims of a pod's volumes; what all of these have in common is looked at once, for they may be thousands."""

    def __init__(self, pod: Pod, sources: Sources) -> None:
        self._pod, self.sources = pod, sources
        containers = (*pod.spec.init_containers, *pod.spec.containers)
        self._mounted = {mount.name for container in containers for mount in container.volume_mounts}
        self._devices = {device.name for container in containers for device in container.volume_devices}
        self._decoded: dict[int, msgspec.Struct] = {}
        """By the identity of what was decoded, which the sources keep."""

    def bound(self, volume: Volume) -> BoundVolume:
        """Return the PersistentVolume behind a volume of a pod.

        :raises NotProcessed: if the claim is missing, not bound, being deleted, or not this pod's, or its volume is
            missing, bound to something else, or of another mode than how containers use it.
        """
        pod, namespace, name = self._pod, self._pod.metadata.namespace, references.claim_name(self._pod, volume)
        where = f"error processing PVC {namespace}/{name}"
        found = self.sources.claim(namespace, name)
        if found.claim is None:
            why = f'persistentvolumeclaims "{name}" not found'
            raise NotProcessed(f"{where}: failed to fetch PVC from API server: {why}")
        claim = self._read(found.claim, _Claim, where)
        if why := _unusable(claim):
            raise NotProcessed(f"{where}: {why}")
        # The name of an ephemeral volume's claim can be foretold: somebody else may have made a claim of that name.
        if volume.ephemeral is not None and not _is_of(claim, pod):
            raise NotProcessed(
                f"PVC {namespace}/{name} was not created for pod {namespace}/{pod.metadata.name} (pod is not owner)"
            )
        if found.volume is None:
            why = f'persistentvolumes "{claim.spec.volume_name}" not found'
            raise NotProcessed(f"{where}: failed to fetch PV {claim.spec.volume_name} from API server: {why}")
        persistent = self._read(found.volume, _Volume, where)
        if why := _not_of(persistent, claim):
            raise NotProcessed(f"{where}: {why}")
        self._require_use(volume, persistent.spec.volume_mode)
        source = volume.persistent_volume_claim
        spec = persistent.spec
        return BoundVolume(
            name=persistent.metadata.name,
            host_path=spec.host_path,
            local="" if spec.local is None else spec.local.path,
            read_only=source is not None and source.read_only,
            block=spec.volume_mode == "Block",
            exclusive=spec.access_modes == [_ONE_POD],
            group=_group(persistent.metadata.annotations),
        )

    def source_kind(self, volume: Volume) -> str:
        """Return what the PersistentVolume behind a volume is, by the field that says it (``local``, ``nfs``).

        :raises NotProcessed: as :meth:`bound`.
        """
        self.bound(volume)
        raw = self._raw_volume(volume)
        return next((field for field, value in raw["spec"].items() if value and field not in _NO_SOURCES), "nothing")

    def require_here(self, volume: Volume, labels: Mapping[str, str], node_name: str) -> None:
        """Raise if what is behind ``volume``, which :meth:`bound` knows, is for another node or cannot be mounted so.

        :raises MountCheckFailed: naming the check.
        """
        persistent = self._read(self._raw_volume(volume), _Volume, "")
        name, spec = persistent.metadata.name, persistent.spec
        required = None if spec.node_affinity is None else spec.node_affinity.required
        if required is not None and not node_selection.matches(required, node_name, labels):
            raise MountCheckFailed("no matching NodeSelectorTerms", step="NodeAffinity check", volume=name)
        if spec.mount_options and spec.host_path is not None:
            text = "mount options are not supported for this volume type"
            raise MountCheckFailed(text, step="MountOptionSupport check", volume=name)

    def _raw_volume(self, volume: Volume) -> Mapping[str, Any]:
        name = references.claim_name(self._pod, volume)
        return self.sources.claim(self._pod.metadata.namespace, name).volume or {}

    def _read(self, raw: Mapping[str, Any], kind: type[Struct], where: str) -> Struct:
        found = self._decoded.get(id(raw))
        if not isinstance(found, kind):
            self._decoded[id(raw)] = found = _decode(raw, kind, where)
        return found

    def _require_use(self, volume: Volume, mode: str) -> None:
        mounted, device = volume.name in self._mounted, volume.name in self._devices
        for used, wanted, field in ((mounted, "Filesystem", "volumeMounts"), (device, "Block", "volumeDevices")):
            if used and mode != wanted:
                raise NotProcessed(f"volume {volume.name} has volumeMode {mode}, but is specified in {field}")


def _decode(raw: Mapping[str, Any], kind: type[Struct], where: str) -> Struct:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise NotProcessed(f"{where}: {error}") from error


def _unusable(claim: _Claim) -> str:
    # With the finalizer the object stays for as long as a pod uses it, so that a pod that restarts keeps its claim.
    if claim.metadata.deletion_timestamp and _PROTECTION not in claim.metadata.finalizers:
        return "PVC is being deleted"
    if claim.status.phase != "Bound":
        return "PVC is not bound"
    return "" if claim.spec.volume_name else "PVC has empty pvc.Spec.VolumeName"


def _is_of(claim: _Claim, pod: Pod) -> bool:
    return any(owner.controller and owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references)


def _not_of(volume: _Volume, claim: _Claim) -> str:
    name, reference = volume.metadata.name, volume.spec.claim_ref
    if reference is None:
        return f"found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
    if reference.uid != claim.metadata.uid:
        return (
            f"found PV object {name} but its pv.Spec.ClaimRef.UID {reference.uid} does not point to claim.UID "
            f"{claim.metadata.uid}"
        )
    return ""


def _group(annotations: Mapping[str, str]) -> int | None:
    text = annotations.get(_GID, "")
    if not text:
        return None
    # int() refuses more than 4300 digits with an error of its own, so the length is looked at first.
    if not _NUMBER.fullmatch(text) or int(text) > 2**31 - 1:
        raise InvalidArgument(f"annotation {_GID}: {quoted(text)} is not a group ID")
    return int(text)
