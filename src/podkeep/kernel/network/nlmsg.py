"""Netlink messages: headers, attributes and answers as bytes (netlink(7), linux/netlink.h), and receiving them whole.

Owns: framing, which is the same for every netlink family. Does not own: what is in a message (``netlink``, ``routes``,
``nfnetlink``). Numbers have the machine's byte order, and everything is aligned to four bytes.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

from podkeep.base.errors import Internal, KernelCallError
from podkeep.base.frozen import FrozenStruct

REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
REPLACE, EXCL, CREATE = 0x100, 0x200, 0x400
"""Flags of requests."""
DUMP_INTERRUPTED = 0x10
"""Flag of answers: what is listed has changed in the middle of the list."""
NOOP, ERROR, DONE = 1, 2, 3
"""Kinds of answers that all families have; ERROR with the number 0 is an acknowledgement."""
SOL_NETLINK = 270
NETLINK_CAP_ACK, NETLINK_EXT_ACK = 10, 11
"""Socket options: leave the request out of answers; say more about errors."""

_CAPPED, _ACK_TLVS = 0x100, 0x200
_ERROR_TEXT = 1
_NESTED, _KIND_MASK = 0x8000, 0x3FFF
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=i")
_ADD_MEMBERSHIP = 1
_PACKETS_AT_ONCE = 64
"""News that are read before others have their turn: whoever changes links or rules all the time has no end of them."""
_RECEIVE_BYTES = 64 * 1024
"""More than the kernel puts into one packet: 32 KiB, whatever the reader's buffer holds."""


class Message(FrozenStruct):
    """A message without its header."""

    kind: int
    flags: int
    sequence: int
    payload: bytes


def encode(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """Return a message with its header, to the kernel."""
    return _HEADER.pack(_HEADER.size + len(payload), kind, flags, sequence, 0) + payload


def attribute(kind: int, payload: bytes) -> bytes:
    """Return an attribute, padded to where the next one starts."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(payload), kind) + payload + bytes(-len(payload) % 4)


def group(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute that holds others."""
    return attribute(kind, b"".join(attributes))


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute that holds others, and says so, as netfilter demands; rtnetlink's do not."""
    return group(kind | _NESTED, *attributes)


def text(kind: int, value: str) -> bytes:
    """Return an attribute with a text, which ends with a NUL character."""
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """Return an attribute with a number of 32 bits."""
    return attribute(kind, struct.pack("=I", value))


def receive(channel: socket.socket) -> list[Message]:
    """Return the messages of the next packet; signals do not interrupt it, and what is not the kernel's is left out.

    :raises OSError: if nothing comes in time (the socket's timeout), or ENOBUFS: answers were lost.
    :raises Internal: if the packet is not whole.
    """
    data, _, flags, sender = channel.recvmsg(_RECEIVE_BYTES)
    # Any process may send to a netlink socket; only the kernel has port ID 0 (netlink(7)).
    if sender[0] != 0:
        return []
    if flags & socket.MSG_TRUNC:
        raise Internal(f"netlink answered with more than {_RECEIVE_BYTES} bytes")
    return list(decode(data))


def receive_acknowledgement(channel: socket.socket, sequence: int) -> Message:
    """Wait for the message of kind ERROR that answers a request; others are passed over.

    :raises OSError: as :func:`receive` does.
    :raises Internal: if a packet is not whole.
    """
    while True:
        for answer in receive(channel):
            if (answer.kind, answer.sequence) == (ERROR, sequence):
                return answer


class News:
    """What the kernel tells multicast groups of one netlink family, in the network namespace in which it was made."""

    def __init__(self, protocol: int, *groups: int) -> None:
        """:raises KernelCallError: if the kernel refuses."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        with ExitStack() as undo:
            undo.callback(self._socket.close)
            self._socket.setblocking(False)
            try:
                self._socket.bind((0, 0))
                for group in groups:
                    self._socket.setsockopt(SOL_NETLINK, _ADD_MEMBERSHIP, group)
            except OSError as error:
                raise KernelCallError(f"setsockopt(NETLINK_ADD_MEMBERSHIP, {groups})", error.errno or 0) from error
            undo.pop_all()

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are news, also after :meth:`read` if it left some."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self) -> list[Message] | None:
        """Return the news, or the first of many; None: some were lost.

        :raises KernelCallError: if they cannot be read.
        """
        found: list[Message] = []
        lost = False
        for _ in range(_PACKETS_AT_ONCE):
            try:
                found += receive(self._socket)
            except BlockingIOError:
                break
            except OSError as error:
                # The kernel dropped some for want of buffer.
                if error.errno != errno.ENOBUFS:
                    raise KernelCallError("recv(netlink)", error.errno or 0) from error
                lost = True
        return None if lost else found


def decode(data: bytes) -> Iterator[Message]:
    """Yield the messages of a packet.

    :raises Internal: if the last one is cut short, or a length cannot be.
    """
    offset = 0
    while offset < len(data):
        if offset + _HEADER.size > len(data):
            raise Internal(f"netlink answered with {len(data) - offset} bytes after the last message")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if not _HEADER.size <= length <= len(data) - offset:
            raise Internal(f"netlink answered with a message of {length} bytes in {len(data) - offset}")
        yield Message(kind, flags, sequence, data[offset + _HEADER.size : offset + length])
        offset += -(-length // 4) * 4


def attributes(data: bytes) -> dict[int, bytes]:
    """Return attributes by their kind; of several of one kind the last.

    :raises Internal: if one is cut short.
    """
    found, offset = {}, 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if not _ATTRIBUTE.size <= length <= len(data) - offset:
            raise Internal(f"netlink answered with an attribute of {length} bytes in {len(data) - offset}")
        # Without the flags for nested attributes and for byte order, which the kernel sets on some (netlink(7)).
        found[kind & _KIND_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += -(-length // 4) * 4
    return found


def string(payload: bytes) -> str:
    """Return the text in an attribute: what is before the first NUL character."""
    return payload.partition(b"\0")[0].decode(errors="replace")


def failure(answer: Message) -> tuple[int, str]:
    """Return the error number of a message of kind ERROR (0: it was done) and the kernel's words, if it has any.

    :raises Internal: if it is cut short.
    """
    if len(answer.payload) < _NUMBER.size:
        raise Internal(f"netlink answered with an error of {len(answer.payload)} bytes")
    words = ""
    if answer.flags & _ACK_TLVS and len(answer.payload) >= _NUMBER.size + _HEADER.size:
        # The request comes in between, of a capped answer only its header.
        (length,) = struct.unpack_from("=I", answer.payload, _NUMBER.size)
        request = _HEADER.size if answer.flags & _CAPPED else -(-length // 4) * 4
        words = string(attributes(answer.payload[_NUMBER.size + request :]).get(_ERROR_TEXT, b""))
    return -_NUMBER.unpack_from(answer.payload)[0], words


def call_error(call: str, error: OSError) -> KernelCallError:
    """Return the error of a system call on a netlink socket; one without a number is a timeout."""
    return KernelCallError(call, error.errno or errno.ETIMEDOUT)
