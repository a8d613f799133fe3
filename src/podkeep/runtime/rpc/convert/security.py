"""Security contexts: CRI messages to records. What the machine cannot enforce is refused, never left out silently."""

from __future__ import annotations

from podkeep.base.errors import InvalidArgument, Unimplemented
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime import records
from podkeep.runtime.records import Seccomp, SeccompKind
from podkeep.runtime.rpc.convert.checks import enum_value, identifier, quote, refuse_nul


def security_record(context: api.LinuxContainerSecurityContext, *, given: bool) -> records.Security:
    refuse_lsm(context)
    group = identifier("run_as_group", context.run_as_group.value) if context.HasField("run_as_group") else None
    return records.Security(
        privileged=context.privileged,
        add_capabilities=tuple(context.capabilities.add_capabilities),
        drop_capabilities=tuple(context.capabilities.drop_capabilities),
        ambient_capabilities=tuple(context.capabilities.add_ambient_capabilities),
        run_as_user=identifier("run_as_user", context.run_as_user.value) if context.HasField("run_as_user") else None,
        run_as_group=group,
        run_as_username=context.run_as_username,
        supplemental_groups=tuple(identifier("supplemental_groups", group) for group in context.supplemental_groups),
        groups_policy=enum_value(
            "security_context.supplemental_groups_policy", records.GroupsPolicy, context.supplemental_groups_policy
        ),
        readonly_rootfs=context.readonly_rootfs,
        no_new_privs=context.no_new_privs,
        masked_paths=tuple(context.masked_paths) if given else None,
        readonly_paths=tuple(context.readonly_paths) if given else None,
        seccomp=_seccomp(context),
    )


def _seccomp(context: api.LinuxContainerSecurityContext) -> Seccomp:
    if context.HasField("seccomp"):
        profile = context.seccomp
        kind = enum_value("security_context.seccomp.profile_type", SeccompKind, profile.profile_type)
        reference = profile.localhost_ref
    else:
        kind, reference = _seccomp_of_text(context.seccomp_profile_path)
    if kind is not SeccompKind.LOCALHOST:
        return Seccomp(kind=kind)
    if not reference.startswith("/"):
        raise InvalidArgument(f"security_context.seccomp.localhost_ref: {quote(reference)} is not an absolute path")
    refuse_nul("security_context.seccomp.localhost_ref", reference)
    return Seccomp(kind=kind, path=reference)


def _seccomp_of_text(text: str) -> tuple[SeccompKind, str]:
    """Return what the deprecated field means: ``runtime/default``, ``localhost/<path>``, ``unconfined`` or nothing."""
    if text in {"", "unconfined"}:
        return SeccompKind.UNCONFINED, ""
    if text in {"runtime/default", "docker/default"}:
        return SeccompKind.RUNTIME_DEFAULT, ""
    kind, _, reference = text.partition("/")
    if kind != "localhost":
        raise InvalidArgument(f"security_context.seccomp_profile_path: {quote(text)} is not understood")
    return SeccompKind.LOCALHOST, reference


def refuse_lsm(context: api.LinuxContainerSecurityContext | api.LinuxSandboxSecurityContext) -> None:
    """Refuse what the kernel's security modules would have to enforce, and this version does not ask them to."""
    if context.HasField("selinux_options") and context.selinux_options.ByteSize():
        raise Unimplemented("security_context.selinux_options: SELinux labels are not implemented by this version")
    apparmor = context.apparmor.profile_type if context.HasField("apparmor") else api.SecurityProfile.Unconfined
    text = getattr(context, "apparmor_profile", "")
    if apparmor not in api.SecurityProfile.ProfileType.values():
        raise InvalidArgument(f"security_context.apparmor.profile_type: {apparmor} is not known")
    enforced = apparmor == api.SecurityProfile.Localhost or text.startswith("localhost/")
    default = apparmor == api.SecurityProfile.RuntimeDefault or text == "runtime/default"
    if enforced or (default and _apparmor_enabled()):
        raise Unimplemented("security_context.apparmor: AppArmor profiles are not implemented by this version")


def _apparmor_enabled() -> bool:
    try:
        with open("/sys/module/apparmor/parameters/enabled") as file:  # noqa: PTH123 - one character of sysfs
            return file.read(1) == "Y"
    except OSError:
        return False
