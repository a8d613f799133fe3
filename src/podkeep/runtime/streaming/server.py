"""The streaming server: an HTTP/1.1 server whose every request becomes a session, on the daemon's event loop.

Owns: tokens, the choice of a protocol, and how many sessions a pod may have. Does not own: connections and HTTP
(``http/server.py``), or what a request does; the RPCs give it the session (``rpc/streaming.py``).
"""

from __future__ import annotations

import logging
import random
import socket
import ssl
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address

from podkeep.base.concurrency.threads import working_for
from podkeep.base.config import StreamingConfig
from podkeep.base.errors import FailedPrecondition, ResourceExhausted
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import netloc
from podkeep.http import handshake
from podkeep.http.budget import Pool
from podkeep.http.connection import Limits
from podkeep.http.listener import tcp_socket
from podkeep.http.messages import Head, Headers, Refused, Request, Upgrade
from podkeep.http.server import Server
from podkeep.http.tls import server_context
from podkeep.http.transport import Transport
from podkeep.http.websocket import Tunnel, WebSocket
from podkeep.runtime.streaming import pending, port_forward, remote_command
from podkeep.runtime.streaming.pending import PendingRequests, above
from podkeep.runtime.streaming.port_forward import ForwardRequest
from podkeep.runtime.streaming.remote_command import CommandRequest

log = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 10.0
"""How long a client may take to say what it wants."""
MAX_CONNECTIONS = 1024
"""Connections at a time that have not named a session yet. For one more the oldest is closed: anybody on this machine
may connect, and must not keep out those who have a URL."""
MAX_SESSIONS = 1024
"""Sessions of all pods, with those whose client has not come yet, above what is their own."""
OWN_SESSIONS = 16
"""Sessions that a pod may have in any case, whatever others have."""
MAX_SESSIONS_OF_POD = 256
"""Sessions of one pod at a time, with those whose client has not come yet: one pod's do not use up all connections."""
_PORTS = range(1024, 65536)
_TUNNEL = handshake.TUNNEL_PREFIX + port_forward.PROTOCOL


class _Waiting(FrozenStruct):
    """A request whose client has not come yet."""

    verb: str
    request: CommandRequest | ForwardRequest

    @property
    def pod(self) -> str:
        return self.request.pod

    @property
    def size(self) -> int:
        return self.request.size


def _listening(config: StreamingConfig, host_ports: Container[int]) -> socket.socket:
    sock = tcp_socket(config.address, config.port)
    if sock.getsockname()[1] not in host_ports:
        return sock
    sock.close()
    if config.port:
        raise FailedPrecondition(
            f"a pod has streaming.port {config.port} as a host port, and would get what clients send there",
            hint="change streaming.port, or remove the pod",
        )
    # Pods may have all that the kernel draws from (net.ipv4.ip_local_port_range).
    free = [port for port in _PORTS if port not in host_ports]
    for port in random.sample(free, len(free)):
        with suppress(OSError):
            return tcp_socket(config.address, port)
    raise FailedPrecondition("no port is left for the streaming server", hint="remove pods that have host ports")


class StreamingServer:
    """Start it, ask it for URLs, close it; all on one event loop."""

    def __init__(self, config: StreamingConfig, max_connections: int = MAX_CONNECTIONS) -> None:
        self._config = config
        self._pending: PendingRequests[_Waiting] = PendingRequests()
        self._running: Counter[str] = Counter()
        """Sessions by pod."""
        self.forwards: Counter[str] = Counter()
        """Forwarded connections by pod, with those that are about to be made."""
        limits = Limits(waiting=max_connections, head_timeout=HEAD_TIMEOUT_S, body_timeout=HEAD_TIMEOUT_S)
        self._server = Server("streaming", self._answer, limits)
        self._base = ""

    async def start(self, host_ports: Container[int] = ()) -> None:
        """Listen.

        :param host_ports: of pods, which would get what clients send there.
        :raises FailedPrecondition: if it cannot listen there, or the certificate cannot be read.
        """
        config = self._config
        tls = tls_context(config)
        try:
            sock = _listening(config, host_ports)
        except OSError as error:
            raise FailedPrecondition(
                f"the streaming server cannot listen on {config.address} port {config.port}: {error}",
                hint="change streaming.address or streaming.port",
            ) from error
        self._base = f"{'https' if tls else 'http'}://{_host(config.address)}:{sock.getsockname()[1]}"
        self._server.start([sock], tls)
        log.info("streaming on %s", self._base)

    @property
    def pool(self) -> Pool:
        """What all sessions together keep."""
        return self._server.pool

    def url(self, verb: str, request: CommandRequest | ForwardRequest) -> str:
        """Return a URL that starts a session once, within a minute.

        :raises ResourceExhausted: if the pod has too many sessions, or too many wait for their client.
        """
        sessions = self._running + self._pending.numbers
        number = sessions[request.pod]
        if number >= OWN_SESSIONS and above(sessions, OWN_SESSIONS) >= MAX_SESSIONS:
            raise ResourceExhausted(
                f"the pods have {MAX_SESSIONS} streaming sessions and waiting URLs above {OWN_SESSIONS} each",
                hint=f"end some; a URL that is not used is dropped after {pending.LIFETIME_S:g} s",
            )
        if number >= MAX_SESSIONS_OF_POD:
            raise ResourceExhausted(
                f"pod sandbox {request.pod} has {MAX_SESSIONS_OF_POD} streaming sessions, or URLs that wait for one",
                hint=f"end some; a URL that is not used is dropped after {pending.LIFETIME_S:g} s",
            )
        return f"{self._base}/{verb}/{self._pending.add(_Waiting(verb, request))}"

    async def close(self) -> None:
        """Stop listening, end every session and wait for that."""
        await self._server.close()

    async def _answer(self, request: Request) -> Upgrade:
        """Answer a request with the session that its URL names; see ``http.messages.Handler``."""
        async for _ in request.body:
            raise Refused(400, "a request for a stream has no body")
        verb, wanted = self._take(request)
        # The client has a token: its connection makes room for no other one any more.
        request.admit()
        # Counted until the request has come to its end, also if the session never starts.
        request.at_end.enter_context(self._session_of(wanted.pod))
        protocol, headers = _negotiate(request, wanted)
        upgrade = request.upgrade

        async def session(transport: Transport) -> None:
            log.debug("%s over %s %s begins", verb, upgrade, protocol or "without a version")
            # Of their own, as steps of sessions may hang, and their pod is stopped all the same.
            with working_for(("streams", wanted.pod)):
                await self._session(transport, upgrade, protocol, wanted)

        return Upgrade(
            headers=headers, session=session, idle_timeout=float(self._config.idle_timeout), owner=wanted.pod
        )

    @contextmanager
    def _session_of(self, pod: str) -> Iterator[None]:
        self._running[pod] += 1
        try:
            yield
        finally:
            self._running[pod] -= 1
            if not self._running[pod]:
                del self._running[pod]

    def _take(self, head: Head) -> tuple[str, CommandRequest | ForwardRequest]:
        if head.method not in {"GET", "POST"}:
            raise Refused(405, f"{head.method[:20]} is not done here", [("allow", "GET, POST")])
        _, _, rest = head.path.partition("/")
        verb, _, token = rest.partition("/")
        # Taken whatever the verb is: a token works once.
        found = self._pending.take(token)
        # One answer for both, so that nobody learns from it.
        if found is None or found.verb != verb:
            raise Refused(404, "there is no such session, or it has begun already, or waited for more than a minute")
        return verb, found.request

    async def _session(
        self, transport: Transport, upgrade: str, protocol: str, request: CommandRequest | ForwardRequest
    ) -> None:
        over_websocket = upgrade == "websocket"
        if isinstance(request, CommandRequest):
            serve = remote_command.serve_websocket if over_websocket else remote_command.serve_spdy
            await serve(transport, protocol, request)
        elif not over_websocket:
            await port_forward.serve_spdy(transport, request, self.forwards)
        elif protocol == _TUNNEL:
            await port_forward.serve_spdy(Tunnel(WebSocket(transport)), request, self.forwards)
        else:
            await port_forward.serve_channels(transport, protocol, request, self.forwards)


def _negotiate(head: Head, request: CommandRequest | ForwardRequest) -> tuple[str, Headers]:
    """Return the protocol to speak and the headers that say so.

    :raises Refused: if there is none.
    """
    forward = isinstance(request, ForwardRequest)
    if head.upgrade == "websocket":
        supported: Sequence[str] = list(remote_command.WEBSOCKET_PROTOCOLS)
        if forward:
            supported = [_TUNNEL, *port_forward.CHANNEL_PROTOCOLS]
        return handshake.websocket_answer(head, supported)
    if handshake.SPDY.lower() in head.upgrade:
        return handshake.spdy_answer(head, [port_forward.PROTOCOL] if forward else remote_command.SPDY_PROTOCOLS)
    raise Refused(400, "unable to upgrade: only SPDY/3.1 and WebSocket are spoken here")


def tls_context(config: StreamingConfig) -> ssl.SSLContext | None:
    """Return what the server proves itself with; None: it speaks plain HTTP.

    :raises FailedPrecondition: if the files cannot be read, are no PEM, do not belong together, or want a password.
    """
    if not config.tls_cert:
        return None
    return server_context("the streaming server", config.tls_cert, config.tls_key)


def _host(address: str) -> str:
    """Return the host of URLs: where it listens, or loopback if that is everywhere."""
    parsed = ip_address(address)
    if parsed.is_unspecified:
        return "127.0.0.1" if parsed.version == 4 else "[::1]"
    return netloc.bracketed(str(parsed))
