"""The plugin LimitRanger."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.apiserver.admission.limit_ranger import ANNOTATION, LimitRanger
from podkeep.apiserver.meta.status import StatusError
from support.admission import Objects, admit, attributes


def plugin(*limits: dict[str, Any]) -> LimitRanger:
    value = {"metadata": {"name": "l", "namespace": "default"}, "spec": {"limits": list(limits)}}
    return LimitRanger(Objects(("limitranges", value)))


def resources(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> dict[str, Any]:
    return {name: given for name, given in (("requests", requests), ("limits", limits)) if given}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    found = [{"name": f"c{index}", "resources": given} for index, given in enumerate(containers)]
    return {"metadata": {"name": "web", "namespace": "default"}, "spec": {"containers": found, **spec}}


def claim(storage: str | None) -> dict[str, Any]:
    spec = {"resources": {"requests": {"storage": storage}}} if storage else {}
    return {"metadata": {"name": "data", "namespace": "default"}, "spec": spec}


def refusal(found: LimitRanger, resource: str, value: dict[str, Any], **more: Any) -> str:
    with pytest.raises(StatusError) as caught:
        admit(found, attributes(resource, value, **more))
    assert caught.value.code == 403
    return caught.value.message.partition(" is forbidden: ")[2]


def test_containers_get_what_they_leave_out() -> None:
    found = plugin(
        {"type": "Container", "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "1"}},
        {"type": "Pod", "max": {"cpu": "8"}},
    )
    value = pod({}, resources({"cpu": "500m"}, {"cpu": "3"}), initContainers=[{"name": "i"}])
    admit(found, attributes("pods", value))
    first, second = value["spec"]["containers"]
    assert first["resources"] == {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    assert second["resources"] == {"requests": {"cpu": "500m"}, "limits": {"cpu": "3", "memory": "1Gi"}}
    assert value["spec"]["initContainers"][0]["resources"] == first["resources"]
    assert value["metadata"]["annotations"] == {
        ANNOTATION: "LimitRanger plugin set: cpu request for container c0; cpu, memory limit for container c0; memory"
        " limit for container c1; cpu request for init container i; cpu, memory limit for init container i"
    }


def test_many_containers_do_not_get_many_amounts_each() -> None:
    amounts = {f"example.com/{number}": "1" for number in range(200)}
    found = plugin({"type": "Container", "default": amounts, "defaultRequest": amounts})
    value = pod(*({} for _ in range(100)))
    with pytest.raises(StatusError, match="limit is 10000 values") as caught:
        admit(found, attributes("pods", value))
    assert caught.value.code == 413
    assert sum("limits" in container["resources"] for container in value["spec"]["containers"]) <= 25


def test_what_is_wrong_is_looked_for_only_so_long() -> None:
    limits = {f"example.com/{number}": "1" for number in range(2_000)}
    text = refusal(plugin({"type": "Container", "max": limits}), "pods", pod(*({} for _ in range(100))))
    assert text.count("No limit is specified") == 1_000


def test_a_pod_is_not_held_against_limit_ranges_without_end() -> None:
    """Whoever owns a namespace makes thousands, and its containers were added up for each: 37 s for 5,000 of them."""
    limits = [{"type": "Pod", "min": {"cpu": "1m"}}, {"type": "Container"}]
    ranges = [
        {"metadata": {"name": f"l{number}", "namespace": "default"}, "spec": {"limits": limits}}
        for number in range(300)
    ]
    found = LimitRanger(Objects(*(("limitranges", value) for value in ranges)))
    many = pod(*(resources({"cpu": "1m"}) for _ in range(900)))
    why = "the limits of namespace default are too many to hold 900 containers against them; delete some first"
    assert refusal(found, "pods", many) == why
    admit(found, attributes("pods", pod(resources({"cpu": "1m"}))))


def test_limit_ranges_without_end_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podkeep.apiserver.admission.limit_ranger.MAX_BYTES", 1_000)
    large = {"type": "PersistentVolumeClaim", "max": {f"example.com/{number}": "1" for number in range(100)}}
    why = "the LimitRanges of namespace default have more than 1000 bytes together; delete some first"
    for resource, value in (("pods", pod({})), ("persistentvolumeclaims", claim("1Gi"))):
        assert refusal(plugin(large), resource, value) == why


def test_what_has_everything_is_left_as_it_is() -> None:
    value = pod(resources({"cpu": "1"}, {"cpu": "2"}))
    admit(
        plugin({"type": "Container", "default": {"cpu": "9"}, "defaultRequest": {"cpu": "9"}}),
        attributes("pods", value),
    )
    assert value == pod(resources({"cpu": "1"}, {"cpu": "2"}))


MIN = "minimum cpu usage per Container is 1"
MAX = "maximum cpu usage per Container is 2"
RATIO = "cpu max limit to request ratio per Container is 2"


@pytest.mark.parametrize(
    ("limit", "given", "expected"),
    [
        ({"min": {"cpu": "1"}}, {}, f"{MIN}.  No request is specified"),
        ({"min": {"cpu": "1"}}, resources({"cpu": "500m"}), f"{MIN}, but request is 500m"),
        ({"min": {"cpu": "1"}}, resources({"cpu": "1"}, {"cpu": "500m"}), f"{MIN}, but limit is 500m"),
        ({"max": {"cpu": "2"}}, resources({"cpu": "1"}), f"{MAX}.  No limit is specified"),
        ({"max": {"cpu": "2"}}, resources({}, {"cpu": "3"}), f"{MAX}, but limit is 3"),
        ({"max": {"cpu": "2"}}, resources({"cpu": "3"}, {"cpu": "2"}), f"{MAX}, but request is 3"),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {},
            f"{RATIO}, but no request is specified or request is 0",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            resources({"cpu": "1"}),
            f"{RATIO}, but no limit is specified or limit is 0",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            resources({"cpu": "300m"}, {"cpu": "1"}),
            f"{RATIO}, but provided ratio is 3.333333",
        ),
        (
            {"min": {"cpu": "1"}, "max": {"cpu": "2"}},
            {},
            f"[{MIN}.  No request is specified, {MAX}.  No limit is specified]",
        ),
    ],
)
def test_containers_out_of_range(limit: dict[str, Any], given: dict[str, Any], expected: str) -> None:
    found = plugin({"type": "Container", **limit})
    assert refusal(found, "pods", pod(given)) == expected
    inits = [{"name": "i", "restartPolicy": "Always", "resources": given}]
    good = resources({"cpu": "1"}, {"cpu": "2"})
    assert refusal(found, "pods", pod(good, initContainers=inits)) == expected
    admit(found, attributes("pods", pod(good)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (pod(resources({"cpu": "1"}, {"cpu": "1"}), resources({"cpu": "1"}, {"cpu": "1"})), ""),
        (
            pod(resources({"cpu": "1"}, {"cpu": "2"}), resources({"cpu": "1"}, {"cpu": "2"})),
            "maximum cpu usage per Pod is 3, but limit is 4",
        ),
        (
            pod(resources({"cpu": "1"}, {"cpu": "2"}), resources=resources({"cpu": "4"}, {"cpu": "4"})),
            "maximum cpu usage per Pod is 3, but limit is 4",
        ),
    ],
)
def test_pods_out_of_range(value: dict[str, Any], expected: str) -> None:
    found = plugin({"type": "Pod", "max": {"cpu": "3"}})
    if expected:
        assert refusal(found, "pods", value) == expected
    else:
        admit(found, attributes("pods", value))


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ("2Gi", ""),
        ("500Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi"),
        ("4Gi", "maximum storage usage per PersistentVolumeClaim is 3Gi, but request is 4Gi"),
        (
            None,
            "[minimum storage usage per PersistentVolumeClaim is 1Gi.  No request is specified, maximum storage usage"
            " per PersistentVolumeClaim is 3Gi.  No request is specified]",
        ),
    ],
)
def test_claims_out_of_range(storage: str | None, expected: str) -> None:
    found = plugin({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "3Gi"}})
    for old in (None, claim("2Gi")):
        if expected:
            assert refusal(found, "persistentvolumeclaims", claim(storage), old=old) == expected
        else:
            admit(found, attributes("persistentvolumeclaims", claim(storage), old))


def test_which_writes_are_looked_at() -> None:
    found = plugin({"type": "Container", "max": {"cpu": "1"}})
    wrong, good = pod(resources({}, {"cpu": "2"})), pod(resources({}, {"cpu": "1"}))
    assert refusal(found, "pods", wrong, old=good, subresource="resize")
    admit(found, attributes("pods", wrong, good))
    admit(found, attributes("pods", wrong, good, subresource="status"))
    admit(found, attributes("configmaps", wrong))
    deleted = {**good, "metadata": {**good["metadata"], "deletionTimestamp": "2026-11-23T12:00:00Z"}}
    admit(found, attributes("pods", wrong, deleted, subresource="resize"))
    elsewhere = {**wrong, "metadata": {"name": "web", "namespace": "other"}}
    admit(found, attributes("pods", elsewhere))
