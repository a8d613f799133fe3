"""What holds for every file on every machine, tried against the stand-in's rules, which are the kernel's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from rdt_machine import Machine

from podkeep.base.errors import PodkeepError
from podkeep.runtime.class_resources.rdt import bitmask, explain, schemata
from podkeep.runtime.class_resources.rdt.allocation import Plan
from support.resctrl import hardware as stand_in

_IDS = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True).map(lambda ids: tuple(sorted(ids)))


@st.composite
def _caches(draw: st.DrawFn) -> stand_in.Cache:
    width = draw(st.integers(4, 32))
    return stand_in.Cache(
        cbm_mask=(1 << width) - 1,
        min_cbm_bits=draw(st.integers(0, 3)),
        num_closids=draw(st.sampled_from([2, 4, 8, 16, 32])),
        shareable_bits=draw(st.sampled_from([0, 1, 3 << (width - 2)])),
        sparse_masks=draw(st.sampled_from([False, True, None])),
        cdp=draw(st.booleans()),
        domains=draw(_IDS),
    )


@st.composite
def _bandwidths(draw: st.DrawFn) -> stand_in.MemoryBandwidth:
    minimum, step, maximum = draw(st.sampled_from([(10, 10, 100), (1, 1, 2048), (5, 5, 100), (1, 1, 100)]))
    return stand_in.MemoryBandwidth(
        min_bandwidth=minimum,
        bandwidth_gran=step,
        max_bandwidth=maximum,
        num_closids=draw(st.sampled_from([4, 8, 16])),
        mbps=draw(st.booleans()),
        domains=draw(_IDS),
    )


_MACHINES = st.builds(
    stand_in.Hardware,
    l2=st.none() | _caches(),
    l3=_caches(),
    mb=st.none() | _bandwidths(),
    cpus=st.just(2),
)

_KEYS = st.sampled_from(["0", "1", "0-1", "2,4", "3-5", "0,5"])


@st.composite
def _by_cache(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> Any:
    if draw(st.booleans()):
        return draw(values)
    return {"all": draw(values)} | draw(st.dictionaries(_KEYS, values, max_size=2))


def _percent(most: int) -> st.SearchStrategy[str]:
    return st.integers(1, most).map(lambda percent: f"{percent}%")


def _code_and_data(values: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({"all": st.fixed_dictionaries(dict.fromkeys(("unified", "code", "data"), values))})


_RANGES = st.tuples(st.integers(0, 100), st.integers(1, 100)).map(lambda both: f"{min(both)}-{max(both)}%")
_MASKS = st.tuples(st.integers(0, 20), st.integers(1, 8)).map(lambda at: hex(((1 << at[1]) - 1) << at[0]))
_LISTS = st.sets(st.integers(0, 20), min_size=1, max_size=6).map(lambda bits: ",".join(map(str, sorted(bits))))
_SHARES = _percent(100) | _RANGES | _MASKS | _LISTS
_LIMITS = st.tuples(st.integers(0, 100), st.integers(1, 10000)).map(lambda both: [f"{both[0]}%", f"{both[1]}MBps"])


@st.composite
def _files(draw: st.DrawFn, shares: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Return a file in which every partition divides both caches and bandwidth, in parts that are not too much."""
    count = draw(st.integers(1, 4))
    together = draw(st.booleans())  # every partition tells code and data apart, or none
    parts = _percent(100 // count)
    partition_values = _code_and_data(parts) if together else parts
    names = iter(f"c{number}" for number in range(100))
    partitions = {}
    for number in range(count):
        classes = {}
        for name in [next(names) for _ in range(draw(st.integers(0, 2)))]:
            classes[name] = draw(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "l2Allocation": _by_cache(shares),
                        "l3Allocation": _by_cache(shares) | _code_and_data(shares),
                        "mbAllocation": _by_cache(_LIMITS),
                    },
                )
            )
        partitions[f"p{number}"] = {
            "l2Allocation": draw(partition_values),
            "l3Allocation": draw(partition_values) if together else draw(_by_cache(parts)),
            "mbAllocation": draw(_by_cache(_LIMITS)),
            "classes": classes,
        }
    if draw(st.booleans()):
        partitions["p0"]["classes"]["system/default"] = {}
    return {"options": {"l2": {"optional": True}, "mb": {"optional": True}}, "partitions": partitions}


def _plan(machine: Machine, file: dict[str, Any]) -> Plan:
    """Return the plan of a file that can be had on ``machine``; other files are not tried."""
    plan, message = _tried(machine, json.dumps(file))
    assert message.startswith("rdt.yaml:") or plan
    assume(plan is not None)
    assert plan
    return plan


def _tried(machine: Machine, text: str) -> tuple[Plan | None, str]:
    """Return the plan, or what the error says."""
    try:
        return machine.plan(text), ""
    except PodkeepError as error:
        return None, error.message


def _masks(plan: Plan) -> Iterator[tuple[str, str, int, int]]:
    """Yield class, resource, cache ID and mask."""
    for each in (*plan.classes.values(), *([plan.root] if plan.root else [])):
        for resource, values in each.values.items():
            if resource != "MB":
                for number, mask in values.items():
                    yield each.name, resource, number, mask


_SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@pytest.mark.requirement("Q40", "Q43")
@_SETTINGS
@given(_MACHINES, _files(_percent(100)))
@pytest.mark.slow
def test_partitions_are_disjoint_and_classes_inside_them(hardware: stand_in.Hardware, file: dict[str, Any]) -> None:
    machine = Machine(hardware)
    plan = _plan(machine, file)
    for resource in {resource for each in plan.partitions for resource in each.masks}:
        for number in plan.partitions[0].masks[resource]:
            masks = [each.masks[resource][number] for each in plan.partitions]
            assert sum(masks) == bitmask.of({bit for mask in masks for bit in bitmask.bits(mask)})  # no bit twice
            assert all(len(bitmask.runs(bitmask.bits(mask))) == 1 for mask in masks)
    homes = {name: each for each in plan.partitions for name in each.classes}
    for name, resource, number, mask in _masks(plan):
        assert len(bitmask.runs(bitmask.bits(mask))) == 1
        assert mask & ~homes[name].masks[resource][number] == 0


@pytest.mark.requirement("Q37", "Q43")
@_SETTINGS
@given(_MACHINES, _files(_SHARES))
@pytest.mark.slow
def test_the_kernel_takes_every_line_and_shows_it_as_it_is(hardware: stand_in.Hardware, file: dict[str, Any]) -> None:
    machine = Machine(hardware)
    plan = _plan(machine, file)
    shown = machine.write(plan)
    for each in (*plan.classes.values(), *([plan.root] if plan.root else [])):
        assert schemata.differences(each.schemata, shown["" if each is plan.root else each.name]) == []
    assert explain.explain(plan)
    again = _plan(machine, file)
    assert (again.classes, again.root, again.partitions) == (plan.classes, plan.root, plan.partitions)


@pytest.mark.requirement("Q41", "Q43")
@_SETTINGS
@given(_MACHINES, _files(_percent(100)))
@pytest.mark.slow
def test_bandwidth_is_within_bounds_and_not_more_than_the_partitions(
    hardware: stand_in.Hardware, file: dict[str, Any]
) -> None:
    machine = Machine(hardware)
    mb = machine.hardware().mb
    assume(mb is not None)
    assert mb
    plan = _plan(machine, file)
    bare = {**file, "partitions": {name: {**each, "classes": {}} for name, each in file["partitions"].items()}}
    for name, each in bare["partitions"].items():
        each["classes"] = {f"all-of-{name}": {}}
    whole = _plan(Machine(hardware), bare)
    for each in plan.classes.values():
        for number, value in each.values["MB"].items():
            if not mb.mbps:
                assert mb.minimum <= value <= mb.maximum
                assert value % mb.step == 0
            assert value <= whole.classes[f"all-of-{each.partition}"].values["MB"][number]


@pytest.mark.slow
@_SETTINGS
@example(width=13, least=2, parts=[1, 11, 3, 1, 11, 2])  # what the first ones may have depends on those who wait
@example(width=11, least=3, parts=[1, 36, 54])  # the largest makes up for the first one
@given(
    st.integers(4, 64),
    st.integers(1, 3),
    st.lists(st.integers(1, 100), min_size=1, max_size=8).filter(lambda parts: sum(parts) <= 100),
)
def test_a_part_is_within_a_bit_of_its_percentage_where_there_is_room(width: int, least: int, parts: list[int]) -> None:
    """Cutting fractions takes less than a bit from each, and the largest gets what is left.

    Who would get less than ``least`` gets that, from the largest, which may then have less than the one before it: this
    is how goresctrl does it.
    """
    machine = Machine(stand_in.Hardware(l3=stand_in.Cache(cbm_mask=(1 << width) - 1, min_cbm_bits=least, domains=(0,))))
    file = {"partitions": {f"p{number}": {"l3Allocation": f"{part}%"} for number, part in enumerate(parts)}}
    plan, message = _tried(machine, json.dumps(file))
    if plan is None:
        assert len(parts) * least > width
        assert f"{len(parts)} partitions need {len(parts) * least} bits" in message
        return
    counts = [each.masks["L3"][0].bit_count() for each in plan.partitions]
    assert all(count >= least for count in counts)
    assert sum(counts) == max(sum(parts) * width // 100, least * len(parts))
    exact = [part * sum(counts) / sum(parts) for part in parts]
    if min(exact) >= least:
        by_share = [count for _, count in sorted(zip(parts, counts, strict=True))]
        assert by_share == sorted(counts)
        assert all(count > share - 1 for count, share in zip(counts, exact, strict=True))


@pytest.mark.slow
@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_text_is_too_odd(text: str) -> None:
    plan, message = _tried(Machine(stand_in.INTEL), text)
    assert (plan is None and message.startswith("rdt.yaml")) or (plan is not None and plan.classes == {})
