"""Messages of D-Bus, as few kinds of them as asking systemd takes. Pure.

Format: D-Bus Specification, "Marshaling (Wire Format)" and "Message Protocol". Calls are little-endian; what comes has
the order of bytes that its sender chose.
"""

from __future__ import annotations

import struct

from podkeep.base.errors import Internal
from podkeep.base.frozen import FrozenStruct

CALL, RETURN, ERROR, SIGNAL = 1, 2, 3, 4
HEAD_BYTES = 16
"""Of a message, from which on its length is known."""
_MAX_BYTES = 1 << 27
"""Of a message (D-Bus Specification, "Message Format")."""
_FIXED = "cBBBIII"
"""What every message begins with, without the order of bytes."""
_ORDERS = {b"l": "<", b"B": ">"}
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY, _DESTINATION, _SENDER, _SIGNATURE, _FDS = range(1, 10)
_TYPES = {_PATH: "o", _INTERFACE: "s", _MEMBER: "s", _ERROR_NAME: "s", _REPLY: "u", _DESTINATION: "s", _SENDER: "s"}
_TYPES |= {_SIGNATURE: "g", _FDS: "u"}
_READ = frozenset(_TYPES.values())


class Message(FrozenStruct, kw_only=True):
    """A message; ``reply_to`` is the serial that it answers, ``fds`` how many descriptors come with it.

    ``sender`` is written by the bus, ``order`` is that of the bytes of numbers, as ``struct`` has it.
    """

    type: int
    serial: int
    order: str
    sender: str = ""
    interface: str = ""
    member: str = ""
    error: str = ""
    reply_to: int = 0
    fds: int = 0
    signature: str = ""
    body: bytes = b""


def call(serial: int, destination: str, path: str, interface: str, member: str, *arguments: str | int) -> bytes:
    """Return a call whose arguments are texts (``s``) and numbers (``i``)."""
    body, signature = bytearray(), ""
    for argument in arguments:
        _pad(body, 4)
        if isinstance(argument, str):
            signature += "s"
            _text(body, argument)
        else:
            signature += "i"
            body += struct.pack("<i", argument)
    fields = bytearray()
    given = [(_PATH, path), (_DESTINATION, destination), (_INTERFACE, interface), (_MEMBER, member)]
    if signature:
        given.append((_SIGNATURE, signature))
    for code, value in given:
        _pad(fields, 8)
        kind = _TYPES[code].encode()
        fields += bytes((code, 1)) + kind + b"\0"
        if code == _SIGNATURE:
            fields += bytes((len(value),)) + value.encode() + b"\0"
        else:
            _text(fields, value)
    head = bytearray(struct.pack(f"<{_FIXED}", b"l", CALL, 0, 1, len(body), serial, len(fields)) + fields)
    _pad(head, 8)
    return bytes(head + body)


def size(head: bytes) -> int:
    """Return how long the message is whose first :data:`HEAD_BYTES` bytes are ``head``.

    :raises Internal: if it is not one.
    """
    _, _, _, version, body, _, fields = struct.unpack(f"{_order(head)}{_FIXED}", head)
    # The head is padded to eight bytes before the body begins, and that is not counted in its length.
    whole = -(-(HEAD_BYTES + fields) // 8) * 8 + body
    if version != 1 or whole > _MAX_BYTES:
        raise _no_message()
    return int(whole)


def parse(data: bytes) -> Message:
    """Return a whole message.

    :raises Internal: if it is malformed.
    """
    try:
        return _parse(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Internal(f"the bus sent a malformed message: {error}") from error


def number(message: Message) -> int:
    """Return the number that a message's body is: ``b``, ``u``, ``h`` (a descriptor's index), or a variant of ``b`` or
    ``t``.

    :raises Internal: if it is something else.
    """
    try:
        if message.signature in ("b", "u", "h"):
            return int(struct.unpack_from(f"{message.order}I", message.body)[0])
        if message.signature == "v" and message.body[:3] == b"\x01t\0":
            return int(struct.unpack_from(f"{message.order}Q", message.body, 8)[0])
        if message.signature == "v" and message.body[:3] == b"\x01b\0":
            return int(struct.unpack_from(f"{message.order}I", message.body, 4)[0])
    except struct.error as error:
        raise Internal(f"the bus sent a malformed message: {error}") from error
    raise Internal(f"the bus sent {message.signature!r} where a number was expected")


def texts(message: Message) -> list[str]:
    """Return the texts that a message's body is.

    :raises Internal: if it is something else.
    """
    if set(message.signature) != {"s"}:
        raise Internal(f"the bus sent {message.signature!r} where texts were expected")
    found: list[str] = []
    position = 0
    try:
        for _ in message.signature:
            position = -(-position // 4) * 4
            (count,) = struct.unpack_from(f"{message.order}I", message.body, position)
            found.append(message.body[position + 4 : position + 4 + count].decode())
            position += count + 5
    except (struct.error, UnicodeDecodeError) as error:
        raise Internal(f"the bus sent a malformed message: {error}") from error
    return found


def _order(head: bytes) -> str:
    try:
        return _ORDERS[head[:1]]
    except KeyError:
        raise _no_message() from None


def _no_message() -> Internal:
    return Internal("the bus sent what is no message of D-Bus")


def _parse(data: bytes) -> Message:
    order = _order(data)
    _, kind, _, _, length, serial, fields = struct.unpack_from(f"{order}{_FIXED}", data)
    found: dict[int, str | int] = {}
    position, end = HEAD_BYTES, HEAD_BYTES + fields
    while position < end:
        # Fields are structs, which begin at a multiple of eight.
        position = -(-position // 8) * 8
        code, length_of_sign, sign = data[position], data[position + 1], chr(data[position + 2])
        if code not in _TYPES and (length_of_sign != 1 or sign not in _READ):
            break  # an unknown header field of a type that is not parsed: it and the fields after it are skipped
        position += 4
        if sign != _TYPES.get(code, sign):
            raise Internal(f"the bus sent a malformed message: field {code} has type {sign!r}")
        if sign == "g":
            count = data[position]
            found[code] = data[position + 1 : position + 1 + count].decode()
            position += count + 2
        elif sign == "u":
            (found[code],) = struct.unpack_from(f"{order}I", data, position)
            position += 4
        else:
            (count,) = struct.unpack_from(f"{order}I", data, position)
            found[code] = data[position + 4 : position + 4 + count].decode()
            position += count + 5
    return Message(
        type=kind,
        serial=serial,
        order=order,
        sender=str(found.get(_SENDER, "")),
        interface=str(found.get(_INTERFACE, "")),
        member=str(found.get(_MEMBER, "")),
        error=str(found.get(_ERROR_NAME, "")),
        reply_to=int(found.get(_REPLY, 0)),
        fds=int(found.get(_FDS, 0)),
        signature=str(found.get(_SIGNATURE, "")),
        body=data[len(data) - length :] if length else b"",
    )


def _text(into: bytearray, text: str) -> None:
    encoded = text.encode()
    _pad(into, 4)
    into += struct.pack("<I", len(encoded)) + encoded + b"\0"


def _pad(into: bytearray, to: int) -> None:
    into += bytes(-len(into) % to)
