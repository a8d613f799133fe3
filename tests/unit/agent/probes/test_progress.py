"""Thresholds of probes, and when they run: tables of cases."""

from __future__ import annotations

import pytest

from podkeep.agent.probes import ports, ticks
from podkeep.agent.probes.model import Kind, Verdict
from podkeep.agent.probes.progress import after, begin
from podkeep.api.containers import Container, ContainerPort, Probe
from podkeep.base.errors import InvalidArgument

VERDICTS = {"s": Verdict.SUCCESS, "w": Verdict.WARNING, "f": Verdict.FAILURE, "u": Verdict.UNKNOWN}


@pytest.mark.parametrize(
    ("kind", "success", "failure", "outcomes", "result", "held"),
    [
        (Kind.READINESS, 1, 3, "", False, False),
        (Kind.LIVENESS, 1, 3, "", True, False),
        (Kind.STARTUP, 1, 3, "", None, False),
        (Kind.READINESS, 1, 3, "s", True, False),
        (Kind.READINESS, 1, 3, "w", True, False),
        (Kind.READINESS, 2, 3, "s", False, False),
        (Kind.READINESS, 2, 3, "ss", True, False),
        (Kind.READINESS, 2, 3, "sfs", False, False),
        (Kind.READINESS, 1, 3, "sff", True, False),
        (Kind.READINESS, 1, 3, "sfff", False, False),
        (Kind.READINESS, 1, 3, "sffufuf", False, False),
        (Kind.READINESS, 1, 3, "sffsff", True, False),
        (Kind.LIVENESS, 1, 2, "f", True, False),
        (Kind.LIVENESS, 1, 2, "ff", False, True),
        (Kind.LIVENESS, 1, 2, "fsf", True, False),
        (Kind.LIVENESS, 1, 2, "uuuu", True, False),
        (Kind.STARTUP, 1, 2, "f", None, False),
        (Kind.STARTUP, 1, 2, "ff", False, True),
        (Kind.STARTUP, 1, 2, "fs", True, True),
    ],
)
def test_thresholds(kind: Kind, success: int, failure: int, outcomes: str, result: bool | None, held: bool) -> None:
    probe = Probe(success_threshold=success, failure_threshold=failure)
    progress = begin(kind)
    for outcome in outcomes:
        progress = after(progress, kind, probe, VERDICTS[outcome])
    assert (progress.result, progress.held) == (result, held)


@pytest.mark.parametrize(
    ("kind", "known", "result", "held"),
    [
        (Kind.READINESS, True, True, False),
        (Kind.READINESS, False, False, False),
        (Kind.STARTUP, True, True, True),
        (Kind.STARTUP, False, None, False),
        (Kind.LIVENESS, True, True, False),
    ],
)
def test_what_was_known_before_the_agent_was_restarted_counts(
    kind: Kind, known: bool, result: bool | None, held: bool
) -> None:
    progress = begin(kind, known=known)
    assert (progress.result, progress.held) == (result, held)


@pytest.mark.parametrize(
    ("now", "anchor", "period", "not_before", "expected"),
    [
        (100, 100, 10, 0, 100),
        (101, 100, 10, 0, 110),
        (110, 100, 10, 0, 110),
        (101, 100, 10, 125, 130),
        (90, 100, 10, 0, 100),
    ],
)
def test_the_first_time(now: float, anchor: float, period: float, not_before: float, expected: float) -> None:
    assert ticks.first(now, anchor, period, not_before) == expected


@pytest.mark.parametrize(
    ("now", "tick", "period", "due", "row"),
    [(100.5, 100, 10, 110, 110), (110, 100, 10, 110, 110), (112, 100, 10, 112, 110), (135, 100, 10, 135, 130)],
)
def test_the_next_time_is_at_once_if_one_was_missed(
    now: float, tick: float, period: float, due: float, row: float
) -> None:
    assert ticks.following(now, tick, period) == (due, row)


CONTAINER = Container(ports=(ContainerPort(name="web", container_port=8080), ContainerPort(container_port=9)))


@pytest.mark.parametrize(("port", "number"), [("web", 8080), ("80", 80), (65535, 65535)])
def test_ports(port: int | str, number: int) -> None:
    assert ports.resolve(port, CONTAINER) == number


@pytest.mark.parametrize(
    ("port", "why"), [("", "syntax"), ("none", "syntax"), ("0", "invalid"), ("65536", "invalid"), (-1, "invalid")]
)
def test_what_is_no_port(port: int | str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        ports.resolve(port, CONTAINER)
