"""``/metrics`` over HTTP, in the daemon's event loop.

Owns: the answer. Does not own: connections and HTTP (``http/server.py``), or what is counted (``metrics.py``). Nothing
here changes the daemon, whoever asks. Prometheus asks every few seconds, so no connection is kept for that long.
"""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from podkeep.base.errors import FailedPrecondition
from podkeep.http.connection import Limits
from podkeep.http.listener import tcp_socket, unix_socket
from podkeep.http.messages import Refused, Request, Response
from podkeep.http.server import Server

LIMITS = Limits(waiting=32, head_bytes=16 << 10, head_timeout=10.0, write_timeout=10.0)


class MetricsEndpoint:
    """One listening socket; start and close it in the event loop."""

    def __init__(self, registry: CollectorRegistry, endpoint: str | tuple[str, int]) -> None:
        """Serve ``registry`` on a unix socket, or at an address and port."""
        self._registry, self._endpoint = registry, endpoint
        self._server = Server("metrics", self._answer, LIMITS)

    async def start(self) -> None:
        """Listen.

        :raises FailedPrecondition: if that is not possible.
        """
        endpoint = self._endpoint
        try:
            sock = unix_socket(Path(endpoint)) if isinstance(endpoint, str) else tcp_socket(*endpoint)
        except FailedPrecondition as error:
            raise FailedPrecondition(f"metrics.address: {error.message}") from error
        except OSError as error:
            raise FailedPrecondition(
                f"metrics.address: cannot listen on {endpoint}: {error.strerror or error}",
                hint="choose another address, or none",
            ) from error
        self._server.start([sock])

    async def close(self) -> None:
        await self._server.close()

    async def _answer(self, request: Request) -> Response:
        if request.path != "/metrics":
            raise Refused(404, "the metrics are at /metrics")
        if request.method not in {"GET", "HEAD"}:
            raise Refused(405, "only GET and HEAD", [("Allow", "GET, HEAD")])
        accept = ",".join(request.headers.get("accept", ()))
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # the library's words for a version that is no number
            encode, content_type = choose_encoder("")
        return Response(headers=[("Content-Type", content_type)], body=encode(self._registry))
