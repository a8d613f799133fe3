"""Claims and volumes that are deleted: they stay while somebody uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from podkeep.apiserver.controllers.controller import Change, Item, Patch
from podkeep.apiserver.controllers.storage_protection import CLAIMS, PODS, VOLUMES, StorageProtection
from podkeep.apiserver.meta.lister import Part
from podkeep.apiserver.storage.records import Event, EventType, Key, Stored
from support.admission import CountedObjects, Objects

NOW = datetime(2026, 11, 23, 6, 0, tzinfo=UTC)
CLAIM, VOLUME = Key(CLAIMS, "default", "data"), Key(VOLUMES, "", "pv")
OURS = {CLAIM: "kubernetes.io/pvc-protection", VOLUME: "kubernetes.io/pv-protection"}


def protected(key: Key, *, going: bool, finalizers: tuple[str, ...] = (), phase: str = "Bound") -> dict[str, Any]:
    metadata = {"name": key.name, "uid": f"uid-{key.name}", "resourceVersion": "7", "finalizers": list(finalizers)}
    if key.namespace:
        metadata["namespace"] = key.namespace
    if going:
        metadata["deletionTimestamp"] = "2026-11-23T06:00:00Z"
    return {"metadata": metadata, "status": {"phase": phase}}


def pod(node: str = "n", volume: Mapping[str, Any] | None = None, **metadata: Any) -> tuple[str, dict[str, Any]]:
    volumes = [{"name": "v", **(volume or {"persistentVolumeClaim": {"claimName": "data"}})}]
    fields = {"name": "p", "namespace": "default", "uid": "uid-p"} | metadata
    return PODS, {"metadata": fields, "spec": {"volumes": volumes} | ({"nodeName": node} if node else {})}


def told(controller: StorageProtection, key: Key, value: Mapping[str, Any], kind: EventType) -> list[Item]:
    return list(controller.observe(Change(Event(kind, Stored(key, 7, msgspec.json.encode(value)), None), NOW)))


def finalizers(key: Key, value: dict[str, Any], *others: tuple[str, dict[str, Any]]) -> list[str] | None:
    """Return those that are written, if any."""
    controller = StorageProtection()
    items = told(controller, key, value, EventType.ADDED)
    objects = Objects((key.resource, value), *others)
    writes = [write for item in items for write in controller.reconcile(item, objects, NOW).writes]
    if not writes:
        return None
    (write,) = writes
    assert isinstance(write, Patch)
    assert (write.resource, write.namespace, write.name) == key
    assert write.patch["metadata"]["resourceVersion"] == "7"
    return list(write.patch["metadata"]["finalizers"])


@pytest.mark.parametrize("key", [CLAIM, VOLUME])
def test_what_was_there_before_is_protected_too(key: Key) -> None:
    assert finalizers(key, protected(key, going=False, finalizers=("a.example/b",))) == ["a.example/b", OURS[key]]
    assert finalizers(key, protected(key, going=False, finalizers=(OURS[key],))) is None
    assert finalizers(key, protected(key, going=True, finalizers=("a.example/b",))) is None


@pytest.mark.parametrize(
    ("user", "stays"),
    [
        (pod(), True),
        (pod(node=""), False),
        (pod(namespace="other"), False),
        (pod(volume={"persistentVolumeClaim": {"claimName": "another"}}), False),
        (pod(deletionTimestamp="2026-11-23T06:00:00Z", deletionGracePeriodSeconds=0), True),
    ],
)
def test_a_claim_stays_while_a_pod_of_a_node_uses_it(user: tuple[str, dict[str, Any]], stays: bool) -> None:
    claim = protected(CLAIM, going=True, finalizers=("a.example/b", OURS[CLAIM]))
    assert finalizers(CLAIM, claim, user) == (None if stays else ["a.example/b"])


@pytest.mark.parametrize(
    ("owner", "metadata", "stays"),
    [
        ("uid-p", {}, True),
        ("uid-q", {}, False),
        ("uid-p", {"deletionTimestamp": "2026-11-23T06:00:00Z", "deletionGracePeriodSeconds": 0}, False),
        ("uid-p", {"deletionTimestamp": "2026-11-23T06:00:00Z", "deletionGracePeriodSeconds": 30}, True),
    ],
)
def test_a_claim_of_an_ephemeral_volume_stays_until_its_pod_has_ended(
    owner: str, metadata: dict[str, Any], stays: bool
) -> None:
    claim = protected(CLAIM, going=True, finalizers=(OURS[CLAIM],))
    claim["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": owner, "controller": True}]
    name, value = pod(volume={"name": "data", "ephemeral": {}}, **metadata)
    value["metadata"]["name"] = "p"
    claim["metadata"]["name"] = "p-data"
    assert finalizers(CLAIM._replace(name="p-data"), claim, (name, value)) == (None if stays else [])


@pytest.mark.parametrize(("phase", "stays"), [("Bound", True), ("Released", False), ("Available", False)])
def test_a_volume_stays_while_a_claim_has_it(phase: str, stays: bool) -> None:
    volume = protected(VOLUME, going=True, finalizers=(OURS[VOLUME],), phase=phase)
    assert finalizers(VOLUME, volume) == (None if stays else [])


def test_a_claim_is_looked_at_again_when_a_pod_goes() -> None:
    controller, (_, user) = StorageProtection(), pod()
    key = Key(PODS, "default", "p")
    assert told(controller, key, user, EventType.DELETED) == []
    claim = protected(CLAIM, going=True, finalizers=(OURS[CLAIM],))
    assert told(controller, CLAIM, claim, EventType.MODIFIED) == [CLAIM]
    assert told(controller, key, user, EventType.DELETED) == [CLAIM]
    assert told(controller, key._replace(namespace="other"), user, EventType.DELETED) == []
    assert told(controller, CLAIM, claim, EventType.DELETED) == []
    assert told(controller, key, user, EventType.DELETED) == []


def test_not_all_pods_are_read_for_each_change_of_one() -> None:
    """All pods of the namespace were decoded for each claim of it that was being deleted, whenever one changed."""

    class Counted(CountedObjects):
        def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
            found = [value for value in Objects.list(self, resource, namespace) if value["metadata"]["name"] == name]
            return found[0] if found else None

    controller, user = StorageProtection(), pod(name="z")
    others = [pod(name=f"p{number}", volume={"emptyDir": {}}) for number in range(100)]
    claim = protected(CLAIM, going=True, finalizers=(OURS[CLAIM],))
    assert told(controller, CLAIM, claim, EventType.ADDED) == [CLAIM]
    for _, other in others:
        assert told(controller, Key(PODS, "default", other["metadata"]["name"]), other, EventType.ADDED) == []
    objects = Counted((CLAIMS, claim), *others, user)
    # Not told yet, but there.
    assert list(controller.reconcile(CLAIM, objects, NOW).writes) == []
    assert "p99" in objects.read
    objects.read.clear()
    assert told(controller, Key(PODS, "default", "z"), user[1], EventType.ADDED) == [CLAIM]
    assert list(controller.reconcile(CLAIM, objects, NOW).writes) == []
    assert objects.read == []


def test_pods_that_were_told_are_not_read_for_a_claim_that_none_of_them_names() -> None:
    """All pods of the namespace were, for each claim that was deleted: a tenth of a second for each 90 MiB."""
    read: list[str] = []

    class Noted(Objects):
        def part(self, resource: str, namespace: str, name: str, of: type[Part]) -> Part | None:
            read.append(name)
            return super().part(resource, namespace, name, of)

        def parts(self, resource: str, namespace: str, of: type[Part]) -> Iterator[Part]:
            raise AssertionError

    controller, later = StorageProtection(), pod(name="z", volume={"emptyDir": {}})
    others = [pod(name=f"p{number}", volume={"emptyDir": {}}, resourceVersion="7") for number in range(9)]
    claim = protected(CLAIM, going=True, finalizers=(OURS[CLAIM],))
    assert told(controller, CLAIM, claim, EventType.ADDED) == [CLAIM]
    for _, other in others:
        assert told(controller, Key(PODS, "default", other["metadata"]["name"]), other, EventType.ADDED) == []
    assert list(controller.reconcile(CLAIM, Noted((CLAIMS, claim), *others, later), NOW).writes)
    assert read == ["z"]
