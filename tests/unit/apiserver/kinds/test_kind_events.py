"""Events in both of their groups, alone and over a real store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from podkeep.api import names
from podkeep.apiserver.kinds.cluster import events
from podkeep.apiserver.kinds.resources import Target
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.registry.registry import DeleteOptions, PatchType, Registry, Request
from podkeep.apiserver.storage.store import Store
from support import kinds

CORE, NEW = events.RESOURCES
ME = Request(field_manager="me")
TIME = "2026-11-23T11:59:00.000000Z"
POD = {"kind": "Pod", "namespace": "default", "name": "web"}


def old_style(**fields: Any) -> dict[str, Any]:
    return {"involvedObject": POD, "reason": "Started", "message": "m", "type": "Normal", **fields}


def new_style(**fields: Any) -> dict[str, Any]:
    value = {
        "eventTime": TIME,
        "reportingController": "example.com/agent",
        "reportingInstance": "agent-0",
        "action": "Starting",
        "reason": "Started",
        "regarding": POD,
        "type": "Normal",
        "note": "m",
    } | fields
    return {name: item for name, item in value.items() if item is not None}


OTHER = 'involvedObject.namespace: Invalid value: "other": does not match event.namespace'
NONE = 'involvedObject.namespace: Invalid value: "": does not match event.namespace'


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (old_style(), []),
        (old_style(involvedObject={"namespace": "other"}), [OTHER]),
        (old_style(involvedObject={}), []),
        (old_style(involvedObject={}, metadata={"namespace": "b"}), [NONE]),
        (old_style(metadata={"namespace": "b"}), [NONE.replace('""', '"default"')]),
        (old_style(type="Other"), []),
        (old_style(series={"count": 1}), []),
        (
            old_style(eventTime=TIME),
            [
                "reportingComponent: Required value",
                *(f'reportingComponent: Invalid value: "": {why}' for why in names.label_key_problems("")),
                "reportingInstance: Required value",
                "action: Required value",
            ],
        ),
        (
            old_style(
                eventTime=TIME,
                reportingComponent="a b",
                reportingInstance="x" * 129,
                action="x" * 129,
                reason="x" * 129,
                message="x" * 1025,
            ),
            [
                f'reportingComponent: Invalid value: "a b": {names.label_key("a b")}',
                'reportingInstance: Invalid value: "": can have at most 128 characters',
                'action: Invalid value: "": can have at most 128 characters',
                'reason: Invalid value: "": can have at most 128 characters',
                'message: Invalid value: "": can have at most 1024 characters',
            ],
        ),
        (
            old_style(
                involvedObject={},
                metadata={"namespace": "b"},
                eventTime=TIME,
                reportingComponent="a",
                reportingInstance="b",
                action="c",
            ),
            [NONE],
        ),
    ],
)
def test_what_is_wrong_with_an_event(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(CORE, value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (new_style(), []),
        (
            new_style(reportingController=""),
            [
                "reportingController: Required value",
                *(f'reportingController: Invalid value: "": {why}' for why in names.label_key_problems("")),
            ],
        ),
        (new_style(eventTime=None), ["eventTime: Required value"]),
        (new_style(type="Other"), ['type: Invalid value: "": has invalid value: Other']),
        (
            new_style(series={"count": 1}),
            [
                'series.count: Invalid value: "": should be at least 2',
                "series.lastObservedTime: Required value",
            ],
        ),
        (
            new_style(
                deprecatedFirstTimestamp="2026-11-23T11:00:00Z",
                deprecatedLastTimestamp="2026-11-23T11:00:00Z",
                deprecatedCount=2,
                deprecatedSource={"component": "a"},
            ),
            [
                'firstTimestamp: Invalid value: "": needs to be unset',
                'lastTimestamp: Invalid value: "": needs to be unset',
                'count: Invalid value: "": needs to be unset',
                'source: Invalid value: "": needs to be unset',
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_new_event_of_the_new_group(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(NEW, value) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"series": {"count": 2, "lastObservedTime": TIME}}, []),
        (
            {"series": {"count": 1, "lastObservedTime": TIME}},
            ['series.count: Invalid value: "": should be at least 2'],
        ),
        ({"note": "other"}, ['message: Invalid value: "other": field is immutable']),
        ({"deprecatedCount": 3}, ["count: Invalid value: 3: field is immutable"]),
        ({"deprecatedCount": 0, "deprecatedSource": {}}, []),
        ({"reportingController": "b"}, ['reportingController: Invalid value: "b": field is immutable']),
        (
            {"regarding": {"name": "other"}},
            ['involvedObject: Invalid value: {"kind":"Pod","namespace":"default","name":"other"}: field is immutable'],
        ),
    ],
)
def test_what_an_update_in_the_new_group_may_change(changes: dict[str, Any], expected: list[str]) -> None:
    assert kinds.update_problems(NEW, new_style(), changes) == expected
    core = events.as_core(changes)
    assert kinds.update_problems(CORE, events.as_core(new_style()), {**core, "apiVersion": "v1"}) == []


def test_both_forms_have_the_same_content() -> None:
    value = new_style(
        related=POD,
        series={"count": 2, "lastObservedTime": TIME},
        deprecatedSource={"component": "a"},
        deprecatedCount=2,
        metadata={"name": "a"},
    )
    core = events.as_core(value)
    assert core["involvedObject"] == POD
    assert (core["message"], core["reportingComponent"], core["source"], core["count"]) == (
        "m",
        "example.com/agent",
        {"component": "a"},
        2,
    )
    assert core["apiVersion"] == "v1"
    assert events.of_core(core) == {**value, "apiVersion": "events.k8s.io/v1", "kind": "Event"}


@pytest.mark.parametrize(("name", "expected"), [("system:A.17f", ""), ("a/b", "may not contain '/'")])
def test_names_of_events_are_those_of_what_they_are_about(name: str, expected: str) -> None:
    assert CORE.strategy.name_rule(name) == expected


def test_selectable_fields() -> None:
    value = events.as_core(new_style())
    found = CORE.strategy.selectable(value)
    assert found["involvedObject.name"] == "web"
    assert found["source"] == found["reportingComponent"] == "example.com/agent"
    assert CORE.strategy.selectable({"source": {"component": "kubelet"}})["source"] == "kubelet"
    found = NEW.strategy.selectable(new_style())
    assert (found["regarding.name"], found["reportingController"]) == ("web", "example.com/agent")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            old_style(
                firstTimestamp="2026-11-23T11:00:00Z",
                lastTimestamp="2026-11-23T11:58:00Z",
                count=3,
                source={"component": "kubelet", "host": "n"},
                involvedObject=POD | {"fieldPath": "spec.containers{c}"},
                message=" m\n",
            ),
            {
                "Last Seen": "2m",
                "Type": "Normal",
                "Reason": "Started",
                "Object": "pod/web",
                "(Subobject)": "spec.containers{c}",
                "(Source)": "kubelet, n",
                "Message": "m",
                "(First Seen)": "60m",
                "(Count)": 3,
                "(Name)": "a",
            },
        ),
        (
            events.as_core(new_style()),
            {
                "Last Seen": "60s",
                "(Source)": "example.com/agent, agent-0",
                "(First Seen)": "60s",
                "(Count)": 1,
            },
        ),
        (
            events.as_core(new_style(series={"count": 7, "lastObservedTime": "2026-11-23T11:59:30.000000Z"})),
            {"Last Seen": "30s", "(First Seen)": "60s", "(Count)": 7},
        ),
        (old_style(involvedObject={"kind": "Node"}), {"Object": "node", "Last Seen": "<unknown>"}),
    ],
)
def test_the_row_of_an_event(value: dict[str, Any], expected: dict[str, Any]) -> None:
    value = {**value, "metadata": {"name": "a"}}
    row = kinds.table(CORE, value)
    assert {name: row[name] for name in expected} == expected
    assert kinds.table(NEW, events.of_core(value)) == row


def test_one_storage_has_both(tmp_path: Path) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            registry = Registry(store)
            new, core = Target(NEW, "default", "a"), Target(CORE, "default", "a")
            made = await registry.create(new, {"metadata": {"name": "a"}, **new_style()}, ME)
            assert made["apiVersion"] == "events.k8s.io/v1"
            assert made["note"] == "m"
            stored = StoreLister(store).get("events", "default", "a")
            assert stored is not None
            assert (stored["apiVersion"], stored["message"], stored["involvedObject"]) == ("v1", "m", POD)
            patched = await registry.patch(core, {"message": "n"}, PatchType.MERGE, ME)
            assert patched["message"] == "n"
            series = {"series": {"count": 2, "lastObservedTime": TIME}}
            patched = await registry.patch(new, series, PatchType.MERGE, ME)
            assert (patched["note"], patched["series"], patched["kind"]) == ("n", series["series"], "Event")
            assert "message" not in patched
            with pytest.raises(StatusError) as caught:
                await registry.patch(new, {"note": "o"}, PatchType.MERGE, ME)
            assert 'message: Invalid value: "o": field is immutable' in caught.value.message
            config = {"metadata": {"name": "a"}, "series": {"count": 3, "lastObservedTime": TIME}}
            applied, made_new = await registry.apply(new, config, ME, force=True)
            assert (made_new, applied["series"]["count"], applied["note"]) == (False, 3, "n")
            deleted, gone = await registry.delete(new, DeleteOptions(), ME)
            assert gone
            assert deleted["note"] == "n"
            assert store.count("events") == 0

    asyncio.run(steps())
