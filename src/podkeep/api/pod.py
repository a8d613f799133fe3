"""The Pod (v1.Pod, v1.PodSpec and the parts that belong to the pod as a whole)."""

from __future__ import annotations

from typing import Literal

import msgspec

from podkeep.api.containers import (
    AppArmorProfile,
    Container,
    EphemeralContainer,
    ResourceRequirements,
    SeccompProfile,
    SELinuxOptions,
    WindowsSecurityContextOptions,
)
from podkeep.api.meta import ObjectMeta
from podkeep.api.scalars import Int32, Int64, Quantity
from podkeep.api.scheduling import Affinity, Toleration, TopologySpreadConstraint
from podkeep.api.status import PodStatus
from podkeep.api.structs import ApiStruct
from podkeep.api.volumes import LocalObjectReference, Volume

DNSPolicy = Literal["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]
OSName = Literal["linux", "windows"]
PodFSGroupChangePolicy = Literal["OnRootMismatch", "Always"]
PodSELinuxChangePolicy = Literal["Recursive", "MountOption"]
PreemptionPolicy = Literal["PreemptLowerPriority", "Never"]
RestartPolicy = Literal["Always", "OnFailure", "Never"]
SupplementalGroupsPolicy = Literal["Merge", "Strict"]


class Sysctl(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    value: str = ""


class PodSecurityContext(ApiStruct, frozen=True, kw_only=True):
    selinux_options: SELinuxOptions | None = None
    windows_options: WindowsSecurityContextOptions | None = None
    run_as_user: Int64 | None = None
    run_as_group: Int64 | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: tuple[Int64, ...] = ()
    supplemental_groups_policy: SupplementalGroupsPolicy | None = None
    fs_group: Int64 | None = None
    sysctls: tuple[Sysctl, ...] = ()
    fs_group_change_policy: PodFSGroupChangePolicy | None = None
    seccomp_profile: SeccompProfile | None = None
    apparmor_profile: AppArmorProfile | None = None
    selinux_change_policy: PodSELinuxChangePolicy | None = None


class HostAlias(ApiStruct, frozen=True, kw_only=True):
    ip: str = ""
    hostnames: tuple[str, ...] = ()


class PodDNSConfigOption(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    value: str | None = None


class PodDNSConfig(ApiStruct, frozen=True, kw_only=True):
    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[PodDNSConfigOption, ...] = ()


class PodReadinessGate(ApiStruct, frozen=True, kw_only=True):
    condition_type: str = ""


class PodOS(ApiStruct, frozen=True, kw_only=True):
    name: OSName | None = None


class PodSchedulingGate(ApiStruct, frozen=True, kw_only=True):
    name: str = ""


class PodResourceClaim(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSchedulingGroup(ApiStruct, frozen=True, kw_only=True):
    pod_group_name: str | None = None


class EvictionResponder(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    priority: Int32 | None = None


class PodSpec(ApiStruct, frozen=True, kw_only=True):
    volumes: tuple[Volume, ...] = ()
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[EphemeralContainer, ...] = ()
    restart_policy: RestartPolicy | None = None
    termination_grace_period_seconds: Int64 | None = None
    active_deadline_seconds: Int64 | None = None
    dns_policy: DNSPolicy | None = None
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    service_account_name: str = ""
    service_account: str = ""
    automount_service_account_token: bool | None = None
    node_name: str = ""
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    share_process_namespace: bool | None = None
    security_context: PodSecurityContext | None = None
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    hostname: str = ""
    subdomain: str = ""
    affinity: Affinity | None = None
    scheduler_name: str = ""
    tolerations: tuple[Toleration, ...] = ()
    host_aliases: tuple[HostAlias, ...] = ()
    priority_class_name: str = ""
    priority: Int32 | None = None
    dns_config: PodDNSConfig | None = None
    readiness_gates: tuple[PodReadinessGate, ...] = ()
    runtime_class_name: str | None = None
    enable_service_links: bool | None = None
    preemption_policy: PreemptionPolicy | None = None
    overhead: dict[str, Quantity] = msgspec.field(default_factory=dict)
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    set_hostname_as_fqdn: bool | None = None
    os: PodOS | None = None
    host_users: bool | None = None
    user_host_namespace: bool = False
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    resources: ResourceRequirements | None = None
    hostname_override: str | None = None
    scheduling_group: PodSchedulingGroup | None = None
    eviction_responders: tuple[EvictionResponder, ...] = ()

    @property
    def all_containers(self) -> tuple[Container | EphemeralContainer, ...]:
        """Init, regular and ephemeral containers."""
        return (*self.init_containers, *self.containers, *self.ephemeral_containers)


class Pod(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
