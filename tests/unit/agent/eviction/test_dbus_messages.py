"""Messages that a bus sends: what is malformed is said to be, and nothing else."""

from __future__ import annotations

import struct

import pytest

from podkeep.agent.eviction import dbus_messages as dbus
from podkeep.base.errors import Internal


def message(code: int, kind: bytes, value: bytes) -> bytes:
    """Return an answer with one header field."""
    fields = bytes((code, 1)) + kind + b"\0" + value
    head = struct.pack("<cBBBIII", b"l", dbus.RETURN, 0, 1, 0, 7, len(fields)) + fields
    return head + bytes(-len(head) % 8)


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value + b"\0"


def test_a_field_that_is_a_number() -> None:
    assert dbus.parse(message(5, b"u", struct.pack("<I", 3))).reply_to == 3
    assert dbus.parse(message(9, b"u", struct.pack("<I", 2))).fds == 2
    assert dbus.parse(message(3, b"s", text(b"Inhibit"))).member == "Inhibit"


@pytest.mark.parametrize("code", range(1, 10))
@pytest.mark.parametrize(
    ("kind", "value"),
    [(b"s", text(b"x")), (b"s", text(b"12")), (b"o", text(b"/")), (b"g", b"\x01s\0"), (b"u", bytes(4))],
)
def test_a_field_of_another_type_than_its_own_is_malformed(code: int, kind: bytes, value: bytes) -> None:
    own = {1: b"o", 5: b"u", 8: b"g", 9: b"u"}.get(code, b"s")
    if kind == own:
        assert dbus.parse(message(code, kind, value)).type == dbus.RETURN
        return
    with pytest.raises(Internal, match="malformed"):
        dbus.parse(message(code, kind, value))


def test_a_field_that_nobody_knows_is_passed_over() -> None:
    """D-Bus Specification, "Header Fields": unknown ones are ignored."""
    assert dbus.parse(message(200, b"s", text(b"x"))).serial == 7


def test_a_field_of_a_type_that_is_not_read_ends_those_that_are() -> None:
    array = b"\xc8\x02ay\0" + bytes(3) + struct.pack("<I", 3) + b"abc"
    member = bytes(1) + b"\x03\x01s\0" + text(b"Inhibit")
    head = struct.pack("<cBBBIII", b"l", dbus.SIGNAL, 0, 1, 0, 7, len(array + member)) + array + member
    found = dbus.parse(head + bytes(-len(head) % 8))
    assert (found.type, found.serial, found.member) == (dbus.SIGNAL, 7, "")


@pytest.mark.parametrize(("letter", "order"), [(b"l", "<"), (b"B", ">")])
def test_the_order_of_bytes_is_the_senders(letter: bytes, order: str) -> None:
    text_of = struct.pack(f"{order}I", 4) + b":1.7\0"
    fields = b"\x07\x01s\0" + text_of + bytes(3) + b"\x08\x01g\0\x01s\0"
    head = struct.pack(f"{order}cBBBIII", letter, dbus.SIGNAL, 0, 1, len(text_of), 7, len(fields)) + fields
    whole = head + bytes(-len(head) % 8) + text_of
    assert dbus.size(whole[: dbus.HEAD_BYTES]) == len(whole)
    found = dbus.parse(whole)
    assert (found.serial, found.sender, dbus.texts(found)) == (7, ":1.7", [":1.7"])


@pytest.mark.parametrize("head", [b"HTTP/1.1 400 Bad", b"l\4\0\2" + bytes(12), b"l\4\0\1" + b"\xff" * 12])
def test_what_is_no_message(head: bytes) -> None:
    with pytest.raises(Internal, match="no message of D-Bus"):
        dbus.size(head)
