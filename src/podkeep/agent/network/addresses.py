"""Addresses of a pod in the order in which they are reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def by_family(addresses: Iterable[str], host_ips: Sequence[str]) -> tuple[str, ...]:
    """Return ``addresses`` with those of the family of the node's first address first."""
    is_ipv6 = ":" in next(iter(host_ips), "")
    return tuple(sorted(addresses, key=lambda address: (":" in address) is not is_ipv6))
