"""Roles and their bindings (``rbac.authorization.k8s.io``). What they allow, and who may write them, is decided in
``auth``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import default_table
from podkeep.apiserver.kinds.cells import AGE, NAME, column
from podkeep.apiserver.kinds.field_rules import label_selector, not_supported, required
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.meta.objects import Object, path_segment
from podkeep.apiserver.patch.values import equal
from podkeep.apiserver.schema.table import Kind

GROUP = "rbac.authorization.k8s.io"
_SUBJECTS = ("ServiceAccount", "User", "Group")


def _any_name(_: str) -> str:
    """Return nothing: every name that can be in a path is right."""
    return ""


def _validate_rules(rules: Sequence[Mapping[str, Any]], errors: FieldErrors, *, namespaced: bool) -> None:
    for index, rule in enumerate(rules):
        where = f"rules[{index}]"
        if not rule.get("verbs"):
            required(f"{where}.verbs", "verbs must contain at least one value", errors)
        if urls := rule.get("nonResourceURLs"):
            if namespaced:
                errors.invalid(f"{where}.nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs")
            if any(rule.get(name) for name in ("apiGroups", "resources", "resourceNames")):
                errors.invalid(
                    f"{where}.nonResourceURLs",
                    urls,
                    "rules cannot apply to both regular resources and non-resource URLs",
                )
            continue
        if not rule.get("apiGroups"):
            required(f"{where}.apiGroups", "resource rules must supply at least one api group", errors)
        if not rule.get("resources"):
            required(f"{where}.resources", "resource rules must supply at least one resource", errors)


def _validate_role(value: Object, errors: FieldErrors) -> None:
    _validate_rules(value.get("rules", ()), errors, namespaced=True)


def _validate_cluster_role(value: Object, errors: FieldErrors) -> None:
    _validate_rules(value.get("rules", ()), errors, namespaced=False)
    if "aggregationRule" not in value:
        return
    path = "aggregationRule.clusterRoleSelectors"
    found = value["aggregationRule"].get("clusterRoleSelectors", ())
    if not found:
        required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil", errors)
    for index, selector in enumerate(found):
        label_selector(selector, f"{path}[{index}]", errors)


def _default_binding(value: Object) -> None:
    reference = value.setdefault("roleRef", {})
    reference["apiGroup"] = reference.get("apiGroup") or GROUP
    for subject in value.get("subjects", ()):
        if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = GROUP


def _validate_reference(value: Object, kinds: Sequence[str], errors: FieldErrors) -> None:
    reference = value.get("roleRef", {})
    group, kind, name = (reference.get(field, "") for field in ("apiGroup", "kind", "name"))
    if group != GROUP:
        not_supported("roleRef.apiGroup", group, (GROUP,), errors)
    if kind not in kinds:
        not_supported("roleRef.kind", kind, kinds, errors)
    if errors.required("roleRef.name", name) and (why := path_segment(name)):
        errors.invalid("roleRef.name", name, why)


def _validate_subjects(value: Object, errors: FieldErrors, *, namespaced: bool) -> None:
    for index, subject in enumerate(value.get("subjects", ())):
        where = f"subjects[{index}]"
        kind, group, name = (subject.get(field, "") for field in ("kind", "apiGroup", "name"))
        errors.required(f"{where}.name", name)
        if kind == "ServiceAccount":
            if name and (why := names.dns_subdomain(name)):
                errors.invalid(f"{where}.name", name, why)
            if group:
                not_supported(f"{where}.apiGroup", group, ("",), errors)
            if not namespaced:
                errors.required(f"{where}.namespace", subject.get("namespace"))
        elif kind in _SUBJECTS:
            if group != GROUP:
                not_supported(f"{where}.apiGroup", group, (GROUP,), errors)
        else:
            not_supported(f"{where}.kind", kind, _SUBJECTS, errors)


def _validate_role_binding(value: Object, errors: FieldErrors) -> None:
    _validate_reference(value, ("Role", "ClusterRole"), errors)
    _validate_subjects(value, errors, namespaced=True)


def _validate_cluster_role_binding(value: Object, errors: FieldErrors) -> None:
    _validate_reference(value, ("ClusterRole",), errors)
    _validate_subjects(value, errors, namespaced=False)


def _validate_binding_update(new: Object, old: Object, errors: FieldErrors) -> None:
    if not equal(new.get("roleRef"), old.get("roleRef")):
        errors.invalid("roleRef", new.get("roleRef"), "cannot change roleRef")


def _role(value: Mapping[str, Any]) -> str:
    reference = value.get("roleRef", {})
    return f"{reference.get('kind', '')}/{reference.get('name', '')}"


def _subjects(value: Mapping[str, Any], kind: str) -> str:
    found = (subject for subject in value.get("subjects", ()) if subject.get("kind") == kind)
    if kind == "ServiceAccount":
        return ", ".join(f"{subject.get('namespace', '')}/{subject.get('name', '')}" for subject in found)
    return ", ".join(subject.get("name", "") for subject in found)


_BINDING_COLUMNS = (
    NAME,
    column("Role", _role),
    AGE,
    column("Users", lambda value: _subjects(value, "User"), wide=True),
    column("Groups", lambda value: _subjects(value, "Group"), wide=True),
    column("ServiceAccounts", lambda value: _subjects(value, "ServiceAccount"), wide=True),
)

RESOURCES = (
    Resource(
        kind=Kind(GROUP, "v1", "Role"),
        plural="roles",
        columns=default_table.COLUMNS,
        strategy=Strategy(validate=_validate_role, name_rule=_any_name, create_on_update=True),
    ),
    Resource(
        kind=Kind(GROUP, "v1", "ClusterRole"),
        plural="clusterroles",
        namespaced=False,
        columns=default_table.COLUMNS,
        strategy=Strategy(validate=_validate_cluster_role, name_rule=_any_name, create_on_update=True),
    ),
    Resource(
        kind=Kind(GROUP, "v1", "RoleBinding"),
        plural="rolebindings",
        columns=_BINDING_COLUMNS,
        strategy=Strategy(
            default=_default_binding,
            validate=_validate_role_binding,
            validate_update=_validate_binding_update,
            name_rule=_any_name,
            create_on_update=True,
        ),
    ),
    Resource(
        kind=Kind(GROUP, "v1", "ClusterRoleBinding"),
        plural="clusterrolebindings",
        namespaced=False,
        columns=_BINDING_COLUMNS,
        strategy=Strategy(
            default=_default_binding,
            validate=_validate_cluster_role_binding,
            validate_update=_validate_binding_update,
            name_rule=_any_name,
            create_on_update=True,
        ),
    ),
)
