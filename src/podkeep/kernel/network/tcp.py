"""Looking at TCP connections of this network namespace from outside: whether the other end of one is still open.

Needed for a peer on the same machine whose last bytes do not fit into a receive queue that nobody empties: the end of
the connection is behind them, so neither reading nor polling shows it (the peer's socket is in FIN_WAIT1 then).
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from podkeep.kernel.tables import lines, read_text

_PROC_NET = Path("/proc/thread-self/net")
_OTHERS = frozenset({"01", "06", "0A"})
"""States of sockets that have not closed, or to which no byte comes any more: ESTABLISHED, TIME_WAIT, LISTEN
(include/net/tcp_states.h)."""


def entries(name: str) -> Iterator[list[str]]:
    """Return the fields of each socket in a table of /proc/net: ``tcp``, ``tcp6``, and those of UDP, which are alike.

    :raises OSError: if it cannot be read; FileNotFoundError on a kernel without that family.
    """
    return map(str.split, lines(read_text(_PROC_NET / name))[1:])


class Closings:
    """Which peers of connections have closed their sockets. May be asked by several threads.

    A table is as long as the machine has connections, and hundreds of those that are asked about may wait: it is read
    once for all that ask within ``fresh`` seconds. What is found of a connection that is older than that is right.
    """

    def __init__(self, fresh: float) -> None:
        self._fresh = fresh
        self._reading = threading.Lock()
        self._found: dict[str, tuple[float, frozenset[tuple[str, str]]]] = {}

    def has(self, own: tuple[str, int], peer: tuple[str, int]) -> bool:
        """Say whether the peer of a connection closed its socket; False if that is not to be seen from here.

        :param own: address and port of our end, as getsockname(2) says them; ``peer``: as getpeername(2).
        """
        try:
            # The peer's line, not ours: ours stays ESTABLISHED as long as the end is stuck behind unread bytes.
            wanted = (_written(*peer), _written(*own))
            return wanted in self._closed("tcp6" if ":" in own[0] else "tcp")
        except (OSError, ValueError):
            return False

    def _closed(self, table: str) -> frozenset[tuple[str, str]]:
        with self._reading:
            read, found = self._found.get(table, (float("-inf"), frozenset()))
            if time.monotonic() - read >= self._fresh:
                read = time.monotonic()
                found = frozenset(
                    (local, remote) for _, local, remote, state, *_ in entries(table) if state not in _OTHERS
                )
                self._found[table] = read, found
        return found


def _written(address: str, port: int) -> str:
    """Return an address as the kernel writes it there: 32-bit words in the machine's byte order, in hexadecimal."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
