"""Reading other objects while one is decided about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Lister(Protocol):
    """The objects as they are acknowledged. What it returns is shared: nobody changes it.

    ``resource`` is the name that the store has: ``pods``, ``apps/deployments``.
    """

    def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return an object; None if there is none. ``namespace`` is empty for what has none."""
        ...

    def list(self, resource: str, namespace: str = "") -> Iterable[Mapping[str, Any]]:
        """Return every object of a resource, by namespace and name; in one namespace if that is not empty."""
        ...
