"""Exec, attach and port-forward: the runtime says where its streaming server is, and the connection goes on there.

Owns: what is asked of the runtime, and passing bytes on. Does not own: protocols inside the upgraded connection (SPDY,
WebSocket), which are between the client and the runtime's streaming server. Texts are kubelet's.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from podkeep.agent.convert.names import CONTAINER_NAME, POD_UID, with_labels
from podkeep.base.errors import NotFound, PodkeepError, ResourceExhausted, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.http.backend import Address, Backend
from podkeep.http.handshake import TUNNEL_PREFIX
from podkeep.http.messages import Refused, Request, Response, Upgrade

# Credentials are for the agent alone, and the rest is about the client's connection, not about the next one.
_DROPPED = frozenset({"authorization", "connection", "content-length", "expect", "host", "upgrade"})
_RETRY_AFTER_S = 60


class Streams(FrozenStruct, kw_only=True):
    """Which streams of a command a client wants."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


def streams_of(query: Mapping[str, Sequence[str]]) -> Streams:
    """Return what a query asks for; a terminal has no stderr of its own.

    :raises Refused: 400, if it asks for nothing.
    """

    def asked(name: str) -> bool:
        return next(iter(query.get(name, ())), "") == "1"

    tty = asked("tty")
    found = Streams(stdin=asked("input"), stdout=asked("output"), stderr=asked("error") and not tty, tty=tty)
    if not (found.stdin or found.stdout or found.stderr):
        raise Refused(400, "you must specify at least 1 of stdin, stdout, stderr")
    return found


def ports_of(query: Mapping[str, Sequence[str]], upgrade: str) -> tuple[int, ...]:
    """Return the ports that a WebSocket client names in its query; others name them in their streams.

    :raises Refused: 400, if it names none, or what is no port.
    """
    if upgrade != "websocket":
        return ()
    texts = query.get("port", ())
    if not texts:
        raise Refused(400, 'query parameter "port" is required')
    ports = []
    for text in texts:
        if not text:
            raise Refused(400, 'query parameter "port" cannot be empty')
        for item in text.split(","):
            number = int(item) if item.isdecimal() and item.isascii() and len(item) <= 5 else -1
            if not 0 <= number < 1 << 16:
                raise Refused(400, f'unable to parse "{text[:80]}" as a port')
            if number < 1:
                raise Refused(400, f'port "{text[:80]}" must be > 0')
            ports.append(number)
    return tuple(ports)


def is_tunnel(request: Request) -> bool:
    """Tell whether a client tunnels SPDY through a WebSocket: it names its ports in its streams (KEP-4006)."""
    protocols = request.tokens("sec-websocket-protocol")
    return request.upgrade == "websocket" and any(item.startswith(TUNNEL_PREFIX) for item in protocols)


async def running_container(client: CriClient, uid: str, container: str) -> str | None:
    """Return the ID of a pod's running container; None if there is none."""
    selector = {POD_UID: uid, CONTAINER_NAME: container}
    answer = await client.runtime.ListContainers(
        api_pb2.ListContainersRequest(
            filter=api_pb2.ContainerFilter(
                state=api_pb2.ContainerStateValue(state=api_pb2.CONTAINER_RUNNING), label_selector=selector
            )
        )
    )
    return _newest(with_labels(answer.containers, selector))


async def ready_sandbox(client: CriClient, uid: str) -> str | None:
    """Return the ID of a pod's sandbox that runs; None if there is none."""
    selector = {POD_UID: uid}
    answer = await client.runtime.ListPodSandbox(
        api_pb2.ListPodSandboxRequest(
            filter=api_pb2.PodSandboxFilter(
                state=api_pb2.PodSandboxStateValue(state=api_pb2.SANDBOX_READY), label_selector=selector
            )
        )
    )
    return _newest(with_labels(answer.items, selector))


def _newest(listed: Iterable[api_pb2.PodSandbox | api_pb2.Container]) -> str | None:
    newest = max(listed, key=lambda item: item.created_at, default=None)
    return None if newest is None else newest.id


def refusal(error: PodkeepError) -> Refused:
    """Return how a client is told that the runtime refuses a stream (kubelet: ``streaming.WriteError``)."""
    if isinstance(error, NotFound):
        return Refused(404, error.message)
    if isinstance(error, ResourceExhausted):
        return Refused(429, error.message, [("Retry-After", str(_RETRY_AFTER_S))])
    return Refused(500, error.message)


async def passed_on(request: Request, url: str, *, owner: str, idle_timeout: float) -> Response | Upgrade:
    """Ask the runtime's streaming server for the upgrade that a client asks for, and pass its bytes on.

    :param url: as the runtime gave it; it is good for one request.
    :param owner: whose sessions take turns: the pod's UID.
    :raises Refused: if the server cannot be reached.
    """
    address, target = _place(url)
    headers = [("Host", str(address)), ("Connection", "Upgrade"), ("Upgrade", request.upgrade)]
    headers += [(name, value) for name, values in request.headers.items() if name not in _DROPPED for value in values]
    if request.method == "POST":
        headers.append(("Content-Length", "0"))
    try:
        backend = await request.while_there(Backend.connect(address))
        request.at_end.callback(backend.abort)
        await request.while_there(backend.ask(request.method, target, headers))
    except Unavailable as error:
        raise Refused(500, f"error dialing backend: {error.message}") from error
    found = [(name, value) for name, value in backend.headers if name not in ("connection", "date", "content-length")]
    if backend.status != 101:
        return Response(status=backend.status, headers=_kept(found), body=backend.body())
    return Upgrade(
        headers=[("Connection", "Upgrade"), *found], session=backend.splice, idle_timeout=idle_timeout, owner=owner
    )


def _kept(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name not in ("transfer-encoding", "upgrade", "keep-alive")]


def _place(url: str) -> tuple[Address, str]:
    """Return where a URL is, and what is asked for there.

    :raises Refused: 500, if the runtime gave none that can be used.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https") or not url.isascii():
        raise Refused(500, "the runtime named no streaming server")
    tls = _any_certificate() if parts.scheme == "https" else None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(host=host, port=port or (443 if tls else 80), tls=tls), target


def _any_certificate() -> ssl.SSLContext:
    """Return TLS settings for the runtime's own server, whose address came over its socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
