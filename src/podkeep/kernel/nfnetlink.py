"""What is asked of netfilter without a program: forgetting flows, and news of removed tables.

Owns: the nfnetlink messages (linux/netfilter/nfnetlink*.h, nf_tables.h). Does not own: rules, which nft writes
(``runtime/network/rules.py``). Acts in the network namespace of the calling thread.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from podkeep.base.errors import KernelCallError

INET = 1
"""NFPROTO_INET: the family of tables for IPv4 and IPv6."""

_NETLINK_NETFILTER = 12
_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP = 270, 1
_NFNLGRP_NFTABLES = 7
_HEADER = struct.Struct("=IHHII")
_GENERIC = struct.Struct("=BBH")
_ATTRIBUTE = struct.Struct("=HH")
_NLMSG_ERROR = 2
_NLM_F_REQUEST, _NLM_F_ACK = 0x1, 0x4
_NESTED = 0x8000
_NFT_MSG_DELTABLE = (10 << 8) | 2
_NFTA_TABLE_NAME = 1
_IPCTNL_MSG_CT_DELETE = (1 << 8) | 2
_CTA_TUPLE_ORIG, _CTA_TUPLE_PROTO, _CTA_PROTO_NUM, _CTA_PROTO_DST_PORT = 1, 2, 1, 3
_CTA_FILTER, _CTA_FILTER_ORIG_FLAGS = 25, 1
_FILTER_PROTO_NUM, _FILTER_PROTO_DST_PORT = 1 << 3, 1 << 5
_RECEIVE_BYTES = 64 * 1024
_TIMEOUT_S = 5.0


def forget_flows(family: int, protocol: int, port: int) -> None:
    """Remove the tracked flows of a protocol that were sent to ``port``, so that their next packet is judged anew.

    :param family: socket.AF_INET or AF_INET6. ``protocol``: an IP protocol number.
    :raises KernelCallError: if the kernel refuses (before Linux 5.8 it cannot).
    """
    number = _attribute(_CTA_PROTO_NUM, bytes([protocol]))
    destination = _attribute(_CTA_PROTO_DST_PORT, struct.pack("!H", port))
    flow = _attribute(_CTA_TUPLE_ORIG | _NESTED, _attribute(_CTA_TUPLE_PROTO | _NESTED, number + destination))
    wanted = struct.pack("=I", _FILTER_PROTO_NUM | _FILTER_PROTO_DST_PORT)
    chosen = _attribute(_CTA_FILTER | _NESTED, _attribute(_CTA_FILTER_ORIG_FLAGS, wanted))
    payload = _GENERIC.pack(family, 0, 0) + flow + chosen
    flags = _NLM_F_REQUEST | _NLM_F_ACK
    words = f"netlink(forget flows of protocol {protocol} to port {port})"
    with _socket() as channel:
        channel.settimeout(_TIMEOUT_S)
        try:
            channel.sendto(
                _HEADER.pack(_HEADER.size + len(payload), _IPCTNL_MSG_CT_DELETE, flags, 1, 0) + payload, (0, 0)
            )
            answer = channel.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise KernelCallError(words, error.errno or errno.ETIMEDOUT) from error
    number_of_error = -struct.unpack_from("=i", answer, _HEADER.size)[0]
    # ENOENT: there was none.
    if number_of_error not in (0, errno.ENOENT):
        raise KernelCallError(words, number_of_error)


def _attribute(kind: int, payload: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)


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
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, _NFNLGRP_NFTABLES)
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
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise KernelCallError("recv(nfnetlink)", error.errno or 0) from error
                found = True
                continue
            found = found or (family, name) in _removed(data)


def _removed(data: bytes) -> set[tuple[int, str]]:
    found = set()
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if kind == _NFT_MSG_DELTABLE:
            family, _, _ = _GENERIC.unpack_from(data, offset + _HEADER.size)
            name = _name(data[offset + _HEADER.size + _GENERIC.size : offset + length])
            found.add((family, name))
        offset += max((length + 3) & ~3, _HEADER.size)
    return found


def _name(attributes: bytes) -> str:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, offset)
        if kind == _NFTA_TABLE_NAME:
            return os.fsdecode(attributes[offset + _ATTRIBUTE.size : offset + length].rstrip(b"\0"))
        offset += max((length + 3) & ~3, _ATTRIBUTE.size)
    return ""
