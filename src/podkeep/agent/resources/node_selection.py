"""Whether a node is one that a pod may be on: labels, node affinity, taints. Pure.

Rules: Kubernetes' component-helpers (scheduling/corev1/nodeaffinity, tolerations).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from podkeep.api.pod import PodSpec
from podkeep.api.scheduling import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Toleration

NO_EXECUTE, NO_SCHEDULE = "NoExecute", "NoSchedule"
# Bounded, as int() refuses more than 4300 digits. Affinity takes what Go's ParseInt takes, tolerations canonical
# numbers.
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}")


class Taint(NamedTuple):
    """A taint of the node."""

    key: str
    value: str = ""
    effect: str = NO_SCHEDULE


def selects(spec: PodSpec, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether the pod's ``nodeSelector`` and required node affinity allow node ``name`` with ``labels``."""
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is None:
        return True
    return matches(required, name, labels)


def matches(selector: NodeSelector, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether one of the selector's terms means node ``name`` with ``labels``; also of a volume's affinity."""
    return any(_matches(term, name, labels) for term in selector.node_selector_terms)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration], effects: Iterable[str]) -> Taint | None:
    """Return the first taint with one of ``effects`` that no toleration allows, or nothing."""
    allowed = tuple(tolerations)
    wanted = frozenset(effects)
    for taint in taints:
        if taint.effect in wanted and not any(tolerates(item, taint) for item in allowed):
            return taint
    return None


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("Lt", "Gt"):
        return _compares(toleration, taint.value)
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and toleration.value == taint.value)


def _compares(toleration: Toleration, value: str) -> bool:
    if not (_DECIMAL.fullmatch(toleration.value) and _DECIMAL.fullmatch(value)):
        return False
    bound, actual = int(toleration.value), int(value)
    return actual < bound if toleration.operator == "Lt" else actual > bound


def _matches(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_label(item, labels) for item in term.match_expressions) and all(
        _field(item, name) for item in term.match_fields
    )


def _label(item: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(item.key)
    if item.operator == "In":
        return value in item.values
    if item.operator == "NotIn":
        return value not in item.values
    if item.operator == "Exists":
        return value is not None
    if item.operator == "DoesNotExist":
        return value is None
    if item.operator in ("Gt", "Lt") and value is not None and len(item.values) == 1:
        bound = item.values[0]
        if _WHOLE.fullmatch(value) and _WHOLE.fullmatch(bound):
            return int(value) > int(bound) if item.operator == "Gt" else int(value) < int(bound)
    return False


def _field(item: NodeSelectorRequirement, name: str) -> bool:
    if item.key != "metadata.name" or len(item.values) != 1:
        return False
    return (item.operator == "In" and item.values[0] == name) or (item.operator == "NotIn" and item.values[0] != name)
