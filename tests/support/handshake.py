"""A TLS handshake without a network."""

from __future__ import annotations

import ssl
from contextlib import suppress


def names(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> set[tuple[str, str]]:
    """Return the names in the certificate by which a server proves to a client that it is ``host``.

    :raises ssl.SSLError: if it does not.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (ours, theirs, ours, theirs):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    found = ours.getpeercert()
    assert found is not None
    return {(str(kind), str(value)) for kind, value in found["subjectAltName"]}
