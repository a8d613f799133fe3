"""Validation of security contexts (core/validation: ``ValidateSecurityContext``, ``validateWindows``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.apiserver.kinds.pods.validation.fields import MAX_ID, Context, containers

PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_MAX_APPARMOR = 4_095
_MAX_SYSCTL = 253
_SYSCTL = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL_NAME = re.compile(_SYSCTL)
_IPC_SYSCTLS = ("kernel.sem", "kernel.shm", "kernel.msg", "fs.mqueue.")
_MAX_CREDENTIAL_SPEC = 64 << 10
_MAX_DOMAIN = 256
_MAX_USER = 104
_NETBIOS = re.compile(r'[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}')
_DNS_PART = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_DNS = re.compile(rf"{_DNS_PART}(?:\.{_DNS_PART})*")
_NOT_IN_USER = re.compile(r'["/\\:;|=,+*?<>@\[\]]')
_NOT_WINDOWS_POD = ("hostUsers", "userHostNamespace", "hostPID", "hostIPC", "shareProcessNamespace")
_NOT_WINDOWS_SECURITY = (
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
)
_NOT_WINDOWS_CONTAINER = (
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
)
_CHOICES = {
    "fsGroupChangePolicy": ("Always", "OnRootMismatch"),
    "supplementalGroupsPolicy": ("Merge", "Strict"),
    "seLinuxChangePolicy": ("Recursive",),  # MountOption is of a feature that is off by default in Kubernetes 1.36
}

Values = Mapping[str, Any]


def validate_container(security: Values, path: str, context: Context) -> None:
    """Note every rule that the ``securityContext`` of a container breaks."""
    errors = context.errors
    for name in ("runAsUser", "runAsGroup"):
        pod_fields.in_range(f"{path}.{name}", security.get(name), 0, MAX_ID, errors)
    if "procMount" in security:
        kind = security["procMount"]
        pod_fields.supported(f"{path}.procMount", kind, ("Default", "Unmasked"), errors)
        if kind == "Unmasked" and context.host_users:
            errors.invalid(f"{path}.procMount", kind, "`hostUsers` must be false to use `Unmasked`")
    if security.get("allowPrivilegeEscalation") is False:
        if security.get("privileged"):
            why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            errors.invalid(path, security, why)
        if "CAP_SYS_ADMIN" in security.get("capabilities", {}).get("add", ()):
            why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            errors.invalid(path, security, why)
    _profiles(security, path, errors)


def validate_pod(context: Context, path: str) -> None:
    """Note every rule that the ``securityContext`` of a pod breaks.

    :param path: of the spec.
    """
    spec, errors = context.spec, context.errors
    security = spec.get("securityContext", {})
    where = f"{path}.securityContext"
    for name in ("fsGroup", "runAsUser", "runAsGroup"):
        pod_fields.in_range(f"{where}.{name}", security.get(name), 0, MAX_ID, errors)
    for index, group in enumerate(security.get("supplementalGroups", ())):
        pod_fields.in_range(f"{where}.supplementalGroups[{index}]", group, 0, MAX_ID, errors)
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        why = "ShareProcessNamespace and HostPID cannot both be enabled"
        errors.invalid(f"{where}.shareProcessNamespace", value=True, why=why)
    _sysctls(context, f"{where}.sysctls")
    for name, known in _CHOICES.items():
        if name in security:
            pod_fields.supported(f"{where}.{name}", security[name], known, errors)
    _profiles(security, where, errors)


def _profiles(security: Values, path: str, errors: FieldErrors) -> None:
    if "seccompProfile" in security:
        _seccomp(security["seccompProfile"], f"{path}.seccompProfile", errors)
    if "appArmorProfile" in security:
        _apparmor(security["appArmorProfile"], f"{path}.appArmorProfile", errors)
    if "windowsOptions" in security:
        _windows_options(security["windowsOptions"], f"{path}.windowsOptions", errors)


def _seccomp(profile: Values, path: str, errors: FieldErrors) -> None:
    kind, name = profile.get("type", ""), profile.get("localhostProfile")
    if not kind:
        required(f"{path}.type", "type is required when seccompProfile is set", errors)
    else:
        pod_fields.supported(f"{path}.type", kind, PROFILES, errors)
    if kind != "Localhost":
        if name is not None:
            errors.invalid(f"{path}.localhostProfile", profile, "can only be set when seccomp type is Localhost")
    elif name is None:
        required(f"{path}.localhostProfile", "must be set when seccomp type is Localhost", errors)
    else:
        pod_fields.descending(f"{path}.localhostProfile", name, errors)


def _apparmor(profile: Values, path: str, errors: FieldErrors) -> None:
    kind, name = profile.get("type", ""), profile.get("localhostProfile")
    if not kind:
        required(f"{path}.type", "type is required when appArmorProfile is set", errors)
    elif not pod_fields.supported(f"{path}.type", kind, PROFILES, errors):
        return
    elif kind != "Localhost":
        if name is not None:
            errors.invalid(f"{path}.localhostProfile", name, "can only be set when AppArmor type is Localhost")
    elif not name:
        required(f"{path}.localhostProfile", "must be set when AppArmor type is Localhost", errors)
    else:
        if name != name.strip():
            errors.invalid(f"{path}.localhostProfile", name, "must not be padded with whitespace")
        field_rules.too_long(f"{path}.localhostProfile", name, _MAX_APPARMOR, errors)


def _sysctls(context: Context, path: str) -> None:
    spec, errors = context.spec, context.errors
    seen: set[str] = set()
    for index, sysctl in enumerate(spec.get("securityContext", {}).get("sysctls", ())):
        where = f"{path}[{index}].name"
        name = sysctl.get("name", "")
        if errors.required(where, name):
            if len(name) > _MAX_SYSCTL or not _SYSCTL_NAME.fullmatch(name):
                errors.invalid(where, name, f"must have at most {_MAX_SYSCTL} characters and match regex ^{_SYSCTL}$")
            elif name in seen:
                errors.duplicate(where, name)
        seen.add(name)
        dotted = name.replace("/", ".")
        if spec.get("hostNetwork") and dotted.startswith("net."):
            errors.invalid(where, name, "may not be specified when 'hostNetwork' is true")
        elif spec.get("hostIPC") and dotted.startswith(_IPC_SYSCTLS):
            errors.invalid(where, name, "may not be specified when 'hostIPC' is true")


def _windows_options(options: Values, path: str, errors: FieldErrors) -> None:
    if (name := options.get("gmsaCredentialSpecName")) is not None:
        named(f"{path}.gmsaCredentialSpecName", name, names.dns_subdomain(name), errors)
    if (text := options.get("gmsaCredentialSpec")) is not None:
        where = f"{path}.gmsaCredentialSpec"
        if not text:
            errors.invalid(where, text, "gmsaCredentialSpec cannot be an empty string")
        elif len(text) > _MAX_CREDENTIAL_SPEC:
            errors.invalid(where, text, "gmsaCredentialSpec size must be under 64 KiB")
    if (user := options.get("runAsUserName")) is not None:
        for why in _windows_user_problems(user):
            errors.invalid(f"{path}.runAsUserName", user, f"runAsUserName{why}")


def _windows_user_problems(text: str) -> list[str]:
    """Return what is wrong with ``DOMAIN\\USER`` of Windows, whose domain may be left out."""
    if not text:
        return [" cannot be an empty string"]
    if any(character < " " or character == "\x7f" for character in text):
        return [" cannot contain control characters"]
    if text.count("\\") > 1:
        return [" cannot contain more than one backslash"]
    domain, backslash, user = text.rpartition("\\")
    rules = (
        (len(domain) >= _MAX_DOMAIN, "'s Domain length must be under 256 characters"),
        (
            backslash and not _NETBIOS.fullmatch(domain) and not _DNS.fullmatch(domain),
            "'s Domain doesn't match the NetBios nor the DNS format",
        ),
        (not user, "'s User cannot be empty"),
        (len(user) > _MAX_USER, "'s User length must not be longer than 104 characters"),
        (user and not user.strip(". "), "'s User cannot contain only periods or spaces"),
        (
            _NOT_IN_USER.search(user),
            "'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]",
        ),
    )
    return [why for broken, why in rules if broken]


def validate_host_users(context: Context, path: str) -> None:
    """Note what a pod with a user namespace of its own cannot share or use (KEP-127), and two fields that disagree."""
    spec, errors = context.spec, context.errors
    if spec.get("hostUsers") is not False:
        return
    if spec.get("userHostNamespace"):
        why = "cannot be true when `hostUsers` is false: it is a deprecated name of `hostUsers: true`"
        errors.invalid(f"{path}.userHostNamespace", value=True, why=why)
    # These two names are kube-apiserver's.
    for name, shown in (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")):
        if spec.get(name):
            errors.forbidden(f"{path}.{shown}", "when `hostUsers` is false")
    for where, container in containers(spec, path):
        if container.get("volumeDevices"):
            errors.forbidden(f"{where}.volumeDevices", "when `hostUsers` is false")


def validate_os(context: Context, path: str) -> None:
    """Note what a pod cannot have on the operating system that it names."""
    spec, errors = context.spec, context.errors
    if "os" not in spec:
        return
    if not errors.required(f"{path}.os.name", context.os):
        return
    if not pod_fields.supported(f"{path}.os", context.os, ("linux", "windows"), errors):
        return
    security = spec.get("securityContext", {})
    if context.os == "linux":
        groups = [(f"{path}.securityContext", security)]
        groups += [
            (f"{where}.securityContext", given.get("securityContext", {})) for where, given in containers(spec, path)
        ]
        for where, given in groups:
            if "windowsOptions" in given:
                errors.forbidden(f"{where}.windowsOptions", "windows options cannot be set for a linux pod")
        return
    why = "cannot be set for a windows pod"
    for name in _NOT_WINDOWS_POD:
        if name in spec and (spec[name] or name not in ("hostPID", "hostIPC")):
            errors.forbidden(f"{path}.{name}", why)
    for name in _NOT_WINDOWS_SECURITY:
        if name in security:
            errors.forbidden(f"{path}.securityContext.{name}", why)
    for where, container in containers(spec, path):
        for name in _NOT_WINDOWS_CONTAINER:
            if name in container.get("securityContext", {}):
                errors.forbidden(f"{where}.securityContext.{name}", why)


def validate_host_process(context: Context, path: str) -> None:
    """Note containers of Windows' host that are in a pod with others."""
    spec, errors = context.spec, context.errors
    of_pod = spec.get("securityContext", {}).get("windowsOptions", {}).get("hostProcess")
    found: list[bool] = []
    for where, container in containers(spec, path):
        own = container.get("securityContext", {}).get("windowsOptions", {}).get("hostProcess")
        if of_pod is not None and own is not None and of_pod != own:
            shown = "true" if of_pod else "false"
            why = f"pod hostProcess value must be identical if both are specified, was {shown}"
            errors.invalid(f"{where}.securityContext.windowsOptions.hostProcess", own, why)
        found.append(bool(of_pod if own is None else own))
    if not any(found):
        return
    if not all(found):
        why = "If pod contains any hostProcess containers then all containers must be HostProcess containers"
        errors.invalid(path, "", why)
    if not spec.get("hostNetwork"):
        why = "hostNetwork must be true if pod contains any hostProcess containers"
        errors.invalid(f"{path}.hostNetwork", value=False, why=why)
