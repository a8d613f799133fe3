"""The service through which pods reach the API."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from podkeep.apiserver.kinds.services.service_allocation import Ranges
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.registry.registry import Registry
from podkeep.apiserver.server import kubernetes_service
from podkeep.apiserver.server.bootstrap import REQUEST
from podkeep.apiserver.server.service_addresses import ServiceAddresses
from podkeep.apiserver.server.sockets import SERVICE_ADDRESS
from podkeep.apiserver.storage.store import Store

SLICES = "discovery.k8s.io/endpointslices"


@pytest.mark.parametrize("address", ["", "127.0.0.1:6443", "[::1]:6443", "[::]:6443", "[2001:db8::1]:6443"])
def test_where_no_pod_reaches_the_api_nothing_says_so(address: str) -> None:
    assert kubernetes_service.reachable(address) is None


def test_the_service_follows_the_address(tmp_path: Path) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            lister = StoreLister(store)
            registry = Registry(store, ServiceAddresses(store, Ranges()))

            async def publish(address: str) -> list[int]:
                await kubernetes_service.publish(registry, lister, REQUEST, SERVICE_ADDRESS, address)
                return [store.count(resource) for resource in ("services", "endpoints", SLICES)]

            assert await publish("10.9.8.7:6443") == [1, 1, 1]
            service = lister.get("services", "default", "kubernetes") or {}
            assert service["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
            assert (service["spec"]["clusterIP"], service["spec"]["type"]) == ("10.0.0.1", "ClusterIP")
            assert service["spec"]["ports"] == [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]
            revision = store.revision
            await publish("10.9.8.7:6443")
            assert store.revision == revision  # nothing to write

            assert await publish("10.9.8.6:7443") == [1, 1, 1]
            service = lister.get("services", "default", "kubernetes") or {}
            assert service["spec"]["clusterIP"] == "10.0.0.1"
            assert service["spec"]["ports"][0]["targetPort"] == 7443
            ports = [{"name": "https", "port": 7443, "protocol": "TCP"}]
            found = lister.get("endpoints", "default", "kubernetes") or {}
            assert found["subsets"] == [{"addresses": [{"ip": "10.9.8.6"}], "ports": ports}]
            found = lister.get(SLICES, "default", "kubernetes") or {}
            assert found["endpoints"] == [{"addresses": ["10.9.8.6"], "conditions": {"ready": True}}]
            assert (found["addressType"], found["ports"]) == ("IPv4", ports)
            assert found["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}

            assert await publish("127.0.0.1:6443") == [0, 0, 0]

    asyncio.run(steps())


def test_a_service_that_has_the_address_is_no_reason_not_to_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            registry = Registry(store, ServiceAddresses(store, Ranges()))
            taken = {
                "metadata": {"name": "other", "namespace": "default"},
                "spec": {"clusterIP": SERVICE_ADDRESS, "ports": [{"port": 1}]},
            }
            target = kubernetes_service.Target(kubernetes_service._SERVICE, "default")
            await registry.create(target, taken, REQUEST)
            await kubernetes_service.publish(registry, StoreLister(store), REQUEST, SERVICE_ADDRESS, "10.9.8.7:6443")

    asyncio.run(steps())
    assert "services default/kubernetes cannot be reconciled" in caplog.text
