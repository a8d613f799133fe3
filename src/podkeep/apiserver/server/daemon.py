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
from dataclasses import dataclass
from pathlib import Path

from podkeep.api.feature_gates import read as read_gates
from podkeep.apiserver.admission.attributes import AdmitAll
from podkeep.apiserver.auth import default_policy
from podkeep.apiserver.auth.authenticators import BearerAuthenticator, everybody
from podkeep.apiserver.auth.interfaces import Authenticator, Authorizer
from podkeep.apiserver.auth.node import NodeAuthorizer
from podkeep.apiserver.auth.rbac import Rbac
from podkeep.apiserver.auth.union import AnyAuthorizer
from podkeep.apiserver.endpoints.catalog import Catalog
from podkeep.apiserver.endpoints.discovery import Discovery
from podkeep.apiserver.endpoints.handler import Handler, Parts
from podkeep.apiserver.endpoints.health import Check
from podkeep.apiserver.endpoints.limits import InFlight
from podkeep.apiserver.endpoints.metrics import Metrics
from podkeep.apiserver.endpoints.openapi import OpenApi
from podkeep.apiserver.endpoints.resources import Resources
from podkeep.apiserver.endpoints.reviews import Reviews
from podkeep.apiserver.endpoints.subresources import Subresources
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.kinds.service_allocation import Ranges
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.registry.registry import Registry
from podkeep.apiserver.server import bootstrap
from podkeep.apiserver.server.compaction import compact_regularly
from podkeep.apiserver.server.masters import Masters
from podkeep.apiserver.server.service_addresses import ServiceAddresses
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
DATABASE = "api.db"


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
        lister = StoreLister(store)
        gates = read_gates(config.agent.feature_gates)
        admission = ServiceAddresses(AdmitAll(), store, Ranges())
        registry = Registry(store, admission, gates)
        await bootstrap.make_namespaces(registry)
        await bootstrap.make_roles(registry, lister)
        access = Access.of(lister)
        resources = Resources(store, registry)
        handler = Handler(_parts(config, store, resources, stop, sockets.address, access, lister))
        servers = sockets.start(handler)
        on_ready(sockets.words)
        service.ready(sockets.words)
        await stop.wait()
        log.info("stopping")
        service.stopping()
        resources.watches.close()
        await asyncio.gather(*(server.close(STOP_GRACE_S) for server in servers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who asks, and whether they may."""

    authenticator: Authenticator
    authorizer: Authorizer
    rbac: Rbac
    bearer: BearerAuthenticator

    @staticmethod
    def of(lister: StoreLister) -> Access:
        """Return what kube-apiserver has with ``--authorization-mode=Node,RBAC``."""
        rbac = Rbac(lister)
        bearer = BearerAuthenticator([])
        return Access(
            authenticator=everybody(bearer, anonymous=True),
            authorizer=AnyAuthorizer([Masters(), NodeAuthorizer(lister, default_policy.node_rules()), rbac]),
            rbac=rbac,
            bearer=bearer,
        )


def _parts(
    config: Config,
    store: Store,
    resources: Resources,
    stop: asyncio.Event,
    address: str,
    access: Access,
    lister: StoreLister,
) -> Parts:
    served = Served()
    catalog = Catalog(served)
    in_flight = InFlight(config.api.max_reads, config.api.max_writes)
    metrics = Metrics(
        in_flight=lambda: (in_flight.now[False], in_flight.now[True]),
        watches=lambda: len(resources.watches),
        objects=lambda: {item.storage_name: store.count(item.storage_name) for item in served.resources},
    )
    subresources = Subresources(resources, resources.registry, lister, served)
    reviews = Reviews(access.authorizer, access.rbac, access.bearer)
    return Parts(
        catalog=catalog,
        resources=resources,
        authenticator=access.authenticator,
        authorizer=access.authorizer,
        discovery=Discovery(catalog, address),
        openapi=OpenApi(catalog),
        metrics=metrics,
        in_flight=in_flight,
        answers=subresources.answers() | reviews.answers(),
        checks=[Check("shutdown", lambda: "it stops" if stop.is_set() else "", only_ready=True)],
    )


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
