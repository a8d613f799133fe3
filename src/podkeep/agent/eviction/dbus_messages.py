"""Messages of D-Bus, as few kinds of them as asking systemd takes. Pure.

Format: D-Bus Specification, "Marshaling (Wire Format)" and "Message Protocol"; little-endian throughout.
"""

from __future__ import annotations

import struct

from podkeep.base.errors import Internal
from podkeep.base.frozen import FrozenStruct

CALL, RETURN, ERROR, SIGNAL = 1, 2, 3, 4
MAX_BYTES = 1 << 20
"""Of a message; those of logind have a few hundred."""
_FIXED = struct.Struct("<cBBBIII")
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY, _DESTINATION, _SENDER, _SIGNATURE, _FDS = range(1, 10)
_TYPES = {_PATH: "o", _INTERFACE: "s", _MEMBER: "s", _ERROR_NAME: "s", _REPLY: "u", _DESTINATION: "s", _SENDER: "s"}
_TYPES |= {_SIGNATURE: "g", _FDS: "u"}


class Message(FrozenStruct, kw_only=True):
    """A message; ``reply_to`` is the serial that it answers, ``fds`` how many descriptors come with it."""

    type: int
    serial: int
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
    head = bytearray(_FIXED.pack(b"l", CALL, 0, 1, len(body), serial, len(fields)) + fields)
    _pad(head, 8)
    return bytes(head + body)


def size(data: bytes) -> int | None:
    """Return how long the message is that ``data`` begins with; ``None`` if that is not known yet.

    :raises Internal: if it is not one, or too long.
    """
    if len(data) < _FIXED.size:
        return None
    order, _, _, version, body, _, fields = _FIXED.unpack_from(data)
    # The head is padded to eight bytes before the body begins, and that is not counted in its length.
    whole = -(-(_FIXED.size + fields) // 8) * 8 + body
    if order != b"l" or version != 1 or whole > MAX_BYTES:
        raise Internal("the bus sent what is no message of D-Bus")
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
            return int(struct.unpack_from("<I", message.body)[0])
        if message.signature == "v" and message.body[:3] == b"\x01t\0":
            return int(struct.unpack_from("<Q", message.body, 8)[0])
        if message.signature == "v" and message.body[:3] == b"\x01b\0":
            return int(struct.unpack_from("<I", message.body, 4)[0])
    except struct.error as error:
        raise Internal(f"the bus sent a malformed message: {error}") from error
    raise Internal(f"the bus sent {message.signature!r} where a number was expected")


def _parse(data: bytes) -> Message:
    _, kind, _, _, length, serial, fields = _FIXED.unpack_from(data)
    found: dict[int, str | int] = {}
    position, end = _FIXED.size, _FIXED.size + fields
    while position < end:
        # Fields are structs, which begin at a multiple of eight.
        position = -(-position // 8) * 8
        code, sign = data[position], chr(data[position + 2])
        position += 4
        if sign != _TYPES.get(code, sign):
            raise Internal(f"the bus sent a malformed message: field {code} has type {sign!r}")
        if sign == "g":
            count = data[position]
            found[code] = data[position + 1 : position + 1 + count].decode()
            position += count + 2
        elif sign == "u":
            (found[code],) = struct.unpack_from("<I", data, position)
            position += 4
        else:
            (count,) = struct.unpack_from("<I", data, position)
            found[code] = data[position + 4 : position + 4 + count].decode()
            position += count + 5
    return Message(
        type=kind,
        serial=serial,
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
