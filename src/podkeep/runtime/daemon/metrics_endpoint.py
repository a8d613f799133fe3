"""``/metrics`` over HTTP/1.1, in the daemon's event loop.

Owns: one answer per connection: Prometheus asks every few seconds, so keeping connections is worth nothing. Does not
own: connections (``streaming/listener.py``), or what is counted (``metrics.py``). Nothing here changes the daemon,
whoever asks; a client that says nothing, or too much, is cut off.
"""

from __future__ import annotations

import asyncio
import socket
import stat
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from podkeep.base.errors import FailedPrecondition
from podkeep.runtime.streaming.listener import Connection, Listener

MAX_REQUEST_BYTES = 16 << 10
CLIENT_TIMEOUT_S = 10.0
"""How long a client may take to ask, and to take its answer."""
MAX_CONNECTIONS = 32


class MetricsEndpoint:
    """One listening socket; start and close it in the event loop."""

    def __init__(self, registry: CollectorRegistry, endpoint: str | tuple[str, int]) -> None:
        """Serve ``registry`` on a unix socket, or at an address and port."""
        self._registry, self._endpoint = registry, endpoint
        self._listener = Listener(self._serve, limit=MAX_CONNECTIONS)
        self._socket: Path | None = None

    async def start(self) -> None:
        """Listen.

        :raises FailedPrecondition: if that is not possible.
        """
        endpoint = self._endpoint
        try:
            self._listener.start([_unix(Path(endpoint)) if isinstance(endpoint, str) else _tcp(*endpoint)])
        except OSError as error:
            raise FailedPrecondition(
                f"metrics.address: cannot listen on {endpoint}: {error.strerror or error}",
                hint="choose another address, or none",
            ) from error
        if isinstance(endpoint, str):
            self._socket = Path(endpoint)

    async def close(self) -> None:
        """Stop listening, and end what is being answered."""
        await self._listener.close()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    async def _serve(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(CLIENT_TIMEOUT_S):
                head = await _head(connection.reader)
                connection.writer.write(self.answer(head))
                connection.writer.close()
                await connection.writer.wait_closed()
        except (OSError, TimeoutError, EOFError):
            return

    def answer(self, head: bytes) -> bytes:
        """Return the response to the head of a request."""
        request, *fields = head.decode("latin-1").split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response("400 Bad Request", "text/plain", b"this is HTTP/1.1\n")
        method, target, _ = words
        if target.partition("?")[0] != "/metrics":
            return _response("404 Not Found", "text/plain", b"the metrics are at /metrics\n", method)
        if method not in {"GET", "HEAD"}:
            return _response("405 Method Not Allowed", "text/plain", b"only GET and HEAD\n")
        accept = next((value for name, _, value in map(_partition, fields) if name.lower() == "accept"), "")
        try:
            encode, content_type = choose_encoder(accept.strip())
        except (TypeError, ValueError):  # the library's words for a version that is no number
            encode, content_type = choose_encoder("")
        return _response("200 OK", content_type, encode(self._registry), method)


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Return the head of a request.

    :raises EOFError: if the client ended before it was complete, or sends too much.
    """
    head = b""
    while (end := head.find(b"\r\n\r\n")) < 0:
        data = await reader.read(MAX_REQUEST_BYTES)
        if not data or len(head) + len(data) > MAX_REQUEST_BYTES:
            raise EOFError
        head += data
    return head[: end + 4]


def _tcp(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def _unix(path: Path) -> socket.socket:
    """Return a socket at ``path`` for root alone.

    :raises FailedPrecondition: if something else is there, or another process serves it.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FailedPrecondition(f"metrics.address: {path} exists and is not a socket")
        with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
            probe.connect(str(path))
            raise FailedPrecondition(f"metrics.address: another process serves {path}")
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(str(path))
        # Nobody can connect before it listens.
        path.chmod(0o600)
    except BaseException:
        sock.close()
        raise
    return sock


def _partition(field: str) -> tuple[str, str, str]:
    return field.partition(":")


def _response(code: str, content_type: str, body: bytes, method: str = "GET") -> bytes:
    head = (
        f"HTTP/1.1 {code}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)
