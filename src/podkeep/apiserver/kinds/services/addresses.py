"""IP addresses and networks in fields, in the words of Kubernetes (apimachinery: ``util/validation/ip.go``). Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Set
from typing import TypeAlias

from podkeep.api.fields import FieldErrors

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")
_LINK_LOCAL = (ipaddress.ip_network("169.254.0.0/16"), ipaddress.ip_network("fe80::/10"))
_LINK_LOCAL_MULTICAST = (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))


def parse(text: str) -> Address | None:
    """Return the address that a text is; with zeros that nothing needs, and of one in IPv6 for IPv4 the latter."""
    address = _parse(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _parse(text: str) -> Address | None:
    head, colon, tail = text.rpartition(":")
    if "." in tail:
        # Zeros at the beginning of a number in IPv4 are taken as decimal, as Go once did (k8s.io/utils: ParseIPSloppy).
        text = f"{head}{colon}{_ZEROS.sub('', tail)}"
    try:
        # Go's net.ParseIP takes no zones of IPv6.
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_exact(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def family(text: str) -> str:
    """Return ``IPv4`` or ``IPv6``, what an address belongs to; ``unknown`` if it is none."""
    address = parse(text)
    return f"IPv{address.version}" if address else "unknown"


def validate(
    path: str, text: str, errors: FieldErrors, *, old: Set[str] = frozenset(), canonical: bool = False
) -> bool:
    """Note what is no IP address; return whether it is one.

    :param old: what the old object has there is taken as it is.
    :param canonical: it must be written as RFC 5952 says.
    """
    if text in old:
        return True
    address = _parse(text)
    if address is None:
        errors.invalid(path, text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
        return False
    if not _is_exact(text):
        errors.invalid(path, text, "must not have leading 0s")
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        errors.invalid(path, text, "must not be an IPv4-mapped IPv6 address")
        return False
    if canonical and str(address) != text:
        errors.invalid(path, text, f'must be in canonical form ("{address}")')
        return False
    return True


def validate_destination(path: str, text: str, errors: FieldErrors) -> None:
    """Note an address that nothing else can be reached at (``ValidateEndpointIP``)."""
    address = parse(text)
    if address is None:
        errors.invalid(path, text, "must be a valid IP address")
        return
    for wrong, why in (
        (address.is_unspecified, f"may not be unspecified ({text})"),
        (address.is_loopback, "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (_within(address, _LINK_LOCAL), "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (
            _within(address, _LINK_LOCAL_MULTICAST),
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        ),
    ):
        if wrong:
            errors.invalid(path, text, why)


def _within(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def validate_network(path: str, text: str, errors: FieldErrors, *, old: Set[str] = frozenset()) -> None:
    """Note what is no network in CIDR notation; ``old`` is as in :func:`validate`."""
    if text in old:
        return
    address, bits = _split(text)
    if address is None or bits is None:
        errors.invalid(path, text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
    elif not _is_exact(text.partition("/")[0]) or text.partition("/")[2] != str(bits):
        errors.invalid(path, text, "must not have leading 0s in IP or prefix length")
    elif isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        errors.invalid(path, text, "must not have an IPv4-mapped IPv6 address")
    elif ipaddress.ip_network(f"{address}/{bits}", strict=False).network_address != address:
        errors.invalid(path, text, "must not have bits set beyond the prefix length")


def _split(text: str) -> tuple[Address | None, int | None]:
    given, _, length = text.partition("/")
    address = _parse(given)
    if address is None or not re.fullmatch("[0-9]{1,9}", length) or int(length) > address.max_prefixlen:
        return None, None
    return address, int(length)


def warnings(path: str, text: str) -> list[str]:
    """Return what is to be said of an address that is taken but not written as others expect it."""
    address = _parse(text)
    if address is None:
        return []
    if not _is_exact(text) or (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped):
        return [f'{path}: non-standard IP address "{text}" is invalid: use "{parse(text)}"']
    if str(address) != text:
        return [f'{path}: IPv6 address "{text}" should be in RFC 5952 canonical format ("{address}")']
    return []


def network_warnings(path: str, text: str) -> list[str]:
    """Return what is to be said of a network that is taken but not written as others expect it."""
    address, bits = _split(text)
    if address is None or bits is None:
        return []
    network = ipaddress.ip_network(f"{address}/{bits}", strict=False)
    found = []
    if network.network_address != address:
        single = f"{address}/{address.max_prefixlen}"
        found.append(f'{path}: CIDR value "{text}" is ambiguous in this context (should be "{network}" or "{single}"?)')
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped
    if mapped or not _is_exact(text.partition("/")[0]) or text.partition("/")[2] != str(bits):
        found.append(f'{path}: non-standard CIDR value "{text}" is invalid: use "{network}"')
    if not found and address.version == 6 and str(network) != text:
        found.append(f'{path}: IPv6 CIDR value "{text}" should be in RFC 5952 canonical format ("{network}")')
    return found
