"""Events that are repeated, similar, or too many."""

from __future__ import annotations

import tracemalloc

import pytest

from podkeep.client.correlation import BURST, REFILL_S, SIMILAR, SIMILAR_S, Correlator, Occurrence, Reference, body

POD = Reference(kind="Pod", namespace="default", name="web", uid="u", field_path="spec.containers{c}")


def happened(message: str = "m", *, at: float = 1000.0, about: Reference = POD, reason: str = "Failed") -> Occurrence:
    return Occurrence(about=about, type="Warning", reason=reason, message=message, time=at)


def test_the_same_again_is_counted() -> None:
    correlator = Correlator()
    first = correlator.take(happened(at=1000))
    assert first is not None
    name = first.name
    again = correlator.take(happened(at=1005))
    assert again is first
    assert (again.name, again.count, again.first, again.last) == (name, 2, 1000, 1005)


def test_another_reason_message_or_container_is_another_event() -> None:
    correlator = Correlator()
    other = Reference(kind="Pod", namespace="default", name="web", uid="u", field_path="spec.containers{d}")
    events = [
        correlator.take(item) for item in (happened(), happened("n"), happened(reason="Killing"), happened(about=other))
    ]
    assert [event.count for event in events if event is not None] == [1, 1, 1, 1]


def test_similar_ones_are_combined_from_the_tenth_on() -> None:
    correlator = Correlator()
    events = [correlator.take(happened(f"m{number}", at=1000.0 + number)) for number in range(SIMILAR + 2)]
    messages = [event.occurrence.message for event in events if event is not None]
    assert messages[: SIMILAR - 1] == [f"m{number}" for number in range(SIMILAR - 1)]
    assert events[SIMILAR - 1] is events[SIMILAR + 1]
    assert events[-1] is not None
    assert events[-1].count == 3
    assert events[-1].occurrence.message == f"(combined from similar events): m{SIMILAR + 1}"


def test_after_ten_minutes_nothing_is_similar_any_more() -> None:
    correlator = Correlator()
    for number in range(SIMILAR):
        correlator.take(happened(f"m{number}"))
    later = correlator.take(happened("later", at=1000.0 + SIMILAR_S + 1))
    assert later is not None
    assert later.occurrence.message == "later"


def test_too_many_about_one_object_are_left_out() -> None:
    correlator = Correlator()
    taken = [correlator.take(happened()) for _ in range(BURST + 5)]
    assert [event is not None for event in taken] == [True] * BURST + [False] * 5
    other = Reference(kind="Pod", namespace="default", name="other", uid="v")
    assert correlator.take(happened(about=other)) is not None
    again = correlator.take(happened(at=1000.0 + REFILL_S))
    assert again is not None
    assert again.count == BURST + 6, "those that were left out count"


@pytest.mark.slow
def test_texts_of_events_that_were_written_are_not_kept() -> None:
    """Who may make pods could have the agent keep a gigabyte of what their probes said."""
    correlator = Correlator()
    tracemalloc.start()
    try:
        for number in range(100):
            about = Reference(kind="Pod", namespace="default", name=f"p{number}", uid=f"u{number}")
            for turn in range(SIMILAR + BURST):
                event = correlator.take(happened(f"{number} {turn}".ljust(8192), about=about))
                if event is not None:
                    event.forget_text()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4 << 20


def test_a_clock_that_was_set_back_gives_nothing_away() -> None:
    correlator = Correlator()
    for _ in range(BURST):
        correlator.take(happened())
    assert correlator.take(happened(at=0.0)) is None


def test_an_event_as_the_api_takes_it() -> None:
    event = Correlator().take(happened("it failed", at=1.5))
    assert event is not None
    assert body(event, "kubelet", "n1") == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web.59682f00", "namespace": "default"},
        "involvedObject": {
            "kind": "Pod",
            "namespace": "default",
            "name": "web",
            "uid": "u",
            "apiVersion": "v1",
            "fieldPath": "spec.containers{c}",
        },
        "reason": "Failed",
        "message": "it failed",
        "source": {"component": "kubelet", "host": "n1"},
        "firstTimestamp": "1970-01-01T00:00:01Z",
        "lastTimestamp": "1970-01-01T00:00:01Z",
        "count": 1,
        "type": "Warning",
        "eventTime": None,
        "reportingComponent": "kubelet",
        "reportingInstance": "n1",
    }


def test_an_event_of_no_namespace_is_in_the_default_one() -> None:
    event = Correlator().take(happened(about=Reference(kind="Node", name="n1", uid="n1")))
    assert event is not None
    assert body(event, "kubelet", "n1")["metadata"]["namespace"] == "default"
