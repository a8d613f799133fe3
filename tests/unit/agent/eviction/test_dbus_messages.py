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
