"""Who is at the other end of a unix socket, by what the kernel says (unix(7), SO_PEERCRED)."""

from __future__ import annotations

import socket
import struct

_PEER = struct.Struct("3i")
"""struct ucred: process, user and group ID."""


def listener(path: str) -> int:
    """Return the ID of the process that listens on the unix socket at ``path``; 0: it cannot be seen from here.

    :raises OSError: if nobody can be connected to.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.connect(path)
        pid, _, _ = _PEER.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(pid)
