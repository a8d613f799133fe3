"""What a server proves itself with, which clients' certificates it verifies, and what a TLS connection takes of memory.

asyncio makes a buffer of 256 KiB for each TLS connection and fills it with zeros, so that all of it is in memory while
the connection does nothing, and one that is read from in large pieces keeps as much again in OpenSSL's. A node has some
thirty connections that wait, both ends of most of them.
"""

from __future__ import annotations

import ssl
from asyncio import sslproto

from podkeep.base.errors import FailedPrecondition

BUFFER_BYTES = 64 << 10
"""Four records of TLS (RFC 8446, section 5.1): more at once is not faster."""
ANSWERS_BYTES = 64 << 10
"""What TLS itself has to say to a peer that does not take it: OpenSSL refuses each further handshake of TLS 1.2 with an
alert, and asyncio would keep as many as a peer asks for."""


class _Bounded(sslproto.SSLProtocol):
    """asyncio's, without what a peer could have it keep."""

    max_size = BUFFER_BYTES
    _answered = 0
    """Bytes of :data:`ANSWERS_BYTES`."""
    _outgoing: ssl.MemoryBIO

    def buffer_updated(self, nbytes: int) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        waiting = self._outgoing.pending
        super().buffer_updated(nbytes)
        # Nobody else writes meanwhile, and what the socket takes does not stay.
        left = self._outgoing.pending
        self._answered = self._answered + max(left - waiting, 0) if left else 0
        if self._answered > ANSWERS_BYTES:
            self._fatal_error(ConnectionAbortedError("the peer takes no answers of TLS itself"))


def limit_buffers() -> None:
    """Have TLS connections of this process, made from now on, take no more than :data:`BUFFER_BYTES` at once.

    Called where a process makes its TLS settings, those of a client (``client/credentials.py``), too.
    """
    sslproto.SSLProtocol = _Bounded  # type: ignore[misc]  # asyncio looks it up here for each connection


def server_context(name: str, certificate: str, key: str, client_ca: str = "") -> ssl.SSLContext:
    """Return the TLS settings of a server: TLS 1.2 or newer, HTTP/1.1.

    :param name: what the server is called in errors.
    :param certificate: PEM file with its certificate and the chain; ``key``: PEM file with the key.
    :param client_ca: PEM file of the authorities that clients' certificates are verified against. A client may show
        none; one that does not verify ends the handshake (ssl.CERT_OPTIONAL). Empty: no client is asked for one.
    :raises FailedPrecondition: if the files cannot be read, are no PEM, do not belong together, or want a password.
    """
    limit_buffers()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that prefers HTTP/2 is told in the handshake.
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password at hand OpenSSL would ask for it on the terminal, and wait.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise FailedPrecondition(
            f"{name}'s certificate {certificate} with key {key} cannot be used: {error}",
            hint="name the PEM files of a certificate and its key, which has no password",
        ) from error
    if client_ca:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise FailedPrecondition(
                f"{name}'s authorities for clients in {client_ca} cannot be used: {error}",
                hint="name a PEM file of certificates",
            ) from error
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
