"""Which proxy the environment names for a server, by the rules of Go's programs, which set what people expect.

``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY``, in capitals or not (golang.org/x/net/http/httpproxy). Pure.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from podkeep.base.errors import FailedPrecondition

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
    basic = f"Basic {base64.b64encode(pair.encode()).decode()}" if parts.username else ""
    return Proxy(host=parts.hostname, port=number, authorization=basic)


def _direct(host: str, port: int, no_proxy: str) -> bool:
    host = host.lower().rstrip(".")
    address = packed(host)
    if host == "localhost" or (address and _is_loopback(address)):
        return True
    return any(_covers(entry.strip().lower(), host, port, address) for entry in no_proxy.split(",") if entry.strip())


def _covers(entry: str, host: str, port: int, address: bytes) -> bool:
    if entry == "*":
        return True
    network, slash, length = entry.partition("/")
    if slash:
        return bool(address) and length.isdecimal() and _in_network(address, packed(network), int(length))
    name, colon, number = entry.rpartition(":")
    if colon and number.isdecimal() and (":" not in name or name.startswith("[")):
        if int(number) != port:
            return False
        entry = name
    entry = entry.removeprefix("[").removesuffix("]")
    if wanted := packed(entry):
        return address == wanted
    entry = entry.removeprefix("*")
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")


def packed(host: str) -> bytes:
    """Return the bytes of an IP address, 4 or 16; none of a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
    return b""


def _is_loopback(address: bytes) -> bool:
    return address[0] == 127 if len(address) == 4 else address == socket.inet_pton(socket.AF_INET6, "::1")


def _in_network(address: bytes, network: bytes, length: int) -> bool:
    bits = len(address) * 8
    if len(network) != len(address) or length > bits:
        return False
    shift = bits - length
    return int.from_bytes(address, "big") >> shift == int.from_bytes(network, "big") >> shift
