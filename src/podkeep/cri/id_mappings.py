"""One side of an ID mapping as CRI's messages have it, and back."""

from __future__ import annotations

from collections.abc import Iterable

from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.namespace.idmap import IdMapping


def messages(given: Iterable[IdMapping]) -> list[api.IDMapping]:
    """Return the messages of a mapping, for a user namespace or a mount."""
    return [api.IDMapping(host_id=i.host_id, container_id=i.container_id, length=i.length) for i in given]


def mappings(given: Iterable[api.IDMapping]) -> tuple[IdMapping, ...]:
    """Return what messages say; nobody has checked it."""
    return tuple(IdMapping(container_id=i.container_id, host_id=i.host_id, length=i.length) for i in given)
