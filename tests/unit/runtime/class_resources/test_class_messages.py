"""What ``Status`` says of class resources, and whose annotations may ask for which class."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from podkeep.base.errors import PermissionDenied
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.class_resources.annotations import find
from podkeep.runtime.class_resources.model import ClassResource, Level, Offer, Origin, Target
from podkeep.runtime.class_resources.qos import Qos
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.rpc.convert.class_resources import Discovery, resources_info

Infos = dict[str, tuple[list[str], bool, str]]


class Named(ClassResource):
    """A type that offers classes and does nothing; ``denied`` are not for annotations of these origins."""

    def __init__(
        self, name: str, offers: Mapping[Level, Offer], denied: frozenset[tuple[str, Origin]] = frozenset()
    ) -> None:
        self._name, self._offers, self._denied = name, offers, denied

    @property
    def name(self) -> str:
        return self._name

    def offers(self) -> Mapping[Level, Offer]:
        return self._offers

    def why_not(self, _level: Level) -> str:
        return ""

    def check(self, _level: Level, _class_name: str) -> None:
        pass

    def denies_annotation(self, class_name: str, origin: Origin) -> bool:
        return (class_name, origin) in self._denied

    def edit(self, _class_name: str, config: dict[str, Any]) -> dict[str, Any]:
        return config

    def put(self, _target: Target, _class_name: str, _previous: str | None) -> None:
        pass

    def verify(self, _target: Target, _class_name: str) -> None:
        pass

    def release(self, _target: Target, _class_name: str) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {}


def many(count: int) -> Named:
    return Named("many", {Level.CONTAINER: Offer(classes=tuple(f"class-{number:04}" for number in range(count)))})


def infos(messages: Any) -> Infos:
    return {item.Name: ([each.Name for each in item.classes], item.immutable, item.default_class) for item in messages}


@pytest.mark.requirement("Q3", "Q11", "Q12", "Q13", "Q79")
def test_what_is_offered_is_said_by_level() -> None:
    cache = Named("cache", {Level.CONTAINER: Offer(classes=("bronze", "gold"), immutable=True)})
    disk = Named("disk", {Level.CONTAINER: Offer(classes=("slow",)), Level.POD: Offer(classes=("fast", "slow"))})
    classes = ClassResources([disk, cache], {"cache": "bronze"}, {"disk": "slow"})
    message = resources_info(classes)
    assert infos(message.container_class_resources) == {
        "cache": (["bronze", "gold"], True, "bronze"),
        "disk": (["slow"], False, ""),
    }
    assert infos(message.pod_class_resources) == {"disk": (["fast", "slow"], False, "slow")}
    assert [item.Name for item in message.container_class_resources] == ["cache", "disk"]


@pytest.mark.requirement("Q11")
def test_the_status_has_it_until_the_configuration_is_another() -> None:
    classes = ClassResources([Qos()])
    classes.start()
    discovery = Discovery(classes)

    def status() -> api.RuntimeStatus:
        answer = api.StatusResponse(
            status=api.RuntimeStatus(conditions=[api.RuntimeCondition(type="RuntimeReady", status=True)])
        )
        discovery.add_to(answer)
        assert [item.type for item in answer.status.conditions] == ["RuntimeReady"]
        return answer.status

    first = status()
    assert set(infos(first.resources.container_class_resources)) == {"qos"}
    assert status() == first
    classes.replace(ClassResources([Qos(), many(2)]))
    assert set(infos(status().resources.container_class_resources)) == {"many", "qos"}
    classes.replace(ClassResources([]))
    assert status().HasField("resources")
    assert infos(status().resources.container_class_resources) == {}


def test_a_thousand_classes_are_said_in_a_fraction_of_a_millisecond() -> None:
    discovery = Discovery(ClassResources([many(1000)]))
    discovery.add_to(api.StatusResponse())
    times = []
    for _ in range(20):
        started = time.perf_counter()
        answer = api.StatusResponse()
        discovery.add_to(answer)
        assert len(answer.SerializeToString()) > 10_000
        times.append(time.perf_counter() - started)
    assert min(times) < 0.001


DENIED = frozenset({("gold", Origin.POD), ("own", Origin.CONTAINER)})
POD_KEY = "rdt.resources.beta.kubernetes.io/pod"
CONTAINER_KEY = "io.kubernetes.cri.rdt-class"


@pytest.mark.requirement("Q27")
@pytest.mark.parametrize(
    ("asked", "container", "pod", "denied"),
    [
        ({}, {}, {POD_KEY: "gold"}, True),
        ({}, {}, {POD_KEY: "default"}, True),
        ({}, {CONTAINER_KEY: "gold"}, {POD_KEY: "gold"}, False),
        ({}, {CONTAINER_KEY: "own"}, {}, True),
        ({}, {}, {POD_KEY: "own"}, False),
        ({"rdt": "silver"}, {}, {POD_KEY: "gold"}, False),
        ({}, {}, {POD_KEY: "nosuch"}, False),
    ],
)
def test_classes_that_annotations_may_not_ask_for(
    asked: dict[str, str], container: dict[str, str], pod: dict[str, str], denied: bool
) -> None:
    offer = Offer(classes=("gold", "own", "silver"))
    classes = ClassResources([Named("rdt", {Level.CONTAINER: offer}, DENIED)], {"rdt": "gold"})
    found = find(asked, "main", container, pod)
    if not denied:
        classes.catalog.check_annotations(found)
        assert {item.origin for item in found.values()} <= set(Origin)
        return
    with pytest.raises(PermissionDenied) as caught:
        classes.catalog.check_annotations(found)
    assert str(caught.value).startswith("class resource rdt: class '")
    assert next(iter(found.values())).key in caught.value.hint


@pytest.mark.requirement("Q27")
def test_annotations_of_a_type_that_is_not_here_are_for_the_registry_to_refuse() -> None:
    found = find({}, "main", {}, {POD_KEY: "gold"})
    ClassResources([]).catalog.check_annotations(found)
    assert found["rdt"].class_name == "gold"
