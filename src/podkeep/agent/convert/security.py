"""securityContext of pods and containers as CRI says it. Pure."""

from __future__ import annotations

from podkeep.api.containers import Capabilities, Container, SeccompProfile, SecurityContext
from podkeep.api.pod import Pod, PodSecurityContext
from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2

_SECCOMP = {
    "RuntimeDefault": api_pb2.SecurityProfile.RuntimeDefault,
    "Unconfined": api_pb2.SecurityProfile.Unconfined,
}
# CRI: paths hidden from, or read-only for, containers that are not privileged (runtime-spec, maskedPaths).
MASKED_PATHS = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def sandbox_security(pod: Pod, namespaces: api_pb2.NamespaceOption) -> api_pb2.LinuxSandboxSecurityContext:
    """Return the security context of a pod's sandbox."""
    security = pod.spec.security_context or PodSecurityContext()
    message = api_pb2.LinuxSandboxSecurityContext(
        namespace_options=namespaces,
        supplemental_groups=supplemental_groups(security),
        privileged=any(privileged(container) for container in (*pod.spec.init_containers, *pod.spec.containers)),
        seccomp=_seccomp(security.seccomp_profile or SeccompProfile(type="RuntimeDefault")),
    )
    if security.run_as_user is not None:
        message.run_as_user.value = security.run_as_user
    if security.run_as_group is not None and security.run_as_user is not None:
        message.run_as_group.value = security.run_as_group
    return message


def container_security(
    pod: Pod, container: Container, namespaces: api_pb2.NamespaceOption, image_user: ImageUser
) -> api_pb2.LinuxContainerSecurityContext:
    """Return the security context of ``container``; the container's own settings win over the pod's.

    IDs are those inside the container whatever its user namespace is (KEP-127, support for pods).

    :raises InvalidArgument: if ``runAsNonRoot`` is set and the container would run as root, or may.
    """
    outer = pod.spec.security_context or PodSecurityContext()
    inner = container.security_context or SecurityContext()
    check_non_root(pod, container, image_user)
    is_privileged = privileged(container)
    message = api_pb2.LinuxContainerSecurityContext(
        namespace_options=namespaces,
        privileged=is_privileged,
        readonly_rootfs=bool(inner.read_only_root_filesystem),
        no_new_privs=inner.allow_privilege_escalation is False,
        supplemental_groups=supplemental_groups(outer),
        masked_paths=() if is_privileged else MASKED_PATHS,
        readonly_paths=() if is_privileged else READONLY_PATHS,
        seccomp=_seccomp(inner.seccomp_profile or outer.seccomp_profile),
    )
    if inner.capabilities is not None:
        message.capabilities.CopyFrom(_capabilities(inner.capabilities))
    user = inner.run_as_user if inner.run_as_user is not None else outer.run_as_user
    group = inner.run_as_group if inner.run_as_group is not None else outer.run_as_group
    if user is not None:
        message.run_as_user.value = user
    elif image_user.name:
        message.run_as_username = image_user.name
    elif image_user.uid is not None:
        message.run_as_user.value = image_user.uid
    if group is not None:
        message.run_as_group.value = group
        if user is None and not image_user.name and image_user.uid is None:
            # CRI takes a group only together with a user.
            message.run_as_user.value = 0
    return message


class ImageUser:
    """The user an image runs as: a number, a name, or neither."""

    def __init__(self, *, uid: int | None = None, name: str = "") -> None:
        self.uid = uid
        self.name = name


def check_non_root(pod: Pod, container: Container, image_user: ImageUser) -> None:
    """Refuse a container that must not run as root and does.

    :raises InvalidArgument: saying why.
    """
    outer = pod.spec.security_context or PodSecurityContext()
    inner = container.security_context or SecurityContext()
    non_root = inner.run_as_non_root if inner.run_as_non_root is not None else outer.run_as_non_root
    if not non_root:
        return
    user = inner.run_as_user if inner.run_as_user is not None else outer.run_as_user
    if user is not None:
        if user == 0:
            raise InvalidArgument("container's runAsUser breaks non-root policy")
        return
    if image_user.name:
        raise InvalidArgument(
            f"container has runAsNonRoot and image has non-numeric user ({image_user.name}), "
            "cannot verify user is non-root",
            hint="set securityContext.runAsUser",
        )
    if not image_user.uid:
        raise InvalidArgument(
            "container has runAsNonRoot and image will run as root", hint="set securityContext.runAsUser"
        )


def privileged(container: Container) -> bool:
    """Return whether ``container`` asks for all privileges."""
    return container.security_context is not None and bool(container.security_context.privileged)


def supplemental_groups(security: PodSecurityContext) -> list[int]:
    """Return the groups every process of the pod is in; fsGroup is one of them."""
    groups = list(security.supplemental_groups)
    if security.fs_group is not None and security.fs_group not in groups:
        groups.append(security.fs_group)
    return groups


def _capabilities(capabilities: Capabilities) -> api_pb2.Capability:
    def spelled(given: tuple[str, ...]) -> list[str]:
        return [name.upper().removeprefix("CAP_") for name in given]

    return api_pb2.Capability(add_capabilities=spelled(capabilities.add), drop_capabilities=spelled(capabilities.drop))


def _seccomp(profile: SeccompProfile | None) -> api_pb2.SecurityProfile:
    """A pod that says nothing runs unconfined, as with a kubelet whose ``seccompDefault`` is off."""
    if profile is None or profile.type is None:
        return api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.Unconfined)
    if profile.type not in _SECCOMP:
        raise InvalidArgument(f"seccomp profile type {profile.type} is not supported by this version")
    return api_pb2.SecurityProfile(profile_type=_SECCOMP[profile.type])
