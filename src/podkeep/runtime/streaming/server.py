"""The streaming server: an HTTP/1.1 server whose every request becomes a session, on the daemon's event loop.

Owns: the listening socket, TLS, tokens, one task per connection, and their end. Does not own: what a request does; the
RPCs give it the session (``rpc/streaming.py``).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from podkeep.base import log as request_log
from podkeep.base.config import StreamingConfig
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.runtime.streaming import handshake, port_forward, remote_command, websocket
from podkeep.runtime.streaming.channels import ClientGone
from podkeep.runtime.streaming.handshake import Http, Refused
from podkeep.runtime.streaming.pending import PendingRequests
from podkeep.runtime.streaming.port_forward import ForwardRequest
from podkeep.runtime.streaming.remote_command import CommandRequest
from podkeep.runtime.streaming.transport import READ_BYTES, SocketTransport
from podkeep.runtime.streaming.websocket import Tunnel, WebSocket

log = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 10.0
"""How long a client may take to say what it wants."""
MAX_CONNECTIONS = 1024
"""Connections at a time. For one more the oldest that has not named a session yet is closed: anybody on this machine
may connect, and must not keep out those who have a URL."""
_TUNNEL = handshake.TUNNEL_PREFIX + port_forward.PROTOCOL


class StreamingServer:
    """Start it, ask it for URLs, close it; all on one event loop."""

    def __init__(self, config: StreamingConfig, max_connections: int = MAX_CONNECTIONS) -> None:
        self._config, self._max_connections = config, max_connections
        self._pending: PendingRequests[tuple[str, CommandRequest | ForwardRequest]] = PendingRequests()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """Connections that have not named a session yet, the oldest first."""
        self._base = ""

    async def start(self) -> None:
        """Listen.

        :raises FailedPrecondition: if it cannot listen there, or the certificate cannot be read.
        """
        config = self._config
        tls = tls_context(config)
        try:
            self._server = await asyncio.start_server(
                self._connected,
                config.address,
                config.port,
                ssl=tls,
                ssl_handshake_timeout=HEAD_TIMEOUT_S if tls else None,
                limit=READ_BYTES,
            )
        except OSError as error:
            raise FailedPrecondition(
                f"the streaming server cannot listen on {config.address} port {config.port}: {error}",
                hint="change streaming.address or streaming.port",
            ) from error
        port = self._server.sockets[0].getsockname()[1]
        self._base = f"{'https' if tls else 'http'}://{_host(config.address)}:{port}"
        log.info("streaming on %s", self._base)

    def url(self, verb: str, request: CommandRequest | ForwardRequest) -> str:
        """Return a URL that starts a session once, within a minute.

        :raises ResourceExhausted: if too many wait for their client.
        """
        return f"{self._base}/{verb}/{self._pending.add((verb, request))}"

    async def close(self) -> None:
        """Stop listening, end every session and wait for that."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= self._max_connections:
            # Without a stranger it is the new one that must go.
            stranger = next(iter(self._strangers), writer)
            self._strangers.pop(stranger, None)
            stranger.transport.abort()
            if stranger is writer:
                return
        self._strangers[writer] = None
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request_log.begin_request()
        http = Http(reader, writer)
        try:
            await self._answer(http, reader, writer)
        except Refused as refusal:
            log.info("a streaming request is refused with %d: %s", refusal.status, refusal.message)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(HEAD_TIMEOUT_S):
                    await http.refuse(refusal)
                    writer.close()
                    await writer.wait_closed()
        except (ClientGone, OSError, TimeoutError) as error:
            log.debug("a streaming session ended: %s", error)
        except PodkeepError as error:
            log.info("a streaming session failed: %s", error)
        except Exception:
            log.exception("a streaming session failed unexpectedly")
        finally:
            self._strangers.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, http: Http, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await http.read_request()
            if head is None:
                return
            verb, request = self._take(head)
            self._strangers.pop(writer, None)
            protocol, headers = _negotiate(head, request)
            first = await http.switch(headers)
        transport = SocketTransport(reader, writer, first, float(self._config.idle_timeout))
        log.debug("%s over %s %s begins", verb, head.upgrade, protocol or "without a version")
        try:
            await _session(transport, head.upgrade, protocol, request)
        finally:
            transport.dispose()

    def _take(self, head: handshake.Request) -> tuple[str, CommandRequest | ForwardRequest]:
        if head.method not in {"GET", "POST"}:
            raise Refused(405, f"{head.method[:20]} is not done here", [("allow", "GET, POST")])
        _, _, rest = urlsplit(head.path).path.partition("/")
        verb, _, token = rest.partition("/")
        found = self._pending.take(token)
        # One answer for both, so that nobody learns from it.
        if found is None or found[0] != verb:
            raise Refused(404, "there is no such session, or it has begun already, or waited for more than a minute")
        return found


def _negotiate(head: handshake.Request, request: CommandRequest | ForwardRequest) -> tuple[str, list[tuple[str, str]]]:
    """Return the protocol to speak and the headers that say so.

    :raises Refused: if there is none.
    """
    forward = isinstance(request, ForwardRequest)
    if head.upgrade == "websocket":
        supported: Sequence[str] = list(websocket.COMMAND_PROTOCOLS)
        if forward:
            supported = [_TUNNEL, *port_forward.CHANNEL_PROTOCOLS]
        return handshake.websocket_answer(head, supported)
    if handshake.SPDY.lower() in head.upgrade:
        return handshake.spdy_answer(head, [port_forward.PROTOCOL] if forward else remote_command.SPDY_PROTOCOLS)
    raise Refused(400, "unable to upgrade: only SPDY/3.1 and WebSocket are spoken here")


async def _session(
    transport: SocketTransport, upgrade: str, protocol: str, request: CommandRequest | ForwardRequest
) -> None:
    over_websocket = upgrade == "websocket"
    if isinstance(request, CommandRequest):
        serve = remote_command.serve_websocket if over_websocket else remote_command.serve_spdy
        await serve(transport, protocol, request)
    elif not over_websocket:
        await port_forward.serve_spdy(transport, request)
    elif protocol == _TUNNEL:
        await port_forward.serve_spdy(Tunnel(WebSocket(transport)), request)
    else:
        await port_forward.serve_channels(transport, protocol, request)


def tls_context(config: StreamingConfig) -> ssl.SSLContext | None:
    """Return what the server proves itself with; None: it speaks plain HTTP.

    :raises FailedPrecondition: if the files cannot be read, are no PEM, do not belong together, or want a password.
    """
    if not config.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password at hand OpenSSL would ask for it on the terminal, and wait.
        context.load_cert_chain(config.tls_cert, config.tls_key, password="")
    except (OSError, ssl.SSLError) as error:
        raise FailedPrecondition(
            f"the streaming server's certificate {config.tls_cert} with key {config.tls_key} cannot be used: {error}",
            hint="name the PEM files of a certificate and its key, which has no password",
        ) from error
    return context


def _host(address: str) -> str:
    """Return the host of URLs: where it listens, or loopback if that is everywhere."""
    parsed = ip_address(address)
    if parsed.is_unspecified:
        return "127.0.0.1" if parsed.version == 4 else "[::1]"
    return f"[{parsed}]" if parsed.version == 6 else str(parsed)
