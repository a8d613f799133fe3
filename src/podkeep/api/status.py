"""Observed state of a Pod (v1.PodStatus and what it holds). Built by the agent, never read from a manifest."""

from __future__ import annotations

from typing import Literal

import msgspec

from podkeep.api.containers import ResourceRequirements
from podkeep.api.scalars import Int32, Int64, Quantity, Time
from podkeep.api.structs import ApiStruct

ConditionStatus = Literal["True", "False", "Unknown"]
PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
PodQOSClass = Literal["Guaranteed", "Burstable", "BestEffort"]
RecursiveReadOnlyMode = Literal["Disabled", "IfPossible", "Enabled"]


class PodCondition(ApiStruct, frozen=True, kw_only=True):
    type: str
    observed_generation: Int64 = 0
    status: ConditionStatus | None
    last_probe_time: Time | None = None
    last_transition_time: Time | None = None
    reason: str = ""
    message: str = ""


class HostIP(ApiStruct, frozen=True, kw_only=True):
    ip: str


class PodIP(ApiStruct, frozen=True, kw_only=True):
    ip: str


class ContainerStateWaiting(ApiStruct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class ContainerStateRunning(ApiStruct, frozen=True, kw_only=True):
    started_at: Time | None = None


class ContainerStateTerminated(ApiStruct, frozen=True, kw_only=True):
    exit_code: Int32
    signal: Int32 = 0
    reason: str = ""
    message: str = ""
    started_at: Time | None = None
    finished_at: Time | None = None
    container_id: str = ""


class ContainerState(ApiStruct, frozen=True, kw_only=True):
    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ImageVolumeStatus(ApiStruct, frozen=True, kw_only=True):
    image_ref: str = ""


class VolumeStatus(ApiStruct, frozen=True, kw_only=True):
    image: ImageVolumeStatus | None = None


class VolumeMountStatus(ApiStruct, frozen=True, kw_only=True):
    name: str
    mount_path: str
    read_only: bool = False
    recursive_read_only: RecursiveReadOnlyMode | None = None
    volume_status: VolumeStatus | None = None


class LinuxContainerUser(ApiStruct, frozen=True, kw_only=True):
    uid: Int64
    gid: Int64
    supplemental_groups: tuple[Int64, ...] = ()


class ContainerUser(ApiStruct, frozen=True, kw_only=True):
    linux: LinuxContainerUser | None = None


class ResourceHealth(ApiStruct, frozen=True, kw_only=True):
    resource_id: str
    health: str = ""
    message: str | None = None


class ResourceStatus(ApiStruct, frozen=True, kw_only=True):
    name: str
    resources: tuple[ResourceHealth, ...] = ()


class ContainerStatus(ApiStruct, frozen=True, kw_only=True):
    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool
    restart_count: Int32
    image: str
    image_id: str
    container_id: str = ""
    started: bool | None = None
    allocated_resources: dict[str, Quantity] = msgspec.field(default_factory=dict)
    resources: ResourceRequirements | None = None
    volume_mounts: tuple[VolumeMountStatus, ...] = ()
    user: ContainerUser | None = None
    allocated_resources_status: tuple[ResourceStatus, ...] = ()
    stop_signal: str | None = None


class PodResourceClaimStatus(ApiStruct, frozen=True, kw_only=True):
    name: str
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(ApiStruct, frozen=True, kw_only=True):
    container_name: str
    resource_name: str
    request_name: str


class PodExtendedResourceClaimStatus(ApiStruct, frozen=True, kw_only=True):
    request_mappings: tuple[ContainerExtendedResourceRequest, ...]
    resource_claim_name: str


class NodeAllocatableMappedResources(ApiStruct, frozen=True, kw_only=True):
    name: str
    quantity: Quantity | None


class NodeAllocatableOverheadResources(ApiStruct, frozen=True, kw_only=True):
    name: str
    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableResourceClaimStatus(ApiStruct, frozen=True, kw_only=True):
    resource_claim_name: str
    containers: tuple[str, ...] = ()
    mapping: tuple[NodeAllocatableMappedResources, ...] = ()
    overhead: tuple[NodeAllocatableOverheadResources, ...] = ()


class VolumeHealthCondition(ApiStruct, frozen=True, kw_only=True):
    status: str
    reason: str
    message: str = ""


class PodVolumeHealth(ApiStruct, frozen=True, kw_only=True):
    name: str
    health_conditions: tuple[VolumeHealthCondition, ...] = ()
    last_transition_time: Time | None = None


class PodStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: Int64 = 0
    phase: PodPhase | None = None
    conditions: tuple[PodCondition, ...] = ()
    message: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    host_ip: str = ""
    host_ips: tuple[HostIP, ...] = ()
    pod_ip: str = ""
    pod_ips: tuple[PodIP, ...] = ()
    start_time: Time | None = None
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    qos_class: PodQOSClass | None = None
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    resize: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    allocated_resources: dict[str, Quantity] = msgspec.field(default_factory=dict)
    resources: ResourceRequirements | None = None
    node_allocatable_resource_claim_statuses: tuple[NodeAllocatableResourceClaimStatus, ...] = ()
    volume_health: tuple[PodVolumeHealth, ...] = ()
