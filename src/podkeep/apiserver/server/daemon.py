"""The API server's process: putting the parts together, serving, stopping.

Owns: the order of starting and stopping. The process holds the lock of its directory when this module is called.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from podkeep.api.feature_gates import read as read_gates
from podkeep.apiserver.auth.interfaces import Authenticator, Authorizer, Decision, RequestAttributes
from podkeep.apiserver.auth.user import MASTERS, User
from podkeep.apiserver.endpoints.catalog import Catalog
from podkeep.apiserver.endpoints.discovery import Discovery
from podkeep.apiserver.endpoints.handler import Handler, Parts
from podkeep.apiserver.endpoints.health import Check
from podkeep.apiserver.endpoints.limits import InFlight
from podkeep.apiserver.endpoints.metrics import Metrics
from podkeep.apiserver.endpoints.openapi import OpenApi
from podkeep.apiserver.endpoints.resources import Resources
from podkeep.apiserver.kinds.resources import Target
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.registry.registry import Registry, Request
from podkeep.apiserver.schema.table import Kind
from podkeep.apiserver.server.compaction import compact_regularly
from podkeep.apiserver.server.peers import ROOT, UnixPeers
from podkeep.apiserver.storage.store import Store
from podkeep.base import service
from podkeep.base.config import ApiConfig, Config
from podkeep.base.errors import FailedPrecondition
from podkeep.base.tasks import Tasks
from podkeep.http.connection import Limits
from podkeep.http.listener import tcp_socket, unix_socket
from podkeep.http.server import Server
from podkeep.http.tls import server_context

log = logging.getLogger(__name__)

LIMITS = Limits(
    waiting=1024, admitted=8192, head_bytes=64 << 10, head_timeout=10.0, write_timeout=30.0, idle_timeout=180.0
)
STOP_GRACE_S = 5.0
"""How long requests that are being answered may take when the server stops."""
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
DATABASE = "api.db"


class _MastersOnly:
    """Allows administrators everything, and nobody else anything."""

    def authorize(self, user: User, attributes: RequestAttributes) -> Decision:
        return Decision(MASTERS in user.groups)


def serve(config: Config, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT.

    :param on_ready: told where, in words, once requests are answered.
    :raises DataLoss: if the database is damaged.
    :raises FailedPrecondition: if an address cannot be listened on.
    """
    asyncio.run(_serve(config, on_ready))


async def _serve(config: Config, on_ready: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    api = config.api
    async with AsyncExitStack() as stack:
        sockets = _Sockets(api)
        stack.callback(sockets.close)
        store = await stack.enter_async_context(Store(Path(api.root) / DATABASE))
        tasks = await stack.enter_async_context(Tasks("the API server"))
        tasks.start(compact_regularly(store, api.history))
        registry = Registry(store, gates=read_gates(config.agent.feature_gates))
        resources = Resources(store, registry)
        await _make_namespaces(registry)
        handler = Handler(_parts(config, store, resources, stop, sockets.address, UnixPeers(), _MastersOnly()))
        servers = sockets.start(handler)
        on_ready(sockets.words)
        service.ready(sockets.words)
        await stop.wait()
        log.info("stopping")
        service.stopping()
        resources.watches.close()
        await asyncio.gather(*(server.close(STOP_GRACE_S) for server in servers))


def _parts(
    config: Config,
    store: Store,
    resources: Resources,
    stop: asyncio.Event,
    address: str,
    authenticator: Authenticator,
    authorizer: Authorizer,
) -> Parts:
    served = Served()
    catalog = Catalog(served)
    in_flight = InFlight(config.api.max_reads, config.api.max_writes)
    metrics = Metrics(
        in_flight=lambda: (in_flight.now[False], in_flight.now[True]),
        watches=lambda: len(resources.watches),
        objects=lambda: {item.storage_name: store.count(item.storage_name) for item in served.resources},
    )
    return Parts(
        catalog=catalog,
        resources=resources,
        authenticator=authenticator,
        authorizer=authorizer,
        discovery=Discovery(catalog, address),
        openapi=OpenApi(catalog),
        metrics=metrics,
        in_flight=in_flight,
        checks=[Check("shutdown", lambda: "it stops" if stop.is_set() else "", only_ready=True)],
    )


async def _make_namespaces(registry: Registry) -> None:
    """Create the namespaces that every client may count on (kube-apiserver: ``systemnamespaces``)."""
    resource = Served().by_kind(Kind("", "v1", "Namespace"))
    if resource is None:
        return
    for name in NAMESPACES:
        try:
            await registry.create(Target(resource, ""), {"metadata": {"name": name}}, Request(user=ROOT))
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise


class _Sockets:
    """Where the server listens."""

    def __init__(self, api: ApiConfig) -> None:
        """Bind them, so that an address that is taken is told before anything else is done.

        :raises FailedPrecondition: if one cannot be had.
        """
        self._unix = _bound("api.unix_socket", lambda: unix_socket(Path(api.unix_socket))) if api.unix_socket else None
        self._tcp, self._tls = None, None
        endpoint = api.endpoint()
        try:
            if endpoint is not None:
                self._tls = server_context("the API", api.tls_cert, api.tls_key, api.client_ca)
                self._tcp = _bound("api.address", lambda: tcp_socket(*endpoint))
        except BaseException:
            self.close()
            raise
        if self._unix is None and self._tcp is None:
            raise FailedPrecondition("the API has nowhere to listen", hint="set api.unix_socket or api.address")

    @property
    def address(self) -> str:
        """``IP:PORT`` of the TLS socket; empty if there is none."""
        if self._tcp is None:
            return ""
        host, port = self._tcp.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def words(self) -> str:
        """Where that is, for people."""
        places = [f"unix://{self._unix.getsockname()}"] if self._unix else []
        return "serving the API on " + " and ".join([*places, *([f"https://{self.address}"] if self._tcp else [])])

    def start(self, handler: Handler) -> list[Server]:
        """Serve all of them."""
        servers = []
        for sock, tls in ((self._unix, None), (self._tcp, self._tls)):
            if sock is not None:
                server = Server("API", handler, LIMITS)
                server.start([sock], tls)
                servers.append(server)
        self._started = True
        return servers

    def close(self) -> None:
        """Close what is not served; servers close their own."""
        for sock in (self._unix, self._tcp):
            if sock is not None and not getattr(self, "_started", False):
                sock.close()


def _bound(key: str, bind: Callable[[], socket.socket]) -> socket.socket:
    try:
        return bind()
    except FailedPrecondition as error:
        raise FailedPrecondition(f"{key}: {error.message}") from error
    except OSError as error:
        raise FailedPrecondition(
            f"{key}: cannot listen there: {error.strerror or error}", hint="choose another address, or none"
        ) from error
