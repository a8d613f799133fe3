"""Asking whether an image that is here is still what its name stands for: one question, and no manifest sent.

What was pulled before was verified then, so its digest is all there is to know. Registries that count pulls do not
count this question. A module of its own, because a worker that has nothing else to do should not load the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.base.errors import FailedPrecondition, NotFound, PermissionDenied
from podkeep.images.registry.fallback import first
from podkeep.images.registry.registry import Registry


def unchanged(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the answer to a pull if the registry has nothing new; nothing if the image must be pulled.

    :raises RegistryUnavailable: if no server answers.
    """
    name = f"{request['host']}/{request['repository']}"
    target = request["digest"] or request["tag"]
    registries = (Registry(endpoint, request["repository"], request["auth"]) for endpoint in request["endpoints"])
    try:
        digest = first(registries, lambda registry: registry.manifest_digest(target), f"{name}: {target}")
    except (FailedPrecondition, NotFound, PermissionDenied):
        return []  # some cannot answer this question: the pull will tell
    return [{"unchanged": f"{name}@{digest}"}] if digest in request["known"] else []
