"""Reading an HTTP request and changing to another protocol, or refusing to.

Owns: the head of the request, the choice of a protocol, the answer. Does not own: what is spoken afterwards. The
parsing is h11's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import h11
from wsproto.utilities import generate_accept_token

from podkeep.base.errors import InvalidArgument

MAX_HEAD_BYTES = 16 * 1024
SPDY = "SPDY/3.1"
TUNNEL_PREFIX = "SPDY/3.1+"
STREAM_PROTOCOL = "x-stream-protocol-version"
ACCEPTED_PROTOCOLS = "x-accepted-stream-protocol-versions"
_READ_BYTES = 64 * 1024
_REASONS = {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}


class Refused(InvalidArgument):
    """The request is answered with an HTTP error; ``status`` is its code, ``headers`` go with it."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


@dataclass(frozen=True, kw_only=True)
class Request:
    """``headers`` with names in lower case; a name that comes several times has its values in order."""

    method: str
    path: str
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def tokens(self, name: str) -> list[str]:
        """Return the members of a header that is a list, over all its lines."""
        return [token for line in self.headers.get(name, ()) for item in line.split(",") if (token := item.strip())]

    @property
    def upgrade(self) -> str:
        """What the client wants to change to, in lower case; empty if it does not."""
        if "upgrade" not in {token.lower() for token in self.tokens("connection")}:
            return ""
        return ", ".join(self.headers.get("upgrade", ())).lower()


class Http:
    """One request of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def read_request(self) -> Request | None:
        """Return the request, or None if the connection ended before there was one.

        :raises Refused: if what came is no request.
        """
        request = None
        try:
            while True:
                event = self._h11.next_event()
                if isinstance(event, h11.Request):
                    request = _request(event)
                elif isinstance(event, h11.EndOfMessage) or event is h11.PAUSED:
                    return request
                elif isinstance(event, h11.ConnectionClosed):
                    return None
                elif isinstance(event, h11.Data):
                    raise Refused(400, "a request for a stream has no body")
                elif event is h11.NEED_DATA:
                    self._h11.receive_data(await self._reader.read(_READ_BYTES))
        except h11.RemoteProtocolError as error:
            # What came is not repeated, neither to the client nor in the log: the path is a secret.
            raise Refused(400, f"not an HTTP/1.1 request: {str(error).partition(':')[0]}") from error

    async def switch(self, headers: Sequence[tuple[str, str]]) -> bytes:
        """Answer 101 and return what the client has sent already in the new protocol."""
        answer = h11.InformationalResponse(status_code=101, headers=list(headers), reason=b"Switching Protocols")
        self._writer.write(self._h11.send(answer) or b"")
        await self._writer.drain()
        return self._h11.trailing_data[0]

    async def refuse(self, refusal: Refused) -> None:
        """Answer with an error; the connection is to be closed."""
        body = f"{refusal.message}\n".encode()
        headers = [
            *refusal.headers,
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        if self._h11.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            reason = _REASONS[refusal.status].encode()
            answer = h11.Response(status_code=refusal.status, headers=headers, reason=reason)
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self._writer.write(self._h11.send(event) or b"")
            await self._writer.drain()


def _request(event: h11.Request) -> Request:
    headers: dict[str, list[str]] = {}
    for name, value in event.headers:
        headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return Request(method=event.method.decode(), path=event.target.decode("latin-1"), headers=headers)


def spdy_answer(request: Request, supported: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
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


def websocket_answer(request: Request, supported: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
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
