"""Ports of probes and hooks, which may be the name of one of the container's. Pure."""

from __future__ import annotations

import re

from podkeep.api.containers import Container, EphemeralContainer
from podkeep.base.errors import InvalidArgument

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")


def resolve(port: int | str, container: Container | EphemeralContainer) -> int:
    """Return the number of ``port``.

    :raises InvalidArgument: if the container has no port of that name, or it is not one.
    """
    if isinstance(port, str):
        for known in container.ports:
            if known.name and known.name == port:
                return known.container_port
        if not _NUMBER.fullmatch(port):
            raise InvalidArgument(f'strconv.Atoi: parsing "{port}": invalid syntax')  # as a kubelet says it
    number = int(port)
    if not 0 < number < 65536:
        raise InvalidArgument(f"invalid port number: {number}")
    return number
