"""Addresses of the node that others take the place of, after a change of its network."""

from __future__ import annotations

import asyncio

import pytest

from podkeep.agent import node


def test_other_addresses_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = node.HostAddresses()

    async def go() -> list[bool]:
        monkeypatch.setattr(node, "host_ips", lambda: ("192.0.2.50",))
        waiting = asyncio.ensure_future(addresses.moved(60))
        assert addresses.look() == ("192.0.2.50",)
        addresses.look()
        return [await waiting, await addresses.moved(0.01)]

    assert asyncio.run(go()) == [True, False]
    monkeypatch.setattr(node, "host_ips", lambda: ("127.0.0.1",))
    assert addresses.look() == ("192.0.2.50",)
