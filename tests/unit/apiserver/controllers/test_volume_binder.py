"""Claims and volumes that find each other: a table of what there is, and what comes of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from podkeep.apiserver.controllers.controller import Create, Item, Patch
from podkeep.apiserver.controllers.volume_binder import CLAIMS, CLASSES, PODS, VOLUMES, VolumeBinder
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.lister import Part
from podkeep.apiserver.storage.records import EventType, Key
from support.admission import Objects
from support.controllers import NOW, told

NOBODY = "kubernetes.io/no-provisioner"
Found = tuple[str, dict[str, Any]]
KEPT = {"namespace": "default", "name": "data"}


def claim(name: str = "data", *, size: str = "1Gi", **spec: Any) -> Found:
    whole = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}} | spec
    return CLAIMS, {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": whole}


def volume(name: str = "pv", *, size: str = "1Gi", labels: dict[str, str] | None = None, **spec: Any) -> Found:
    whole = {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "capacity": {"storage": size}} | spec
    return VOLUMES, {"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels or {}}, "spec": whole}


def going(found: Found) -> Found:
    """Return what is about to be deleted."""
    resource, value = found
    return resource, value | {"metadata": value["metadata"] | {"deletionTimestamp": "2026-11-23T06:00:00Z"}}


def waiting_class(name: str = "slow") -> Found:
    return CLASSES, {"metadata": {"name": name}, "volumeBindingMode": "WaitForFirstConsumer"}


def pod(claim_name: str) -> Found:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim_name}}]
    return PODS, {"metadata": {"name": "p", "namespace": "default", "uid": "u-p"}, "spec": {"volumes": volumes}}


def merged(value: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return what a merge patch makes of a value."""
    result = dict(value)
    for key, item in patch.items():
        result[key] = merged(result.get(key) or {}, item) if isinstance(item, dict) else item
    return result


class Api:
    """Objects, and the controller that is told of each of them until it writes nothing more."""

    def __init__(self, *objects: Found) -> None:
        self.objects = [(resource, copy.deepcopy(value)) for resource, value in objects]
        for _, value in self.objects:
            value["metadata"] |= {"resourceVersion": "1", "creationTimestamp": "2026-11-23T06:00:00Z"}
        self.controller = VolumeBinder()
        self.writes = 0

    def settle(self) -> Api:
        queue = [item for found in self.objects for item in self.tell(found)]
        while queue:
            item = queue.pop(0)
            for write in self.controller.reconcile(item, Objects(*self.objects), NOW).writes:
                self.writes += 1
                assert self.writes < 50, "it never ends"
                if isinstance(write, Create):
                    self.objects.append((write.resource, dict(write.value)))
                else:
                    assert isinstance(write, Patch)
                    queue += self.apply(write)
        return self

    def tell(self, found: Found, kind: EventType = EventType.MODIFIED) -> list[Item]:
        return told(self.controller, found, kind)

    def apply(self, write: Patch) -> list[Item]:
        for index, (resource, value) in enumerate(self.objects):
            if (resource, value["metadata"]["name"]) == (write.resource, write.name):
                patch = dict(write.patch)
                revision = patch["metadata"].pop("resourceVersion")
                assert revision == value["metadata"]["resourceVersion"]
                new = merged(value, patch)
                new["metadata"]["resourceVersion"] = str(int(revision) + 1)
                self.objects[index] = (resource, new)
                return self.tell(self.objects[index])
        raise AssertionError(write)

    def remove(self, resource: str, name: str) -> Api:
        gone = next(item for item in self.objects if (item[0], item[1]["metadata"]["name"]) == (resource, name))
        self.objects.remove(gone)
        self.tell(gone, EventType.DELETED)
        return self.settle()

    def phases(self) -> dict[str, str]:
        return {
            value["metadata"]["name"]: value.get("status", {}).get("phase", "")
            for resource, value in self.objects
            if resource in (CLAIMS, VOLUMES)
        }

    def events(self) -> list[tuple[str, str, str]]:
        return [
            (value["type"], value["reason"], value["message"])
            for resource, value in self.objects
            if resource == "events"
        ]

    def of(self, name: str) -> dict[str, Any]:
        return next(value for _, value in self.objects if value["metadata"]["name"] == name)


def test_a_claim_and_a_volume_name_each_other() -> None:
    api = Api(claim(), volume(size="2Gi")).settle()
    assert api.phases() == {"data": "Bound", "pv": "Bound"}
    assert api.of("data")["spec"]["volumeName"] == "pv"
    assert api.of("data")["status"]["capacity"] == {"storage": "2Gi"}
    assert api.of("data")["metadata"]["annotations"] == {
        "pv.kubernetes.io/bind-completed": "yes",
        "pv.kubernetes.io/bound-by-controller": "yes",
    }
    assert api.of("pv")["spec"]["claimRef"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "default",
        "name": "data",
        "uid": "uid-data",
    }
    before = api.writes
    assert api.settle().writes == before


def test_a_claim_stays_bound_while_its_volume_goes() -> None:
    api = Api(claim(), volume()).settle()
    api.of("pv")["metadata"]["deletionTimestamp"] = "2026-11-23T06:00:00Z"
    api.settle()
    assert api.of("data")["status"]["phase"] == "Bound"


@pytest.mark.parametrize(
    ("wanted", "volumes", "chosen"),
    [
        ({}, [volume("big", size="9Gi"), volume("fits", size="2Gi"), volume("small", size="512Mi")], "fits"),
        ({"storageClassName": "fast"}, [volume("a"), volume("b", storageClassName="fast")], "b"),
        ({"accessModes": ["ReadWriteMany"]}, [volume("a"), volume("b", accessModes=["ReadWriteMany"])], "b"),
        ({"volumeMode": "Block"}, [volume("a"), volume("b", volumeMode="Block")], "b"),
        ({"selector": {"matchLabels": {"disk": "ssd"}}}, [volume("a"), volume("b", labels={"disk": "ssd"})], "b"),
        ({"volumeName": "b"}, [volume("a"), volume("b", size="9Gi")], "b"),
        ({}, [volume("a"), volume("b", claimRef={"namespace": "default", "name": "data"}, size="9Gi")], "b"),
        ({}, [volume("a", claimRef={"namespace": "default", "name": "other", "uid": "x"}), volume("b")], "b"),
        # Kept for it, and not what it asks for (FindMatchingVolume).
        ({"size": "2Gi"}, [volume("a", claimRef=KEPT), volume("b", size="3Gi")], "b"),
        ({}, [volume("a", claimRef=KEPT, volumeMode="Block"), volume("b")], "b"),
        ({}, [volume("a", claimRef=KEPT, accessModes=["ReadWriteMany"]), volume("b")], "b"),
        ({}, [going(volume("a", claimRef=KEPT)), volume("b")], "b"),
        # Its class and labels do not count then.
        ({}, [volume("a"), volume("b", claimRef=KEPT, storageClassName="other")], "b"),
    ],
)
def test_which_volume_a_claim_gets(wanted: dict[str, Any], volumes: list[Found], chosen: str) -> None:
    api = Api(claim(**wanted), *volumes).settle()
    assert api.of("data")["spec"].get("volumeName") == chosen
    assert api.phases()["data"] == api.phases()[chosen] == "Bound"


@pytest.mark.parametrize(
    ("wanted", "volumes"),
    [
        ({}, []),
        ({"size": "2Gi"}, [volume()]),
        ({"volumeName": "pv"}, [volume(claimRef={"namespace": "default", "name": "other", "uid": "x"})]),
        ({"volumeName": "pv", "size": "2Gi"}, [volume()]),
        ({}, [volume(claimRef={"namespace": "default", "name": "data", "uid": "former"})]),
    ],
)
def test_a_claim_that_waits(wanted: dict[str, Any], volumes: list[Found]) -> None:
    assert Api(claim(**wanted), *volumes).settle().phases()["data"] == "Pending"


def test_one_of_two_claims_gets_the_only_volume() -> None:
    phases = Api(claim("a"), claim("b"), volume()).settle().phases()
    assert sorted((phases["a"], phases["b"])) == ["Bound", "Pending"]


def test_a_class_may_wait_for_the_first_pod() -> None:
    kind = {"storageClassName": "slow"}
    assert Api(claim(**kind), volume(**kind), waiting_class()).settle().phases()["data"] == "Pending"
    assert Api(claim(**kind), volume(**kind), waiting_class(), pod("other")).settle().phases()["data"] == "Pending"
    assert Api(claim(**kind), volume(**kind), waiting_class(), pod("data")).settle().phases()["data"] == "Bound"


def test_no_pod_is_read_for_a_claim_that_waits() -> None:
    """All of the namespace were, twice for each claim that waits: more than a second for 256 MiB of them."""

    class Noted(Objects):
        def parts(self, resource: str, namespace: str, of: type[Part]) -> Iterator[Part]:
            raise AssertionError(resource)

        def list(self, resource: str, namespace: str = "") -> Iterator[Mapping[str, Any]]:
            assert resource != PODS
            return super().list(resource, namespace)

    api = Api(claim(storageClassName="slow"), waiting_class(), pod("other"), pod("data"))
    waiting, _, other, user = api.objects
    (item,) = api.tell(waiting)
    reasons = []
    for found in (other, user):
        api.tell(found)
        plan = api.controller.reconcile(item, Noted(*api.objects), NOW)
        reasons += [write.value["reason"] for write in plan.writes if isinstance(write, Create)]
    assert reasons == ["WaitForFirstConsumer", "ExternalProvisioning"]


def test_a_claim_waits_again_once_no_pod_names_it() -> None:
    kind = {"storageClassName": "slow"}
    api = Api(claim(**kind), waiting_class(), pod("data")).settle()
    api.remove(PODS, "p")
    api.objects.append(volume(**kind))
    api.objects[-1][1]["metadata"] |= {"resourceVersion": "1", "creationTimestamp": "2026-11-23T06:00:00Z"}
    assert api.settle().phases() == {"data": "Pending", "pv": "Available"}


@pytest.mark.parametrize(("policy", "phase"), [("Retain", "Released"), ("Delete", "Failed")])
def test_a_volume_whose_claim_is_gone(policy: str, phase: str) -> None:
    """Nobody else gets it: what is on it is the former claim's."""
    api = Api(claim(), volume(persistentVolumeReclaimPolicy=policy)).settle().remove(CLAIMS, "data")
    assert api.phases() == {"pv": phase}
    api.objects.append(Api(claim("new")).objects[0])
    assert api.settle().phases() == {"pv": phase, "new": "Pending"}


def test_a_claim_whose_volume_is_gone_is_lost() -> None:
    assert Api(claim(), volume()).settle().remove(VOLUMES, "pv").phases() == {"data": "Lost"}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        (
            [claim()],
            ("Normal", "FailedBinding", "no persistent volumes available for this claim and no storage class is set"),
        ),
        (
            [claim(storageClassName="slow"), waiting_class()],
            ("Normal", "WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
        ),
        (
            [claim(storageClassName="fast")],
            ("Warning", "ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found'),
        ),
        (
            [claim(storageClassName="local"), (CLASSES, {"metadata": {"name": "local"}, "provisioner": NOBODY})],
            ("Warning", "ProvisioningFailed", f"no volume plugin matched name: {NOBODY}"),
        ),
    ],
)
def test_why_a_claim_has_no_volume_is_told_once(objects: list[Found], expected: tuple[str, str, str]) -> None:
    api = Api(*objects).settle().settle()
    assert (api.phases()["data"], api.events()) == ("Pending", [expected])
    (event,) = [value for resource, value in api.objects if resource == "events"]
    involved = event["involvedObject"]
    assert (involved["kind"], involved["name"], involved["uid"]) == ("PersistentVolumeClaim", "data", "uid-data")


def test_a_claim_whose_class_has_a_provisioner_waits_for_that() -> None:
    found = CLASSES, {"metadata": {"name": "cloud"}, "provisioner": "example.com/disks"}
    ((kind, reason, message),) = Api(claim(storageClassName="cloud"), found).settle().events()
    assert (kind, reason) == ("Normal", "ExternalProvisioning")
    assert "external provisioner 'example.com/disks' or manually" in message


def test_nothing_is_told_of_a_claim_that_is_bound() -> None:
    assert Api(claim(), volume()).settle().events() == []


def test_a_selector_is_read_once_for_all_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 2,000 expressions took 0.2 s with 200 volumes, each time that its claim was looked at."""
    read: list[object] = []
    real = selectors.of_object

    def of_object(selector: Mapping[str, Any] | None) -> selectors.LabelSelector | None:
        read.append(selector)
        return real(selector)

    wanting, volumes = claim(selector={"matchLabels": {"a": "b"}}), [volume(f"v{number}") for number in range(20)]
    wanting[1]["metadata"] |= {"creationTimestamp": "2026-11-23T06:00:00Z", "resourceVersion": "1"}
    monkeypatch.setattr(selectors, "of_object", of_object)
    VolumeBinder().reconcile(Key(CLAIMS, "default", "data"), Objects(wanting, *volumes), NOW)
    assert len(read) == 1
