"""The subnets that pods of the built-in bridge get their addresses from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network

from podkeep.base.config import NetworkConfig
from podkeep.base.errors import InvalidArgument
from podkeep.kernel.network.netlink import Interface
from podkeep.kernel.network.routes import Route

Subnet = IPv4Network | IPv6Network

_MAX_PREFIX = {4: 29, 6: 125}
"""Smallest subnets that make sense: a router and a few pods."""
_NOT_FOR_PODS = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/8", "fe80::/10", "ff00::/8")
"""What means something of its own (IANA special-purpose registries). So a subnet is never all there is, either: the
machine would look for everything on the bridge.
"""
_EXAMPLE = {4: "10.183.0.0/16", 6: "fd10:183::/64"}


def of_config(config: NetworkConfig) -> tuple[Subnet, ...]:
    """Return the subnets of ``[network]``.

    :raises InvalidArgument: if one is none of its family, or too small.
    """
    result: list[Subnet] = [_subnet("network.subnet", config.subnet, 4)]
    if config.subnet6:
        result.append(_subnet("network.subnet6", config.subnet6, 6))
    return tuple(result)


def of_pod_cidr(text: str, configured: Sequence[Subnet] = ()) -> tuple[Subnet, ...]:
    """Return the subnets of CRI's NetworkConfig.pod_cidr: one, or one of each family, separated by a comma.

    A kubelet that names one family does not turn the other one off: it is followed by that of ``configured``.

    :raises InvalidArgument: if it is not that.
    """
    key = "runtime_config.network_config.pod_cidr"
    result: list[Subnet] = []
    for part in text.split(","):
        family = 6 if ":" in part else 4
        result.append(_subnet(key, part.strip(), family))
    if len({item.version for item in result}) != len(result):
        raise InvalidArgument(f"{key}: {text!r} has two subnets of one family")
    named = {item.version for item in result}
    return (*result, *(item for item in configured if item.version not in named))


def _subnet(key: str, text: str, family: int) -> Subnet:
    hint = f"write it as {_EXAMPLE[family]}"
    try:
        subnet = ip_network(text)
    except ValueError as error:
        raise InvalidArgument(f"{key}: {error}", hint=hint) from error
    if subnet.version != family:
        raise InvalidArgument(f"{key}: {subnet} is not IPv{family}", hint=hint)
    if subnet.prefixlen > _MAX_PREFIX[family]:
        raise InvalidArgument(f"{key}: {subnet} is too small", hint=f"use /{_MAX_PREFIX[family]} or larger")
    for other in map(ip_network, _NOT_FOR_PODS):
        if overlap(subnet, other):
            raise InvalidArgument(
                f"{key}: pods cannot have addresses of {subnet}: it has some of {other} in it", hint=hint
            )
    return subnet


def overlap(one: Subnet, other: Subnet) -> bool:
    if isinstance(one, IPv4Network) and isinstance(other, IPv4Network):
        return one.overlaps(other)
    return isinstance(one, IPv6Network) and isinstance(other, IPv6Network) and one.overlaps(other)


def in_the_way(subnet: Subnet, routes: Iterable[Route], bridge: str) -> Route | None:
    """Return a route of the machine that would not go together with a bridge that has ``subnet``, if there is one.

    That is one to a part of it, or all: pods there could not be reached; or one to neighbours of which the subnet is a
    part: they could not be reached. A larger network behind a router is none: it is reached but for the subnet, as
    where each node of a cluster has a part of one network.
    """
    for route in routes:
        if route.link == bridge or not overlap(subnet, route.network):
            continue
        if route.network.prefixlen >= subnet.prefixlen or not route.has_router:
            return route
    return None


def router(subnet: Subnet) -> Interface:
    """Return the bridge's own address in a subnet: the first one."""
    return ip_interface(f"{subnet.network_address + 1}/{subnet.prefixlen}")


def text(subnets: Sequence[Subnet]) -> str:
    """Return subnets in the form of a pod_cidr."""
    return ",".join(map(str, subnets))
