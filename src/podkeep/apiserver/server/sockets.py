"""Where the API listens: a unix socket for root, and TLS with certificates of its own authority or somebody else's."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from podkeep.apiserver.server import certificates, kubeconfig
from podkeep.apiserver.server.certificates import AUTHORITY, CLIENTS, KUBELET_CLIENT, Files
from podkeep.base.config import ApiConfig
from podkeep.base.errors import FailedPrecondition
from podkeep.base.text import netloc
from podkeep.http.connection import Limits
from podkeep.http.listener import tcp_socket, unix_socket
from podkeep.http.messages import Handler
from podkeep.http.server import Server
from podkeep.http.tls import server_context

log = logging.getLogger(__name__)

LIMITS = Limits(
    waiting=1024, admitted=8192, head_bytes=64 << 10, head_timeout=10.0, write_timeout=30.0, idle_timeout=180.0
)
SERVICE_ADDRESS = "10.0.0.1"
"""Of the service ``kubernetes``, at which pods reach the API: the first of the services' network."""


def make_certificates(api: ApiConfig, files: Files) -> float:
    """Make what certificates and keys are missing or old; blocks.

    :returns: when this is to be called again, in seconds since 1970.
    """
    endpoint = api.endpoint()
    # On all addresses no certificate can name each of them; pods know the service's.
    addresses = [SERVICE_ADDRESS, *([endpoint[0]] if endpoint and endpoint[0] not in ("0.0.0.0", "::") else [])]
    wanted = [certificates.api_server([socket.gethostname()], addresses), *CLIENTS, KUBELET_CLIENT]
    if api.node:
        wanted += certificates.of_node(api.node, ["127.0.0.1", "::1", *_own_addresses()])
    _, again = certificates.ensure(files, wanted, int(time.time()))
    return again


def _own_addresses() -> list[str]:
    """Return the addresses from which this machine reaches others: its kubelet is reached there."""
    found = []
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # RFC 5737, RFC 3849
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            try:
                probe.connect((anywhere, 9))  # sends nothing: it only looks up a route
            except OSError:
                continue
            found.append(str(probe.getsockname()[0]))
    return found


class Sockets:
    """The sockets of one server; bound when it is made, so that an address that is taken is told before all else."""

    def __init__(self, api: ApiConfig, files: Files) -> None:
        """Bind them.

        :raises FailedPrecondition: if one cannot be had, or a certificate cannot be used.
        """
        self._api, self._files = api, files
        self._unix: socket.socket | None = None
        self._tcp: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._served = False
        endpoint = api.endpoint()
        try:
            if api.unix_socket:
                self._unix = _bound("api.unix_socket", lambda: unix_socket(Path(api.unix_socket)))
            if endpoint is not None:
                self._tls = self._context()
                self._tcp = _bound("api.address", lambda: tcp_socket(*endpoint))
        except BaseException:
            self.close()
            raise
        if self._unix is None and self._tcp is None:
            raise FailedPrecondition("the API has nowhere to listen", hint="set api.unix_socket or api.address")

    def _pair(self) -> tuple[str, str]:
        if self._api.tls_cert:
            return self._api.tls_cert, self._api.tls_key
        return str(self._files.certificate("apiserver")), str(self._files.key("apiserver"))

    def _context(self) -> ssl.SSLContext:
        context = server_context("the API", *self._pair(), client_ca=str(self._files.certificate(AUTHORITY)))
        if self._api.client_ca:
            try:
                context.load_verify_locations(self._api.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise FailedPrecondition(f"api.client_ca: {self._api.client_ca} cannot be used: {error}") from error
        return context

    def renew(self) -> None:
        """Take certificates that were renewed for new connections; those that are there keep the old ones."""
        if self._tls is not None:
            self._tls.load_cert_chain(*self._pair(), password="")

    @property
    def address(self) -> str:
        """``IP:PORT`` of the TLS socket; empty if there is none."""
        if self._tcp is None:
            return ""
        host, port = self._tcp.getsockname()[:2]
        return netloc.join(host, port)

    def write_kubeconfigs(self) -> None:
        """Write the files with which administrators and components reach the TLS socket, if there is one."""
        if self._tcp is not None:
            host, port = self._tcp.getsockname()[:2]
            for path in kubeconfig.write_all(self._files, kubeconfig.server_url(host, port), self._api.node):
                log.info("wrote %s", path)

    @property
    def words(self) -> str:
        """Where that is, for people."""
        places = [f"unix://{self._unix.getsockname()}"] if self._unix else []
        places += [f"https://{self.address}"] if self._tcp else []
        return f"serving the API on {' and '.join(places)}"

    def serve(self, handler: Handler) -> list[Server]:
        """Serve all of them; the servers close them."""
        self._served = True
        servers = []
        for sock, tls in ((self._unix, None), (self._tcp, self._tls)):
            if sock is not None:
                server = Server("API", handler, LIMITS)
                server.start([sock], tls)
                servers.append(server)
        return servers

    def close(self) -> None:
        for sock in (self._unix, self._tcp):
            if sock is not None and not self._served:
                if sock.family == socket.AF_UNIX:
                    Path(sock.getsockname()).unlink(missing_ok=True)
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
