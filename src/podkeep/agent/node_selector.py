"""Whether a node is one that a NodeSelector means: terms of a required node affinity, of pods and of volumes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.api.scheduling import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm


def matches(selector: NodeSelector, labels: Mapping[str, str], node_name: str) -> bool:
    """Return whether one of the selector's terms matches; a term without requirements matches nothing."""
    fields = {"metadata.name": node_name}
    return any(_term(term, labels, fields) for term in selector.node_selector_terms)


def _term(term: NodeSelectorTerm, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_requirement(item, labels) for item in term.match_expressions) and all(
        _requirement(item, fields) for item in term.match_fields
    )


def _requirement(item: NodeSelectorRequirement, values: Mapping[str, str]) -> bool:
    value = values.get(item.key)
    if item.operator == "In":
        return value is not None and value in item.values
    if item.operator == "NotIn":
        return value is None or value not in item.values
    if item.operator == "Exists":
        return value is not None
    if item.operator == "DoesNotExist":
        return value is None
    if item.operator not in {"Gt", "Lt"} or value is None or len(item.values) != 1:
        return False
    try:
        ours, theirs = int(value), int(item.values[0])
    except ValueError:
        return False
    return ours > theirs if item.operator == "Gt" else ours < theirs
