"""The roles and bindings that every API has from its first start, and what brings existing ones up to date. Pure.

``default_policy.json`` is kube-apiserver's table (``plugin/pkg/auth/authorizer/rbac/bootstrappolicy``), with one
binding of podkeep's own: for the certificate that the API shows kubelets. What an administrator added to a role or
binding stays; what is missing comes back, unless the annotation says ``false``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from podkeep.apiserver.auth.rbac import CLUSTER_ROLES, GROUP, aggregated_rules, aggregates
from podkeep.apiserver.auth.rules import Part, Rule, parts
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.base.frozen import FrozenStruct

AUTO_UPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_KINDS = {
    "clusterroles": "ClusterRole",
    "clusterrolebindings": "ClusterRoleBinding",
    "roles": "Role",
    "rolebindings": "RoleBinding",
}


class Change(FrozenStruct):
    """What is to be written. ``old`` is what is there; ``recreate``: it cannot be changed into ``value``."""

    plural: str
    value: Object
    old: Mapping[str, Any] | None = None
    recreate: bool = False


@cache
def defaults() -> Mapping[str, Sequence[Object]]:
    """Return the objects by the plural of their resource, cluster roles first. Nobody changes them."""
    text = resources.files("podkeep.apiserver.auth").joinpath("default_policy.json").read_bytes()
    table: dict[str, list[dict[str, Any]]] = msgspec.json.decode(text)
    return {plural: [_object(plural, row) for row in rows] for plural, rows in table.items()}


@cache
def node_rules() -> tuple[Rule, ...]:
    """Return what every node may do: the rules of the cluster role ``system:node``."""
    (role,) = (role for role in defaults()["clusterroles"] if metadata(role)["name"] == "system:node")
    return tuple(map(Rule, role["rules"]))


def _object(plural: str, row: Mapping[str, Any]) -> Object:
    fields = {"name": row["name"], "labels": _LABELS | row.get("labels", {}), "annotations": {AUTO_UPDATE: "true"}}
    if "namespace" in row:
        fields["namespace"] = row["namespace"]
    value: Object = {"apiVersion": f"{GROUP}/v1", "kind": _KINDS[plural], "metadata": fields}
    if "role" in row:
        kind, name = row["role"].split("/")
        value["roleRef"] = {"apiGroup": GROUP, "kind": kind, "name": name}
        if row["subjects"]:
            value["subjects"] = [_subject(*text.split("/")) for text in row["subjects"]]
        return value
    if "aggregates" in row:
        value["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": labels} for labels in row["aggregates"]]}
    if row["rules"]:
        value["rules"] = list(map(_rule, row["rules"]))
    return value


def _subject(kind: str, *name: str) -> dict[str, str]:
    if kind == "ServiceAccount":
        return {"kind": kind, "name": name[1], "namespace": name[0]}
    return {"apiGroup": GROUP, "kind": kind, "name": name[0]}


def _rule(row: Mapping[str, str]) -> dict[str, list[str]]:
    names = {
        "verbs": "verbs",
        "groups": "apiGroups",
        "resources": "resources",
        "names": "resourceNames",
        "urls": "nonResourceURLs",
    }
    return {names[key]: text.split(",") for key, text in row.items()}


def reconcile(lister: Lister) -> Iterator[Change]:
    """Yield what is to be written so that the default roles and bindings are there.

    Those in a namespace are left out while it is not there. Each change is written before the next is asked for: the
    last ones are made of roles that the first ones write.
    """
    for plural, values in defaults().items():
        for value in values:
            namespace = metadata(value).get("namespace", "")
            if namespace and lister.get("namespaces", "", namespace) is None:
                continue
            old = lister.get(f"{GROUP}/{plural}", namespace, metadata(value)["name"])
            change = Change(plural, value) if old is None else _change(plural, value, old)
            if change is not None:
                yield change
    yield from aggregations(lister)


def aggregations(lister: Lister) -> Iterator[Change]:
    """Yield the cluster roles whose list of rules is not that of the roles they aggregate."""
    roles = list(lister.list(CLUSTER_ROLES))
    for role in roles:
        if aggregates(role):
            rules = aggregated_rules(role, roles)
            if rules != (role.get("rules") or []):
                yield Change("clusterroles", {**role, "rules": rules}, role)


def _change(plural: str, value: Object, old: Mapping[str, Any]) -> Change | None:
    if metadata(old).get("annotations", {}).get(AUTO_UPDATE) == "false":
        return None
    # It is immutable: the binding has to be deleted first.
    if value.get("roleRef") != old.get("roleRef"):
        return Change(plural, value, old, recreate=True)
    fields = metadata(old)
    wanted: Object = {
        **old,
        "metadata": fields | {name: metadata(value)[name] | fields.get(name, {}) for name in ("labels", "annotations")},
    }
    if missing := [item for item in value.get("subjects", ()) if item not in (old.get("subjects") or ())]:
        wanted["subjects"] = [*(old.get("subjects") or ()), *missing]
    if missing := [_written(part) for part in _missing(value, old)]:
        wanted["rules"] = [*(old.get("rules") or ()), *missing]
    if not aggregates(value) and aggregates(old):
        wanted.pop("aggregationRule")
    elif missing := [item for item in aggregates(value) if item not in aggregates(old)]:
        wanted["aggregationRule"] = {"clusterRoleSelectors": [*aggregates(old), *missing]}
    return None if wanted == old else Change(plural, wanted, old)


def _missing(value: Object, old: Mapping[str, Any]) -> list[Part]:
    own = list(map(Rule, old.get("rules") or ()))
    wanted = (part for item in value.get("rules", ()) for part in parts(item))
    return [part for part in wanted if not any(rule.covers(part) for rule in own)]


def _written(part: Part) -> dict[str, list[str]]:
    if part.url:
        return {"nonResourceURLs": [part.url], "verbs": [part.verb]}
    names = {"resourceNames": [part.name]} if part.name else {}
    return {"apiGroups": [part.group], "resources": [part.resource], "verbs": [part.verb]} | names
