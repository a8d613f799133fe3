"""What network interfaces have carried, by network namespace: ``/proc/net/dev``, proc_pid_net(5).

Owns: its format, and reading it in many namespaces at once. Needs no process in a namespace: one throw-away thread
enters them one after the other by their pins, some 20 microseconds each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from podkeep.base.errors import Internal, PodkeepError
from podkeep.kernel import libc, own_thread
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.tables import lines

_OWN_TABLE = "/proc/thread-self/net/dev"
_COLUMNS = 16
_READ_BYTES = 16 << 10
MAX_TABLE_BYTES = 64 << 10
"""Bytes of a table that are read: some 400 interfaces, of which a pod with CAP_NET_ADMIN may make any number."""
MAX_INTERFACES = 64
"""Interfaces of a pod that are told of."""
_POD_INTERFACE = "eth0"


class Interface(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Counters of one interface since it was made."""

    name: str
    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int


def parse(text: str) -> tuple[Interface, ...]:
    """Return the interfaces in ``/proc/net/dev``, in its order, without loopback: the pod's own and the first others.

    Left out is what has a name that no message could have: a pod with CAP_NET_ADMIN names interfaces as it likes.

    :raises Internal: if a line has another shape.
    """
    found = []
    for line in lines(text)[2:]:
        # From the right: an interface's name may hold a colon, the numbers behind it do not.
        name, separator, rest = line.rpartition(":")
        if name.strip(" ") == "lo":
            continue
        try:
            values = [int(word) for word in rest.split()]
        except ValueError as error:
            raise Internal(f"/proc/net/dev has an unknown line: {line!r}") from error
        if not separator or len(values) < _COLUMNS:
            raise Internal(f"/proc/net/dev has an unknown line: {line!r}")
        # A name that is no UTF-8 cannot be encoded in an answer, and would take the statistics of all pods with it.
        if not name.strip(" ").isprintable():
            continue
        found.append(
            Interface(
                name=name.strip(" "),
                rx_bytes=values[0],
                rx_packets=values[1],
                rx_errors=values[2],
                rx_dropped=values[3],
                tx_bytes=values[8],
                tx_packets=values[9],
                tx_errors=values[10],
                tx_dropped=values[11],
            )
        )
    # The pod's own goes first, so that the cut below never takes it, however many interfaces the pod makes.
    found.sort(key=lambda interface: interface.name != _POD_INTERFACE)
    return tuple(found[:MAX_INTERFACES])


def read_all(pins: Sequence[str]) -> list[tuple[Interface, ...] | None]:
    """Return the interfaces of the network namespaces pinned at ``pins``, in that order.

    One that is gone, or is no network namespace, is None.
    """
    if not pins:
        return []
    return own_thread.run("netdev", lambda: [_read(pin) for pin in pins])


def _own_table() -> str:
    content = bytearray()
    fd = os.open(_OWN_TABLE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while len(content) < MAX_TABLE_BYTES and (part := os.read(fd, _READ_BYTES)):
            content += part
    finally:
        os.close(fd)
    whole = bytes(content)
    # The last line may have been cut in the middle, and would be an error for the parser.
    if len(whole) >= MAX_TABLE_BYTES:
        whole = whole[: whole.rindex(b"\n") + 1]
    return os.fsdecode(whole)


def _read(pin: str) -> tuple[Interface, ...] | None:
    try:
        fd = os.open(pin, os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc.setns(fd, CloneFlag.NEWNET)
        finally:
            os.close(fd)
        return parse(_own_table())
    except (OSError, PodkeepError):
        return None
