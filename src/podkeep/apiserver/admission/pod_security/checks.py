"""The checks of the Pod Security Standards by version (pod-security-admission 1.36: ``policy``). Pure.

With the gate ``UserNamespacesPodSecurityStandards`` on, some checks pass pods that have a user namespace of their own
(KEP-127, Pod Security Standards integration). kube-apiserver does that for policies of 1.35 and later whatever its
gates say, but for capabilities, and lets such pods choose ``procMount``; here the gate decides about all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from podkeep.apiserver.admission.pod_security.policy import Level, Policy
from podkeep.apiserver.kinds.pods.validation.fields import CONTAINER_FIELDS
from podkeep.apiserver.kinds.pods.validation.spec import APPARMOR_CONTAINER, SECCOMP_CONTAINER, SECCOMP_POD
from podkeep.base.frozen import FrozenStruct

Fields: TypeAlias = Mapping[str, Any]


class Violation(NamedTuple):
    """What a pod violates: ``reason`` is of the check, ``detail`` names containers and values."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


CheckFunction: TypeAlias = Callable[[Fields, Fields], Violation | None]
"""(metadata, spec) of a pod."""


class Check(FrozenStruct, kw_only=True):
    """A check of one level.

    ``versions`` are functions by the minor version from which they count. ``replaces`` names a check of baseline that
    the level ``restricted`` does not make as well, since this one says more. Pods with a user namespace pass from the
    minor version ``userns_from`` on, if the gate is on; at the level ``baseline`` alone for a check of that level.
    """

    name: str
    level: Level = Level.BASELINE
    versions: Mapping[int, CheckFunction]
    replaces: str = ""
    userns_from: int | None = None

    def at(self, minor: int) -> CheckFunction | None:
        """Return the function that counts at a minor version; None if there was no such check then."""
        return next((self.versions[start] for start in sorted(self.versions, reverse=True) if start <= minor), None)


# How things are named


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _counted(word: str, items: Sequence[str]) -> str:
    """``container "a"``, ``containers "a", "b"``."""
    return f"{_plural(word, items)} {_quoted(items)}"


def _plural(word: str, items: Sequence[str]) -> str:
    return word if len(items) == 1 else f"{word}s"


def _use(items: Sequence[str]) -> str:
    return "uses" if len(items) == 1 else "use"


def _setters(pod: bool, names: Sequence[str]) -> str:
    """``pod``, ``container "a"``, or ``pod and container "a"``."""
    return " and ".join([*(["pod"] if pod else []), *([_counted("container", names)] if names else [])])


# What a pod has


def _containers(spec: Fields) -> Iterator[Fields]:
    for name in CONTAINER_FIELDS:
        yield from spec.get(name, ())


def _context(owner: Fields) -> Fields:
    found: Fields = owner.get("securityContext", {})
    return found


def _named(spec: Fields, values: Callable[[Fields], Iterable[str]]) -> tuple[list[str], list[str]]:
    """Return the containers for which a function finds wrong values, and these values in order."""
    names, found = [], set()
    for container in _containers(spec):
        if wrong := set(values(container)):
            names.append(container.get("name", ""))
            found |= wrong
    return names, sorted(found)


def _set_by(spec: Fields, values: Callable[[Fields], Iterable[str]]) -> tuple[str, list[str]]:
    """Return which security contexts have wrong values, as text, and these values in order."""
    of_pod = set(values(_context(spec)))
    names, found = _named(spec, lambda container: values(_context(container)))
    return _setters(bool(of_pod), names), sorted(of_pod.union(found))


def has_user_namespace(spec: Fields) -> bool:
    return spec.get("hostUsers") is False


def _unless_windows(check: CheckFunction) -> CheckFunction:
    """Pass pods for Windows, whose validation refuses what the check asks for."""

    def checked(metadata: Fields, spec: Fields) -> Violation | None:
        return None if spec.get("os", {}).get("name") == "windows" else check(metadata, spec)

    return checked


# Baseline


def _app_armor(metadata: Fields, spec: Fields) -> Violation | None:
    setters, values = _set_by(spec, _app_armor_types)
    annotations = sorted(
        f"{key}={json.dumps(value, ensure_ascii=False)}"
        for key, value in metadata.get("annotations", {}).items()
        if key.startswith(APPARMOR_CONTAINER)
        and value not in ("", "runtime/default")
        and not value.startswith("localhost/")
    )
    if annotations:
        setters = " and ".join(filter(None, (setters, _plural("annotation", annotations))))
        values = values + annotations
    if not setters:
        return None
    return Violation(
        _plural("forbidden AppArmor profile", values),
        f"{setters} must not set AppArmor profile type to {_quoted(values)}",
    )


def _app_armor_types(context: Fields) -> Iterator[str]:
    return _other_types(context.get("appArmorProfile"))


def _other_types(profile: Fields | None) -> Iterator[str]:
    if profile is not None and (kind := profile.get("type", "")) not in ("RuntimeDefault", "Localhost"):
        yield kind


_DEFAULT_CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)


def _capabilities(container: Fields, field_name: str) -> Sequence[str]:
    found: Sequence[str] = _context(container).get("capabilities", {}).get(field_name, ())
    return found


def _capabilities_baseline(_: Fields, spec: Fields) -> Violation | None:
    names, added = _named(spec, lambda container: set(_capabilities(container, "add")) - _DEFAULT_CAPABILITIES)
    if not names:
        return None
    return Violation("non-default capabilities", _must_not_add(names, added))


def _must_not_add(names: Sequence[str], capabilities: Sequence[str]) -> str:
    shown = _quoted(capabilities)
    return f"{_counted('container', names)} must not include {shown} in securityContext.capabilities.add"


def _host_namespaces(_: Fields, spec: Fields) -> Violation | None:
    shared = [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    return Violation("host namespaces", ", ".join(shared)) if shared else None


def _host_path_volumes(_: Fields, spec: Fields) -> Violation | None:
    names = [volume.get("name", "") for volume in spec.get("volumes", ()) if "hostPath" in volume]
    return Violation("hostPath volumes", _counted("volume", names)) if names else None


def _host_ports(_: Fields, spec: Fields) -> Violation | None:
    names, ports = _named(
        spec, lambda container: [str(port["hostPort"]) for port in container.get("ports", ()) if port.get("hostPort")]
    )
    if not names:
        return None
    shown = f"{_plural('hostPort', ports)} {', '.join(ports)}"
    return Violation("hostPort", f"{_counted('container', names)} {_use(names)} {shown}")


def _hosts(container: Fields) -> Iterator[str]:
    lifecycle = container.get("lifecycle", {})
    for handler in (
        *(container.get(name, {}) for name in ("livenessProbe", "readinessProbe", "startupProbe")),
        *(lifecycle.get(name, {}) for name in ("postStart", "preStop")),
    ):
        for name in ("httpGet", "tcpSocket"):
            if host := handler.get(name, {}).get("host"):
                yield host


def _probe_hosts(_: Fields, spec: Fields) -> Violation | None:
    names, hosts = _named(spec, _hosts)
    if not names:
        return None
    names = sorted(set(names))
    shown = _counted("probe or lifecycle host", hosts)
    return Violation("probe or lifecycle host", f"{_counted('container', names)} {_use(names)} {shown}")


def _privileged(_: Fields, spec: Fields) -> Violation | None:
    names = [container.get("name", "") for container in _containers(spec) if _context(container).get("privileged")]
    if not names:
        return None
    return Violation("privileged", f"{_counted('container', names)} must not set securityContext.privileged=true")


def _proc_mount(_: Fields, spec: Fields) -> Violation | None:
    names, values = _named(spec, _other_proc_mounts)
    if not names:
        return None
    return Violation(
        "procMount", f"{_counted('container', names)} must not set securityContext.procMount to {_quoted(values)}"
    )


def _other_proc_mounts(container: Fields) -> Iterator[str]:
    if (value := _context(container).get("procMount", "Default")) != "Default":
        yield value


_SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t"})


def _selinux(allowed: frozenset[str]) -> CheckFunction:
    def wrong(context: Fields) -> Iterator[str]:
        options = context.get("seLinuxOptions", {})
        if (kind := options.get("type", "")) not in allowed:
            yield f"type={kind}"
        for name in ("user", "role"):
            if options.get(name):
                yield name

    def check(_: Fields, spec: Fields) -> Violation | None:
        setters, values = _set_by(spec, wrong)
        if not setters:
            return None
        types = [value.removeprefix("type=") for value in values if value.startswith("type=")]
        problems = [_counted("type", types)] if types else []
        problems += [f"{name} may not be set" for name in ("user", "role") if name in values]
        return Violation(
            "seLinuxOptions", f"{setters} set forbidden securityContext.seLinuxOptions: {'; '.join(problems)}"
        )

    return check


def _seccomp_annotations(metadata: Fields, spec: Fields) -> Violation | None:
    annotations = metadata.get("annotations", {})
    keys = {SECCOMP_POD, *(f"{SECCOMP_CONTAINER}{container.get('name', '')}" for container in _containers(spec))}
    found = sorted(
        f"{key}={json.dumps(annotations[key], ensure_ascii=False)}"
        for key in keys & annotations.keys()
        if annotations[key] not in ("runtime/default", "docker/default")
        and not annotations[key].startswith("localhost/")
    )
    return (
        Violation("seccompProfile", f"forbidden {_plural('annotation', found)} {', '.join(found)}") if found else None
    )


def _seccomp_types(context: Fields) -> Iterator[str]:
    return _other_types(context.get("seccompProfile"))


def _seccomp_baseline(_: Fields, spec: Fields) -> Violation | None:
    setters, types = _set_by(spec, _seccomp_types)
    if not setters:
        return None
    shown = f"{setters} must not set securityContext.seccompProfile.type to {_quoted(types)}"
    return Violation("seccompProfile", shown)


_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
    }
)
_SYSCTLS_27 = _SYSCTLS | {"net.ipv4.ip_local_reserved_ports"}
_SYSCTLS_29 = _SYSCTLS_27 | {
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}
_SYSCTLS_32 = _SYSCTLS_29 | {"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}


def _sysctls(allowed: frozenset[str]) -> CheckFunction:
    def check(_: Fields, spec: Fields) -> Violation | None:
        names = [item.get("name", "") for item in _context(spec).get("sysctls", ())]
        found = [name for name in names if name not in allowed]
        return Violation("forbidden sysctls", ", ".join(found)) if found else None

    return check


def _host_process(_: Fields, spec: Fields) -> Violation | None:
    def wrong(context: Fields) -> Iterator[str]:
        if context.get("windowsOptions", {}).get("hostProcess"):
            yield "true"

    setters, _values = _set_by(spec, wrong)
    if not setters:
        return None
    return Violation("hostProcess", f"{setters} must not set securityContext.windowsOptions.hostProcess=true")


# Restricted


def _privilege_escalation(_: Fields, spec: Fields) -> Violation | None:
    names = [
        container.get("name", "")
        for container in _containers(spec)
        if _context(container).get("allowPrivilegeEscalation", True)
    ]
    if not names:
        return None
    shown = f"{_counted('container', names)} must set securityContext.allowPrivilegeEscalation=false"
    return Violation("allowPrivilegeEscalation != false", shown)


def _capabilities_restricted(_: Fields, spec: Fields) -> Violation | None:
    missing = [
        container.get("name", "") for container in _containers(spec) if "ALL" not in _capabilities(container, "drop")
    ]
    names, added = _named(spec, lambda container: set(_capabilities(container, "add")) - {"NET_BIND_SERVICE"})
    problems = []
    if missing:
        problems.append(f'{_counted("container", missing)} must set securityContext.capabilities.drop=["ALL"]')
    if names:
        problems.append(_must_not_add(names, added))
    return Violation("unrestricted capabilities", "; ".join(problems)) if problems else None


_ALLOWED_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_OTHER_VOLUMES = (
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
)


def _restricted_volumes(_: Fields, spec: Fields) -> Violation | None:
    wrong = [volume for volume in spec.get("volumes", ()) if _ALLOWED_VOLUMES.isdisjoint(volume)]
    if not wrong:
        return None
    names = [volume.get("name", "") for volume in wrong]
    types = sorted({next((name for name in _OTHER_VOLUMES if name in volume), "unknown") for volume in wrong})
    shown = _counted("restricted volume type", types)
    return Violation("restricted volume types", f"{_counted('volume', names)} {_use(names)} {shown}")


def _run_as_non_root(_: Fields, spec: Fields) -> Violation | None:
    of_pod = _context(spec).get("runAsNonRoot")
    said = [(container.get("name", ""), _context(container).get("runAsNonRoot")) for container in _containers(spec)]
    setters = _setters(of_pod is False, [name for name, value in said if value is False])
    if setters:
        return Violation("runAsNonRoot != true", f"{setters} must not set securityContext.runAsNonRoot=false")
    silent = [name for name, value in said if value is None]
    if of_pod or not silent:
        return None
    shown = f"pod or {_counted('container', silent)} must set securityContext.runAsNonRoot=true"
    return Violation("runAsNonRoot != true", shown)


def _run_as_user(_: Fields, spec: Fields) -> Violation | None:
    def root(context: Fields) -> Iterator[str]:
        if context.get("runAsUser") == 0:
            yield "0"

    setters, _values = _set_by(spec, root)
    return Violation("runAsUser=0", f"{setters} must not set runAsUser=0") if setters else None


def _seccomp_restricted(metadata: Fields, spec: Fields) -> Violation | None:
    if (wrong := _seccomp_baseline(metadata, spec)) or "seccompProfile" in _context(spec):
        return wrong
    silent = [
        container.get("name", "") for container in _containers(spec) if "seccompProfile" not in _context(container)
    ]
    if not silent:
        return None
    return Violation(
        "seccompProfile",
        f"pod or {_counted('container', silent)} must set securityContext.seccompProfile.type to"
        ' "RuntimeDefault" or "Localhost"',
    )


CHECKS = (
    Check(name="appArmorProfile", versions={0: _app_armor}),
    Check(name="capabilities_baseline", versions={0: _capabilities_baseline}, userns_from=0),
    Check(name="hostNamespaces", versions={0: _host_namespaces}),
    Check(name="hostPathVolumes", versions={0: _host_path_volumes}),
    Check(name="hostPorts", versions={0: _host_ports}),
    Check(name="hostProbesAndHostLifecycle", versions={34: _probe_hosts}),
    Check(name="privileged", versions={0: _privileged}),
    Check(name="procMount", versions={0: _proc_mount}, userns_from=35),
    Check(
        name="seLinuxOptions",
        versions={0: _selinux(_SELINUX_TYPES), 31: _selinux(_SELINUX_TYPES | {"container_engine_t"})},
    ),
    Check(name="seccompProfile_baseline", versions={0: _seccomp_annotations, 19: _seccomp_baseline}),
    Check(
        name="sysctls",
        versions={
            0: _sysctls(_SYSCTLS),
            27: _sysctls(_SYSCTLS_27),
            29: _sysctls(_SYSCTLS_29),
            32: _sysctls(_SYSCTLS_32),
        },
    ),
    Check(name="windowsHostProcess", versions={0: _host_process}),
    Check(
        name="allowPrivilegeEscalation",
        level=Level.RESTRICTED,
        versions={8: _privilege_escalation, 25: _unless_windows(_privilege_escalation)},
    ),
    Check(
        name="capabilities_restricted",
        level=Level.RESTRICTED,
        versions={22: _capabilities_restricted, 25: _unless_windows(_capabilities_restricted)},
        replaces="capabilities_baseline",
    ),
    Check(name="procMount_restricted", level=Level.RESTRICTED, versions={35: _proc_mount}, replaces="procMount"),
    Check(
        name="restrictedVolumes",
        level=Level.RESTRICTED,
        versions={0: _restricted_volumes},
        replaces="hostPathVolumes",
    ),
    Check(name="runAsNonRoot", level=Level.RESTRICTED, versions={0: _run_as_non_root}, userns_from=0),
    Check(name="runAsUser", level=Level.RESTRICTED, versions={23: _run_as_user}, userns_from=0),
    Check(
        name="seccompProfile_restricted",
        level=Level.RESTRICTED,
        versions={19: _seccomp_restricted, 25: _unless_windows(_seccomp_restricted)},
        replaces="seccompProfile_baseline",
    ),
)
"""In the order in which violations are told: by name, those of baseline first."""

NEWEST = 36
"""The minor version that ``latest`` means; later ones mean the same."""


def _table() -> dict[tuple[Level, int], tuple[tuple[CheckFunction, bool], ...]]:
    """Return by level and minor version the functions, and whether pods with a user namespace may pass them."""
    table: dict[tuple[Level, int], tuple[tuple[CheckFunction, bool], ...]] = {}
    for minor in range(NEWEST + 1):
        there = [(check, function) for check in CHECKS if (function := check.at(minor)) is not None]
        replaced = {check.replaces for check, _ in there}
        for level in (Level.BASELINE, Level.RESTRICTED):
            table[level, minor] = tuple(
                (function, check.level is level and check.userns_from is not None and minor >= check.userns_from)
                for check, function in there
                if check.level is level or (level is Level.RESTRICTED and check.name not in replaced)
            )
    return table


_TABLE = _table()


def violations(policy: Policy, metadata: Fields, spec: Fields, *, userns_passes: bool) -> list[Violation]:
    """Return what a pod, or a template of one, violates of a policy; nothing if the policy allows it.

    :param userns_passes: whether the gate for pods with a user namespace is on.
    """
    if policy.level is Level.PRIVILEGED:
        return []
    minor = NEWEST if policy.minor is None else min(policy.minor, NEWEST)
    passes = userns_passes and has_user_namespace(spec)
    found = (check(metadata, spec) for check, may_pass in _TABLE[policy.level, minor] if not (passes and may_pass))
    return [violation for violation in found if violation is not None]
