"""Asking whether an image that is here is still what its name stands for: one question, and no manifest sent.

What was pulled before was verified then, so its digest is all there is to know. Registries that count pulls do not
count this question. A module of its own, because a worker that has nothing else to do should not load the rest.
"""

from __future__ import annotations

from podkeep.base.errors import FailedPrecondition, NotFound, PermissionDenied
from podkeep.images.messages import Pull, Unchanged
from podkeep.images.registry.fallback import first
from podkeep.images.registry.registry import Registry


def unchanged(request: Pull) -> Unchanged | None:
    """Return the answer to a pull if the registry has nothing new; None if the image must be pulled.

    :raises RegistryUnavailable: if no server answers.
    """
    name = request.source.name
    registries = (Registry(endpoint, name.repository) for endpoint in request.source.endpoints)
    what = f"{name.name}: {name.target}"
    try:
        digest = first(registries, lambda registry: registry.manifest_digest(name.target), what)
    except (FailedPrecondition, NotFound, PermissionDenied):
        return None  # some cannot answer this question: the pull will tell
    return Unchanged(name=f"{name.name}@{digest}") if digest in request.known else None
