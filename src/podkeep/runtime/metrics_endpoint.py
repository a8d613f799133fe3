"""``/metrics`` over HTTP/1.1, in the daemon's event loop.

Owns: listening, and one answer per connection: Prometheus asks every few seconds, so keeping connections is worth
nothing. Does not own: what is counted (``metrics.py``). Nothing here changes the daemon, whoever asks; a client that
says nothing, or too much, is cut off.
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

MAX_REQUEST_BYTES = 16 << 10
PATIENCE_S = 10.0
"""How long a client may take to ask, and to take its answer."""
MAX_CONNECTIONS = 32


class MetricsEndpoint:
    """One listening socket; start and close it in the event loop."""

    def __init__(self, registry: CollectorRegistry, endpoint: str | tuple[str, int]) -> None:
        """Serve ``registry`` on a unix socket, or at an address and port."""
        self._registry, self._endpoint = registry, endpoint
        self._server: asyncio.Server | None = None
        self._socket: Path | None = None
        self._connections = 0

    async def start(self) -> None:
        """Listen.

        :raises FailedPrecondition: if that is not possible.
        """
        endpoint = self._endpoint
        try:
            if isinstance(endpoint, str):
                self._server = await self._listen_unix(Path(endpoint))
            else:
                host, port = endpoint
                self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            raise FailedPrecondition(
                f"metrics.address: cannot listen on {endpoint}: {error.strerror or error}",
                hint="choose another address, or none",
            ) from error

    async def _listen_unix(self, path: Path) -> asyncio.Server:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise FailedPrecondition(f"metrics.address: {path} exists and is not a socket")
            with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
                probe.connect(str(path))
                raise FailedPrecondition(f"metrics.address: another process serves {path}")
            path.unlink()
        server = await asyncio.start_unix_server(self._serve, path, limit=MAX_REQUEST_BYTES)
        path.chmod(0o600)
        self._socket = path
        return server

    async def close(self) -> None:
        """Stop listening."""
        if self._server is None:
            return
        self._server.close()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > MAX_CONNECTIONS:
                return
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer(head))
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            self._connections -= 1
            # Not close(): it would wait for ever for a client that does not take its answer.
            writer.transport.abort()

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


def _partition(field: str) -> tuple[str, str, str]:
    return field.partition(":")


def _response(code: str, content_type: str, body: bytes, method: str = "GET") -> bytes:
    head = (
        f"HTTP/1.1 {code}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)
