"""Requests to one registry and to what it refers to: connections kept for the next request, and redirects.

Owns: where a request may go. Credentials stay with the host they are for, TLS is never left, and no redirect leads to
a file or to an address that only this machine should reach. Used by several threads of the worker.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import parse_qsl, quote, urljoin, urlsplit

import msgspec

from podkeep import __version__
from podkeep.base.errors import FailedPrecondition
from podkeep.base.text import netloc
from podkeep.base.text.redaction import remember
from podkeep.images.registry.dialing import Allowed, Dialer
from podkeep.images.registry.endpoint import Tls
from podkeep.images.registry.http1 import Answer, BrokenOff, Connection, TransferError

MAX_REDIRECTS = 5
Body = Callable[[], bytes | Iterable[bytes]]
"""Opens what is to be sent, anew for each attempt."""
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_URL = 16 << 10
_SIGNATURE = 16
"""Characters of a query's value that may be one."""
_HOST = re.compile(r"[A-Za-z0-9._~:-]{1,255}")
"""A name as DNS has it, or an address: a host goes into headers, and into the first line for a proxy."""
_SAFE = "/%:@!$&'()*+,;=~?[]|"


class Url(msgspec.Struct, frozen=True, kw_only=True):
    """A checked http(s) URL. ``host`` has no brackets; ``target`` is path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """What credentials are bound to."""
        return self.scheme, self.host, self.port

    @property
    def netloc(self) -> str:
        """``host[:port]`` as in a Host header and in ``[registries]``."""
        host = netloc.bracketed(self.host)
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def names(self) -> tuple[str, str]:
        """What its server may be called in names of images and in ``[registries]``: without the usual port, and with
        any."""
        return self.netloc, netloc.join(self.host, self.port)

    def __str__(self) -> str:
        """Return it for people: without the query, which may hold a signature that opens the door."""
        return f"{self.scheme}://{self.netloc}{self.target.partition('?')[0][:200]}"


def parse_url(text: str) -> Url:
    """Return a URL as a value.

    :raises FailedPrecondition: if it is no http or https URL, or holds credentials.
    """
    try:
        parts = urlsplit(text)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError:
        scheme, host, port, parts = "", "", None, urlsplit("")
    if scheme not in _PORTS or not _HOST.fullmatch(host) or port == 0 or len(text) > _MAX_URL:
        raise FailedPrecondition(f"{text.partition('?')[0][:200]!r} is not an http or https URL")
    # They would be in every message that names the URL.
    if "@" in parts.netloc:
        raise FailedPrecondition(f"a URL of {host} has credentials in it, which is refused")
    # What is not allowed in a request's first line is escaped, as browsers do.
    target = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE)}" if parts.query else "")
    return Url(scheme=scheme, host=host.rstrip("."), port=port or _PORTS[scheme], target=target)


class Client:
    """Sends requests for one registry.

    :param home: ``host[:port]`` of the registry. What it refers to may be on this machine only if the registry is, or
        if the configuration names both.
    :param tls: settings by ``host[:port]``, those of the registry among them.
    :param trusted: whether the configuration names the registry: it may then be at a link-local address.
    """

    def __init__(self, home: str, *, tls: Mapping[str, Tls], trusted: bool, timeout: float) -> None:
        self._home = home.lower()
        self._tls = {host.lower(): settings for host, settings in tls.items()}
        self._trusted = trusted
        self._dialer = Dialer(timeout=timeout)
        self._home_is_here = False
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str, int], list[tuple[Connection, str | None]]] = {}

    def send(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str],
        *,
        authorization: str = "",
        body: bytes | Iterable[bytes] = b"",
    ) -> Answer:
        """Send one request and return its answer, whatever it says; no redirect is followed.

        :raises TransferError: if there is no answer.
        :raises FailedPrecondition: if the address may not be connected to.
        """
        # identity: a blob's digest is of the bytes as they are sent.
        sent = {"Host": url.netloc, "User-Agent": f"podkeep/{__version__}", "Accept-Encoding": "identity", **headers}
        if authorization:
            remember(authorization.partition(" ")[2])
            sent["Authorization"] = authorization
        while True:
            connection, proxied = self._connection(url)
            whole = sent | ({"Proxy-Authorization": proxied} if proxied else {})
            target = url.target if proxied is None else f"{url.scheme}://{url.netloc}{url.target}"
            # A kept connection may have been closed by its server meanwhile; nothing else is sent twice, it might be
            # done twice.
            again = connection.used and method in ("GET", "HEAD")
            try:
                return self._kept(connection.exchange(method, target, whole, body), url, connection, proxied)
            except BrokenOff:
                connection.close()
                if not (again and connection.untouched):
                    raise
            except BaseException:
                connection.close()
                raise

    def follow(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str],
        *,
        authorization: str = "",
        owner: tuple[str, str, int] | None = None,
        body: Body | None = None,
    ) -> Answer:
        """Send a request and follow redirects.

        :param authorization: goes to ``owner`` only, which is the origin of ``url`` if it is not given.
        :raises TransferError: if there is no answer, or no end of redirects.
        :raises FailedPrecondition: if a redirect is refused.
        """
        here, owner = url, owner or url.origin
        # Of other redirects clients make a GET, which is no way to send something.
        followed = _REDIRECTS if method in ("GET", "HEAD") else (307, 308)
        for _ in range(MAX_REDIRECTS + 1):
            answer = self.send(
                method,
                here,
                headers,
                # Storage that a registry redirects to has signatures in its URLs, and no business with the login.
                authorization=authorization if here.origin == owner else "",
                body=body() if body else b"",
            )
            location = answer.headers.get("Location", "")
            if answer.status not in followed or not location:
                answer.origin = here.origin
                return answer
            answer.close()
            here = self._redirected(here, location)
        raise TransferError(f"more than {MAX_REDIRECTS} redirects")

    def _redirected(self, here: Url, location: str) -> Url:
        try:
            there = parse_url(urljoin(f"{here.scheme}://{here.netloc}{here.target}", location))
        except FailedPrecondition as error:
            raise FailedPrecondition(f"{self._home} redirects, and that is refused: {error}") from error
        except ValueError:  # not in its words: they may have a user and a password
            raise FailedPrecondition(f"{self._home} redirects, and that is refused: it is no URL") from None
        # Whoever has a signature may do what it is for.
        query = there.target.partition("?")[2]  # of the target alone urlsplit would take a second slash for a host
        values = (value for _, value in parse_qsl(query) if len(value) >= _SIGNATURE)
        remember(*(value for value in values if value not in f"{self._home}/{here.target}"))
        if here.scheme == "https" and there.scheme != "https":
            raise FailedPrecondition(f"{self._home} redirects from TLS to {there}, which is refused")
        return there

    def _connection(self, url: Url) -> tuple[Connection, str | None]:
        while True:
            with self._lock:
                idle = self._idle.get(url.origin)
                kept = idle.pop() if idle else None
            if kept is None:
                break
            if not kept[0].dropped():
                return kept
            kept[0].close()
        home = self._is_home(url)
        dialed = self._dialer.dial(
            url.scheme,
            url.host,
            url.port,
            self._tls_of(url),
            Allowed(
                loopback=home or self._home_is_here or (self._trusted and self._is_configured(url)),
                link_local=home and self._trusted,
            ),
        )
        if home:
            # A registry on this machine may refer to others here, as its own token server.
            self._home_is_here = dialed.loopback
        return dialed.connection, dialed.proxied

    def _is_home(self, url: Url) -> bool:
        return self._home in url.names

    def _is_configured(self, url: Url) -> bool:
        """Return whether the node's configuration names a server, so that its being on this machine is meant."""
        return not self._tls.keys().isdisjoint(url.names)

    def close(self) -> None:
        """Close idle connections; the next request makes one."""
        with self._lock:
            idle = [connection for kept in self._idle.values() for connection, _ in kept]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _tls_of(self, url: Url) -> Tls:
        for name in url.names:
            if name in self._tls:
                found = self._tls[name]
                # A registry that is not configured must not make us use our certificate elsewhere.
                return found if self._trusted or self._is_home(url) else Tls(verify=found.verify, ca_file=found.ca_file)
        # What the registry refers to may need its authority. Our certificate says who we are, to nobody but whom it is
        # for; and not to check one is a risk that was taken for this host only.
        own = self._tls[self._home]
        here = parse_url(f"https://{self._home}").host == url.host
        return Tls(verify=own.verify or not here, ca_file=own.ca_file)

    def _kept(self, answer: Answer, url: Url, connection: Connection, proxied: str | None) -> Answer:
        def keep() -> None:
            with self._lock:
                self._idle.setdefault(url.origin, []).append((connection, proxied))

        connection.on_release = keep
        return answer
