"""The server behind the kubelet's endpoints: its sockets, its certificate, and the parts it is put together of."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from podkeep.agent import metrics as names
from podkeep.agent.certificates.store import CertificateStore
from podkeep.agent.node import Node
from podkeep.agent.resources import cgroup_names
from podkeep.agent.server import pod_gauges
from podkeep.agent.server.authentication import Authenticator, Review
from podkeep.agent.server.authorization import Authorizer
from podkeep.agent.server.collector import Collector
from podkeep.agent.server.disk import measure
from podkeep.agent.server.endpoints import Endpoints, Settings
from podkeep.agent.server.interfaces import Pods
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.config import AgentConfig
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.client.client import Client
from podkeep.client.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource
from podkeep.http import self_signed
from podkeep.http.connection import Limits
from podkeep.http.health import Check
from podkeep.http.listener import tcp_socket
from podkeep.http.server import Server
from podkeep.http.tls import server_context
from podkeep.kernel.cgroup import cgroups, systemd

log = logging.getLogger(__name__)

LIMITS = Limits(
    waiting=256, admitted=1024, head_bytes=64 << 10, head_timeout=10.0, write_timeout=30.0, idle_timeout=180.0
)
SYSTEM_LOGS = "/var/log"
_LOOK_S = 60.0
"""How often files of certificates are looked at: somebody may have renewed them."""
_CERTIFY_LOOKS = 12 * 60
"""After how many looks it is seen to that the certificate is good for a while."""
_CLOSE_S = 1.0
_NOT_HERE = "write an address of this machine, or leave agent.address out"
_TAKEN = "end the kubelet that has the port, or choose another one with agent.port"


def reviewer(client: Client, resource: Resource) -> Review:
    """Return what has the API review a token or an access."""

    async def review(spec: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}, "spec": spec}
        answer = await client.create(resource, body)
        status = answer.get("status")
        return status if isinstance(status, dict) else {}

    return review


class KubeletServer:
    """Serves the endpoints of one node; an asynchronous context manager.

    :param client: the API that reviews tokens and accesses; None: there is none, so certificates alone count.
    :param configuration: returns what ``/configz`` shows.
    :param checks: what ``/healthz`` looks at.
    :param certify: makes the files of the certificate that settings name anew if they are old, or are not for these
        addresses of the node; blocks. Where settings name none, the agent makes one itself.
    :raises FailedPrecondition: if the address is taken, or a certificate cannot be used.
    """

    def __init__(
        self,
        node: Node,
        client: Client | None,
        pods: Pods,
        *,
        configuration: Callable[[], Mapping[str, Any]],
        checks: Iterable[Check] = (),
        certify: Callable[[Sequence[str]], object] | None = None,
    ) -> None:
        agent = node.config.agent
        self._agent, self._node = agent, node
        node.metrics.set(names.NODE_NAME, 1, node.name)
        node.metrics.set(names.METRICS_PROVIDER, 1, "cri")
        node.metrics.set(names.CGROUP_VERSION, cgroups.detect().version)
        node.metrics.before_scrape.append(lambda: pod_gauges.update(node.metrics, pods.pods()))
        self._files = certificate_files(agent)
        self._certify = certify if agent.tls_cert_file else self._make_certificate
        self._seen: tuple[float, ...] = ()
        client_ca = agent.authentication.x509.client_ca_file
        self._client_ca = (Path(client_ca),) if client_ca else ()
        self._socket: socket.socket | None = None
        self._tasks = Tasks("renewing the kubelet's certificate")
        tokens = client if agent.authentication.webhook.enabled else None
        self.collector = Collector(
            node.client,
            node.name,
            Path(agent.root),
            pods=pods.pods,
            disk=partial(measure, node.dirs, agent.pod_logs),
            groups=_groups(node),
        )
        self._endpoints = Endpoints(
            client=node.client,
            pods=pods,
            metrics=node.metrics,
            collector=self.collector,
            authenticator=Authenticator(
                reviewer(tokens, TOKEN_REVIEWS) if tokens else None,
                ttl=agent.authentication.webhook.cache_ttl,
                anonymous=agent.authentication.anonymous.enabled,
            ),
            authorizer=Authorizer(
                node.name,
                agent.authorization.mode,
                reviewer(client, SUBJECT_ACCESS_REVIEWS) if client else None,
                allowed_ttl=agent.authorization.webhook.cache_authorized_ttl,
                denied_ttl=agent.authorization.webhook.cache_unauthorized_ttl,
            ),
            configuration=configuration,
            checks=tuple(checks),
            settings=Settings(
                debugging_handlers=agent.enable_debugging_handlers,
                system_logs=SYSTEM_LOGS if agent.enable_system_log_handler else "",
                idle_timeout=agent.streaming_connection_idle_timeout,
                checkpoints=str(Path(agent.root) / "checkpoints"),
            ),
        )
        self._server = Server("kubelet", self._endpoints.answer, LIMITS)

    @property
    def port(self) -> int:
        """Where it listens; 0: it does not."""
        return int(self._socket.getsockname()[1]) if self._socket is not None else 0

    async def __aenter__(self) -> KubeletServer:
        """Make a certificate if there is none, and listen.

        :raises FailedPrecondition: if that is not possible.
        """
        agent = self._agent
        if self._certify is not None:
            await asyncio.to_thread(self._certify, self._node.host_ips)
        # Before they are read: what changes meanwhile is another time at the next look.
        self._seen = _times((*self._files, *self._client_ca))
        tls = self._context()
        try:
            self._socket = tcp_socket(agent.address, agent.port)
        except OSError as error:
            raise FailedPrecondition(
                f"agent.address: cannot listen on {agent.address}:{agent.port}: {error.strerror or error}",
                hint=_NOT_HERE if error.errno == errno.EADDRNOTAVAIL else _TAKEN,
            ) from error
        self._server.start([self._socket], tls)
        self._tasks.keep(self._renew)
        log.info("serving the kubelet's endpoints on https://%s:%d", agent.address, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()
        await self._server.close(_CLOSE_S)
        await self.collector.close()

    def _context(self) -> ssl.SSLContext:
        certificate, key = self._files
        authorities = self._agent.authentication.x509.client_ca_file
        return server_context("the kubelet", str(certificate), str(key), client_ca=authorities)

    def _make_certificate(self, addresses: Sequence[str]) -> None:
        host = self._node.name
        try:
            self_signed.ensure(*self._files, host, [host, "localhost"], ["127.0.0.1", *addresses])
        except (OSError, PodkeepError) as error:
            raise FailedPrecondition(
                f"the kubelet's certificate cannot be made: {error}", hint="set agent.tls_cert_file"
            ) from error

    async def _renew(self) -> None:
        """Take certificates, and authorities of clients, that were renewed."""
        for looks in count(1):
            moved = await self._node.addresses.moved(_LOOK_S)
            # Also when the node has another address: who asks it there expects that in the certificate.
            if self._certify is not None and (looks % _CERTIFY_LOOKS == 0 or moved):
                try:
                    await asyncio.to_thread(self._certify, self._node.host_ips)
                except PodkeepError as error:
                    log.warning("the kubelet's certificate is not renewed: %s", error)
            self.look()

    def look(self) -> None:
        """Take the files of the certificate, and of the clients' authorities, again if they have changed."""
        self._files = certificate_files(self._agent)
        now = _times((*self._files, *self._client_ca))
        if now == self._seen or self._socket is None:
            return
        try:
            # New settings: OpenSSL only adds authorities to those that are there, and would trust removed ones as well.
            self._server.renew(self._context())
        except FailedPrecondition as error:
            # Half of the pair, or of the authorities, may have been written.
            log.warning("what the kubelet's server has for TLS stays as it was for now: %s", error)
            return
        self._seen = now
        log.info("the kubelet's certificate %s was read again", self._files[0])


def serving_store(agent: AgentConfig) -> CertificateStore:
    """Return where the certificate is that a cluster signs for the server."""
    return CertificateStore(Path(agent.root) / "pki", "kubelet-server")


def certificate_files(agent: AgentConfig) -> tuple[Path, Path]:
    if agent.tls_cert_file:
        return Path(agent.tls_cert_file), Path(agent.tls_private_key_file)
    directory = Path(agent.root) / "pki"
    signed = serving_store(agent).current
    if agent.server_tls_bootstrap and signed.exists():
        return signed, signed
    return directory / "kubelet.crt", directory / "kubelet.key"


def _times(files: Sequence[Path]) -> tuple[float, ...]:
    found = []
    for file in files:
        with suppress(OSError):
            found.append(os.stat(file).st_mtime)
    return tuple(found)


def _groups(node: Node) -> dict[str, str]:
    """Return the cgroups of the system that statistics tell of: this process', and the one above all pods."""
    root = cgroup_names.root(node.config)
    pods = systemd.expand(root) if systemd.is_slice(root) else root
    own = _own_cgroup()
    return {"kubelet": own, "pods": pods} if own not in ("", "/") else {"pods": pods}


def _own_cgroup() -> str:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, names, path = line.split(":", 2)
            # Version 2 has one line, with number 0; version 1 has one for each hierarchy (cgroups(7)).
            if number == "0" or "memory" in names.split(","):
                return path
    return ""
