"""From the distribution's seccomp profile to the OCI one. Pure.

The distribution keeps one profile for every container (``/usr/share/containers/seccomp.json``, the format of
containers-common and Docker): its rules depend on capabilities and architecture, and OCI's do not. Only the rules that
hold for a container's capabilities are carried over (OCI runtime-spec, config-linux.md, Seccomp).
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from podkeep.base.errors import InvalidArgument

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64", "ppc64le": "ppc64le", "s390x": "s390x"}
"""Machine names of uname(2) to the names that profiles use."""
_SECCOMP_NAMES = {
    "x86_64": "SCMP_ARCH_X86_64",
    "aarch64": "SCMP_ARCH_AARCH64",
    "riscv64": "SCMP_ARCH_RISCV64",
    "ppc64le": "SCMP_ARCH_PPC64LE",
    "s390x": "SCMP_ARCH_S390X",
}
_LISTS = frozenset({"flags", "architectures", "names"})
_NUMBERS = {"defaultErrnoRet": 2**32, "errnoRet": 2**32, "index": 2**32, "value": 2**64, "valueTwo": 2**64}
"""Fields that are numbers, and what they are below; the others are text."""


def to_oci(profile: Mapping[str, Any], *, capabilities: Collection[str], machine: str) -> dict[str, Any]:
    """Return ``linux.seccomp`` for a container.

    :param profile: the parsed profile; one that is in OCI's form already passes through.
    :param capabilities: the container's bounding set, as ``CAP_NAME``.
    :param machine: the machine's architecture as uname(2) names it.
    :raises InvalidArgument: if it does not have the shape of a profile.
    """
    try:
        return _to_oci(profile, capabilities, machine)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            f"the seccomp profile is not understood ({type(error).__name__}: {error})",
            hint="OCI runtime-spec, config-linux.md, Seccomp, has the format",
        ) from error


def _to_oci(profile: Mapping[str, Any], capabilities: Collection[str], machine: str) -> dict[str, Any]:
    result: dict[str, Any] = {"defaultAction": _typed(profile, "defaultAction")}
    for key in ("defaultErrnoRet", "flags", "listenerPath", "listenerMetadata"):
        if profile.get(key) is not None:
            result[key] = _typed(profile, key)
    architectures = _architectures(profile, machine)
    if architectures:
        result["architectures"] = architectures
    result["syscalls"] = [
        _rule(rule)
        for rule in profile.get("syscalls", ())
        if _applies(rule, capabilities, ARCHITECTURES.get(machine, ""))
    ]
    return result


def _architectures(profile: Mapping[str, Any], machine: str) -> list[str]:
    if "archMap" not in profile:
        return list(_typed(profile, "architectures")) if profile.get("architectures") else []
    native = _SECCOMP_NAMES.get(machine)
    for entry in profile["archMap"]:
        if entry["architecture"] == native:
            return [native, *(entry.get("subArchitectures") or ())]
    return []


def _applies(rule: Mapping[str, Any], capabilities: Collection[str], architecture: str) -> bool:
    # includes.minKernel needs no look: what profiles name (4.8) is older than what podkeep runs on.
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    if any(needed not in capabilities for needed in includes.get("caps") or ()):
        return False
    if includes.get("arches") and architecture not in includes["arches"]:
        return False
    if any(refused in capabilities for refused in excludes.get("caps") or ()):
        return False
    return architecture not in (excludes.get("arches") or ())


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    names = list(rule.get("names") or ([rule["name"]] if rule.get("name") else []))
    result: dict[str, Any] = {"names": _typed({"names": names}, "names"), "action": _typed(rule, "action")}
    if rule.get("errnoRet") is not None:
        result["errnoRet"] = _typed(rule, "errnoRet")
    if rule.get("args"):
        result["args"] = [
            {key: _typed(arg, key) for key in ("index", "value", "valueTwo", "op") if key in arg}
            for arg in rule["args"]
        ]
    return result


def _typed(values: Mapping[str, Any], key: str) -> Any:
    """Return ``values[key]`` of the type that it has in OCI; of a wrong one OCI runtimes say little.

    :raises TypeError: if it has another one.
    """
    value = values[key]
    if key in _LISTS:
        sound = isinstance(value, list) and all(isinstance(item, str) for item in value)
    elif key in _NUMBERS:
        sound = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _NUMBERS[key]
    else:
        sound = isinstance(value, str)
    if not sound:
        raise TypeError(f"{key}: {reprlib.repr(value)}")
    return value
