"""Connecting to a container as a kubelet does, from the node's network, with Go's words for what went wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl

from podkeep.base.concurrency.threads import working_for
from podkeep.base.errors import Unavailable
from podkeep.base.text import netloc
from podkeep.http.transport import without_frames

_MAX_HELD = 64 * 1024
"""Bytes of an answer that are kept in memory while nobody reads them."""


class DialFailed(Unavailable):
    """There is no connection; the message is that of Go's ``net.Dial``."""


def why(error: OSError) -> str:
    """Return what an error of a connection is called in Go's messages."""
    if error.errno is None:
        return str(error)
    return os.strerror(error.errno).lower()


async def connect(
    host: str, port: int, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to ``host``, which is an address or a name. The caller limits the time.

    :raises DialFailed: if there is no connection.
    :raises ssl.SSLError: if the peer speaks no TLS.
    """
    address, family = await _address(host, port)
    try:
        return await asyncio.open_connection(
            address, port, family=family, limit=_MAX_HELD, ssl=tls, server_hostname=host if tls is not None else None
        )
    # The second one while TLS is set up; the caller has the words for it.
    except (ssl.SSLError, ConnectionResetError) as error:
        raise without_frames(error)  # noqa: B904 - it is the same error
    except OSError as error:
        raise DialFailed(f"dial tcp {netloc.join(address, port)}: connect: {why(error)}") from without_frames(error)


async def _address(host: str, port: int) -> tuple[str, int]:
    """Return the first address of ``host``.

    A name may take a resolver long, and cannot be given up: all names together take threads of nobody else
    (``base/concurrency/threads.py``). Few probes have one: without ``host`` they go to the pod's address.
    """
    if not host:
        # Go dials this machine then; a pod without an address is not what runs there.
        raise DialFailed(f"dial tcp :{port}: the pod has no address")
    try:
        with working_for("names of probes"):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DialFailed(f"dial tcp: lookup {host}: no such host") from error
    family, _, _, _, (address, *_) = found[0]
    return str(address), family
