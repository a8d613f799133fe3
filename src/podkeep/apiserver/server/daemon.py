"""The API server's process: putting the parts together, serving, stopping.

Owns: the order of starting and stopping. The process holds the lock of its directory when this module is called.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from msgspec import structs

from podkeep.api.feature_gates import read as read_gates
from podkeep.apiserver.controllers.event_expiry import EVENTS
from podkeep.apiserver.controllers.runner import Runner
from podkeep.apiserver.discovery import openid
from podkeep.apiserver.discovery.catalog import Catalog
from podkeep.apiserver.discovery.groups import Discovery
from podkeep.apiserver.discovery.openapi import OpenApi
from podkeep.apiserver.endpoints.audit import AuditLog
from podkeep.apiserver.endpoints.handler import Handler, Parts
from podkeep.apiserver.endpoints.kubelets import Kubelets
from podkeep.apiserver.endpoints.metrics import Metrics
from podkeep.apiserver.endpoints.relay import Relay
from podkeep.apiserver.endpoints.resources import Resources
from podkeep.apiserver.endpoints.reviews import Reviews
from podkeep.apiserver.endpoints.subresources import Subresources
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.registry.registry import Registry
from podkeep.apiserver.requests.limits import InFlight
from podkeep.apiserver.server import backup, bootstrap, certificates, kubernetes_service, plugins
from podkeep.apiserver.server.access import ISSUER, Access
from podkeep.apiserver.server.certificates import AUTHORITY, Files
from podkeep.apiserver.server.compaction import compact_regularly
from podkeep.apiserver.server.sockets import SERVICE_ADDRESS, Sockets, make_certificates
from podkeep.apiserver.storage.store import Store
from podkeep.base import service
from podkeep.base.concurrency.clock import TimeOfDay
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.concurrency.threads import SharedThreads
from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.http.health import Check
from podkeep.kernel.process import descriptors

log = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
"""How long requests that are being answered may take when the server stops."""
_THREADS, _THREADS_OF_ONE = 128, 4
"""For blocking steps, which are few; and of them for one node, whose name a resolver may look for without an end."""
_LOOK_S = 60.0
"""How often the time of day is looked at, which may be set."""
_RETRY_S = 3600.0
"""When certificates are looked at again that could not be renewed."""


def serve(config: Config, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT.

    :param on_ready: told where, in words, once requests are answered.
    :raises DataLoss: if the database is damaged.
    :raises FailedPrecondition: if an address cannot be listened on, certificates cannot be used, or the authority was
        renewed while it served.
    """
    # The start makes many objects and hardly any garbage.
    gc.disable()
    descriptors.raise_limit()
    files = Files(Path(config.api.root))
    # They are made in another process, which must be started while this one has no thread.
    renewal = make_certificates(config.api, files)
    asyncio.run(_serve(config, files, renewal, on_ready))


async def _serve(config: Config, files: Files, renewal: float, on_ready: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(SharedThreads(_THREADS, share=_THREADS_OF_ONE, name="work"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gates = read_gates(config.api.feature_gates, "api")
    served = Served()
    async with AsyncExitStack() as stack:
        sockets = Sockets(config.api, files)
        stack.callback(sockets.close)
        store = await stack.enter_async_context(Store(Path(config.api.root) / backup.DATABASE))
        tasks = await stack.enter_async_context(Tasks("the API server"))
        tasks.keep(partial(compact_regularly, store, config.api.history, config.api.history_bytes()))
        lister = StoreLister(store, read_once=[EVENTS])
        kubelets = _kubelets(config, files, lister)
        other_authority = asyncio.Event()

        def begin_anew() -> None:
            other_authority.set()
            stop.set()

        tasks.keep(partial(_renew, config, files, sockets, kubelets, renewal, begin_anew))
        access = Access.of(lister, files.key(certificates.ACCOUNTS).read_bytes(), config.api.token_auth_file)
        admission = plugins.admission(config, store, lister, access, gates)
        registry = Registry(store, admission, gates, namespace_bytes=config.api.namespace_bytes())
        await bootstrap.make_namespaces(registry)
        await bootstrap.make_priority_classes(registry)
        await bootstrap.make_roles(registry, lister)
        authority = files.certificate(AUTHORITY).read_text()
        more = Path(config.api.client_ca).read_text() if config.api.client_ca else ""
        await bootstrap.publish_authorities(registry, lister, authority + more)
        own = bootstrap.REQUEST, SERVICE_ADDRESS, sockets.address
        await kubernetes_service.publish(registry, lister, *own)
        tokens = access.secret_tokens
        make = partial(plugins.controllers, config, served.resources, lister, gates, authority, tokens)
        await stack.enter_async_context(Runner(store, registry, lister, served.resources, make))
        resources = Resources(store, registry)
        stored = _Stored(store=store, lister=lister, resources=resources)
        audit = _audit_log(config, stack)
        parts = _parts(config, stored, access, stop, sockets.address, audit)
        relay = Relay(lister, kubelets)
        handler = Handler(structs.replace(parts, answers={**parts.answers, **relay.answers()}))
        servers = sockets.serve(handler)
        sockets.write_kubeconfigs()
        # What is there now stays: a collection would look through all of it, with every request waiting meanwhile.
        gc.freeze()
        gc.enable()
        on_ready(sockets.words)
        service.ready(sockets.words)
        store.on_problem = partial(_tell, store, sockets.words)
        if store.problem is not None:
            store.on_problem()
        tasks.start(service.feed_watchdog())
        await stop.wait()
        log.info("stopping")
        service.stopping()
        resources.watches.close()
        await asyncio.gather(*(server.close(STOP_GRACE_S) for server in servers))
        if other_authority.is_set():
            raise FailedPrecondition(
                "the API's authority has been renewed, and clients that know the new one alone are not trusted",
                hint="start it again, as `podkeep node` and systemd do: it publishes the new one then",
            )


def _tell(store: Store, words: str) -> None:
    """Say that it serves, and why nothing is written if so: who cannot write sees it nowhere else."""
    problem = store.problem
    service.status(f"{words}; {problem}" if problem else words, problem=problem.message if problem else "")


def _kubelets(config: Config, files: Files, lister: StoreLister) -> Kubelets:
    name = certificates.KUBELET_CLIENT.name
    authority = Path(config.api.kubelet_ca) if config.api.kubelet_ca else files.certificate(AUTHORITY)
    return Kubelets(lister, files.certificate(name), files.key(name), authority)


async def _renew(
    config: Config, files: Files, sockets: Sockets, kubelets: Kubelets, due: float, other_authority: Callable[[], None]
) -> None:
    """Renew certificates when they are due, until cancelled, or until the authority is another one.

    :param other_authority: called then; most of what trusts it takes it at the start alone.
    """
    clock = TimeOfDay(_LOOK_S, lambda: time.time())
    authority = files.certificate(AUTHORITY)
    while True:
        await asyncio.sleep(min(max(due - time.time(), 1.0), _LOOK_S))
        # A clock that is set, as of a machine without one of its own when it first reaches a time server, makes
        # certificates old, or good only later.
        if time.time() < due and not clock.was_set():
            continue
        clock.note()
        try:
            before = authority.read_bytes()
            due = await asyncio.to_thread(make_certificates, config.api, files)
            if authority.read_bytes() != before:
                other_authority()
                return
            sockets.renew()
            kubelets.renew()
            sockets.write_kubeconfigs()
        except (PodkeepError, OSError) as error:
            log.warning("certificates cannot be renewed: %s", error)
            due = time.time() + _RETRY_S


def _audit_log(config: Config, stack: AsyncExitStack) -> AuditLog | None:
    if not config.api.audit_log:
        return None
    try:
        audit = AuditLog(Path(config.api.audit_log))
    except OSError as error:
        raise FailedPrecondition(
            f"api.audit_log: {config.api.audit_log} cannot be written: {error.strerror}"
        ) from error
    stack.callback(audit.close)
    return audit


class _Stored(FrozenStruct, kw_only=True):
    """The objects, and who reads and writes them."""

    store: Store
    lister: StoreLister
    resources: Resources


def _parts(
    config: Config, stored: _Stored, access: Access, stop: asyncio.Event, address: str, audit: AuditLog | None
) -> Parts:
    resources, lister = stored.resources, stored.lister
    served = Served()
    catalog = Catalog(served)
    in_flight = InFlight(config.api.max_reads, config.api.max_writes, watches=config.api.max_user_watches)
    metrics = Metrics(
        in_flight=lambda: (in_flight.reads.used, in_flight.writes.used),
        watches=lambda: len(resources.watches),
        objects=lambda: {item.storage_name: stored.store.count(item.storage_name) for item in served.resources},
    )
    subresources = Subresources(resources, resources.registry, lister, served, access.tokens)
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
        audit=audit,
        downloads={backup.PATH: partial(backup.stream, stored.store, Path(config.api.root))},
        openid=openid.documents(access.tokens.issuer, _url(address), access.tokens.keys),
        answers=subresources.answers() | reviews.answers(),
        checks=[Check("shutdown", lambda: "it stops" if stop.is_set() else "", only_ready=True)],
    )


def _url(address: str) -> str:
    """Return where others reach the API that listens at ``IP:PORT``; if nowhere, the name that pods have for it."""
    place = kubernetes_service.reachable(address)
    if place is not None:
        return "https://{}:{}".format(*place)
    return f"https://{address}" if address else ISSUER
