"""Filters of the list RPCs. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def labels_match(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Return whether ``labels`` has every pair of ``selector``."""
    return all(labels.get(key) == value for key, value in selector.items())
