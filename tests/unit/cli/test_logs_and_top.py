"""Options of ``podkeep logs``, and the arithmetic of ``podkeep top``."""

from __future__ import annotations

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.base.waiting import UNTOLD, Containers
from podkeep.cli.pods import logs, top
from podkeep.cri.v1 import api_pb2


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("1d", 86400), ("500ms", 0.5), ("1.5s", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert logs.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "5 m", "٣s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(InvalidArgument, match="not a duration"):
        logs.duration(text)


@pytest.mark.parametrize("since", ["9" * 400 + "h", "9999999999h"])
def test_all_records_are_newer_than_a_time_that_is_longer_than_there_are_clocks(since: str) -> None:
    assert logs.moment(since=since, since_time="") == 0


def test_a_time_before_there_were_years_is_none() -> None:
    with pytest.raises(InvalidArgument, match="--since-time=0001-01-01: not a time"):
        logs.moment(since="", since_time="0001-01-01")


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("app=web,tier==front, x=", True),
        ("app in (web, db),!stopped", True),
        ("app!=db", True),
        ("tier notin (back)", True),
        ("app", True),
        ("app=db", False),
        ("!app", False),
    ],
)
def test_a_selector_means_what_it_means_to_the_api(selector: str, matches: bool) -> None:
    labels = {"app": "web", "tier": "front", "x": ""}
    assert logs.parse_selector(selector).matches(labels) is matches


@pytest.mark.parametrize("selector", ["app in (a", "app in a", "!"])
def test_what_is_no_selector_is_refused(selector: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^-l .*: unable to parse requirement"):
        logs.parse_selector(selector)


def test_of_several_containers_the_first_of_the_manifest_is_meant() -> None:
    names = {"cache", "main", "writer"}
    assert logs.first_container(names, Containers(main=("waits", "writer", "main"), init=("cache",))) == "writer"
    assert logs.first_container(names, UNTOLD) == "cache"
    assert logs.first_container(set(), UNTOLD) == ""


def _cpu(moment: int, used: int, rate: int = 0) -> api_pb2.CpuUsage:
    return api_pb2.CpuUsage(
        timestamp=moment,
        usage_core_nano_seconds=api_pb2.UInt64Value(value=used),
        usage_nano_cores=api_pb2.UInt64Value(value=rate),
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (_cpu(0, 0), _cpu(10**9, 5 * 10**8), 500),
        (_cpu(0, 10**9), _cpu(10**9, 0), 0),
        (_cpu(5, 0), _cpu(5, 7, 25 * 10**7), 250),
        (None, _cpu(5, 7, 10**9), 1000),
    ],
)
def test_millicores(before: api_pb2.CpuUsage | None, after: api_pb2.CpuUsage, expected: int) -> None:
    assert top.millicores(before, after) == expected


def test_containers_that_have_ended_have_no_row() -> None:
    """Of an attempt that is over the runtime knows a writable layer; the one after it has the same name."""
    stats = api_pb2.PodSandboxStats()
    stats.attributes.metadata.name = "web"
    for attempt, used in ((0, None), (1, _cpu(5, 7))):
        item = stats.linux.containers.add()
        item.attributes.metadata.name, item.attributes.metadata.attempt = "main", attempt
        item.writable_layer.used_bytes.value = 4096
        if used is not None:
            item.cpu.CopyFrom(used)
    assert [(row.pod, row.container) for row in top.usages({}, {"id": stats}, containers=True)] == [("web", "main")]


def test_rows_are_ordered_by_what_is_asked() -> None:
    rows = [
        top.Usage(namespace="n", pod=pod, container="", cpu=cpu, memory=memory)
        for pod, cpu, memory in (("b", 1, 30), ("a", 2, 10), ("c", 1, 20))
    ]
    names = {sort: [row.pod for row in top.ordered(rows, sort)] for sort in ("cpu", "memory", "name")}
    assert names == {"cpu": ["a", "b", "c"], "memory": ["b", "c", "a"], "name": ["a", "b", "c"]}
