"""Changing to SPDY or WebSocket: the protocol that both sides speak and the headers that say so, or a refusal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from wsproto.utilities import generate_accept_token

from podkeep.http.messages import Head, Headers, Refused

SPDY = "SPDY/3.1"
TUNNEL_PREFIX = "SPDY/3.1+"
STREAM_PROTOCOL = "x-stream-protocol-version"
ACCEPTED_PROTOCOLS = "x-accepted-stream-protocol-versions"


def spdy_answer(request: Head, supported: Sequence[str]) -> tuple[str, Headers]:
    """Return the protocol that both sides speak inside SPDY, the client's first choice, and the answer's headers.

    A client that asks for none gets the empty one, as the oldest did not ask.

    :raises Refused: if there is none.
    """
    headers = [("connection", "Upgrade"), ("upgrade", SPDY)]
    asked = request.tokens(STREAM_PROTOCOL)
    if not asked:
        return "", headers
    for protocol in asked:
        if protocol in supported:
            return protocol, [*headers, (STREAM_PROTOCOL, protocol)]
    message = f"unable to upgrade: the client speaks {', '.join(asked)}, the server {', '.join(supported)}"
    raise Refused(403, message, [(ACCEPTED_PROTOCOLS, protocol) for protocol in supported])


def websocket_answer(request: Head, supported: Sequence[str]) -> tuple[str, Headers]:
    """Return the subprotocol that both sides speak, the client's first choice, and the answer's headers.

    :raises Refused: if there is none, or the request lacks what RFC 6455, section 4.2.1 asks for.
    """
    keys, version = request.headers.get("sec-websocket-key", ()), request.headers.get("sec-websocket-version", ())
    if request.method != "GET" or len(keys) != 1 or list(version) != ["13"]:
        raise Refused(400, "not a WebSocket handshake of version 13", [("sec-websocket-version", "13")])
    headers = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-accept", generate_accept_token(keys[0].encode("latin-1")).decode()),
    ]
    asked = request.tokens("sec-websocket-protocol")
    for protocol in asked or [""]:
        if protocol in supported:
            chosen = [("sec-websocket-protocol", protocol)] if protocol else []
            return protocol, headers + chosen
    raise Refused(403, f"unable to upgrade: the client speaks {', '.join(asked)}, the server {', '.join(supported)}")
