"""How much memory asyncio has for what comes on a TLS connection.

It makes a buffer of 256 KiB for each connection and fills it with zeros, so that all of it is in memory while the
connection does nothing, and one that is read from in large pieces keeps as much again in OpenSSL's. A node has some
thirty connections that wait, both ends of most of them. Owns: the size. Called where a process makes its TLS settings.
"""

from __future__ import annotations

from asyncio import sslproto

BYTES = 64 << 10
"""Four records of TLS (RFC 8446, section 5.1): more at once is not faster."""


def limit() -> None:
    """Have connections that are made from now on take no more than :data:`BYTES` at once."""
    sslproto.SSLProtocol.max_size = BYTES
