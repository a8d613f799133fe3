"""Containers of the Pod API (v1.Container, v1.EphemeralContainer and what they hold)."""

from __future__ import annotations

from typing import Literal

import msgspec

from podkeep.api.scalars import Int32, Int64, IntOrString, Quantity
from podkeep.api.structs import ApiStruct
from podkeep.api.volumes import ObjectFieldSelector, ResourceFieldSelector

AppArmorProfileType = Literal["Unconfined", "RuntimeDefault", "Localhost"]
ContainerRestartPolicy = Literal["Always", "OnFailure", "Never"]
MountPropagationMode = Literal["None", "HostToContainer", "Bidirectional"]
ProcMountType = Literal["Default", "Unmasked"]
Protocol = Literal["TCP", "UDP", "SCTP"]
PullPolicy = Literal["Always", "Never", "IfNotPresent"]
RecursiveReadOnlyMode = Literal["Disabled", "IfPossible", "Enabled"]
SeccompProfileType = Literal["Unconfined", "RuntimeDefault", "Localhost"]
TerminationMessagePolicy = Literal["File", "FallbackToLogsOnError"]
URIScheme = Literal["HTTP", "HTTPS"]


class ResourceClaim(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    request: str = ""


class ResourceRequirements(ApiStruct, frozen=True, kw_only=True):
    limits: dict[str, Quantity] = msgspec.field(default_factory=dict)
    requests: dict[str, Quantity] = msgspec.field(default_factory=dict)
    claims: tuple[ResourceClaim, ...] = ()
    classes: dict[str, str] = msgspec.field(default_factory=dict)


class ContainerPort(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    host_port: Int32 = 0
    container_port: Int32 = 0
    protocol: Protocol | None = None
    host_ip: str = ""


class ConfigMapEnvSource(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    optional: bool | None = None


class SecretEnvSource(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    optional: bool | None = None


class EnvFromSource(ApiStruct, frozen=True, kw_only=True):
    prefix: str = ""
    config_map_ref: ConfigMapEnvSource | None = None
    secret_ref: SecretEnvSource | None = None


class ConfigMapKeySelector(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    key: str = ""
    optional: bool | None = None


class SecretKeySelector(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    key: str = ""
    optional: bool | None = None


class FileKeySelector(ApiStruct, frozen=True, kw_only=True):
    volume_name: str = ""
    path: str = ""
    key: str = ""
    optional: bool | None = None


class EnvVarSource(ApiStruct, frozen=True, kw_only=True):
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: ConfigMapKeySelector | None = None
    secret_key_ref: SecretKeySelector | None = None
    file_key_ref: FileKeySelector | None = None


class EnvVar(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    value: str = ""
    value_from: EnvVarSource | None = None


class ContainerResizePolicy(ApiStruct, frozen=True, kw_only=True):
    resource_name: str = ""
    restart_policy: str = ""


class ContainerRestartRuleOnExitCodes(ApiStruct, frozen=True, kw_only=True):
    operator: str = ""
    values: tuple[Int32, ...] = ()


class ContainerRestartRule(ApiStruct, frozen=True, kw_only=True):
    action: str = ""
    exit_codes: ContainerRestartRuleOnExitCodes | None = None


class VolumeMount(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    read_only: bool = False
    recursive_read_only: RecursiveReadOnlyMode | None = None
    mount_path: str = ""
    sub_path: str = ""
    mount_propagation: MountPropagationMode | None = None
    sub_path_expr: str = ""
    bind_mount_options: tuple[str, ...] = ()


class VolumeDevice(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    device_path: str = ""


class ExecAction(ApiStruct, frozen=True, kw_only=True):
    command: tuple[str, ...] = ()


class HTTPHeader(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    value: str = ""


class HTTPGetAction(ApiStruct, frozen=True, kw_only=True):
    path: str = ""
    port: IntOrString = ""
    host: str = ""
    scheme: URIScheme | None = None
    http_headers: tuple[HTTPHeader, ...] = ()
    protocol: str | None = None


class TCPSocketAction(ApiStruct, frozen=True, kw_only=True):
    port: IntOrString = ""
    host: str = ""


class GRPCAction(ApiStruct, frozen=True, kw_only=True):
    port: Int32 = 0
    service: str | None = None
    mode: str | None = None


class SleepAction(ApiStruct, frozen=True, kw_only=True):
    seconds: Int64 = 0


class Probe(ApiStruct, frozen=True, kw_only=True):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: Int32 = 0
    timeout_seconds: Int32 = 0
    period_seconds: Int32 = 0
    success_threshold: Int32 = 0
    failure_threshold: Int32 = 0
    termination_grace_period_seconds: Int64 | None = None


class LifecycleHandler(ApiStruct, frozen=True, kw_only=True):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(ApiStruct, frozen=True, kw_only=True):
    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str | None = None


class Capabilities(ApiStruct, frozen=True, kw_only=True):
    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class SELinuxOptions(ApiStruct, frozen=True, kw_only=True):
    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class WindowsSecurityContextOptions(ApiStruct, frozen=True, kw_only=True):
    gmsa_credential_spec_name: str | None = None
    gmsa_credential_spec: str | None = None
    run_as_user_name: str | None = None
    host_process: bool | None = None


class SeccompProfile(ApiStruct, frozen=True, kw_only=True):
    type: SeccompProfileType | None = None
    localhost_profile: str | None = None


class AppArmorProfile(ApiStruct, frozen=True, kw_only=True):
    type: AppArmorProfileType | None = None
    localhost_profile: str | None = None


class SecurityContext(ApiStruct, frozen=True, kw_only=True):
    capabilities: Capabilities | None = None
    privileged: bool | None = None
    selinux_options: SELinuxOptions | None = None
    windows_options: WindowsSecurityContextOptions | None = None
    run_as_user: Int64 | None = None
    run_as_group: Int64 | None = None
    run_as_non_root: bool | None = None
    read_only_root_filesystem: bool | None = None
    allow_privilege_escalation: bool | None = None
    proc_mount: ProcMountType | None = None
    seccomp_profile: SeccompProfile | None = None
    apparmor_profile: AppArmorProfile | None = None


class Container(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    ports: tuple[ContainerPort, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    env: tuple[EnvVar, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
    restart_policy: ContainerRestartPolicy | None = None
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeDevice, ...] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    termination_message_path: str = ""
    termination_message_policy: TerminationMessagePolicy | None = None
    image_pull_policy: PullPolicy | None = None
    security_context: SecurityContext | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False


class EphemeralContainer(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    ports: tuple[ContainerPort, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    env: tuple[EnvVar, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
    restart_policy: ContainerRestartPolicy | None = None
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeDevice, ...] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    termination_message_path: str = ""
    termination_message_policy: TerminationMessagePolicy | None = None
    image_pull_policy: PullPolicy | None = None
    security_context: SecurityContext | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    target_container_name: str = ""


def is_sidecar(container: Container) -> bool:
    """Return whether an init container keeps running beside the others (KEP-753: restartPolicy Always)."""
    return container.restart_policy == "Always"
