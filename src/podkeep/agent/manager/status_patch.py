"""From the status that the API has and the one that it should have to a strategic merge patch. Pure.

Conditions that others own (readiness gates, the scheduler's) stay as they are: the lists are merged by type. What the
agent does not say any more is set to null, lists are replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.agent.pod.status import conditions

OWNED = frozenset(
    {
        "phase",
        "conditions",
        "message",
        "reason",
        "hostIP",
        "hostIPs",
        "podIP",
        "podIPs",
        "startTime",
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
        "qosClass",
        "observedGeneration",
        "resize",
        "allocatedResources",
        "resources",
    }
)
"""Fields of PodStatus that a kubelet writes."""
_MERGED = frozenset({"hostIPs", "podIPs"})
"""Lists that a strategic merge patch merges by a key; ``$patch: replace`` has them replaced."""
_KEPT = frozenset({"qosClass", "startTime", "phase"})
"""Never removed once they are there."""

Json = dict[str, Any]


def difference(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> Json:
    """Return the patch of ``status``; empty if nothing differs."""
    patch: Json = {}
    for key in sorted(OWNED):
        old, new = there.get(key), wanted.get(key)
        if key == "conditions":
            changed = _conditions(old or [], new or [])
            if changed:
                patch[key] = changed
        elif said(new) == said(old):
            continue
        elif said(new) is None:
            if key not in _KEPT:
                patch[key] = None
        elif key in _MERGED:
            patch[key] = [{"$patch": "replace"}, *(new or [])]
        else:
            patch[key] = new
    return patch


def _conditions(old: list[Json], new: list[Json]) -> list[Json]:
    """Return the conditions that differ, with null for what they do not say any more.

    Those that a kubelet alone sets go when it does not say them any more (mergePodStatus): a resize is over, or the pod
    was rejected, which a kubelet says nothing else of.
    """
    there = {item.get("type"): item for item in old}
    changed = []
    for item in new:
        before = there.get(item.get("type"), {})
        if said(before) == said(item):
            continue
        changed.append({**{key: None for key in before if key not in item}, **item})
    kinds = {item.get("type") for item in new}
    gone = [kind for kind in there if kind in conditions.OWNED and kind not in kinds]
    return [*changed, *({"$patch": "delete", "type": kind} for kind in gone)]


def said(value: Any) -> Any:
    """Return ``value`` without what says nothing, as Go leaves it out or not; ``None`` if nothing is left."""
    if isinstance(value, dict):
        fields = {key: said(item) for key, item in value.items()}
        return {key: item for key, item in fields.items() if item is not None} or None
    if isinstance(value, list | tuple):  # as decoded JSON has it, and as a struct does
        return [said(item) for item in value] or None
    return value or None
