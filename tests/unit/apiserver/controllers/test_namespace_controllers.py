"""The end of namespaces, what every namespace has, and events that are old."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from podkeep.apiserver.controllers.controller import Change, Create, Delete, Item, Patch, Plan
from podkeep.apiserver.controllers.event_expiry import EventExpiry
from podkeep.apiserver.controllers.namespace_contents import NamespaceContents
from podkeep.apiserver.controllers.namespaces import MOST_FINALIZERS, PAUSE, PIECE, NamespaceDeletion
from podkeep.apiserver.storage.records import Event, EventType, Key, Stored
from support.admission import RESOURCES, CountedObjects, Objects
from support.controllers import NOW, change

TIME = "2026-11-23T06:00:00Z"
IDENTITY = {"uid": "u", "resourceVersion": "7"}


def namespace(*, deleting: bool = True, phase: str = "Terminating", **more: Any) -> tuple[str, dict[str, Any]]:
    metadata: dict[str, Any] = {"name": "shop", **IDENTITY}
    if deleting:
        metadata["deletionTimestamp"] = TIME
    return "namespaces", {
        "metadata": metadata,
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": phase},
        **more,
    }


def thing(resource: str, name: str, *finalizers: str, deleting: bool = False) -> tuple[str, dict[str, Any]]:
    metadata: dict[str, Any] = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "resourceVersion": "1"}
    if finalizers:
        metadata["finalizers"] = list(finalizers)
    if deleting:
        metadata["deletionTimestamp"] = TIME
    return resource, {"metadata": metadata}


def ended(*objects: tuple[str, dict[str, Any]]) -> Plan:
    return NamespaceDeletion(RESOURCES.values()).reconcile("shop", Objects(*objects), NOW)


def delete(resource: str, name: str) -> Delete:
    return Delete(resource=resource, namespace="shop", name=name, uid=f"uid-{name}")


def conditions(**told: tuple[str, str]) -> list[dict[str, str]]:
    texts = {
        "NamespaceDeletionDiscoveryFailure": ("ResourcesDiscovered", "All resources successfully discovered"),
        "NamespaceDeletionGroupVersionParsingFailure": (
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        "NamespaceDeletionContentFailure": (
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        "NamespaceContentRemaining": ("ContentRemoved", "All content successfully removed"),
        "NamespaceFinalizersRemaining": ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
    }
    return [
        {
            "type": name,
            "status": "True" if name in told else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": TIME,
        }
        for name, (reason, message) in (texts | told).items()
    ]


def status(value: dict[str, Any]) -> Patch:
    return Patch(
        resource="namespaces",
        namespace="",
        name="shop",
        subresource="status",
        patch={"metadata": {"uid": "u", "resourceVersion": "7"}, "status": value},
    )


def finalize(left: list[str] | None) -> Patch:
    patch = {"metadata": {"uid": "u"}, "spec": {"finalizers": left}}
    return Patch(resource="namespaces", namespace="", name="shop", subresource="finalize", patch=patch)


@pytest.mark.parametrize(
    ("objects", "writes"),
    [
        ([], []),
        ([namespace(deleting=False, phase="Active"), thing("configmaps", "a")], []),
        ([namespace(phase="Active")], [status({"phase": "Terminating"})]),
        ([namespace(spec={"finalizers": ["example.com/mine"]}), thing("configmaps", "a")], []),
        # Pods go first.
        (
            [namespace(), thing("configmaps", "a"), thing("pods", "p"), thing("pods", "q")],
            [
                delete("pods", "p"),
                delete("pods", "q"),
            ],
        ),
        (
            [namespace(), thing("jobs", "other"), thing("configmaps", "a"), thing("batch/jobs", "j")],
            [delete("configmaps", "a"), delete("batch/jobs", "j")],
        ),
    ],
)
def test_what_is_in_a_namespace_is_deleted(objects: list[tuple[str, dict[str, Any]]], writes: list[object]) -> None:
    plan = ended(*objects)
    assert sorted(plan.writes, key=repr) == sorted(writes, key=repr)
    assert plan.then == ()


def test_what_remains_is_told() -> None:
    plan = ended(
        namespace(),
        thing("configmaps", "a", "example.com/x", "example.com/y", deleting=True),
        thing("configmaps", "b", "example.com/x", deleting=True),
        thing("batch/jobs", "j", deleting=True),
    )
    assert list(plan.writes) == [
        status(
            {
                "conditions": conditions(
                    NamespaceContentRemaining=(
                        "SomeResourcesRemain",
                        "Some resources are remaining: configmaps. has 2 resource instances, jobs.batch has 1 resource"
                        " instances",
                    ),
                    NamespaceFinalizersRemaining=(
                        "SomeFinalizersRemain",
                        "Some content in the namespace has finalizers remaining: example.com/x in 2 resource"
                        " instances, example.com/y in 1 resource instances",
                    ),
                )
            }
        )
    ]
    assert plan.then == ()


def test_no_more_of_a_namespace_is_read_at_a_time_than_is_deleted() -> None:
    """All objects were decoded whole, for each fifty that were deleted: minutes, and gigabytes, for some thousands."""
    many = [thing("pods", f"s{number:04}") for number in range(1_000)]
    objects = CountedObjects(namespace(), *many)
    controller, deleted = NamespaceDeletion(RESOURCES.values()), set[str]()
    for turn in range(20):
        objects.read.clear()
        plan = controller.reconcile("shop", objects, NOW)
        deleted |= {write.name for write in plan.writes if isinstance(write, Delete)}
        assert (len(deleted), plan.after) == (50 * (turn + 1), 0)
        assert len(objects.read) < 150  # for their sizes as well
    # All are asked to go: what follows is looked at later.
    plan = controller.reconcile("shop", objects, NOW)
    assert (list(plan.writes), plan.after) == ([], PAUSE.total_seconds())


def test_what_remains_is_looked_at_in_pieces() -> None:
    """A namespace full of objects that wait for their finalizers held up the whole API, with each change of one."""
    controller, now = NamespaceDeletion(RESOURCES.values()), NOW
    large = [thing("configmaps", f"c{number}", "example.com/x", deleting=True) for number in range(3)]
    for _, value in large:
        value["data"] = {"x": "x" * PIECE}
    objects = Objects(namespace(), *large)
    assert list(controller.observe(change(namespace()))) == ["shop"]
    for _ in large:
        for _ in range(2):  # the second has come before its time
            plan = controller.reconcile("shop", objects, now)
            assert (list(plan.writes), plan.after) == ([], PAUSE.total_seconds())
        now += PAUSE
    assert list(controller.observe(change(large[0]))) == ["shop"]
    plan = controller.reconcile("shop", objects, now)
    (told,) = plan.writes
    assert isinstance(told, Patch)
    text = "Some resources are remaining: configmaps. has 3 resource instances"
    assert told.patch["status"]["conditions"][3]["message"] == text
    assert plan.after == PAUSE.total_seconds()  # it has changed meanwhile


def test_not_any_number_of_finalizers_is_told() -> None:
    """A condition of a hundred megabytes was made of them, which the API refused, again and again."""
    many = [thing("configmaps", f"c{one}", *(f"e.com/{one}-{n}" for n in range(60)), deleting=True) for one in range(9)]
    (told,) = ended(namespace(), *many).writes
    assert isinstance(told, Patch)
    message = told.patch["status"]["conditions"][4]["message"]
    assert message.count("e.com/") == MOST_FINALIZERS
    assert message.endswith(" in 1 resource instances, and others")


def test_pods_that_are_about_to_go_are_waited_for() -> None:
    plan = ended(namespace(), thing("configmaps", "a"), thing("pods", "p", deleting=True))
    (told,) = plan.writes
    assert isinstance(told, Patch)
    assert told.patch["status"]["conditions"][3]["message"] == (
        "Some resources are remaining: pods. has 1 resource instances"
    )


def test_an_empty_namespace_is_finalized() -> None:
    plan = ended(namespace(), thing("nodes", "n"))
    assert (list(plan.writes), plan.then) == ([status({"conditions": conditions()})], (finalize(None),))
    told = namespace(
        spec={"finalizers": ["example.com/mine", "kubernetes"]},
        status={"phase": "Terminating", "conditions": conditions()},
    )
    plan = ended(told)
    assert (list(plan.writes), plan.then) == ([], (finalize(["example.com/mine"]),))


def test_conditions_keep_the_time_of_their_last_change() -> None:
    old = conditions(NamespaceContentRemaining=("SomeResourcesRemain", "Some resources are remaining: pods. has 2"))
    for item in old:
        item["lastTransitionTime"] = "2026-11-23T05:00:00Z"
    plan = ended(namespace(status={"phase": "Terminating", "conditions": old}), thing("pods", "p", deleting=True))
    (told,) = plan.writes
    assert isinstance(told, Patch)
    assert {item["lastTransitionTime"] for item in told.patch["status"]["conditions"]} == {"2026-11-23T05:00:00Z"}


def test_what_is_looked_at_of_namespaces_that_end() -> None:
    controller = NamespaceDeletion(RESOURCES.values())

    def told(found: tuple[str, dict[str, Any]], kind: EventType = EventType.MODIFIED) -> list[Item]:
        return list(controller.observe(change(found, kind)))

    assert told(namespace(deleting=False)) == []
    assert told(thing("pods", "p")) == []
    assert told(namespace()) == ["shop"]
    assert told(thing("pods", "p"), EventType.DELETED) == ["shop"]
    assert told(namespace(), EventType.DELETED) == []
    assert told(thing("pods", "p"), EventType.DELETED) == []


# What every namespace has

DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the"
    " internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes"
    " clusters."
)
BUNDLE = {
    "metadata": {"name": "kube-root-ca.crt", "annotations": {"kubernetes.io/description": DESCRIPTION}},
    "data": {"ca.crt": "PEM"},
}


def bundle(**changes: Any) -> tuple[str, dict[str, Any]]:
    metadata = BUNDLE["metadata"] | {"namespace": "shop"}
    return "configmaps", BUNDLE | {"metadata": metadata} | changes


ACCOUNT = thing("serviceaccounts", "default")


def filled(*objects: tuple[str, dict[str, Any]]) -> list[object]:
    return list(NamespaceContents("PEM").reconcile("shop", Objects(*objects), NOW).writes)


def test_every_namespace_has_a_service_account_and_the_root_ca() -> None:
    assert filled() == []
    assert filled(namespace()) == []
    active = namespace(deleting=False)
    assert filled(active) == [
        Create(resource="serviceaccounts", namespace="shop", value={"metadata": {"name": "default"}}),
        Create(resource="configmaps", namespace="shop", value=BUNDLE),
    ]
    assert filled(active, ACCOUNT, bundle()) == []
    (repaired,) = filled(active, ACCOUNT, bundle(data={"ca.crt": "other", "more": "x"}))
    assert isinstance(repaired, Patch)
    assert repaired.patch["data"] == {"ca.crt": "PEM", "more": None}


def test_a_namespace_that_nodes_need_is_made_again() -> None:
    """kube-apiserver: the controller ``systemnamespaces``."""
    key = Key("namespaces", "", "kube-node-lease")
    value = msgspec.json.encode({"metadata": {"name": "kube-node-lease", "uid": "u"}})
    controller = NamespaceContents("PEM")
    assert list(controller.observe(Change(Event(EventType.DELETED, Stored(key, 9, value), None), NOW))) == [key.name]
    plan = controller.reconcile(key.name, Objects(), NOW)
    assert list(plan.writes) == [Create(resource="namespaces", namespace="", value={"metadata": {"name": key.name}})]


@pytest.mark.parametrize(
    ("found", "kind", "items"),
    [
        (namespace(deleting=False), EventType.ADDED, ["shop"]),
        (namespace(), EventType.DELETED, []),
        (ACCOUNT, EventType.DELETED, ["shop"]),
        (ACCOUNT, EventType.MODIFIED, []),
        (thing("serviceaccounts", "other"), EventType.DELETED, []),
        (bundle(), EventType.MODIFIED, ["shop"]),
        (bundle(), EventType.DELETED, ["shop"]),
        (thing("configmaps", "other"), EventType.MODIFIED, []),
    ],
)
def test_what_is_looked_at_of_their_contents(
    found: tuple[str, dict[str, Any]], kind: EventType, items: list[str]
) -> None:
    assert list(NamespaceContents("PEM").observe(change(found, kind))) == items


# Events


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({}, 600),
        ({"lastTimestamp": "2026-11-23T05:30:00Z"}, 1800),
        ({"eventTime": "2026-11-23T05:20:00.5Z"}, 1200.5),
        ({"series": {"lastObservedTime": "2026-11-23T05:59:59Z"}}, 3599),
        ({"lastTimestamp": "2999-01-01T00:00:00Z"}, 3600),
    ],
)
def test_events_stay_an_hour(fields: dict[str, Any], left: float) -> None:
    _, event = thing("events", "e")
    event["metadata"]["creationTimestamp"] = "2026-11-23T05:10:00Z"
    key, objects = Key("events", "shop", "e"), Objects(("events", event | fields))
    expiry = EventExpiry()
    plan = expiry.reconcile(key, objects, NOW)
    assert (list(plan.writes), plan.after) == ([], left)
    later = expiry.reconcile(key, objects, NOW + timedelta(hours=1))
    assert list(later.writes) == [Delete(resource="events", namespace="shop", name="e", uid="uid-e", revision="1")]
    assert list(EventExpiry().reconcile(key, Objects(), NOW).writes) == []


def test_an_event_of_the_future_stays_an_hour_from_its_last_change() -> None:
    """Whoever may write events could fill the disk with such as never go, and so did a clock that was set back."""
    resource, event = thing("events", "e")
    event["lastTimestamp"] = "2999-01-01T00:00:00Z"
    key, objects, expiry = Key("events", "shop", "e"), Objects((resource, event)), EventExpiry()
    assert expiry.reconcile(key, objects, NOW).after == 3600
    assert expiry.reconcile(key, objects, NOW + timedelta(minutes=50)).after == 600
    assert list(expiry.observe(change((resource, event)))) == [key]
    assert expiry.reconcile(key, objects, NOW + timedelta(minutes=50)).after == 3600


def test_every_event_is_looked_at() -> None:
    found = thing("events", "e")
    assert list(EventExpiry().observe(change(found))) == [Key("events", "shop", "e")]
    assert list(EventExpiry().observe(change(found, EventType.DELETED))) == []
