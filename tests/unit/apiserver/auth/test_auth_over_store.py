"""RBAC and the node authorizer over a real store: a write that is acknowledged counts for the next request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from podkeep.apiserver.admission.quota.ledger import QuotaLedger
from podkeep.apiserver.auth.default_policy import node_rules
from podkeep.apiserver.auth.interfaces import RequestAttributes
from podkeep.apiserver.auth.node import NodeAuthorizer
from podkeep.apiserver.auth.rbac import Rbac
from podkeep.apiserver.auth.user import User
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.storage import store as storage
from podkeep.apiserver.storage.records import Key
from podkeep.apiserver.storage.store import Store

GROUP = "rbac.authorization.k8s.io"
ANN = User(name="ann")
NODE = User(name="system:node:n1", groups=("system:nodes",))
ROLE = Key(f"{GROUP}/clusterroles", "", "reader")
BINDING = Key(f"{GROUP}/clusterrolebindings", "", "b")
POD = Key("pods", "ns", "web")
GET = RequestAttributes(verb="get", resource="pods")
SECRET = RequestAttributes(verb="get", resource="secrets", namespace="ns", name="s")
VALUES: dict[Key, dict[str, Any]] = {
    ROLE: {"metadata": {"name": "reader"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]},
    BINDING: {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": "reader"},
        "subjects": [{"kind": "User", "name": "ann"}],
    },
    POD: {
        "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
        "spec": {"nodeName": "n1", "imagePullSecrets": [{"name": "s"}]},
    },
}


@pytest.mark.parametrize("history", [10_000, 1])
def test_what_is_acknowledged_counts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: int) -> None:
    """Also if more was written than the store remembers."""
    monkeypatch.setattr(storage, "HISTORY_EVENTS", history)

    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            lister = StoreLister(store)
            rbac, nodes = Rbac(lister), NodeAuthorizer(lister, node_rules())

            def allowed() -> tuple[bool, bool]:
                return rbac.authorize(ANN, GET).allowed, nodes.authorize(NODE, SECRET).allowed

            assert allowed() == (False, False)
            for key, value in VALUES.items():
                await store.put(key, value, None)
                await store.put(Key("configmaps", "ns", f"{key.name}-other"), {"metadata": {}}, None)
            assert allowed() == (True, True)
            for key in (BINDING, POD):
                stored = store.get(key)
                assert stored is not None
                await store.delete(key, VALUES[key], stored)
                await store.put(Key("configmaps", "ns", f"{key.name}-more"), {"metadata": {}}, None)
            assert allowed() == (False, False)

    asyncio.run(steps())


def test_nothing_is_read_again_when_the_past_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What anybody writes would have all pods and bindings of everybody read in one turn of the event loop."""
    monkeypatch.setattr(storage, "HISTORY_EVENTS", 2)

    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            lister = StoreLister(store)
            rbac, nodes, ledger = Rbac(lister), NodeAuthorizer(lister, node_rules()), QuotaLedger(lister)
            quota = {"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": {"count/configmaps": "9"}}}
            await store.put(Key("resourcequotas", "ns", "q"), quota, None)

            def found() -> tuple[bool, bool, int]:
                assert ledger.quotas("ns")
                assert ledger.count_some("ns")
                used = ledger.used("ns", "q")
                allowed = rbac.authorize(ANN, GET).allowed, nodes.authorize(NODE, SECRET).allowed
                return *allowed, int(used.get("count/configmaps", 0))

            assert found() == (False, False, 0)
            # From here on, whoever reads all objects of a resource fails.
            for name in ("list", "parts"):
                monkeypatch.setattr(StoreLister, name, lambda *_: pytest.fail("everything is read again"))
            for key, value in VALUES.items():
                await store.put(key, value, None)
            for number in range(5):
                name = f"c{number}"
                fields = {"metadata": {"name": name, "namespace": "ns"}}
                await store.put(Key("configmaps", "ns", name), fields, None)
            assert found() == (True, True, 5)

    asyncio.run(steps())


def test_an_index_that_fails_keeps_no_write_from_being_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def catch_up(self) -> None:
            raise ValueError("an object that it cannot read")

    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            broken = Broken()
            store.followers.add(broken)
            for key, value in VALUES.items():
                assert (await store.put(key, value, None)).key == key
            assert store.problem is None

    asyncio.run(steps())
    assert "an object that it cannot read" in caplog.text


def test_an_index_begins_with_what_is_there(tmp_path: Path) -> None:
    async def steps(write: bool) -> None:
        async with Store(tmp_path / "db") as store:
            if write:
                for key, value in VALUES.items():
                    await store.put(key, value, None)
                return
            lister = StoreLister(store)
            assert Rbac(lister).authorize(ANN, GET).allowed
            assert NodeAuthorizer(lister, node_rules()).authorize(NODE, SECRET).allowed

    asyncio.run(steps(True))
    asyncio.run(steps(False))
