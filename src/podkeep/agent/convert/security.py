"""securityContext of pods and containers as CRI says it. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from podkeep.agent.convert.names import full_name
from podkeep.api.containers import (
    AppArmorProfile,
    Capabilities,
    Container,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
)
from podkeep.api.pod import Pod, PodSecurityContext
from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.cri.v1 import api_pb2

_SECCOMP = {
    "RuntimeDefault": api_pb2.SecurityProfile.RuntimeDefault,
    "Unconfined": api_pb2.SecurityProfile.Unconfined,
}
_GROUPS_POLICIES = {
    None: api_pb2.SupplementalGroupsPolicy.Merge,
    "Merge": api_pb2.SupplementalGroupsPolicy.Merge,
    "Strict": api_pb2.SupplementalGroupsPolicy.Strict,
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


class SeccompPolicy(FrozenStruct, kw_only=True):
    """What the node says about seccomp: where profiles of type Localhost are, and what counts if a pod says nothing.

    :param is_default: then it is RuntimeDefault, otherwise Unconfined (kubelet: ``seccompDefault``).
    """

    root: str
    is_default: bool = False


def sandbox_security(pod: Pod, namespaces: api_pb2.NamespaceOption) -> api_pb2.LinuxSandboxSecurityContext:
    security = pod.spec.security_context or PodSecurityContext()
    message = api_pb2.LinuxSandboxSecurityContext(
        namespace_options=namespaces,
        supplemental_groups=supplemental_groups(security),
        supplemental_groups_policy=_GROUPS_POLICIES[security.supplemental_groups_policy],
        privileged=any(
            inner is not None and bool(inner.privileged)
            for inner in (container.security_context for container in pod.spec.all_containers)
        ),
        # Whatever the containers ask for: the sandbox itself needs no more (kubelet).
        seccomp=api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.RuntimeDefault),
        selinux_options=_selinux(security.selinux_options),
    )
    if security.run_as_user is not None:
        message.run_as_user.value = security.run_as_user
    # CRI takes a group only together with a user.
    if security.run_as_group is not None and security.run_as_user is not None:
        message.run_as_group.value = security.run_as_group
    return message


def container_security(
    pod: Pod,
    container: Container,
    namespaces: api_pb2.NamespaceOption,
    image_user: ImageUser,
    seccomp: SeccompPolicy,
    groups: Sequence[int] = (),
) -> api_pb2.LinuxContainerSecurityContext:
    """Return the security context of ``container``; the container's own settings win over the pod's.

    IDs are those inside the container whatever its user namespace is (KEP-127, support for pods).

    :param groups: of volumes, which every process is in.
    :raises InvalidArgument: if ``runAsNonRoot`` is set and the container would run as root, or may; if a profile of
        the node is asked for and not named.
    """
    outer = pod.spec.security_context or PodSecurityContext()
    inner = container.security_context or SecurityContext()
    check_non_root(pod, container, image_user)
    is_privileged = privileged(container)
    is_masked = not is_privileged and inner.proc_mount != "Unmasked"
    apparmor = inner.apparmor_profile or outer.apparmor_profile
    message = api_pb2.LinuxContainerSecurityContext(
        namespace_options=namespaces,
        privileged=is_privileged,
        readonly_rootfs=bool(inner.read_only_root_filesystem),
        no_new_privs=inner.allow_privilege_escalation is False,
        supplemental_groups=[*supplemental_groups(outer), *groups],
        supplemental_groups_policy=_GROUPS_POLICIES[outer.supplemental_groups_policy],
        masked_paths=MASKED_PATHS if is_masked else (),
        readonly_paths=READONLY_PATHS if is_masked else (),
        seccomp=_seccomp(inner.seccomp_profile or outer.seccomp_profile, seccomp),
        selinux_options=_selinux(inner.selinux_options or outer.selinux_options),
    )
    if apparmor is not None:
        message.apparmor.CopyFrom(_apparmor(apparmor))
        # Runtimes of before Kubernetes 1.30 know only this.
        message.apparmor_profile = _apparmor_name(apparmor)
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
    where = f'(pod: "{full_name(pod)}", container: {container.name})'
    if user is not None:
        if user == 0:
            raise InvalidArgument(f"container's runAsUser breaks non-root policy {where}")
        return
    if image_user.name:
        raise InvalidArgument(
            f"container has runAsNonRoot and image has non-numeric user ({image_user.name}), "
            f"cannot verify user is non-root {where}",
            hint="set securityContext.runAsUser",
        )
    if not image_user.uid:
        raise InvalidArgument(
            f"container has runAsNonRoot and image will run as root {where}", hint="set securityContext.runAsUser"
        )


def privileged(container: Container) -> bool:
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


def _seccomp(profile: SeccompProfile | None, policy: SeccompPolicy) -> api_pb2.SecurityProfile:
    """Return a seccomp profile; what a pod does not say the node does.

    :raises InvalidArgument: if a file of the node is asked for and not named, or is not below the node's directory.
    """
    if profile is None or profile.type is None:
        return api_pb2.SecurityProfile(profile_type=_SECCOMP["RuntimeDefault" if policy.is_default else "Unconfined"])
    if profile.type != "Localhost":
        return api_pb2.SecurityProfile(profile_type=_SECCOMP[profile.type])
    if not profile.localhost_profile:
        raise InvalidArgument("localhostProfile must be set if seccompProfile type is Localhost.")
    name = posixpath.normpath(profile.localhost_profile)
    # The runtime reads the file as root: a pod must not choose one outside of the directory.
    if name.startswith(("/", "../")) or name == "..":
        raise InvalidArgument(f"localhostProfile {profile.localhost_profile!r} is not a path below {policy.root}")
    return api_pb2.SecurityProfile(
        profile_type=api_pb2.SecurityProfile.Localhost, localhost_ref=posixpath.join(policy.root, name)
    )


def _apparmor(profile: AppArmorProfile) -> api_pb2.SecurityProfile:
    """Return an AppArmor profile.

    :raises InvalidArgument: if one of the node is asked for and not named.
    """
    kind = profile.type or "Unconfined"
    if kind != "Localhost":
        return api_pb2.SecurityProfile(profile_type=_SECCOMP[kind])
    if not profile.localhost_profile:
        raise InvalidArgument("missing localhost apparmor profile name")
    return api_pb2.SecurityProfile(
        profile_type=api_pb2.SecurityProfile.Localhost, localhost_ref=profile.localhost_profile
    )


def _apparmor_name(profile: AppArmorProfile) -> str:
    if profile.type == "Localhost":
        return f"localhost/{profile.localhost_profile}"
    return "runtime/default" if profile.type == "RuntimeDefault" else "unconfined"


def _selinux(options: SELinuxOptions | None) -> api_pb2.SELinuxOption | None:
    if options is None:
        return None
    return api_pb2.SELinuxOption(user=options.user, role=options.role, type=options.type, level=options.level)
