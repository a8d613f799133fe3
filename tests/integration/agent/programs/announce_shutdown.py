"""Says on a bus, as logind, that the machine is about to shut down, then that it is not.

announce_shutdown.py ADDRESS
"""

from __future__ import annotations

import os
import socket
import struct
import sys

from podkeep.agent.eviction import dbus_messages as dbus

BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
LITTLE_ENDIAN, SIGNAL, NO_FLAGS, VERSION = b"l", 4, 0, 1
FIELDS = (
    (1, b"o", b"/org/freedesktop/login1"),
    (2, b"s", b"org.freedesktop.login1.Manager"),
    (3, b"s", b"PrepareForShutdown"),
    (8, b"g", b"b"),
)
"""Code, type and value of the header's fields: path, interface, member and signature."""


def prepare_for_shutdown(serial: int, active: int) -> bytes:
    """Return the signal's message (D-Bus Specification, "Message Format")."""
    fields = bytearray()
    for code, kind, text in FIELDS:
        length = bytes((len(text),)) if kind == b"g" else struct.pack("<I", len(text))
        fields += bytes(-len(fields) % 8) + bytes((code, 1)) + kind + b"\0" + length + text + b"\0"
    head = struct.pack("<cBBBIII", LITTLE_ENDIAN, SIGNAL, NO_FLAGS, VERSION, 4, serial, len(fields)) + fields
    return head + bytes(-len(head) % 8) + struct.pack("<I", active)


connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1].removeprefix("unix:path="))
connection.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
connection.recv(4096)
connection.sendall(b"BEGIN\r\n")
connection.sendall(dbus.call(1, *BUS, "Hello"))
connection.recv(4096)
request = dbus.call(2, *BUS, "RequestName", "org.freedesktop.login1", 4)
connection.sendall(request.replace(b"\2si\0", b"\2su\0"))  # its flags are unsigned
connection.recv(4096)
connection.sendall(prepare_for_shutdown(3, 1))
connection.sendall(prepare_for_shutdown(4, 0))
connection.sendall(dbus.call(5, *BUS, "GetId"))
connection.recv(4096)  # what came before it has been passed on
