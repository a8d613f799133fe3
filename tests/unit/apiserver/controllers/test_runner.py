"""Controllers at work on a real store, through the registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podkeep.apiserver.auth.user import NOBODY
from podkeep.apiserver.controllers import runner as running
from podkeep.apiserver.controllers.controller import Change, Controller, Create, Item, Patch, Plan
from podkeep.apiserver.controllers.namespace_contents import NamespaceContents
from podkeep.apiserver.controllers.namespaces import NamespaceDeletion
from podkeep.apiserver.controllers.node_health import NodeHealth
from podkeep.apiserver.controllers.owners import GarbageCollector
from podkeep.apiserver.controllers.runner import Runner
from podkeep.apiserver.controllers.scheduler import Scheduler
from podkeep.apiserver.controllers.taint_eviction import TaintEviction
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.registry.registry import DeleteOptions, Registry, Request, Target
from podkeep.apiserver.schema.table import Kind
from podkeep.apiserver.storage.store import Slow, Store

ME = Request(field_manager="me")


RESOURCES = Served().resources
NAMESPACES, NODES, CONFIG_MAPS, SERVICE_ACCOUNTS, PODS = (
    next(item for item in RESOURCES if item.kind == Kind("", "v1", kind))
    for kind in ("Namespace", "Node", "ConfigMap", "ServiceAccount", "Pod")
)


class World:
    """A store with controllers at work, and what a client does there."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.registry = Registry(store)

    async def create(self, resource: Resource, value: dict[str, Any], namespace: str = "shop") -> Object:
        return await self.registry.create(Target(resource, namespace if resource.namespaced else ""), value, ME)

    async def delete(self, resource: Resource, name: str, namespace: str = "shop", propagation: str = "") -> None:
        target = Target(resource, namespace if resource.namespaced else "", name)
        await self.registry.delete(target, DeleteOptions(propagation=propagation), ME)

    def get(self, resource: Resource, name: str, namespace: str = "shop") -> dict[str, Any] | None:
        stored = self.store.get(resource.key(namespace, name))
        return None if stored is None else msgspec.json.decode(stored.value)

    def names(self, resource: Resource, namespace: str = "") -> list[str]:
        return [stored.key.name for stored in self.store.snapshot(resource.storage_name, namespace).items]

    async def until(self, resource: Resource, holds: Callable[[], bool]) -> None:
        """Wait until something is true of what is stored, as changes of a resource tell."""
        watcher = self.store.watch(resource.storage_name, self.store.revision)
        async with asyncio.timeout(10):
            while not holds():
                await anext(watcher)
        watcher.end()


def utc() -> datetime:
    return datetime.now(UTC)


def run(
    path: Path,
    make: Callable[[], Sequence[Controller]],
    steps: Callable[[World], Awaitable[None]],
    before: Callable[[World], Awaitable[None]] | None = None,
    now: Callable[[], datetime] = utc,
) -> None:
    async def within() -> None:
        async with Store(path / "db") as store:
            world = World(store)
            if before is not None:
                await before(world)
            async with Runner(store, world.registry, StoreLister(store), RESOURCES, make, now):
                await steps(world)

    asyncio.run(within())


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **more}}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return named(name) | {"spec": {"containers": [{"name": "a", "image": "x"}], **spec}}


def node(name: str, pods: str = "10") -> dict[str, Any]:
    return named(name) | {"status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": pods}}}


@pytest.mark.slow
def test_namespaces_are_filled_and_emptied(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await world.create(NAMESPACES, named("shop"))
        await world.until(CONFIG_MAPS, lambda: world.names(CONFIG_MAPS) == ["kube-root-ca.crt"])
        await world.until(SERVICE_ACCOUNTS, lambda: world.names(SERVICE_ACCOUNTS) == ["default"])
        for number in range(120):
            await world.create(CONFIG_MAPS, named(f"c{number}"))
        await world.create(CONFIG_MAPS, named("kept", finalizers=["example.com/mine"]))
        await world.create(CONFIG_MAPS, named("elsewhere"), "other")
        await world.delete(NAMESPACES, "shop")

        def conditions() -> dict[str, str]:
            found = (world.get(NAMESPACES, "shop", "") or {}).get("status", {}).get("conditions", [])
            return {item["type"]: item["message"] for item in found}

        await world.until(NAMESPACES, lambda: bool(conditions()))
        assert world.names(CONFIG_MAPS, "shop") == ["kept"]
        assert conditions()["NamespaceContentRemaining"] == (
            "Some resources are remaining: configmaps. has 1 resource instances"
        )
        patch = Target(CONFIG_MAPS, "shop", "kept")
        await world.registry.patch(patch, {"metadata": {"finalizers": None}}, running.PatchType.MERGE, ME)
        await world.until(NAMESPACES, lambda: world.names(NAMESPACES) == [])
        assert world.names(CONFIG_MAPS) == ["elsewhere"]
        assert world.names(SERVICE_ACCOUNTS) == []

    run(tmp_path, lambda: [NamespaceContents("PEM"), NamespaceDeletion(RESOURCES)], steps)


def test_dependents_go_with_their_owner(tmp_path: Path) -> None:
    async def owned(world: World, name: str, owner: str, *, blocking: bool = False) -> None:
        found = world.get(CONFIG_MAPS, owner)
        assert found is not None
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": found["metadata"]["uid"]}
        await world.create(
            CONFIG_MAPS, named(name, ownerReferences=[reference | ({"blockOwnerDeletion": True} if blocking else {})])
        )

    async def before(world: World) -> None:
        for owner in "abc":
            await world.create(CONFIG_MAPS, named(owner))
            await owned(world, f"{owner}1", owner, blocking=True)
            await owned(world, f"{owner}2", f"{owner}1")

    async def steps(world: World) -> None:
        await world.delete(CONFIG_MAPS, "a")
        await world.until(CONFIG_MAPS, lambda: world.names(CONFIG_MAPS) == ["b", "b1", "b2", "c", "c1", "c2"])
        await world.delete(CONFIG_MAPS, "b", propagation="Orphan")
        await world.until(CONFIG_MAPS, lambda: world.names(CONFIG_MAPS) == ["b1", "b2", "c", "c1", "c2"])
        orphan = world.get(CONFIG_MAPS, "b1")
        assert orphan is not None
        assert "ownerReferences" not in orphan["metadata"]
        watcher = world.store.watch("configmaps", world.store.revision)
        await world.delete(CONFIG_MAPS, "c", propagation="Foreground")
        gone: list[str] = []
        async with asyncio.timeout(10):
            while "c" not in gone:
                event = await anext(watcher)
                if event.type == "DELETED":
                    gone.append(event.stored.key.name)
        assert gone in (["c2", "c1", "c"], ["c1", "c", "c2"], ["c1", "c2", "c"], ["c1", "c"])
        assert gone.index("c1") < gone.index("c")
        await world.until(CONFIG_MAPS, lambda: world.names(CONFIG_MAPS) == ["b1", "b2"])

    run(tmp_path, lambda: [GarbageCollector(RESOURCES)], steps, before)


def test_pods_are_bound(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        await world.create(PODS, pod("early"))

    async def steps(world: World) -> None:
        def condition(name: str) -> tuple[str, str]:
            found = (world.get(PODS, name) or {}).get("status", {}).get("conditions", [])
            told = next((item for item in found if item["type"] == "PodScheduled"), {})
            return told.get("status", ""), told.get("message", "")

        def where(name: str) -> str:
            return (world.get(PODS, name) or {}).get("spec", {}).get("nodeName", "")

        await world.until(PODS, lambda: condition("early") == ("False", "no nodes available to schedule pods"))
        await world.create(NODES, node("n1", "3"))
        await world.until(PODS, lambda: where("early") == "n1")
        assert condition("early") == ("True", "")
        # All at once: nothing is given twice.
        await asyncio.gather(*(world.create(PODS, pod(f"p{number}")) for number in range(5)))
        refused = ("False", "0/1 nodes are available: 1 Too many pods.")
        names = [f"p{number}" for number in range(5)]
        await world.until(PODS, lambda: sum(condition(name) == refused for name in names) == 3)
        assert sorted(map(where, names)) == ["", "", "", "n1", "n1"]
        await world.create(NODES, node("n2"))
        await world.until(PODS, lambda: all(map(where, names)))
        reasons = {msgspec.json.decode(item.value)["reason"] for item in world.store.snapshot("events").items}
        assert reasons == {"Scheduled", "FailedScheduling"}
        managers = (world.get(PODS, "early") or {})["metadata"]["managedFields"]
        assert "kube-scheduler" in {entry["manager"] for entry in managers}

    run(tmp_path, lambda: [Scheduler()], steps, before)


class Trying:
    """A controller that does what a test tells it, about ConfigMaps."""

    name = "trying"
    user = NOBODY
    resources = frozenset({"configmaps"})

    def __init__(self, act: Callable[[str, Lister], Plan]) -> None:
        self._act = act

    def observe(self, change: Change) -> Iterator[Item]:
        if not change.is_deletion:
            yield change.key.name

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        return self._act(str(item), lister)


def test_many_writes_take_several_turns(tmp_path: Path) -> None:
    turns: list[str] = []

    def act(name: str, lister: Lister) -> Plan:
        turns.append(name)
        there = {value["metadata"]["name"] for value in lister.list("serviceaccounts")}
        missing = [f"s{number}" for number in range(120) if f"s{number}" not in there]
        return Plan(
            writes=(Create(resource="serviceaccounts", namespace="shop", value=named(name)) for name in missing),
            then=(Create(resource="serviceaccounts", namespace="shop", value=named("last")),),
        )

    async def steps(world: World) -> None:
        await world.create(CONFIG_MAPS, named("a"))
        await world.until(SERVICE_ACCOUNTS, lambda: "last" in world.names(SERVICE_ACCOUNTS))
        assert len(world.names(SERVICE_ACCOUNTS)) == 121
        assert turns == ["a"] * 3

    run(tmp_path, lambda: [Trying(act)], steps)


def test_what_fails_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    turns: list[str] = []

    def act(name: str, lister: Lister) -> Plan:
        turns.append(name)
        if name == "broken" and turns.count(name) == 1:
            raise LookupError("this is no object that I know")
        stale = {"metadata": {"resourceVersion": "1"}} if name == "stale" and turns.count(name) < 3 else {}
        wrong = Create(resource="serviceaccounts", namespace="shop", value=named("NO"))
        gone = Patch(resource="serviceaccounts", namespace="shop", name="nobody", patch={})
        patch = Patch(resource="configmaps", namespace="shop", name=name, patch=stale | {"data": {"done": "yes"}})
        return Plan(writes=[wrong] if name == "wrong" and turns.count(name) == 1 else [patch, gone])

    async def steps(world: World) -> None:
        names = ["broken", "stale", "wrong"]
        await world.create(CONFIG_MAPS, named("first"))
        for name in names:
            await world.create(CONFIG_MAPS, named(name))

        def done() -> bool:
            return all("data" in (world.get(CONFIG_MAPS, name) or {}) for name in names)

        await world.until(CONFIG_MAPS, done)
        assert turns.count("stale") >= 3

    with caplog.at_level(logging.WARNING):
        run(tmp_path, lambda: [Trying(act)], steps)
    texts = [record.getMessage() for record in caplog.records]
    assert "controller trying failed unexpectedly" in texts
    assert any(text.startswith('trying: ServiceAccount "NO" is invalid: ') for text in texts)
    assert not any("stale" in text or "nobody" in text for text in texts)


class Unreading(Trying):
    """A controller that fails at an object when it is told of it."""

    def observe(self, change: Change) -> Iterator[Item]:
        raise LookupError("this is no object that I know")


def test_an_object_that_one_controller_cannot_read_ends_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def act(name: str, lister: Lister) -> Plan:
        return Plan(writes=[Patch(resource="configmaps", namespace="shop", name=name, patch={"data": {"done": "yes"}})])

    async def steps(world: World) -> None:
        await world.create(CONFIG_MAPS, named("a"))
        await world.until(CONFIG_MAPS, lambda: "data" in (world.get(CONFIG_MAPS, "a") or {}))

    async def before(world: World) -> None:
        await world.create(CONFIG_MAPS, named("there"))

    with caplog.at_level(logging.ERROR):
        run(tmp_path, lambda: [Unreading(act), Trying(act)], steps, before)
    texts = [record.getMessage() for record in caplog.records]
    assert next(text for text in texts if "there" in text).startswith("controller trying cannot read ")
    assert not any("controllers failed" in text for text in texts)


def test_controllers_begin_anew_if_a_watch_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "RESTART_DELAY", 0.0)
    made: list[list[str]] = []

    def make() -> list[Controller]:
        seen: list[str] = []
        made.append(seen)

        def act(name: str, _: Lister) -> Plan:
            seen.append(name)
            value = named(f"{name}-{len(made)}")
            return Plan(writes=[Create(resource="serviceaccounts", namespace="shop", value=value)])

        return [Trying(act)]

    async def steps(world: World) -> None:
        await world.create(CONFIG_MAPS, named("a"))
        await world.until(SERVICE_ACCOUNTS, lambda: world.names(SERVICE_ACCOUNTS) == ["a-1"])
        (watcher,) = world.store._watchers["configmaps", ""]
        watcher.end(Slow("too slow"))
        await world.until(SERVICE_ACCOUNTS, lambda: world.names(SERVICE_ACCOUNTS) == ["a-1", "a-2"])
        await world.create(CONFIG_MAPS, named("b"))
        await world.until(SERVICE_ACCOUNTS, lambda: "b-2" in world.names(SERVICE_ACCOUNTS))
        assert made == [["a"], ["a", "b"]]

    run(tmp_path, make, steps)


def test_the_end_leaves_nothing_behind(tmp_path: Path) -> None:
    async def within() -> None:
        async with Store(tmp_path / "db") as store:
            before = asyncio.all_tasks()
            make: Callable[[], list[Controller]] = lambda: [Scheduler(), GarbageCollector(RESOURCES)]  # noqa: E731
            async with Runner(store, Registry(store), StoreLister(store), RESOURCES, make):
                await Registry(store).create(Target(CONFIG_MAPS, "shop"), named("a"), ME)
            assert asyncio.all_tasks() == before
            assert not any(store._watchers.values())

    asyncio.run(within())


@pytest.mark.parametrize("change", [timedelta(hours=1), timedelta(hours=-1), timedelta(days=365)])
def test_a_clock_that_is_set_makes_no_node_unknown_and_evicts_no_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: timedelta
) -> None:
    """A node that had just been heard of counted as one that was silent for an hour, and got a taint for it."""
    monkeypatch.setattr(running, "RESTART_DELAY", 0.0)
    ahead = timedelta()
    toleration = {"key": "old", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-29T11:00:00Z"}

    def tainted(world: World) -> bool:
        taints = (world.get(NODES, "n", "") or {})["spec"].get("taints", ())
        return any(item["key"] == "node.kubernetes.io/unschedulable" for item in taints)

    async def change_node(world: World, spec: dict[str, Any]) -> None:
        await world.registry.patch(Target(NODES, "", "n"), {"spec": spec}, running.PatchType.MERGE, ME)

    async def steps(world: World) -> None:
        nonlocal ahead
        value = node("n")
        value["status"]["conditions"] = [ready]
        value["spec"] = {"taints": [{"key": "old", "effect": "NoExecute"}]}
        await world.create(NODES, value)
        await world.create(PODS, pod("p", nodeName="n", tolerations=[toleration]))
        # Each change of the node has the controllers look at it, and is done when its taint is there, or is not.
        await change_node(world, {"unschedulable": True})
        await world.until(NODES, lambda: tainted(world))
        ahead = change
        await change_node(world, {"unschedulable": None})
        await world.until(NODES, lambda: not tainted(world))
        found = world.get(NODES, "n", "")
        assert found is not None
        assert [item["status"] for item in found["status"]["conditions"]] == ["True"]
        assert "deletionTimestamp" not in (world.get(PODS, "p") or {})["metadata"]

    run(tmp_path, lambda: [NodeHealth(), TaintEviction()], steps, now=lambda: utc() + ahead)
