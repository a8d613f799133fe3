"""Security contexts: CRI messages to records. Pure.

Whether the machine can enforce what they ask for is looked at when the container is made (``confinement.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.model import records
from podkeep.runtime.model.records import AppArmor, ProfileKind, Seccomp, SELinuxOptions
from podkeep.runtime.oci import apparmor, capabilities, selinux
from podkeep.runtime.oci.mounts import OF_RUNTIME, normal
from podkeep.runtime.rpc.convert.checks import (
    enum_value,
    identifier,
    path_text,
    quote,
    refuse_plain_text,
)


def security_record(context: api.LinuxContainerSecurityContext, *, given: bool) -> records.Security:
    """Return a container's security context.

    :param given: whether the request has one at all.
    :raises InvalidArgument: naming the field that cannot be, or contradicts another.
    """
    group = identifier("run_as_group", context.run_as_group.value) if context.HasField("run_as_group") else None
    if group is not None and not context.HasField("run_as_user") and not context.run_as_username:
        raise InvalidArgument(
            f"security_context.run_as_group: {group} is given without a user", hint="set run_as_user or run_as_username"
        )
    if context.HasField("run_as_user") and context.run_as_username:
        raise InvalidArgument("security_context: run_as_user and run_as_username exclude each other")
    refuse_plain_text("security_context.run_as_username", context.run_as_username)
    check_names(context.capabilities)
    return records.Security(
        privileged=context.privileged,
        add_capabilities=tuple(context.capabilities.add_capabilities),
        drop_capabilities=tuple(context.capabilities.drop_capabilities),
        ambient_capabilities=tuple(context.capabilities.add_ambient_capabilities),
        run_as_user=identifier("run_as_user", context.run_as_user.value) if context.HasField("run_as_user") else None,
        run_as_group=group,
        run_as_username=context.run_as_username,
        supplemental_groups=_groups(context.supplemental_groups),
        groups_policy=enum_value(
            "security_context.supplemental_groups_policy", records.GroupsPolicy, context.supplemental_groups_policy
        ),
        readonly_rootfs=context.readonly_rootfs,
        no_new_privs=context.no_new_privs,
        masked_paths=_masked_paths(context.masked_paths) if given else None,
        readonly_paths=_paths("readonly_paths", context.readonly_paths) if given else None,
        seccomp=_seccomp(context),
        apparmor=_apparmor(context),
        selinux=selinux_options(context.selinux_options),
    )


def check_names(asked: api.Capability) -> None:
    """Check the names of capabilities, before anything is made.

    :raises InvalidArgument: naming the field and the name that is none.
    """
    for field in ("add_capabilities", "drop_capabilities", "add_ambient_capabilities"):
        try:
            capabilities.parse(getattr(asked, field))
        except InvalidArgument as error:
            raise InvalidArgument(f"security_context.capabilities.{field}: {error.message}", hint=error.hint) from error


def _groups(given: Sequence[int]) -> tuple[int, ...]:
    return tuple(identifier("supplemental_groups", group) for group in given)


def _paths(field: str, paths: Sequence[str]) -> tuple[str, ...]:
    result = []
    for path in paths:
        if not path.startswith("/"):
            raise InvalidArgument(f"security_context.{field}: {quote(path)} is not an absolute path")
        path_text(f"security_context.{field}", path)
        # Of what ".." leads to only the container's links decide. The root as a whole crun leaves as it is.
        if ".." in path.split("/") or normal(path) == "/":
            hint = "for the whole root there is readonly_rootfs" if field == "readonly_paths" else ""
            raise InvalidArgument(f"security_context.{field}: {quote(path)} is no path below the root", hint=hint)
        result.append(normal(path))
    return tuple(result)


def _masked_paths(paths: Sequence[str]) -> tuple[str, ...]:
    result = _paths("masked_paths", paths)
    if needed := OF_RUNTIME.intersection(result):
        raise InvalidArgument(
            f"security_context.masked_paths: {min(needed)}: the OCI runtime sets up devices and streams there"
        )
    return result


def _seccomp(context: api.LinuxContainerSecurityContext) -> Seccomp:
    if context.HasField("seccomp"):
        profile = context.seccomp
        kind = enum_value("security_context.seccomp.profile_type", ProfileKind, profile.profile_type)
        reference = profile.localhost_ref
    else:
        kind, reference = _profile_of_text(
            # As CRI has it: without a profile a container is unconfined.
            "security_context.seccomp_profile_path",
            context.seccomp_profile_path,
            nothing=ProfileKind.UNCONFINED,
        )
    if kind is not ProfileKind.LOCALHOST:
        return Seccomp(kind=kind)
    reference = reference.removeprefix("localhost/")
    if not reference.startswith("/"):
        raise InvalidArgument(f"security_context.seccomp.localhost_ref: {quote(reference)} is not an absolute path")
    path_text("security_context.seccomp.localhost_ref", reference)
    return Seccomp(kind=kind, path=reference)


def _profile_of_text(field: str, text: str, *, nothing: ProfileKind) -> tuple[ProfileKind, str]:
    """Return what a deprecated field means: ``runtime/default``, ``localhost/<name>``, ``unconfined`` or nothing."""
    if text == "":
        return nothing, ""
    if text == "unconfined":
        return ProfileKind.UNCONFINED, ""
    # The second is the older name of the first.
    if text in {"runtime/default", "docker/default"}:
        return ProfileKind.RUNTIME_DEFAULT, ""
    kind, _, reference = text.partition("/")
    if kind != "localhost":
        raise InvalidArgument(f"{field}: {quote(text)} is not understood")
    return ProfileKind.LOCALHOST, reference


def _apparmor(context: api.LinuxContainerSecurityContext) -> AppArmor | None:
    if not context.HasField("apparmor") and not context.apparmor_profile:
        return None
    field = "security_context.apparmor"
    if context.HasField("apparmor"):
        kind = enum_value(f"{field}.profile_type", ProfileKind, context.apparmor.profile_type)
        name = context.apparmor.localhost_ref
        field += ".localhost_ref"
    else:
        field += "_profile"
        kind, name = _profile_of_text(field, context.apparmor_profile, nothing=ProfileKind.RUNTIME_DEFAULT)
    if kind is not ProfileKind.LOCALHOST:
        return AppArmor(kind=kind)
    return AppArmor(kind=kind, profile=apparmor.check_name(field, name.removeprefix("localhost/")))


def check_sandbox_context(context: api.LinuxSandboxSecurityContext) -> None:
    """Check what a sandbox's context says of its processes.

    None of them runs a program of the pod, so nothing of it is applied.

    :raises InvalidArgument: naming the field that cannot be, or contradicts another.
    """
    for name in ("apparmor", "seccomp"):
        if context.HasField(name):
            enum_value(f"security_context.{name}.profile_type", ProfileKind, getattr(context, name).profile_type)
    for field in ("run_as_user", "run_as_group"):
        if context.HasField(field):
            identifier(field, getattr(context, field).value)
    if context.HasField("run_as_group") and not context.HasField("run_as_user"):
        raise InvalidArgument(
            f"security_context.run_as_group: {context.run_as_group.value} is given without a user",
            hint="set run_as_user",
        )
    _groups(context.supplemental_groups)
    enum_value("security_context.supplemental_groups_policy", records.GroupsPolicy, context.supplemental_groups_policy)


def selinux_options(given: api.SELinuxOption) -> SELinuxOptions:
    """Return SELinux options.

    :raises InvalidArgument: if a part of them cannot be one of a label.
    """
    result = SELinuxOptions(user=given.user, role=given.role, type=given.type, level=given.level)
    selinux.check("security_context.selinux_options", result)
    return result
