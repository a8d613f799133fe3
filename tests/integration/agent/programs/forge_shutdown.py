"""Tells one client of a bus that the machine is about to shut down, as a user who is neither root nor logind.

forge_shutdown.py ADDRESS DESTINATION HOW
"""

from __future__ import annotations

import os
import socket
import struct
import sys

from podkeep.agent.eviction import dbus_messages as dbus

NOBODY = 65534
BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
SIGNAL, NO_FLAGS, VERSION = 4, 0, 1
MOST_DESCRIPTORS = 16
"""In one message, as the bus takes them."""
LONG = 4 << 20
ADDRESS, DESTINATION, HOW = sys.argv[1:]


def signal(body: bytes, signature: bytes = b"b", order: str = "<", descriptors: int = 0, field: bytes = b"") -> bytes:
    """Return the signal's message (D-Bus Specification, "Message Format")."""
    texts = (
        (1, b"o", b"/org/freedesktop/login1"),
        (2, b"s", b"org.freedesktop.login1.Manager"),
        (3, b"s", b"PrepareForShutdown"),
        (6, b"s", DESTINATION.encode()),
    )
    fields = bytearray()
    for code, kind, text in texts:
        fields += bytes(-len(fields) % 8) + bytes((code, 1)) + kind + b"\0"
        fields += struct.pack(f"{order}I", len(text)) + text + b"\0"
    fields += bytes(-len(fields) % 8) + bytes((8, 1)) + b"g\0" + bytes((len(signature),)) + signature + b"\0"
    if descriptors:
        fields += bytes(-len(fields) % 8) + bytes((9, 1)) + b"u\0" + struct.pack(f"{order}I", descriptors)
    fields += bytes(-len(fields) % 8 if field else 0) + field
    letter = b"l" if order == "<" else b"B"
    fixed = struct.pack(f"{order}cBBBIII", letter, SIGNAL, NO_FLAGS, VERSION, len(body), 7, len(fields))
    head = fixed + fields
    return head + bytes(-len(head) % 8) + body


directory, name = os.path.split(ADDRESS.removeprefix("unix:path="))
os.chdir(directory)  # the directories above it are root's
os.setgroups([])
os.setresgid(NOBODY, NOBODY, NOBODY)
os.setresuid(NOBODY, NOBODY, NOBODY)
connection = socket.socket(socket.AF_UNIX)
connection.connect(name)
connection.sendall(b"\0AUTH EXTERNAL " + str(NOBODY).encode().hex().encode() + b"\r\n")
connection.recv(4096)
connection.sendall(b"NEGOTIATE_UNIX_FD\r\n")
connection.recv(4096)
connection.sendall(b"BEGIN\r\n")
connection.sendall(dbus.call(1, *BUS, "Hello"))
connection.recv(4096)
true = struct.pack("<I", 1)
if HOW == "signal":
    connection.sendall(signal(true))
elif HOW == "big-endian":
    connection.sendall(signal(struct.pack(">I", 1), order=">"))
elif HOW == "long":
    connection.sendall(signal(struct.pack("<I", LONG) + bytes(LONG), b"ay"))
elif HOW == "unknown-field":
    connection.sendall(signal(true, field=b"\xc8\x02ay\0" + bytes(3) + struct.pack("<I", 3) + b"abc"))
else:
    message = signal(true, descriptors=MOST_DESCRIPTORS)
    for _ in range(10):
        socket.send_fds(connection, [message], [0] * MOST_DESCRIPTORS)
connection.sendall(dbus.call(8, *BUS, "GetId"))
connection.recv(4096)  # what came before it has been passed on
