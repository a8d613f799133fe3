"""What the process that makes keys and requests is told, and what it answers: one JSON value each."""

from __future__ import annotations

import msgspec

from podkeep.base.errors import FailedPrecondition

_TIMEOUT_S = 60.0


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a certificate is for."""

    common_name: str
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A request to make for a subject, with a key that is there or a new one; or a certificate to read."""

    subject: Subject | None = None
    key: str = ""
    certificate: str = ""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What was made or read; PEM, times in seconds since 1970. ``problem``: why there is nothing."""

    problem: str = ""
    key: str = ""
    request: str = ""
    public_key: bytes = b""
    """As DER."""
    not_before: int = 0
    not_after: int = 0
    common_name: str = ""


async def deliver(order: Order) -> Delivery:
    """Have an order carried out in a process of its own: the libraries it needs take more memory than the agent.

    :raises FailedPrecondition: if it cannot be.
    """
    # The process itself, which has the types from here, needs neither.
    import asyncio

    from podkeep.base import spawn

    command = spawn.own_command("podkeep.agent.certificates.worker")
    done = await asyncio.to_thread(spawn.run, command, stdin=msgspec.json.encode(order), timeout=_TIMEOUT_S)
    delivery = msgspec.json.decode(done.check().stdout, type=Delivery)
    if delivery.problem:
        raise FailedPrecondition(delivery.problem)
    return delivery
