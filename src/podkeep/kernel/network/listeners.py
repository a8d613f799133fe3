"""Whether something in the network namespace of the calling thread takes what comes to a port. Only looking."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

from podkeep.kernel.network import tcp

_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
_TCP_LISTEN = "0A"


def is_taken(protocol: str, port: int, address: IPv4Address | IPv6Address) -> bool:
    """Say whether a server has a port of an address; one that it has as unspecified is that of every address.

    A connection that somebody made from the port is none. SCTP is not looked at: nothing is taken there.
    """
    kind = _KINDS.get(protocol)
    if kind is None or _can_be_had(kind, port, address):
        return False
    # Also a client's own end of a connection is in the way of a server.
    return any(_serves(f"{protocol}{version}", port) for version in ("", "6"))


def _can_be_had(kind: socket.SocketKind, port: int, address: IPv4Address | IPv6Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, kind | socket.SOCK_CLOEXEC) as trying:
            if family == socket.AF_INET6:
                trying.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if kind == socket.SOCK_STREAM:  # connections that have ended are in nobody's way
                trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trying.bind((str(address), port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _serves(table: str, port: int) -> bool:
    """Look for a socket that listens, or for UDP one that takes datagrams of everybody (proc_net_tcp(5))."""
    with suppress(FileNotFoundError):  # a kernel without IPv6
        for _, local, remote, state, *_ in tcp.entries(table):
            is_server = state == _TCP_LISTEN if table.startswith("tcp") else remote.endswith(":0000")
            if is_server and local.endswith(f":{port:04X}"):
                return True
    return False
