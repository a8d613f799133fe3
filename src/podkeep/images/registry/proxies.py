"""Which proxy the environment names for a server, by the rules of Go's programs, which set what people expect.

``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY``, in capitals or not (golang.org/x/net/http/httpproxy). Those of
``urllib.request`` know no networks in ``NO_PROXY``, which is where a cluster's are. Pure.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import unquote, urlsplit

from podkeep.base.errors import FailedPrecondition
from podkeep.base.text.redaction import remember

Address = IPv4Address | IPv6Address
_PORT = re.compile("[0-9]{1,5}")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """An HTTP proxy; ``authorization`` is the value of its Proxy-Authorization, or nothing."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)


def proxy_for(scheme: str, host: str, port: int, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for a server, or None for a direct connection.

    :raises FailedPrecondition: if the environment names one that is none, or of a kind that is not supported.
    """
    name = f"{scheme.upper()}_PROXY"
    # A web server passes a client's "Proxy:" header on under that name.
    text = "" if scheme == "http" and "REQUEST_METHOD" in environ else environ.get(name) or environ.get(name.lower())
    if not text or _direct(host, port, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return None
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        number = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        parts, number = urlsplit(""), 0
    if parts.scheme != "http" or not parts.hostname or not number:
        # The value may hold a password.
        raise FailedPrecondition(
            f"{name} in the environment is not the address of an HTTP proxy",
            hint="write it like http://proxy.example:3128; proxies over TLS and SOCKS are not supported",
        )
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    remember(unquote(parts.password or ""))
    basic = f"Basic {base64.b64encode(pair.encode()).decode()}" if parts.username else ""
    return Proxy(host=parts.hostname, port=number, authorization=basic)


def _direct(host: str, port: int, no_proxy: str) -> bool:
    host = host.lower().rstrip(".")
    address = address_of(host)
    # As httpproxy of Go: this machine is never asked through a proxy.
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_covers(entry.strip().lower(), host, port, address) for entry in no_proxy.split(",") if entry.strip())


def _covers(entry: str, host: str, port: int, address: Address | None) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address in ip_network(entry, strict=False) if address else False
        except ValueError:
            return False
    name, colon, number = entry.rpartition(":")
    if colon and _PORT.fullmatch(number) and (":" not in name or name.startswith("[")):
        if int(number) != port:
            return False
        entry = name
    entry = entry.removeprefix("[").removesuffix("]")
    if wanted := address_of(entry):
        return address == wanted
    entry = entry.removeprefix("*")
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")


def address_of(host: str) -> Address | None:
    """Return a host that is an IP address as one, without its zone; None for a name."""
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None
