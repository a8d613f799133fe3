"""Making a connection to a server: its addresses, which of them are forbidden, a proxy, TLS.

What a registry sends us to (a redirect, a token server) is chosen by somebody who is not trusted. So the address that
is really connected to is judged, not the name: DNS cannot cheat. Runs in the worker only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any

import msgspec

from podkeep.base.errors import FailedPrecondition
from podkeep.base.text import netloc
from podkeep.images.registry.endpoint import Tls
from podkeep.images.registry.http1 import BrokenOff, Connection, TransferError
from podkeep.images.registry.proxies import Address, address_of, proxy_for
from podkeep.kernel.network import routes

if TYPE_CHECKING:
    import ssl

_REFUSED_HINT = 'if it is meant, give both registries an entry under [registries."HOST:PORT"]'
_CONNECT_S = 10.0
"""Seconds for one address, and for a TLS handshake."""
_MAX_ADDRESSES = 6
_LAST_FOUR = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
"""What stands for the IPv4 address in its last four bytes: IPv4-compatible and IPv4-mapped (RFC 4291, 2.5.5),
IPv4-translated (RFC 2765, 2.1), NAT64 (RFC 6052, 2.1)."""
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
"""NAT64 prefixes of a network's own choice (RFC 8215), each of which may have 48, 56, 64 or 96 bits (RFC 6052, 2.2)."""
_RFC_6052 = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))
"""Where the bytes of the IPv4 address are behind a prefix of 48, 56, 64 and 96 bits."""
_6TO4 = IPv6Network("2002::/16")
_ISATAP = (b"\0\0\x5e\xfe", b"\x02\0\x5e\xfe")
"""Third quarter of the address of an ISATAP interface, under any prefix (RFC 5214, 6.1)."""
_THIS_NETWORK = IPv4Network("0.0.0.0/8")
"""Of these Linux connects to 0.0.0.0, which is the machine itself."""
_METADATA = tuple(
    map(
        ip_network,
        (
            "100.100.100.200/32",
            "168.63.129.16/32",
            "192.0.0.192/32",
            "fd00:ec2::/64",
            "fd20:ce::254/128",
            "fd00:42::42/128",
        ),
    )
)
"""Where clouds serve a machine's own credentials, besides 169.254.0.0/16."""
_USUAL = IPv4Address("169.254.169.254")
"""The metadata service of most clouds. A NAT64 prefix can be any of a network's own: whatever ends with this stands for
it."""


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """Which addresses may be connected to besides those anybody may.

    ``loopback``: those of this machine, whether 127.0.0.1 or the address of one of its links. ``link_local``: those of
    its neighbours, and of metadata services.
    """

    loopback: bool
    link_local: bool


def meanings(address: Address) -> tuple[Address, ...]:
    """Return an address and those that it has inside, which a translator or a tunnel turns it into. Pure."""
    if address.version == 4:
        return (address,)
    data = address.packed
    inside: list[IPv4Address] = []
    if any(address in network for network in _LAST_FOUR) or data[8:12] in _ISATAP or data[12:] == _USUAL.packed:
        inside.append(IPv4Address(data[12:]))
    if address in _LOCAL_NAT64:
        places = (IPv4Address(bytes(data[index] for index in place)) for place in _RFC_6052)
        # Of a short prefix the rest is zero, which another one would read as the start of an address.
        inside += (found for found in places if found not in _THIS_NETWORK)
    if address in _6TO4:
        inside.append(IPv4Address(data[2:6]))
    if address.teredo is not None:
        inside += address.teredo
    return (address, *inside)


def forbidden(address: Address, allowed: Allowed, is_own: Callable[[Address], bool] = routes.is_own) -> str:
    """Return what is wrong with an address, or nothing.

    :param is_own: whether an address is this machine's; it is asked now, as addresses come and go.
    """
    for meaning in meanings(address):
        if not allowed.link_local and (meaning.is_link_local or any(meaning in network for network in _METADATA)):
            return "a link-local address or that of a metadata service"
        if not allowed.loopback and (
            meaning.is_loopback or meaning.is_unspecified or meaning in _THIS_NETWORK or is_own(meaning)
        ):
            return "an address of this machine itself"
    return ""


class Dialed(msgspec.Struct, frozen=True, kw_only=True):
    """A connection, and whether it leads to this machine itself; ``proxied``: plain requests need the whole URL."""

    connection: Connection
    loopback: bool
    proxied: str | None


class Dialer:
    """Makes connections; remembers TLS contexts, which are slow to make."""

    def __init__(self, *, timeout: float, environ: Mapping[str, str] = os.environ) -> None:
        self._timeout = timeout
        self._environ = environ
        self._contexts: dict[Tls, ssl.SSLContext] = {}

    def dial(self, scheme: str, host: str, port: int, tls: Tls, allowed: Allowed) -> Dialed:
        """Connect to a server.

        :raises TransferError: if that does not work.
        :raises FailedPrecondition: if it may not be connected to, or the configuration is wrong.
        """
        proxy = proxy_for(scheme, host, port, self._environ)
        authorization = "" if proxy is None else proxy.authorization
        if proxy is None:
            sock = _connect(host, port, allowed)
        else:
            _judge_name(host, allowed)  # what the name means there is the proxy's business
            try:
                sock = _connect(proxy.host, proxy.port, Allowed(loopback=True, link_local=True))
            except TransferError as error:
                raise TransferError(
                    f"proxy {proxy.host}:{proxy.port}: {error}",
                    hint=f"check {scheme.upper()}_PROXY and NO_PROXY in the runtime's environment",
                ) from error
        try:
            # Asked of the connection itself: the name may have several addresses.
            loopback = proxy is None and bool(forbidden(_peer(sock), Allowed(loopback=False, link_local=True)))
            if scheme == "https":
                if proxy is not None:
                    self._tunnel(sock, host, port, authorization)
                sock = self._wrapped(sock, host, tls)
        except BaseException:
            sock.close()
            raise
        return Dialed(
            connection=Connection(sock, timeout=self._timeout),
            loopback=loopback,
            proxied=authorization if proxy is not None and scheme == "http" else None,
        )

    def _tunnel(self, sock: socket.socket, host: str, port: int, authorization: str) -> None:
        name = netloc.join(host, port)
        headers = {"Host": name} | ({"Proxy-Authorization": authorization} if authorization else {})
        answer = Connection(sock, timeout=_CONNECT_S).exchange("CONNECT", name, headers)
        if not 200 <= answer.status < 300:
            raise TransferError(f"the proxy refuses to connect ({answer.status})", hint="check HTTPS_PROXY")

    def _wrapped(self, sock: socket.socket, host: str, tls: Tls) -> socket.socket:
        import ssl  # most of what a worker imports; a registry on plain HTTP needs none of it

        try:
            if tls not in self._contexts:
                self._contexts[tls] = _context(tls)
            seconds = min(_CONNECT_S, self._timeout)
            sock.settimeout(seconds)
            return self._contexts[tls].wrap_socket(sock, server_hostname=host)
        except ssl.SSLError as error:
            raise TlsFailed(f"TLS: {str(error).strip()}") from error
        except TimeoutError as error:
            raise TlsFailed(f"TLS: no handshake within {seconds:g} s") from error
        except OSError as error:
            raise TlsFailed(f"TLS: the connection broke in the handshake: {error.strerror or error}") from error
        except ValueError as error:  # behind a proxy nobody had looked it up before
            raise TlsFailed(f"TLS: {host[:255]!r} is not a host name") from error


class TlsFailed(TransferError):
    """The server was reached, and TLS could not be spoken with it."""


def _context(tls: Tls) -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.hostname_checks_common_name = False  # a name that no authority checked (RFC 9525, 4.1)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_default_certs()
    what = tls.ca_file
    try:
        if tls.verify and tls.ca_file:
            context.load_verify_locations(tls.ca_file)
        what = f"{tls.cert_file}, {tls.key_file}"
        if tls.cert_file:
            # The callback keeps OpenSSL from asking the terminal for a passphrase.
            context.load_cert_chain(tls.cert_file, tls.key_file or None, password=lambda: "")
    except OSError as error:  # ssl.SSLError is one
        raise FailedPrecondition(
            f"cannot use {what} for TLS: {error.strerror or error}", hint="it must be a PEM file that is not encrypted"
        ) from error
    return context


def _connect(host: str, port: int, allowed: Allowed) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise TransferError(
            f"no address for {host!r}: {reason}", hint="check the name, and this node's DNS (/etc/resolv.conf)"
        ) from error
    reasons: list[str] = []
    refused = ""
    for family, kind, protocol, _, address in found[:_MAX_ADDRESSES]:
        shown = netloc.join(str(address[0]), port)
        # Of the address that is connected to next, so that no second look-up can give another one.
        if why := forbidden(_numeric(address), allowed):
            refused = f"{shown} is {why}"
            continue
        sock = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        try:
            sock.settimeout(_CONNECT_S)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError:
            sock.close()
            reasons.append(f"{shown}: no answer within {_CONNECT_S:g} s")
        except OSError as error:
            sock.close()
            reasons.append(f"{shown}: {(error.strerror or str(error)).lower()}")
        else:
            return sock
    if refused and not reasons:
        raise FailedPrecondition(f"{host}: {refused}, which is refused", hint=_REFUSED_HINT)
    raise TransferError(
        f"cannot connect to {', '.join(reasons)}",
        hint="check that it runs, that this node can reach it (route, firewall), and whether it needs a proxy",
    )


def _numeric(address: tuple[Any, ...]) -> Address:
    """Return the IP address in what the socket module calls an address."""
    return ip_address(str(address[0]).partition("%")[0])


def _peer(sock: socket.socket) -> Address:
    try:
        return _numeric(sock.getpeername())
    except OSError as error:
        raise BrokenOff(f"the connection broke: {error.strerror}") from error


def _judge_name(host: str, allowed: Allowed) -> None:
    """Judge a host that a proxy will look up: all that can be told is what an address in numbers means."""
    address = address_of(host)
    if address is None:
        try:
            address = IPv4Address(socket.inet_aton(host))  # also the odd forms, as 0xa9fea9fe
        except OSError:
            return
    if why := forbidden(address, allowed):
        raise FailedPrecondition(f"{host} is {why}, which is refused", hint=_REFUSED_HINT)
