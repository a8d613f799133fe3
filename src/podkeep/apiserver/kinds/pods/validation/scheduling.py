"""Validation of where a pod may run: affinity, tolerations, topology spread (core/validation: ``validateAffinity``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
POD_AFFINITIES = ("podAffinity", "podAntiAffinity")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MAX_POD_TERMS = 100
"""Terms of a pod's required affinity to pods, and of that against them. Each pod that gets a node afterwards, of
whatever namespace, is held against all of them; kube-scheduler, which has no bound, is a process of its own."""
_POLICIES = ("Honor", "Ignore")
_ACTIONS = ("DoNotSchedule", "ScheduleAnyway")

Values = Mapping[str, Any]


def validate_affinity(affinity: Values, path: str, errors: FieldErrors) -> None:
    """Note every rule that ``spec.affinity`` breaks."""
    if node := affinity.get("nodeAffinity"):
        where = f"{path}.nodeAffinity"
        if REQUIRED in node:
            validate_node_selector(node[REQUIRED], f"{where}.{REQUIRED}", errors)
        for index, term in enumerate(node.get(PREFERRED, ())):
            _weight(term, f"{where}.{PREFERRED}[{index}]", errors)
            _node_term(term.get("preference", {}), f"{where}.{PREFERRED}[{index}].preference", errors, values=False)
    for kind in POD_AFFINITIES:
        given = affinity.get(kind, {})
        terms = given.get(REQUIRED, ())
        field_rules.too_many(f"{path}.{kind}.{REQUIRED}", len(terms), MAX_POD_TERMS, errors)
        for index, term in enumerate(terms[:MAX_POD_TERMS]):
            _pod_term(term, f"{path}.{kind}.{REQUIRED}[{index}]", errors)
        for index, weighted in enumerate(given.get(PREFERRED, ())):
            where = f"{path}.{kind}.{PREFERRED}[{index}]"
            _weight(weighted, where, errors)
            _pod_term(weighted.get("podAffinityTerm", {}), f"{where}.podAffinityTerm", errors)


def _weight(term: Values, path: str, errors: FieldErrors) -> None:
    if not 1 <= term.get("weight", 0) <= 100:
        errors.invalid(f"{path}.weight", term.get("weight", 0), "must be in the range 1-100")


def validate_node_selector(selector: Values, path: str, errors: FieldErrors) -> None:
    """Note every rule that a ``NodeSelector`` breaks."""
    terms = selector.get("nodeSelectorTerms", ())
    if not terms:
        required(f"{path}.nodeSelectorTerms", "must have at least one node selector term", errors)
    for index, term in enumerate(terms):
        _node_term(term, f"{path}.nodeSelectorTerms[{index}]", errors, values=True)


def _node_term(term: Values, path: str, errors: FieldErrors, *, values: bool) -> None:
    """Note what is wrong with a term; ``values``: whether the values must be those of labels."""
    for index, requirement in enumerate(term.get("matchExpressions", ())):
        _node_requirement(requirement, f"{path}.matchExpressions[{index}]", errors, check_values=values)
    for index, requirement in enumerate(term.get("matchFields", ())):
        _node_field(requirement, f"{path}.matchFields[{index}]", errors)


def _node_requirement(requirement: Values, path: str, errors: FieldErrors, *, check_values: bool) -> None:
    operator = requirement.get("operator", "")
    if operator in ("Gt", "Lt"):
        if len(requirement.get("values", ())) != 1:
            required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'", errors)
    elif not field_rules.operator(requirement, path, errors):
        errors.invalid(f"{path}.operator", operator, "not a valid selector operator")
    field_rules.key_and_values(requirement, path, errors, any_value=not check_values)


def _node_field(requirement: Values, path: str, errors: FieldErrors) -> None:
    operator, values = requirement.get("operator", ""), requirement.get("values", ())
    if operator not in ("In", "NotIn"):
        errors.invalid(f"{path}.operator", operator, "not a valid selector operator")
    elif len(values) != 1:
        why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        required(f"{path}.values", why, errors)
    key = requirement.get("key", "")
    if key != "metadata.name":
        errors.invalid(f"{path}.key", key, "not a valid field selector key")
        return
    for index, value in enumerate(values):
        named(f"{path}.values[{index}]", value, names.dns_subdomain(value), errors)


def _pod_term(term: Values, path: str, errors: FieldErrors) -> None:
    for name in ("labelSelector", "namespaceSelector"):
        field_rules.label_selector(term.get(name), f"{path}.{name}", errors)
    for namespace in term.get("namespaces", ()):
        named(f"{path}.namespace", namespace, names.dns_label(namespace), errors)
    _match_label_keys(term, path, errors)
    key = term.get("topologyKey", "")
    if not key:
        required(f"{path}.topologyKey", "can not be empty", errors)
    named(f"{path}.topologyKey", key, names.label_key_problems(key), errors)


def _match_label_keys(term: Values, path: str, errors: FieldErrors) -> None:
    """Note what is wrong with the keys whose values are taken from the pod.

    Their requirements have been added to the selector by now (:func:`add_match_label_keys`), so that a key which the
    client wrote there, too, is in it twice.
    """
    match, mismatch = term.get("matchLabelKeys", ()), term.get("mismatchLabelKeys", ())
    selector = term.get("labelSelector")
    for name, keys in (("matchLabelKeys", match), ("mismatchLabelKeys", mismatch)):
        if keys and selector is None:
            errors.forbidden(f"{path}.{name}", "must not be specified when labelSelector is not set")
            continue
        for index, key in enumerate(keys):
            named(f"{path}.{name}[{index}]", key, names.label_key_problems(key), errors)
    if selector is not None and match:
        places = {key: index for index, key in enumerate(match)}
        seen = set(selector.get("matchLabels", ()))
        for requirement in selector.get("matchExpressions", ()):
            key = requirement.get("key", "")
            if key in places and key in seen:
                errors.invalid(f"{path}[{places[key]}]", key, "exists in both matchLabelKeys and labelSelector")
            seen.add(key)
    different = frozenset(mismatch)
    for index, key in enumerate(match):
        if key in different:
            errors.invalid(
                f"{path}.matchLabelKeys[{index}]", key, "exists in both matchLabelKeys and mismatchLabelKeys"
            )


def add_match_label_keys(spec: Values, labels: Mapping[str, str]) -> None:
    """Add to the selectors of a new pod what its labels have for ``matchLabelKeys`` and ``mismatchLabelKeys``."""
    for constraint in spec.get("topologySpreadConstraints", ()):
        _add_requirements(constraint, labels)
    for kind in POD_AFFINITIES:
        given = spec.get("affinity", {}).get(kind, {})
        for weighted in given.get(PREFERRED, ()):
            _add_requirements(weighted.get("podAffinityTerm", {}), labels)
        for term in given.get(REQUIRED, ()):
            _add_requirements(term, labels)


def _add_requirements(term: Values, labels: Mapping[str, str]) -> None:
    selector = term.get("labelSelector")
    if selector is None:
        return
    for name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        for key in term.get(name, ()):
            if key in labels:
                requirement = {"key": key, "operator": operator, "values": [labels[key]]}
                selector.setdefault("matchExpressions", []).append(requirement)


def validate_tolerations(tolerations: Sequence[Values], path: str, errors: FieldErrors) -> None:
    """Note every rule that ``spec.tolerations`` breaks."""
    for index, toleration in enumerate(tolerations):
        where = f"{path}[{index}]"
        key, operator = toleration.get("key", ""), toleration.get("operator", "")
        value, effect = toleration.get("value", ""), toleration.get("effect", "")
        if key:
            named(f"{where}.key", key, names.label_key_problems(key), errors)
        elif operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            errors.invalid(f"{where}.operator", operator, why)
        if "tolerationSeconds" in toleration and effect != "NoExecute":
            errors.invalid(f"{where}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        if operator in ("", "Equal"):
            named(f"{where}.operator", value, names.label_value(value), errors)
        elif operator == "Exists":
            if value:
                errors.invalid(f"{where}.operator", value, "value must be empty when `operator` is 'Exists'")
        else:  # also Lt and Gt, of a feature that is off by default in Kubernetes 1.36
            pod_fields.supported(f"{where}.operator", operator, ("Equal", "Exists"), errors)
        if effect:
            pod_fields.supported(f"{where}.effect", effect, EFFECTS, errors)


def validate_spread(constraints: Sequence[Values], path: str, errors: FieldErrors) -> None:
    """Note every rule that ``spec.topologySpreadConstraints`` break."""
    kinds = [(given.get("topologyKey", ""), given.get("whenUnsatisfiable", "")) for given in constraints]
    last = {kind: index for index, kind in enumerate(kinds)}
    for index, constraint in enumerate(constraints):
        where = f"{path}[{index}]"
        _positive(constraint.get("maxSkew", 0), f"{where}.maxSkew", errors)
        key, action = kinds[index]
        if not key:
            required(f"{where}.topologyKey", "can not be empty", errors)
        pod_fields.supported(f"{where}.whenUnsatisfiable", action, _ACTIONS, errors)
        if last[kinds[index]] != index:
            errors.duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
        least = constraint.get("minDomains")
        if least is not None:
            _positive(least, f"{where}.minDomains", errors)
            if action != "DoNotSchedule":
                why = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                errors.invalid(f"{where}.minDomains", least, why)
        for name in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if name in constraint:
                pod_fields.supported(f"{where}.{name}", constraint[name], _POLICIES, errors)
        _match_label_keys(constraint, where, errors)
        field_rules.label_selector(constraint.get("labelSelector"), f"{where}.labelSelector", errors)


def _positive(value: int, path: str, errors: FieldErrors) -> None:
    if value <= 0:
        errors.invalid(path, value, "must be greater than zero")
