"""The machine's routes: which networks it reaches, over which links. Only reading.

Owns: the dump of the main routing table (rtnetlink(7)), decoded by hand: a machine can have very many; and whose an
address is. Acts in the network namespace of the calling thread.
"""

from __future__ import annotations

import errno
import itertools
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from podkeep.base.errors import Internal, KernelCallError
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.network import nlmsg

_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_MULTIPATH, _RTA_VIA = 1, 4, 5, 9, 18
_RT_TABLE_MAIN, _RTN_UNICAST = 254, 1
_RTN_LOCAL, _RTN_ANYCAST = 2, 4
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.EAFNOSUPPORT)
"""What the kernel answers about an address that no packet can be sent to; EINVAL also stands for a "throw" route."""
_ROUTE = struct.Struct("=BBBBBBBBI")
_TIMEOUT_S = 5.0
_ATTEMPTS = 4
"""A list of routes that changed in the middle may lack some, and is asked for again. Where they always change, the last
list has to do."""
_CALL = "netlink(list routes)"
_BYTES = {socket.AF_INET: 4, socket.AF_INET6: 16}


class Route(FrozenStruct, kw_only=True):
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
        sequences = itertools.count(1)
        for family in _BYTES:
            try:
                found += _routes(channel, family, sequences)
            except OSError as error:
                raise nlmsg.call_error(_CALL, error) from error
    return found


def _routes(channel: socket.socket, family: int, sequences: Iterator[int]) -> list[Route]:
    body = _ROUTE.pack(family, 0, 0, 0, _RT_TABLE_MAIN, 0, 0, 0, 0)
    found: list[Route] = []
    for sequence in itertools.islice(sequences, _ATTEMPTS):
        channel.sendto(nlmsg.encode(_RTM_GETROUTE, nlmsg.REQUEST | nlmsg.DUMP, sequence, body), (0, 0))
        found, interrupted = [], 0
        for answer in _answers(channel, sequence):
            interrupted |= answer.flags & nlmsg.DUMP_INTERRUPTED
            if (route := _route(answer)) is not None:
                found.append(route)
        if not interrupted:
            break
    return found


def is_own(address: IPv4Address | IPv6Address) -> bool:
    """Return whether what is sent to ``address`` now stays on this machine: it is an address of one of its links, or in
    a network that is local in any other way.

    The kernel is asked what it would do with a packet, so nothing is missed: neither second addresses of a link nor
    routes of type "local".

    :raises KernelCallError: if the kernel does not answer.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    body = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + nlmsg.attribute(_RTA_DST, address.packed)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as channel:
        channel.settimeout(_TIMEOUT_S)
        call = f"netlink(route to {address})"
        try:
            channel.sendto(nlmsg.encode(_RTM_GETROUTE, nlmsg.REQUEST, 1, body), (0, 0))
            answer = next(_answers(channel, 1, call))
        except KernelCallError as error:
            if error.errno in _UNREACHABLE:
                return False
            raise
        except OSError as error:
            raise nlmsg.call_error(call, error) from error
    if answer.kind != _RTM_NEWROUTE or len(answer.payload) < _ROUTE.size:
        raise Internal(f"{call}: the answer is no route but a message of type {answer.kind}")
    return _ROUTE.unpack_from(answer.payload)[7] in (_RTN_LOCAL, _RTN_ANYCAST)


def _answers(channel: socket.socket, sequence: int, call: str = _CALL) -> Iterator[nlmsg.Message]:
    """Yield what answers one request, to the end of a list, which several packets make."""
    while True:
        for answer in nlmsg.receive(channel):
            if answer.sequence != sequence:
                continue
            if answer.kind == nlmsg.ERROR:
                number, words = nlmsg.failure(answer)
                raise KernelCallError(call, number, hint=words)
            yield answer
            if answer.kind == nlmsg.DONE:
                return


def _route(answer: nlmsg.Message) -> Route | None:
    message = answer.payload
    if answer.kind != _RTM_NEWROUTE or len(message) < _ROUTE.size:
        return None
    family, prefix, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(message)
    attributes = nlmsg.attributes(message[_ROUTE.size :])
    destination = attributes.get(_RTA_DST, b"")
    # The table that was asked for is a wish: without NETLINK_GET_STRICT_CHK the kernel lists those of all tables.
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
