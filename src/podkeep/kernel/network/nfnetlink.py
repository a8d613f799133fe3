"""What is asked of netfilter without a program: forgetting flows, and news of removed tables.

Owns: the nfnetlink messages (linux/netfilter/nfnetlink*.h, nf_tables.h). Does not own: rules, which nft writes
(``runtime/network/rules.py``). Acts in the network namespace of the calling thread.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable

from podkeep.base.errors import KernelCallError
from podkeep.kernel.network import nlmsg

INET = 1
"""NFPROTO_INET: the family of tables for IPv4 and IPv6."""

_NETLINK_NETFILTER = 12
_NETLINK_ADD_MEMBERSHIP = 1
_NFNLGRP_NFTABLES = 7
_GENERIC = struct.Struct("=BBH")
_NFT_MSG_DELTABLE = (10 << 8) | 2
_NFTA_TABLE_NAME = 1
_IPCTNL_MSG_CT_DELETE = (1 << 8) | 2
_CTA_TUPLE_ORIG, _CTA_TUPLE_PROTO, _CTA_PROTO_NUM, _CTA_PROTO_DST_PORT = 1, 2, 1, 3
_CTA_FILTER, _CTA_FILTER_ORIG_FLAGS = 25, 1
_FILTER_PROTO_NUM, _FILTER_PROTO_DST_PORT = 1 << 3, 1 << 5
_TIMEOUT_S = 5.0


def forget_flows(family: int, protocol: int, port: int) -> None:
    """Remove the tracked flows of a protocol that were sent to ``port``, so that their next packet is judged anew.

    :param family: socket.AF_INET or AF_INET6. ``protocol``: an IP protocol number.
    :raises KernelCallError: if the kernel refuses (before Linux 5.8 it cannot).
    """
    number = nlmsg.attribute(_CTA_PROTO_NUM, bytes([protocol]))
    destination = nlmsg.attribute(_CTA_PROTO_DST_PORT, struct.pack("!H", port))
    flow = nlmsg.nested(_CTA_TUPLE_ORIG, nlmsg.nested(_CTA_TUPLE_PROTO, number, destination))
    wanted = _FILTER_PROTO_NUM | _FILTER_PROTO_DST_PORT
    chosen = nlmsg.nested(_CTA_FILTER, nlmsg.number(_CTA_FILTER_ORIG_FLAGS, wanted))
    payload = _GENERIC.pack(family, 0, 0) + flow + chosen
    words = f"netlink(forget flows of protocol {protocol} to port {port})"
    with _socket() as channel:
        channel.settimeout(_TIMEOUT_S)
        try:
            channel.sendto(nlmsg.encode(_IPCTNL_MSG_CT_DELETE, nlmsg.REQUEST | nlmsg.ACK, 1, payload), (0, 0))
            refused, hint = nlmsg.failure(nlmsg.receive_acknowledgement(channel, 1))
        except OSError as error:
            raise nlmsg.call_error(words, error) from error
    # ENOENT: there was none.
    if refused not in (0, errno.ENOENT):
        raise KernelCallError(words, refused, hint=hint)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER)


class TableWatch:
    """News of nftables tables that were removed, in the network namespace in which it was made."""

    def __init__(self) -> None:
        """:raises KernelCallError: if the kernel refuses."""
        self._socket = _socket()
        self._socket.setblocking(False)
        try:
            self._socket.bind((0, 0))
            self._socket.setsockopt(nlmsg.SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, _NFNLGRP_NFTABLES)
        except OSError as error:
            self._socket.close()
            raise KernelCallError("setsockopt(NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES)", error.errno or 0) from error

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are news."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the watch."""
        self._socket.close()

    def was_removed(self, family: int, name: str) -> bool:
        """Read the news and return whether this table was among the removed; also when news were lost."""
        found = False
        while True:
            try:
                messages = nlmsg.receive(self._socket)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise KernelCallError("recv(nfnetlink)", error.errno or 0) from error
                found = True
                continue
            found = found or (family, name) in _removed(messages)


def _removed(messages: Iterable[nlmsg.Message]) -> set[tuple[int, str]]:
    found = set()
    for message in messages:
        if message.kind == _NFT_MSG_DELTABLE and len(message.payload) >= _GENERIC.size:
            family, _, _ = _GENERIC.unpack_from(message.payload)
            name = nlmsg.attributes(message.payload[_GENERIC.size :]).get(_NFTA_TABLE_NAME, b"")
            found.add((family, nlmsg.string(name)))
    return found
