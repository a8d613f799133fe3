"""Cluster IPs of a Service and their families: how they fit together, and how they may change. Pure.

The singular and the plural field, the families and the policy say the same thing in four ways; clients set some of them
(``pkg/apis/core/validation``: ``ValidateServiceClusterIPsRelatedFields``, ``validateUpgradeDowngrade*``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.services import addresses

FAMILIES = ("IPv4", "IPv6")
POLICIES = ("PreferDualStack", "RequireDualStack", "SingleStack")
ONCE = "may not change once set"

Spec = Mapping[str, Any]


def is_headless(spec: Spec) -> bool:
    """Tell whether a service is only a name for its pods."""
    return list(spec.get("clusterIPs", ())) == ["None"]


def validate(spec: Spec, before: Spec, errors: FieldErrors) -> None:
    """Note what does not fit together.

    :param before: the old specification; empty if there is none.
    """
    if spec.get("type") == "ExternalName":
        return
    ips, families, policy = spec.get("clusterIPs", []), spec.get("ipFamilies", []), spec.get("ipFamilyPolicy")
    _validate_singular(spec.get("clusterIP", ""), ips, errors)
    seen: set[str] = set()
    for index, family in enumerate(families):
        if family not in FAMILIES:
            field_rules.not_supported(f"spec.ipFamilies[{index}]", family, FAMILIES, errors)
        if family in seen:
            errors.duplicate(f"spec.ipFamilies[{index}]", family)
        seen.add(family)
    if policy is not None and policy not in POLICIES:
        field_rules.not_supported("spec.ipFamilyPolicy", policy, POLICIES, errors)
    if not _validate_ips(ips, frozenset(before.get("clusterIPs", ())), errors):
        return
    if len(ips) > 1 and (len(ips) > 2 or addresses.family(ips[0]) == addresses.family(ips[1])):
        errors.invalid("spec.clusterIPs", ips, "may specify no more than one IP for each IP family")
    if not is_headless(spec):
        for index, (ip, family) in enumerate(zip(ips, families, strict=False)):
            if family in FAMILIES and addresses.family(ip) != family:
                why = f"expected an {family} value as indicated by `ipFamilies[{index}]`"
                errors.invalid(f"spec.clusterIPs[{index}]", ip, why)


def _validate_singular(ip: str, ips: list[str], errors: FieldErrors) -> None:
    if ip and not ips:
        errors.required("spec.clusterIPs", "")
    elif ip and ips[0] != ip:
        errors.invalid("spec.clusterIPs", ips, "first value must match `clusterIP`")
    elif ips and not ip:
        errors.invalid("spec.clusterIPs", ips, "must be empty when `clusterIP` is not specified")


def _validate_ips(ips: list[str], old: frozenset[str], errors: FieldErrors) -> bool:
    """Note what is no address; return whether all are."""
    valid = True
    for index, ip in enumerate(ips):
        if index == 0 and ip == "None":
            if len(ips) > 1:
                valid = False
                errors.invalid("spec.clusterIPs", ips, "'None' must be the first and only value")
        elif not addresses.validate(f"spec.clusterIPs[{index}]", ip, errors, old=old):
            valid = False
    if len(ips) > 2:
        errors.invalid("spec.clusterIPs", ips, "may only hold up to 2 values")
    return valid


def validate_change(spec: Spec, before: Spec, errors: FieldErrors) -> None:
    """Note addresses and families that an update changes: a second one may come and go, the first one stays."""
    if "ExternalName" in (spec.get("type"), before.get("type")):
        return
    now, then = is_headless(spec), is_headless(before)
    if not (now and then):
        _validate_change_of_ips(spec, before, errors)
    if not (now or then):
        _validate_change_of_families(spec, before, errors)


def _validate_change_of_ips(spec: Spec, before: Spec, errors: FieldErrors) -> None:
    now, then = spec.get("clusterIPs", []), before.get("clusterIPs", [])
    if len(now) == len(then):
        for index, (new, old) in enumerate(zip(now, then, strict=True)):
            if new != old:
                errors.invalid(f"spec.clusterIPs[{index}]", now, ONCE)
        return
    if then and not now:
        errors.invalid("spec.clusterIPs[0]", now, "primary clusterIP can not be unset")
    if now and then and now[0] != then[0]:
        errors.invalid("spec.clusterIPs[0]", now, ONCE)
    if len(now) == 1 and len(then) > 1:
        _validate_release(spec, "clusterIP", errors)


def _validate_change_of_families(spec: Spec, before: Spec, errors: FieldErrors) -> None:
    now, then = spec.get("ipFamilies", []), before.get("ipFamilies", [])
    path = "spec.ipFamilies[0]"
    if len(now) == len(then):
        for new, old in zip(now, then, strict=True):
            if new != old:
                errors.invalid(path, now, ONCE)
        return
    if len(then) > len(now) and not spec.get("clusterIPs"):
        errors.invalid(path, now, "primary ipFamily can not be unset")
    if now and then and now[0] != then[0]:
        errors.invalid(path, spec.get("clusterIPs"), ONCE)
    if len(now) == 1 and len(then) > 1:
        _validate_release(spec, "ipFamily", errors)


def _validate_release(spec: Spec, what: str, errors: FieldErrors) -> None:
    policy = spec.get("ipFamilyPolicy")
    if policy != "SingleStack":
        why = f"must be set to 'SingleStack' when releasing the secondary {what}"
        errors.invalid("spec.ipFamilyPolicy", policy, why)
