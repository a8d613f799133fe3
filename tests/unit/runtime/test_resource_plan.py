"""From an update to writes, and the writes on a version 2 tree in a temporary directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.kernel.cgroup.cgroups import CgroupLayout, Cgroups
from podkeep.runtime.lifecycle import resource_plan, updates
from podkeep.runtime.lifecycle.resource_plan import Write
from podkeep.runtime.model.records import Resources

MIB = 1 << 20
V1 = {
    "cpu.shares": "1024\n",
    "cpu.cfs_period_us": "100000\n",
    "cpu.cfs_quota_us": "50000\n",
    "memory.limit_in_bytes": f"{64 * MIB}\n",
    "memory.memsw.limit_in_bytes": f"{64 * MIB}\n",
}
V2 = {"cpu.weight": "39\n", "cpu.max": "50000 100000\n", "memory.max": f"{64 * MIB}\n", "memory.swap.max": "0\n"}
CURRENT = Resources(cpu_shares=1024, cpu_quota=50_000, cpu_period=100_000, memory_limit=64 * MIB)


def texts(version: int, held: dict[str, str], asked: Resources, current: Resources = CURRENT) -> list[tuple[str, str]]:
    merged = resource_plan.merge(current, asked)
    return [(write.file, write.text) for write in resource_plan.plan(version, held, asked, merged)]


def test_growing_and_shrinking_memory_on_v1() -> None:
    limit, swap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
    more, less = str(128 * MIB), str(32 * MIB)
    assert texts(1, V1, Resources(memory_limit=128 * MIB)) == [(swap, more), (limit, more)]
    assert texts(1, V1, Resources(memory_limit=32 * MIB)) == [(limit, less), (swap, less)]
    assert texts(1, V1, Resources(memory_limit=-1, memory_swap_limit=-1)) == [(swap, "-1"), (limit, "-1")]
    alone = {"memory.limit_in_bytes": V1["memory.limit_in_bytes"]}
    assert texts(1, alone, Resources(memory_limit=32 * MIB)) == [(limit, less)]
    with pytest.raises(FailedPrecondition, match="memsw"):
        texts(1, alone, Resources(memory_limit=32 * MIB, memory_swap_limit=64 * MIB))


@pytest.mark.slow
@given(*[st.integers(1, 1000)] * 4)
def test_every_step_of_v1_memory_keeps_swap_above_memory(old: int, old_swap: int, new: int, new_swap: int) -> None:
    old_swap, new_swap = max(old, old_swap), max(new, new_swap)
    held = {"memory.limit_in_bytes": str(old), "memory.memsw.limit_in_bytes": str(old_swap)}
    current = Resources(memory_limit=old, memory_swap_limit=old_swap)
    for file, text in texts(1, dict(held), Resources(memory_limit=new, memory_swap_limit=new_swap), current):
        held[file] = text
        assert int(held["memory.memsw.limit_in_bytes"]) >= int(held["memory.limit_in_bytes"])
    assert held == {"memory.limit_in_bytes": str(new), "memory.memsw.limit_in_bytes": str(new_swap)}


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 500), st.integers(1, 500))
def test_no_step_of_v1_cpu_has_a_larger_share_than_needed(
    period: int, quota: int, to_period: int, to_quota: int
) -> None:
    held = {"cpu.cfs_period_us": str(period * 1000), "cpu.cfs_quota_us": str(quota * 1000)}
    asked = Resources(cpu_period=to_period * 1000, cpu_quota=to_quota * 1000)
    shares = []
    for file, text in texts(1, dict(held) | {"cpu.shares": "2"}, asked, Resources()):
        held[file] = text
        shares.append(int(held["cpu.cfs_quota_us"]) / int(held["cpu.cfs_period_us"]))
    other_way = min(to_quota / period, quota / to_period)
    assert all(share <= max(quota / period, to_quota / to_period, other_way) for share in shares)


def test_v2() -> None:
    assert texts(2, V2, Resources(cpu_shares=2)) == [("cpu.weight", "1")]
    assert texts(2, V2, Resources(cpu_quota=-1)) == [("cpu.max", "max 100000")]
    assert texts(2, V2, Resources(cpu_period=50_000)) == [("cpu.max", "50000 50000")]
    assert texts(2, {**V2, "cpu.max": "max\n"}, Resources(cpu_quota=5000)) == [("cpu.max", "5000 100000")]
    assert texts(2, V2, Resources(memory_limit=32 * MIB)) == [("memory.max", str(32 * MIB))]
    assert texts(2, V2, Resources(memory_limit=32 * MIB, memory_swap_limit=48 * MIB)) == [
        ("memory.swap.max", str(16 * MIB)),
        ("memory.max", str(32 * MIB)),
    ]
    assert texts(2, V2, Resources(memory_limit=-1, memory_swap_limit=-1)) == [
        ("memory.swap.max", "max"),
        ("memory.max", "max"),
    ]
    assert texts(2, {**V2, "memory.high": "max\n"}, Resources(unified={"memory.high": "5"})) == [("memory.high", "5")]
    with pytest.raises(FailedPrecondition, match=r"memory\.high"):
        texts(2, V2, Resources(unified={"memory.high": "5"}))
    pages = {"hugetlb.2MB.max": "max\n"}
    assert texts(2, pages, Resources(hugepage_limits={"2MB": 4 * MIB})) == [("hugetlb.2MB.max", str(4 * MIB))]


@pytest.mark.parametrize(("shares", "weight"), [(2, 1), (1024, 39), (262144, 10000)])
def test_weights_are_those_of_oci_runtimes(shares: int, weight: int) -> None:
    assert resource_plan.weight_of(shares) == weight


def test_what_is_held_already_is_not_written() -> None:
    assert texts(1, V1, Resources(cpu_shares=1024, memory_limit=64 * MIB)) == []
    assert texts(2, V2, Resources(cpu_shares=1024, memory_limit=64 * MIB)) == []


def test_merged_resources() -> None:
    merged = resource_plan.merge(CURRENT, Resources(cpu_quota=-1, oom_score_adj=5, unified={"memory.high": "1"}))
    assert (merged.cpu_quota, merged.cpu_shares, merged.oom_score_adj) == (-1, 1024, 0)
    assert merged.unified == {"memory.high": "1"}
    assert resource_plan.merge(CURRENT, Resources(cpu_shares=1)).cpu_shares == 2
    assert resource_plan.merge(CURRENT, Resources(cpu_shares=1 << 40)).cpu_shares == 262144
    following = Resources(memory_limit=MIB, memory_swap_limit=MIB)
    assert resource_plan.merge(following, Resources(memory_limit=2 * MIB)).memory_swap_limit == 2 * MIB
    apart = Resources(memory_limit=MIB, memory_swap_limit=2 * MIB)
    with pytest.raises(InvalidArgument, match="less than"):
        resource_plan.merge(apart, Resources(memory_limit=3 * MIB))


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "1,,2", " 1", "1\n", "-1", "1;2", "9" * 9])
def test_no_list(text: str) -> None:
    with pytest.raises(InvalidArgument):
        resource_plan.parse_list("cpuset_cpus", text)


def test_lists() -> None:
    assert resource_plan.parse_list("x", "0-2,7") == {0, 1, 2, 7}
    resource_plan.check_subset("x", "1", "0-1\n")
    with pytest.raises(InvalidArgument, match="2, 3 not available"):
        resource_plan.check_subset("x", "1-3", "0-1")


def test_totals_of_a_pod() -> None:
    resources = Resources(cpu_quota=1000, cpu_period=5000, memory_limit=10, cpu_shares=100)
    overhead = Resources(cpu_quota=200, cpu_period=5000, memory_limit=3, cpu_shares=7)
    together = resource_plan.total(resources, overhead)
    assert (together.cpu_quota, together.memory_limit, together.cpu_shares) == (1200, 13, 107)
    assert resource_plan.total(Resources(memory_limit=-1), overhead).memory_limit == -1
    assert resource_plan.total(Resources(), overhead).memory_limit == 0
    other_period = Resources(cpu_quota=200, cpu_period=1000)
    assert resource_plan.total(resources, other_period).cpu_quota == 1000


@pytest.fixture
def v2_tree(tmp_path: Path) -> Cgroups:
    """A stand-in for a version 2 tree: files that hold what is written."""
    directory = tmp_path / "pod" / "ctr"
    directory.mkdir(parents=True)
    (tmp_path / "pod" / "cpuset.cpus.effective").write_text("0-1\n")
    stat = f"anon {20 * MIB}\nactive_file {4 * MIB}\ninactive_file {8 * MIB}\nslab 5\n"
    for name, text in {**V2, "memory.current": str(32 * MIB), "memory.stat": stat, "cpuset.cpus": "\n"}.items():
        (directory / name).write_text(text)
    return Cgroups(layout=CgroupLayout(version=2, hierarchies=(tmp_path,)))


def test_an_update_of_a_v2_tree(v2_tree: Cgroups) -> None:
    asked = Resources(cpu_shares=2, cpu_quota=-1, memory_limit=128 * MIB, cpuset_cpus="1")
    merged = resource_plan.merge(CURRENT, asked)
    writes = updates.prepare(v2_tree, "/pod/ctr", asked, merged)
    for write in writes:
        # The kernel's files forget what they held; plain ones keep what is behind a shorter text.
        (v2_tree.directories("/pod/ctr")[0] / write.file).write_text("")
    updates.carry_out(v2_tree, "/pod/ctr", writes)
    names = ("cpu.weight", "cpu.max", "memory.max", "cpuset.cpus")
    found = {name: v2_tree.read("/pod/ctr", name) for name in names}
    assert found == dict(zip(names, ("1", "max 100000", str(128 * MIB), "1"), strict=True))
    with pytest.raises(InvalidArgument, match="cpuset_cpus: 2 not available"):
        updates.prepare(v2_tree, "/pod/ctr", Resources(cpuset_cpus="2"), CURRENT)


def test_v2_does_not_kill_for_a_limit(v2_tree: Cgroups) -> None:
    """The kernel would take the limit and then end processes; page cache does not count, it can be given back."""
    with pytest.raises(FailedPrecondition, match=f"less than the {20 * MIB} bytes in use"):
        updates.prepare(v2_tree, "/pod/ctr", Resources(memory_limit=16 * MIB), CURRENT)
    fits = Resources(memory_limit=24 * MIB)
    assert updates.prepare(v2_tree, "/pod/ctr", fits, resource_plan.merge(CURRENT, fits))


def test_a_refused_write_takes_back_those_before_it(v2_tree: Cgroups) -> None:
    writes = (
        Write(file="cpu.weight", text="77", before="39"),
        Write(file="no.such", text="1", before=""),
        Write(file="memory.max", text="1", before="0"),
    )
    with pytest.raises(FailedPrecondition, match="is gone"):
        updates.carry_out(v2_tree, "/pod/ctr", writes)
    assert (v2_tree.read("/pod/ctr", "cpu.weight") or "").strip() == "39"
    assert v2_tree.read("/pod/ctr", "memory.max") == V2["memory.max"]
    with pytest.raises(FailedPrecondition, match="is gone"):
        updates.prepare(v2_tree, "/pod/other", Resources(cpu_shares=2), CURRENT)


@pytest.mark.parametrize(
    ("quota", "period", "expected"),
    [
        (20_000, 100_000, 20_000),
        (20_001, 100_000, -1),
        (10_001, 50_000, -1),
        (20_001, 0, -1),
        (-1, 100_000, -1),
        (0, 0, 0),
    ],
)
def test_a_quota_above_the_parents_is_left_to_the_parent(quota: int, period: int, expected: int) -> None:
    asked = Resources(cpu_quota=quota, cpu_period=period, memory_limit=MIB)
    assert resource_plan.within(asked, (20_000, 100_000)) == Resources(
        cpu_quota=expected, cpu_period=period, memory_limit=MIB
    )


def test_a_quota_without_a_period_has_the_one_in_force() -> None:
    asked = Resources(cpu_quota=20_000)
    assert resource_plan.within(asked, (20_000, 100_000), 50_000).cpu_quota == -1
    assert resource_plan.within(asked, (20_000, 100_000), 200_000).cpu_quota == 20_000


def test_no_quota_comes_before_a_shorter_period() -> None:
    held = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "20000"}
    asked = Resources(cpu_quota=-1, cpu_period=50_000)
    assert texts(1, held, asked) == [("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", "50000")]
