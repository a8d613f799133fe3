"""The machine's routes: which networks it reaches, over which links. Only reading.

Owns: the dump of the main routing table (rtnetlink(7)), decoded by hand: a machine can have very many. Acts in the
network namespace of the calling thread.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from podkeep.base.errors import KernelCallError

_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_MULTIPATH, _RTA_VIA = 1, 4, 5, 9, 18
_RT_TABLE_MAIN, _RTN_UNICAST = 254, 1
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
_RECEIVE_BYTES = 256 * 1024
_TIMEOUT_S = 5.0
_BYTES = {socket.AF_INET: 4, socket.AF_INET6: 16}


@dataclass(frozen=True, kw_only=True)
class Route:
    """A route to ``network``; ``link`` is empty if it has several ways. Without a router, that are neighbours."""

    network: IPv4Network | IPv6Network
    link: str
    has_router: bool


def read() -> list[Route]:
    """Return the unicast routes of the main table, of both families, but the default ones.

    :raises KernelCallError: if the kernel refuses, or does not finish.
    """
    found = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as channel:
        channel.settimeout(_TIMEOUT_S)
        for number, family in enumerate(_BYTES, start=1):
            body = _ROUTE.pack(family, 0, 0, 0, _RT_TABLE_MAIN, 0, 0, 0, 0)
            header = _HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST | _NLM_F_DUMP, number, 0)
            try:
                channel.sendto(header + body, (0, 0))
                found += [route for message in _answers(channel) if (route := _route(message)) is not None]
            except OSError as error:
                raise KernelCallError("netlink(list routes)", error.errno or errno.ETIMEDOUT) from error
    return found


def _answers(channel: socket.socket) -> Iterator[bytes]:
    while True:
        data, offset = channel.recv(_RECEIVE_BYTES), 0
        while offset + _HEADER.size <= len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                (number,) = struct.unpack_from("=i", data, offset + _HEADER.size)
                raise KernelCallError("netlink(list routes)", -number)
            if kind == _RTM_NEWROUTE:
                yield data[offset + _HEADER.size : offset + length]
            offset += max((length + 3) & ~3, _HEADER.size)


def _route(message: bytes) -> Route | None:
    family, prefix, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(message)
    attributes = _attributes(message)
    destination = attributes.get(_RTA_DST, b"")
    if table != _RT_TABLE_MAIN or kind != _RTN_UNICAST or not prefix or len(destination) != _BYTES.get(family):
        return None
    link = ""
    if len(number := attributes.get(_RTA_OIF, b"")) == 4:
        with suppress(OSError):  # it went in between
            link = socket.if_indextoname(struct.unpack("=I", number)[0])
    return Route(
        network=ip_network((ip_address(destination), prefix), strict=False),
        link=link,
        has_router=not attributes.keys().isdisjoint({_RTA_GATEWAY, _RTA_MULTIPATH, _RTA_VIA}),
    )


def _attributes(message: bytes) -> dict[int, bytes]:
    found, offset = {}, _ROUTE.size
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        found[kind & _TYPE_MASK] = message[offset + _ATTRIBUTE.size : offset + length]
        offset += max((length + 3) & ~3, _ATTRIBUTE.size)
    return found
