"""JSON merge patch (RFC 7386)."""

from __future__ import annotations

from typing import Any

from podkeep.apiserver.patch.values import copy


def apply(value: Any, patch: Any) -> Any:
    """Return ``value`` with ``patch`` merged into it: ``null`` removes a member, a list replaces one."""
    if not isinstance(patch, dict):
        return copy(patch)
    merged = dict(value) if isinstance(value, dict) else {}
    for key, item in patch.items():
        if item is None:
            merged.pop(key, None)
        else:
            merged[key] = apply(merged.get(key), item)
    return merged
