"""Garbage collection by owner references."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
import pytest

from podkeep.apiserver.controllers.controller import Delete, Patch, Plan
from podkeep.apiserver.controllers.owners import GarbageCollector
from podkeep.apiserver.meta.lister import Part
from podkeep.apiserver.storage.records import EventType, Key
from support.admission import RESOURCES, Objects
from support.controllers import NOW, change


def item(name: str, *owners: str, blocking: str = "", deleting: str = "", **fields: Any) -> tuple[str, dict[str, Any]]:
    """Return a ConfigMap; its owners are ConfigMaps, unless their names begin with a kind."""
    references = [
        {
            "apiVersion": "v1",
            "kind": owner.partition("/")[0] if "/" in owner else "ConfigMap",
            "name": owner.rpartition("/")[2],
            "uid": f"uid-{owner.rpartition('/')[2]}",
            **({"blockOwnerDeletion": True} if owner == blocking else {}),
        }
        for owner in owners
    ]
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7", **fields}
    if references:
        metadata["ownerReferences"] = references
    if deleting:
        metadata |= {"deletionTimestamp": "2026-11-23T05:00:00Z"}
        if deleting != "background":
            metadata["finalizers"] = ["mine", deleting]
    return "configmaps", {"metadata": metadata}


def key(name: str) -> Key:
    return Key("configmaps", "default", name)


def planned(name: str, *items: tuple[str, dict[str, Any]]) -> Plan:
    collector = GarbageCollector(RESOURCES.values())
    for found in items:
        list(collector.observe(change(found)))
    return collector.reconcile(key(name), Objects(*items), NOW)


def delete(name: str, propagation: str = "Background", revision: str = "7") -> Delete:
    return Delete(
        resource="configmaps",
        namespace="default",
        name=name,
        uid=f"uid-{name}",
        revision=revision,
        propagation=propagation,
    )


def patch(name: str, metadata: dict[str, Any]) -> Patch:
    fields = {**metadata, "resourceVersion": "7", "uid": f"uid-{name}"}
    return Patch(resource="configmaps", namespace="default", name=name, patch={"metadata": fields})


def references(found: tuple[str, dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    return [owner | more for owner in found[1]["metadata"]["ownerReferences"]]


OWNER = item("owner")
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


@pytest.mark.parametrize(
    ("items", "writes"),
    [
        ([item("a")], []),
        ([item("a", "owner"), OWNER], []),
        ([item("a", "owner")], [delete("a")]),
        ([item("a", "owner"), ("configmaps", {"metadata": OWNER[1]["metadata"] | {"uid": "new"}})], [delete("a")]),
        ([item("a", "owner"), ("configmaps", {"metadata": OWNER[1]["metadata"] | {"namespace": "x"}})], [delete("a")]),
        ([item("a", "owner", finalizers=[ORPHAN])], [delete("a", "Orphan")]),
        ([item("a", "owner", finalizers=[FOREGROUND])], [delete("a", "Foreground")]),
        ([item("a", "owner", deleting="background")], []),
        ([item("a", "Unknown/owner")], []),
        ([item("a", "Unknown/b", "owner")], []),
        ([item("a", "Node/n"), ("nodes", {"metadata": {"name": "n", "uid": "uid-n"}})], []),
        ([item("a", "Node/n")], [delete("a")]),
        (
            [item("a", "owner", "gone"), OWNER],
            [patch("a", {"ownerReferences": references(item("a", "owner"))})],
        ),
        ([item("a", "owner"), item("owner", deleting="background")], []),
        ([item("a", "owner"), item("owner", deleting=FOREGROUND)], [delete("a")]),
        (
            [item("a", "owner", "other"), item("owner", deleting=FOREGROUND), item("other")],
            [patch("a", {"ownerReferences": references(item("a", "other"))})],
        ),
        (
            [item("a", "owner"), item("owner", deleting=FOREGROUND), item("child", "a")],
            [delete("a", "Foreground", revision="")],
        ),
    ],
)
def test_an_object_goes_with_its_last_owner(items: list[tuple[str, dict[str, Any]]], writes: list[object]) -> None:
    plan = planned("a", *items)
    assert (list(plan.writes), plan.then, plan.after) == (writes, (), None)


def test_a_cluster_scoped_object_has_no_owner_in_a_namespace() -> None:
    _, value = item("n", "owner")
    del value["metadata"]["namespace"]
    collector = GarbageCollector(RESOURCES.values())
    assert not list(collector.reconcile(Key("nodes", "", "n"), Objects(("nodes", value)), NOW).writes)


def test_owners_and_dependents_that_wait_for_each_other() -> None:
    one = item("a", "owner", blocking="owner")
    plan = planned("a", one, item("owner", "a", deleting=FOREGROUND), item("child", "a", deleting=FOREGROUND))
    assert list(plan.writes) == [patch("a", {"ownerReferences": references(one, blockOwnerDeletion=False)})]
    assert plan.then == (delete("a", "Foreground", revision=""),)


def test_orphans() -> None:
    owner, child = item("owner", deleting=ORPHAN), item("a", "owner", "other")
    plan = planned("owner", owner, child, item("b", "owner"), item("c", "other"))
    assert list(plan.writes) == [
        patch("a", {"ownerReferences": references(item("a", "other"))}),
        patch("b", {"ownerReferences": None}),
    ]
    assert plan.then == (patch("owner", {"finalizers": ["mine"]}),)


def test_foreground_waits_for_what_blocks() -> None:
    owner = item("owner", deleting=FOREGROUND)
    assert not list(planned("owner", owner, item("a", "owner", blocking="owner")).writes)
    for others in ([], [item("a", "owner")], [item("a", "other", blocking="other")]):
        assert list(planned("owner", owner, *others).writes) == [patch("owner", {"finalizers": ["mine"]})]


@pytest.mark.parametrize(("namespace", "waits"), [("default", True), ("other", False)])
def test_nothing_in_another_namespace_keeps_an_owner_from_going(namespace: str, waits: bool) -> None:
    """Who may write there names any UID."""
    owner = item("owner", deleting=FOREGROUND)
    plan = planned("owner", owner, item("a", "owner", blocking="owner", namespace=namespace))
    assert bool(list(plan.writes)) is not waits


def test_what_is_looked_at() -> None:
    collector = GarbageCollector(RESOURCES.values())

    def told(found: tuple[str, dict[str, Any]], kind: EventType = EventType.MODIFIED) -> list[str]:
        return sorted({place.name for place in collector.observe(change(found, kind)) if isinstance(place, Key)})

    assert told(item("a", "owner")) == ["a"]
    assert told(item("b", "owner", "other")) == ["b"]
    assert told(OWNER) == []
    assert told(item("owner", deleting=FOREGROUND)) == ["a", "b", "owner"]
    assert told(item("owner", deleting=FOREGROUND)) == ["owner"]
    assert told(item("a", "owner", deleting="background")) == ["a", "owner"]
    assert told(item("a", "owner"), EventType.DELETED) == ["owner"]
    assert told(item("b", "other")) == ["b", "owner"]
    assert told(item("b", "other")) == ["b"]
    assert told(item("owner"), EventType.DELETED) == []
    assert told(item("other"), EventType.DELETED) == ["b"]
    assert told(item("b")) == []
    assert told(item("other"), EventType.DELETED) == []


class Counted(Objects):
    """A lister that counts what is read, and of which what is not asked for is not decoded."""

    whole = parts = 0

    def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        self.whole += 1
        return super().get(resource, namespace, name)

    def part(self, resource: str, namespace: str, name: str, of: type[Part]) -> Part | None:
        self.parts += 1
        value = super().get(resource, namespace, name)
        return None if value is None else msgspec.convert(value, of)


@pytest.mark.parametrize(("deleting", "writes"), [("foregroundDeletion", 0), ("orphan", 51)])
def test_no_more_dependents_are_read_at_a_time_than_is_needed_nor_whole(deleting: str, writes: int) -> None:
    """All were decoded whole for each of them that changed: seconds, and gigabytes, for some hundred large ones."""
    owner = item("owner", deleting=deleting)
    items = [owner, *(item(f"d{number:03}", "owner", blocking="owner") for number in range(200))]
    collector, objects = GarbageCollector(RESOURCES.values()), Counted(*items)
    for found in items:
        list(collector.observe(change(found)))
    plan = collector.reconcile(key("owner"), objects, NOW)
    assert len(list(islice(plan.writes, 51))) == writes
    assert objects.whole == 1
    assert objects.parts <= 52


class Noted(Objects):
    """A lister that notes what is read."""

    def __init__(self, *objects: tuple[str, Mapping[str, Any]]) -> None:
        super().__init__(*objects)
        self.read: list[str] = []

    def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        self.read.append(name)
        return super().get(resource, namespace, name)

    def revision_of(self, resource: str, namespace: str, name: str) -> int:
        return next(
            int(value["metadata"]["resourceVersion"]) for _, value in self._objects if value["metadata"]["name"] == name
        )


def large(name: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    resource, value = item(name, **fields)
    return resource, value | {"data": {"a": "x" * 20_000}}


@pytest.mark.parametrize(("revision", "read"), [("1", []), ("2", ["owner"])], ids=["as it was told", "changed since"])
def test_large_owners_are_not_read_each_time_they_are_named(revision: str, read: list[str]) -> None:
    """One small object that named eight large ones two hundred times each kept the API busy for 20 s."""
    owner = large("owner", resourceVersion=revision)
    (resource, value), others = item("a", "owner"), [{"uid": f"uid-{number}"} for number in range(200)]
    (reference,) = value["metadata"]["ownerReferences"]
    value["metadata"]["ownerReferences"] = [reference, *(reference | other for other in others)]
    collector, objects = GarbageCollector(RESOURCES.values()), Noted((resource, value), owner)
    for found in ((resource, value), owner):
        list(collector.observe(change(found)))
    plan = collector.reconcile(key("a"), objects, NOW)
    assert list(plan.writes) == [patch("a", {"ownerReferences": [reference]})]
    assert [name for name in objects.read if name == "owner"] == read * 2


def test_dependents_are_not_read_while_one_of_them_is_known_to_block() -> None:
    """All of them were, whenever one of them changed."""
    owner = item("owner", deleting=FOREGROUND)
    dependents = [item(name, "owner") for name in "abc"] + [item("z", "owner", blocking="owner")]
    collector, objects = GarbageCollector(RESOURCES.values()), Noted(owner, *dependents)
    for found in (owner, *dependents):
        list(collector.observe(change(found)))
    assert not list(collector.reconcile(key("owner"), objects, NOW).writes)
    assert objects.read == ["owner"]


@pytest.mark.parametrize("blocking", ["", "owner"])
def test_dependents_are_not_read_for_what_the_collector_was_told_of_them(blocking: str) -> None:
    """All of them were, when an owner was deleted: two seconds for 256 MiB, of each of the thousands they name."""
    owner, dependents = item("owner", deleting=FOREGROUND), [item(name, "owner", resourceVersion="1") for name in "abc"]
    changed = item("b", "owner", resourceVersion="2", blocking=blocking)
    collector, objects = GarbageCollector(RESOURCES.values()), Noted(owner, dependents[0], changed, dependents[2])
    for found in (owner, *dependents):
        list(collector.observe(change(found)))
    plan = collector.reconcile(key("owner"), objects, NOW)
    assert [name for name in objects.read if name != "owner"] == ["b"]
    assert bool(list(plan.writes)) is not bool(blocking)


def test_a_dependent_may_block_its_owner_and_not_any_more() -> None:
    owner, collector = item("owner", deleting=FOREGROUND), GarbageCollector(RESOURCES.values())
    list(collector.observe(change(owner)))
    for blocking in ("owner", "", "owner", "other"):
        dependent = item("a", "owner", "other", blocking=blocking, resourceVersion="1")
        list(collector.observe(change(dependent)))
        objects = Noted(owner, dependent)
        assert bool(list(collector.reconcile(key("owner"), objects, NOW).writes)) is (blocking != "owner")
        assert objects.read == ["owner"]
    list(collector.observe(change(item("a", "owner", blocking="owner", resourceVersion="1"))))
    list(collector.observe(change(item("a", "owner", blocking="owner"), EventType.DELETED)))
    assert list(collector.reconcile(key("owner"), Noted(owner), NOW).writes)
    assert not collector._blockers


@pytest.mark.parametrize("waiting", ["told", "not told", ""])
def test_the_dependents_of_what_goes_with_its_owner_are_not_read(waiting: str) -> None:
    """All of them were, to see whether one waits: two seconds for 256 MiB, for each object that goes."""
    owner, dependents = (
        item("owner", deleting=FOREGROUND),
        [item(name, "middle", resourceVersion="1") for name in "abc"],
    )
    middle, there = item("middle", "owner", blocking="owner", resourceVersion="1"), [*dependents]
    if waiting:
        there[1] = item("b", "middle", deleting=FOREGROUND, resourceVersion="1" if waiting == "told" else "2")
    collector, objects = GarbageCollector(RESOURCES.values()), Noted(owner, middle, *there)
    for found in (owner, middle, *(there if waiting == "told" else dependents)):
        list(collector.observe(change(found)))
    (write,) = collector.reconcile(key("middle"), objects, NOW).writes
    # Of two that may wait for each other, one does so no more.
    assert isinstance(write, Patch if waiting else Delete)
    assert [name for name in objects.read if name in "bc"] == (["b"] if waiting == "not told" else [])
