"""What is asked of netfilter without a program: elements of sets, forgetting flows, and news of removed tables.

Owns: the nfnetlink messages (linux/netfilter/nfnetlink*.h, nf_tables.h). Does not own: rules, which nft writes
(``runtime/network/rules.py``, ``port_filter.py``). Acts in the network namespace of the calling thread.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Sequence

from podkeep.base.errors import KernelCallError
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.network import nlmsg

INET = 1
"""NFPROTO_INET: the family of tables for IPv4 and IPv6."""
BRIDGE = 7
"""NFPROTO_BRIDGE: the family of tables for what comes in at ports of bridges."""

_NETLINK_NETFILTER = 12
_NFNLGRP_NFTABLES = 7
_GENERIC = struct.Struct("=BBH")
_SUBSYS_NFTABLES = 10
_NFNL_MSG_BATCH_BEGIN, _NFNL_MSG_BATCH_END = 0x10, 0x11
_NFT_MSG_NEWTABLE, _NFT_MSG_DELTABLE = (_SUBSYS_NFTABLES << 8 | kind for kind in (0, 2))
_NFT_MSG_NEWSETELEM, _NFT_MSG_DELSETELEM = (_SUBSYS_NFTABLES << 8 | kind for kind in (12, 14))
_NFTA_TABLE_NAME = 1
_NFTA_SET_ELEM_LIST_TABLE, _NFTA_SET_ELEM_LIST_SET, _NFTA_SET_ELEM_LIST_ELEMENTS = 1, 2, 3
_NFTA_LIST_ELEM, _NFTA_SET_ELEM_KEY, _NFTA_DATA_VALUE = 1, 1, 1
_IPCTNL_MSG_CT_DELETE = (1 << 8) | 2
_CTA_TUPLE_ORIG, _CTA_TUPLE_PROTO, _CTA_PROTO_NUM, _CTA_PROTO_DST_PORT = 1, 2, 1, 3
_CTA_FILTER, _CTA_FILTER_ORIG_FLAGS = 25, 1
_FILTER_PROTO_NUM, _FILTER_PROTO_DST_PORT = 1 << 3, 1 << 5
_TIMEOUT_S = 5.0


_BATCH = _GENERIC.pack(socket.AF_UNSPEC, 0, socket.htons(_SUBSYS_NFTABLES))


class Element(FrozenStruct, kw_only=True):
    """An element of a set without data. ``key``: its parts in the kernel's form, each padded to four bytes."""

    set_name: str
    key: bytes


class Sets:
    """Elements of the sets of one table, in the network namespace in which it was made. One thread at a time.

    It keeps its socket: closing one waits until nf_tables has freed what was removed, for 4 to 15 ms
    (nf_tables_api.c, nft_rcv_nl_event); a change takes 0.1 ms.
    """

    def __init__(self, family: int, table: str) -> None:
        """Use a table that is there. ``family``: :data:`INET` or :data:`BRIDGE`.

        :raises OSError: if there is no descriptor left.
        """
        self._family, self._table = family, table
        self._socket = _socket()
        self._socket.settimeout(_TIMEOUT_S)
        self._sequence = 0

    def close(self) -> None:
        """End the use; the elements stay."""
        self._socket.close()

    def add(self, elements: Sequence[Element]) -> None:
        """Add elements in one transaction; those that are there are no error.

        :raises KernelCallError: if the kernel refuses one (ENOENT: there is no such table or set); nothing has changed
            then.
        """
        self._commit("add", [(_NFT_MSG_NEWSETELEM, element) for element in elements])

    def remove(self, elements: Sequence[Element]) -> None:
        """Remove elements in one transaction; missing ones are no error.

        :raises KernelCallError: as :meth:`add`.
        """
        # Added first, so that there is one to remove.
        kinds = (_NFT_MSG_NEWSETELEM, _NFT_MSG_DELSETELEM)
        self._commit("remove", [(kind, element) for kind in kinds for element in elements])

    def _commit(self, verb: str, changes: Sequence[tuple[int, Element]]) -> None:
        words = f"netlink({verb} {len(changes)} elements, table {self._table})"
        first = self._sequence
        packet = self._message(_NFNL_MSG_BATCH_BEGIN, nlmsg.REQUEST, _BATCH)
        for kind, element in changes:
            flags = nlmsg.REQUEST | nlmsg.ACK | (nlmsg.CREATE if kind == _NFT_MSG_NEWSETELEM else 0)
            packet += self._message(kind, flags, _element(self._family, self._table, element))
        # The message that begins the batch, first + 1, is not acknowledged, nor is the one that ends it.
        waiting = set(range(first + 2, self._sequence + 1))
        packet += self._message(_NFNL_MSG_BATCH_END, nlmsg.REQUEST, _BATCH)
        try:
            self._socket.sendto(packet, (0, 0))
            while waiting:
                for answer in nlmsg.receive(self._socket):
                    # What is older answers a change that was refused at another element, or not answered in time.
                    if answer.kind != nlmsg.ERROR or answer.sequence <= first:
                        continue
                    refused, hint = nlmsg.failure(answer)
                    if refused:
                        raise KernelCallError(words, refused, hint=hint)
                    waiting.discard(answer.sequence)
        except OSError as error:
            raise nlmsg.call_error(words, error) from error

    def _message(self, kind: int, flags: int, payload: bytes) -> bytes:
        self._sequence += 1
        return nlmsg.encode(kind, flags, self._sequence, payload)


def _element(family: int, table: str, element: Element) -> bytes:
    key = nlmsg.nested(_NFTA_SET_ELEM_KEY, nlmsg.attribute(_NFTA_DATA_VALUE, element.key))
    return (
        _GENERIC.pack(family, 0, 0)
        + nlmsg.text(_NFTA_SET_ELEM_LIST_TABLE, table)
        + nlmsg.text(_NFTA_SET_ELEM_LIST_SET, element.set_name)
        + nlmsg.nested(_NFTA_SET_ELEM_LIST_ELEMENTS, nlmsg.nested(_NFTA_LIST_ELEM, key))
    )


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
        self._news = nlmsg.News(_NETLINK_NETFILTER, _NFNLGRP_NFTABLES)

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are news."""
        return self._news.fileno()

    def close(self) -> None:
        self._news.close()

    def was_removed(self, *tables: tuple[int, str]) -> bool:
        """Read news and return whether one of the tables was removed, and not made anew; also when news were lost.

        What is left of many makes :meth:`fileno` readable again.

        :param tables: family and name of each.
        :raises KernelCallError: if they cannot be read.
        """
        messages = self._news.read()
        # Whatever was lost said: the rules have to be looked at.
        return messages is None or not _removed(messages).isdisjoint(tables)


def _removed(messages: Iterable[nlmsg.Message]) -> set[tuple[int, str]]:
    found: set[tuple[int, str]] = set()
    for message in messages:
        if message.kind in (_NFT_MSG_NEWTABLE, _NFT_MSG_DELTABLE) and len(message.payload) >= _GENERIC.size:
            family, _, _ = _GENERIC.unpack_from(message.payload)
            name = nlmsg.attributes(message.payload[_GENERIC.size :]).get(_NFTA_TABLE_NAME, b"")
            change = found.add if message.kind == _NFT_MSG_DELTABLE else found.discard
            change((family, nlmsg.string(name)))
    return found
