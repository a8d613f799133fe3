"""Validation of Pods, ConfigMaps and Secrets after defaulting: the rules of the v1 API for what this version runs.

Pure: whether a named ConfigMap exists, or a path on the node, is found out when the pod starts.
"""

from __future__ import annotations

import ipaddress
import re

from podkeep.api import names
from podkeep.api.configuration import ConfigMap, Secret
from podkeep.api.fields import FieldErrors
from podkeep.api.meta import ObjectMeta
from podkeep.api.pod import Pod, PodSecurityContext, PodSpec
from podkeep.api.validation.containers import validate_containers, validate_profiles
from podkeep.api.validation.secret_types import validate_content
from podkeep.api.validation.volumes import validate_volumes
from podkeep.base.text import quantity

MAX_DATA_BYTES = 1 << 20
"""Largest ConfigMap or Secret, all values together."""
SAFE_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
"""Namespaced sysctls that cannot harm other pods (Kubernetes: safe sysctls)."""
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_ID = (1 << 31) - 1
_MAX_HOSTNAME = 64


def validate_pod(pod: Pod, errors: FieldErrors) -> None:
    """Note every rule that the defaulted ``pod`` breaks."""
    _metadata(pod.metadata, errors)
    if pod.metadata.uid and not _UID.fullmatch(pod.metadata.uid):
        errors.invalid("metadata.uid", pod.metadata.uid, "must hold only letters, digits, '.', '_' and '-'")
    spec = pod.spec
    _namespaces(spec, errors)
    _numbers(spec, errors)
    _dns(spec, errors)
    _host_aliases(spec, errors)
    for name in ("hostname", "subdomain"):
        if getattr(spec, name) and (why := names.dns_label(getattr(spec, name))):
            errors.invalid(f"spec.{name}", getattr(spec, name), why)
    _hostname_override(spec, errors)
    for index, gate in enumerate(spec.readiness_gates):
        where = f"spec.readinessGates[{index}].conditionType"
        if errors.required(where, gate.condition_type) and (why := names.label_key(gate.condition_type)):
            errors.invalid(where, gate.condition_type, why)
    for name, amount in spec.overhead.items():
        if quantity.parse(amount) < 0:
            errors.invalid(f"spec.overhead[{name}]", amount, "must be 0 or greater")
    if spec.runtime_class_name is not None and (why := names.dns_subdomain(spec.runtime_class_name)):
        errors.invalid("spec.runtimeClassName", spec.runtime_class_name, why)
    _security(spec.security_context or PodSecurityContext(), spec, errors)
    volumes = validate_volumes(spec.volumes, errors)
    validate_containers(spec, volumes, errors)


def _hostname_override(spec: PodSpec, errors: FieldErrors) -> None:
    """A hostname that is in no DNS (KEP-4762)."""
    asked = spec.hostname_override
    if asked is None:
        return
    path = "spec.hostnameOverride"
    if why := names.dns_subdomain(asked):
        errors.invalid(path, asked, why)
    elif len(asked) > _MAX_HOSTNAME:
        errors.invalid(path, asked, f"must be no more than {_MAX_HOSTNAME} characters")
    if spec.set_hostname_as_fqdn:
        errors.forbidden("spec.setHostnameAsFQDN", "cannot be true when `hostnameOverride` is set")
    if spec.host_network:
        errors.forbidden(path, "cannot be set when `hostNetwork` is true")


def validate_config_map(config_map: ConfigMap, errors: FieldErrors) -> None:
    """Note every rule that ``config_map`` breaks."""
    _metadata(config_map.metadata, errors)
    for key in config_map.data.keys() & config_map.binary_data.keys():
        errors.duplicate(f"binaryData[{key}]", key)
    _data({key: text.encode() for key, text in config_map.data.items()}, "data", errors)
    _data(config_map.binary_data, "binaryData", errors)


def validate_secret(secret: Secret, errors: FieldErrors) -> None:
    """Note every rule that ``secret`` breaks."""
    _metadata(secret.metadata, errors)
    _data(secret.data, "data", errors)
    validate_content(secret, errors)


def _data(data: dict[str, bytes], path: str, errors: FieldErrors) -> None:
    for key in data:
        if why := names.config_key(key):
            errors.invalid(f"{path}[{key}]", key, why)
    if sum(map(len, data.values())) > MAX_DATA_BYTES:
        errors.add(path, f"Too long: may not be more than {MAX_DATA_BYTES} bytes")


def _metadata(metadata: ObjectMeta, errors: FieldErrors) -> None:
    if errors.required("metadata.name", metadata.name) and (why := names.dns_subdomain(metadata.name)):
        errors.invalid("metadata.name", metadata.name, why)
    if why := names.dns_label(metadata.namespace):
        errors.invalid("metadata.namespace", metadata.namespace, why)
    for key, value in metadata.labels.items():
        if why := names.label_key(key) or names.label_value(value):
            errors.invalid(f"metadata.labels[{key}]", value, why)
    for key in metadata.annotations:
        if why := names.label_key(key):
            errors.invalid(f"metadata.annotations[{key}]", key, why)


def _namespaces(spec: PodSpec, errors: FieldErrors) -> None:
    """Which namespaces of the host go together (KEP-127, Pod.spec changes, and ``userHostNamespace`` of its draft)."""
    if spec.host_users is False:
        if spec.user_host_namespace:
            why = "cannot be true when `hostUsers` is false: it is a deprecated name of `hostUsers: true`"
            errors.invalid("spec.userHostNamespace", "true", why)
        for field, shared in (
            ("hostNetwork", spec.host_network),
            ("hostPID", spec.host_pid),
            ("hostIPC", spec.host_ipc),
        ):
            if shared:
                errors.forbidden(f"spec.{field}", "when `hostUsers` is false")
    if spec.os is not None:
        if spec.os.name is None:
            errors.required("spec.os.name", "")
        for field, given in (
            ("hostUsers", spec.host_users is not None),
            ("userHostNamespace", spec.user_host_namespace),
        ):
            if spec.os.name == "windows" and given:
                errors.forbidden(f"spec.{field}", "cannot be set for a windows pod")
    if spec.share_process_namespace and spec.host_pid:
        errors.invalid("spec.shareProcessNamespace", "true", "cannot be set together with hostPID")


def _numbers(spec: PodSpec, errors: FieldErrors) -> None:
    if spec.termination_grace_period_seconds is not None and spec.termination_grace_period_seconds < 0:
        errors.invalid(
            "spec.terminationGracePeriodSeconds", spec.termination_grace_period_seconds, "must be 0 or greater"
        )
    deadline = spec.active_deadline_seconds
    if deadline is not None and not 1 <= deadline <= _MAX_ID:
        errors.invalid("spec.activeDeadlineSeconds", deadline, f"must be between 1 and {_MAX_ID}")


def _dns(spec: PodSpec, errors: FieldErrors) -> None:
    config = spec.dns_config
    if spec.dns_policy == "None" and (config is None or not config.nameservers):
        errors.add("spec.dnsConfig.nameservers", "Required value: at least one when dnsPolicy is None")
    if config is None:
        return
    for index, address in enumerate(config.nameservers):
        _address(address, f"spec.dnsConfig.nameservers[{index}]", errors)
    if len(config.nameservers) > 3:
        errors.add("spec.dnsConfig.nameservers", "Too many: must have at most 3 items")
    if len(config.searches) > 32:
        errors.add("spec.dnsConfig.searches", "Too many: must have at most 32 items")
    for index, search in enumerate(config.searches):
        # resolv.conf(5) allows a trailing dot and a lone dot.
        if search != "." and (why := names.dns_subdomain(search.removesuffix(".").lower())):
            errors.invalid(f"spec.dnsConfig.searches[{index}]", search, why)
    for index, option in enumerate(config.options):
        errors.required(f"spec.dnsConfig.options[{index}].name", option.name)


def _host_aliases(spec: PodSpec, errors: FieldErrors) -> None:
    for index, alias in enumerate(spec.host_aliases):
        path = f"spec.hostAliases[{index}]"
        if errors.required(f"{path}.ip", alias.ip):
            _address(alias.ip, f"{path}.ip", errors)
        for number, hostname in enumerate(alias.hostnames):
            if why := names.dns_subdomain(hostname):
                errors.invalid(f"{path}.hostnames[{number}]", hostname, why)


def _address(text: str, path: str, errors: FieldErrors) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        errors.invalid(path, text, "must be an IP address such as 10.9.8.7 or 2001:db8::ffff")


def _security(security: PodSecurityContext, spec: PodSpec, errors: FieldErrors) -> None:
    path = "spec.securityContext"
    for field, value in (
        ("runAsUser", security.run_as_user),
        ("runAsGroup", security.run_as_group),
        ("fsGroup", security.fs_group),
        *((f"supplementalGroups[{index}]", group) for index, group in enumerate(security.supplemental_groups)),
    ):
        validate_id(value, f"{path}.{field}", errors)
    seen: set[str] = set()
    for index, sysctl in enumerate(security.sysctls):
        where = f"{path}.sysctls[{index}].name"
        name = sysctl.name.replace("/", ".")
        if not errors.required(where, name):
            continue
        if why := names.sysctl(sysctl.name):
            errors.invalid(where, sysctl.name, why)
        elif name in seen:
            errors.duplicate(where, sysctl.name)
        elif name not in SAFE_SYSCTLS:
            errors.forbidden(where, f"{sysctl.name} is not one of the safe sysctls")
        elif (spec.host_network and name.startswith("net.")) or (spec.host_ipc and name.startswith("kernel.shm")):
            errors.forbidden(where, "would change the host, whose namespace the pod shares")
        seen.add(name)
    validate_profiles(security.seccomp_profile, security.apparmor_profile, path, errors)


def validate_id(value: int | None, path: str, errors: FieldErrors) -> None:
    """Note a user or group ID that is out of range."""
    if value is not None and not 0 <= value <= _MAX_ID:
        errors.invalid(path, value, f"must be between 0 and {_MAX_ID}")
