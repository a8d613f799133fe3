"""Looking at TCP connections of this network namespace from outside: whether the other end of one is still open.

Needed for a peer on the same machine whose last bytes do not fit into a receive queue that nobody empties: the end of
the connection is behind them, so neither reading nor polling shows it (the peer's socket is in FIN_WAIT1 then).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from podkeep.kernel.tables import lines, read_text

_PROC_NET = Path("/proc/thread-self/net")
_ESTABLISHED = 1
"""include/net/tcp_states.h."""


def entries(name: str) -> Iterator[list[str]]:
    """Return the fields of each socket in a table of /proc/net: ``tcp``, ``tcp6``, and those of UDP, which are alike.

    :raises OSError: if it cannot be read; FileNotFoundError on a kernel without that family.
    """
    return map(str.split, lines(read_text(_PROC_NET / name))[1:])


def peer_has_closed(own: tuple[str, int], peer: tuple[str, int]) -> bool:
    """Say whether the peer of a connection closed its socket; False if that is not to be seen from here.

    :param own: address and port of our end, as getsockname(2) says them; ``peer``: as getpeername(2).
    """
    try:
        # The peer's line, not ours: ours stays ESTABLISHED as long as the end is stuck behind unread bytes.
        wanted = (_written(*peer), _written(*own))
        found = entries("tcp6" if ":" in own[0] else "tcp")
    except (OSError, ValueError):
        return False
    for fields in found:
        if (fields[1], fields[2]) == wanted:
            return int(fields[3], 16) != _ESTABLISHED
    return False


def _written(address: str, port: int) -> str:
    """Return an address as the kernel writes it there: 32-bit words in the machine's byte order, in hexadecimal."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
