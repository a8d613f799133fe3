"""What the process that makes keys and certificates is told, and what it answers: one JSON value each."""

from __future__ import annotations

import msgspec

AUTHORITY_DAYS = 3650
DAYS = 365
"""Of every other certificate."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate: ``name`` is its files', ``server`` and ``client`` are what it is for."""

    name: str
    common_name: str
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    server: bool = False
    client: bool = False
    days: int = DAYS


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its key as PEM; times are seconds since 1970."""

    certificate: str
    key: str
    not_before: int
    not_after: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker is to make. ``authority`` is the one that is there; ``new_authority``: make it (anew)."""

    now: int
    wanted: tuple[Wanted, ...] = ()
    authority: tuple[str, str] | None = None
    new_authority: bool = False
    accounts_key: bool = False


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker made, by name. ``accounts`` are the private and the public key of service accounts."""

    authority: Pair | None = None
    pairs: dict[str, Pair] = {}
    accounts: tuple[str, str] | None = None
    problem: str = ""
