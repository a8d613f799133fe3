"""The subnets that pods of the built-in bridge get their addresses from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network

from podkeep.base.config import NetworkConfig
from podkeep.base.errors import InvalidArgument
from podkeep.kernel.netlink import Interface

Subnet = IPv4Network | IPv6Network

_MAX_PREFIX = {4: 29, 6: 125}
"""Smallest subnets that make sense: a router and a few pods."""
_EXAMPLE = {4: "10.183.0.0/16", 6: "fd10:183::/64"}


def of_config(config: NetworkConfig) -> tuple[Subnet, ...]:
    """Return the subnets of ``[network]``.

    :raises InvalidArgument: if one is none of its family, or too small.
    """
    result: list[Subnet] = [_subnet("network.subnet", config.subnet, 4)]
    if config.subnet6:
        result.append(_subnet("network.subnet6", config.subnet6, 6))
    return tuple(result)


def of_pod_cidr(text: str) -> tuple[Subnet, ...]:
    """Return the subnets of CRI's NetworkConfig.pod_cidr: one, or one of each family, separated by a comma.

    :raises InvalidArgument: if it is not that.
    """
    key = "runtime_config.network_config.pod_cidr"
    result = []
    for part in text.split(","):
        family = 6 if ":" in part else 4
        result.append(_subnet(key, part.strip(), family))
    if len({item.version for item in result}) != len(result):
        raise InvalidArgument(f"{key}: {text!r} has two subnets of one family")
    return tuple(result)


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
    if subnet.is_loopback or subnet.is_multicast or subnet.is_link_local:
        raise InvalidArgument(f"{key}: pods cannot have addresses of {subnet}", hint=hint)
    return subnet


def router(subnet: Subnet) -> Interface:
    """Return the bridge's own address in a subnet: the first one."""
    return ip_interface(f"{subnet.network_address + 1}/{subnet.prefixlen}")


def text(subnets: Sequence[Subnet]) -> str:
    """Return subnets in the form of a pod_cidr."""
    return ",".join(map(str, subnets))
