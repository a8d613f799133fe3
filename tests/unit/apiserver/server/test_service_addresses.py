"""Services get addresses while other services are being written."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path
from typing import Any

import pytest

from podkeep.apiserver.kinds.resources import Target
from podkeep.apiserver.kinds.services.service_allocation import Ranges
from podkeep.apiserver.kinds.services.services import SERVICES
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.registry.registry import DeleteOptions, Registry, Request
from podkeep.apiserver.server.service_addresses import ServiceAddresses
from podkeep.apiserver.storage import store as storage
from podkeep.apiserver.storage.store import Store

RANGES = Ranges((ipaddress.ip_network("10.0.0.0/29"),), range(30_000, 30_003))
ME = Request(field_manager="me")


def _service(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


def _at(name: str, subresource: str = "") -> Target:
    return Target(SERVICES, "default", name, subresource)


def test_what_is_being_written_is_not_given_out_again(tmp_path: Path) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            registry = Registry(store, ServiceAddresses(store, RANGES))
            created = await asyncio.gather(
                *(registry.create(_at(f"a{index}"), _service(f"a{index}"), ME) for index in range(6))
            )
            ips = {value["spec"]["clusterIP"] for value in created}
            assert ips == {f"10.0.0.{index}" for index in range(1, 7)}
            assert all(value["spec"]["clusterIPs"] == [value["spec"]["clusterIP"]] for value in created)
            with pytest.raises(StatusError, match='a serviceIP for Service "b": range is full') as caught:
                await registry.create(_at("b"), _service("b"), ME)
            assert caught.value.code == 500
            deletion = registry.delete(_at("a0"), DeleteOptions(), ME)
            again = registry.create(_at("b"), _service("b"), ME)
            _, value = await asyncio.gather(deletion, again)
            assert value["spec"]["clusterIP"] == created[0]["spec"]["clusterIP"]

    asyncio.run(steps())


def test_a_port_that_is_asked_for_twice_is_given_once(tmp_path: Path) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            registry = Registry(store, ServiceAddresses(store, RANGES))
            given = {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_001}]}
            one, other = await asyncio.gather(
                *(registry.create(_at(name), _service(name, **given), ME) for name in "ab"), return_exceptions=True
            )
            assert isinstance(one, dict)
            assert isinstance(other, StatusError)
            assert other.message == (
                'Service "b" is invalid: spec.ports[0].nodePort: Invalid value: 30001: provided port is already'
                " allocated"
            )
            value, _ = await registry.update(_at("a"), _service("a", type="NodePort"), ME)
            assert value["spec"]["ports"][0]["nodePort"] == 30_001
            assert value["spec"]["clusterIP"] == one["spec"]["clusterIP"]
            status = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}
            with pytest.raises(StatusError, match="may only be used when"):
                await registry.update(_at("a", "status"), value | {"status": status}, ME)

    asyncio.run(steps())


def test_a_service_is_read_once_while_it_stays_the_same(tmp_path: Path) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            plugin = ServiceAddresses(store, RANGES)
            registry = Registry(store, plugin)
            large = {f"key-{number}": "x" * 60 for number in range(1_000)}
            await registry.create(_at("a"), _service("a", selector=large), ME)
            (first,) = plugin.services()
            assert len(str(first)) < 500
            (again,) = plugin.services()
            assert again is first
            await registry.create(_at("b"), _service("b"), ME)
            assert any(found is first for found in plugin.services())
            await registry.delete(_at("a"), DeleteOptions(), ME)
            assert [found["metadata"]["name"] for found in plugin.services()] == ["b"]
            # On its way, too; what there is at the start counts as what comes later.
            moving = asyncio.create_task(registry.create(_at("c"), _service("c"), ME))
            await asyncio.sleep(0)
            assert store.pending()
            one, other = (list(plugin.services()) for _ in range(2))
            assert sorted(found["metadata"]["name"] for found in one) == ["b", "c"]
            assert all(found is same for found, same in zip(one, other, strict=True))
            await moving
            anew = ServiceAddresses(store, RANGES).services()
            assert sorted(found["metadata"]["name"] for found in anew) == ["b", "c"]

    asyncio.run(steps())


def test_services_that_take_nothing_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace may have 200,000 of them, all of which were looked at for each service that anybody made."""
    monkeypatch.setattr(storage, "HISTORY_EVENTS", 2)

    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            plugin = ServiceAddresses(store, RANGES)
            registry = Registry(store, plugin)
            named = {"type": "ExternalName", "externalName": "a.b"}
            for index in range(3):
                await registry.create(_at(f"e{index}"), _service(f"e{index}", **named), ME)
                await registry.create(_at(f"h{index}"), _service(f"h{index}", clusterIP="None"), ME)
            assert list(plugin.services()) == []
            created = await registry.create(_at("e"), _service("e"), ME)
            assert created["spec"]["clusterIP"]
            assert [found["metadata"]["name"] for found in plugin.services()] == ["e"]
            # One that gives its address back takes nothing, and no service was read twice.
            monkeypatch.setattr(store, "snapshot", lambda *_: pytest.fail("all are read again"))
            await registry.update(_at("e"), _service("e", **named), ME)
            assert list(plugin.services()) == []

    asyncio.run(steps())
