"""Resource limits: what is refused, and OCI's form of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import CgroupLayout, Cgroups
from podkeep.runtime.model.records import Resources
from podkeep.runtime.oci import confinement, resources
from podkeep.runtime.oci.resources import ResourceFacts
from podkeep.runtime.rpc.convert.resources import resources_record

GIB = 1 << 30
LONG = "1," * 5_000_000


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"cpu_period": 1000, "cpu_quota": 1000, "cpu_shares": 2},
        {"cpu_period": 1_000_000, "cpu_quota": 2**40, "cpu_shares": 2**40},
        {"cpu_quota": -1},
        {"memory_limit": -1, "memory_swap_limit": -1},
        {"memory_limit": GIB, "memory_swap_limit": GIB},
        {"memory_limit": GIB, "memory_swap_limit": -1},
        {"cpuset_cpus": "0-3,7,99999", "cpuset_mems": "0"},
        {"oom_score_adj": -1000},
        {"oom_score_adj": 1000},
        {"hugepage_limits": {"2MB": 0, "1GB": 2**62, "64KB": 1}},
        {"unified": {"memory.high": "5", "io.max": "8:0 rbps=1", "hugetlb.2MB.max": "0", "memory.oom.group": "1"}},
    ],
)
def test_limits_that_are_taken(asked: dict[str, Any]) -> None:
    resources.check_values("field", Resources(**asked))
    resources.check_whole("field", Resources(**asked))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        *(({"cpu_period": value}, "cpu_period") for value in (1, 999, 1_000_001, -1, 2**62)),
        *(({"cpu_quota": value}, "cpu_quota") for value in (1, 999, -2, -(2**63))),
        ({"cpu_shares": -1}, "cpu_shares"),
        ({"memory_limit": -2}, "memory_limit_in_bytes"),
        ({"memory_swap_limit": -2}, "memory_swap_limit_in_bytes"),
        *(
            ({name: text}, name)
            for name in ("cpuset_cpus", "cpuset_mems")
            for text in ("a", "1-", "3-1", "1,,2", ",", "0 1", "0\n1", "-1", "1\0", "\u0661", "999999", LONG)
        ),
        ({"oom_score_adj": -1001}, "oom_score_adj"),
        ({"oom_score_adj": 1001}, "oom_score_adj"),
        *(
            ({"hugepage_limits": {size: 0}}, "hugepage_limits")
            for size in ("", "2mb", "2 MB", "0MB", "MB", "2TB", "../2MB", "2MB\n", "2" * 10_000_000)
        ),
        ({"hugepage_limits": {"2MB": 2**63}}, "hugepage_limits"),
        ({"hugepage_limits": {f"{number}MB": 0 for number in range(1, 70)}}, "hugepage_limits"),
        *(
            ({"unified": {key: "1"}}, "unified")
            for key in (
                "",
                "memory",
                "memory/high",
                "../x.y",
                "cgroup.kill",
                "cgroup.procs",
                "a.b\n",
                "m.\0",
                "m." * 5000,
            )
        ),
        ({"unified": {"memory.high": "1\0"}}, "memory.high"),
        ({"unified": {"memory.high": LONG}}, "memory.high"),
        ({"unified": {f"memory.x{number}": "1" for number in range(70)}}, "unified"),
    ],
)
def test_values_that_are_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resources.check_values("config.field", Resources(**asked))
    assert str(caught.value).startswith("config.field.")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "asked",
    [
        {"memory_swap_limit": 5},
        {"memory_limit": -1, "memory_swap_limit": 5},
        {"memory_limit": GIB, "memory_swap_limit": GIB - 1},
    ],
)
def test_contradictions(asked: dict[str, Any]) -> None:
    resources.check_values("field", Resources(**asked))
    with pytest.raises(InvalidArgument, match="memory_swap_limit_in_bytes"):
        resources.check_whole("field", Resources(**asked))


def test_a_page_size_twice_or_too_large() -> None:
    twice = api.LinuxContainerResources(hugepage_limits=[api.HugepageLimit(page_size="2MB")] * 2)
    with pytest.raises(InvalidArgument, match="twice"):
        resources_record(twice)
    large = api.LinuxContainerResources(hugepage_limits=[api.HugepageLimit(page_size="2MB", limit=2**64 - 1)])
    with pytest.raises(InvalidArgument, match="here"):
        resources_record(large, "here")


@pytest.mark.parametrize(("shares", "expected"), [(0, None), (1, 2), (2, 2), (1024, 1024), (2**40, 262144)])
def test_shares_are_what_the_kernel_makes_of_them(shares: int, expected: int | None) -> None:
    found = resources.to_oci(Resources(cpu_shares=shares), ResourceFacts())
    assert found == ({} if expected is None else {"cpu": {"shares": expected}})


def test_swap_is_the_memory_unless_it_is_said() -> None:
    asked = Resources(memory_limit=GIB)
    assert resources.to_oci(asked, ResourceFacts())["memory"] == {"limit": GIB, "swap": GIB}
    assert resources.to_oci(asked, ResourceFacts(swap=False))["memory"] == {"limit": GIB}
    asked = Resources(memory_limit=GIB, memory_swap_limit=2 * GIB)
    assert resources.to_oci(asked, ResourceFacts())["memory"] == {"limit": GIB, "swap": 2 * GIB}
    assert resources.to_oci(asked, ResourceFacts(swap=False))["memory"] == {"limit": GIB}
    asked = Resources(memory_limit=-1)
    assert resources.to_oci(asked, ResourceFacts())["memory"] == {"limit": -1, "swap": -1}


def test_huge_pages() -> None:
    asked = Resources(hugepage_limits={"2MB": 5, "1GB": 0})
    facts = ResourceFacts(page_sizes=frozenset({"2MB", "1GB"}))
    assert resources.to_oci(asked, facts) == {
        "hugepageLimits": [{"pageSize": "1GB", "limit": 0}, {"pageSize": "2MB", "limit": 5}]
    }
    assert resources.to_oci(asked, ResourceFacts(hugetlb=False, page_sizes=facts.page_sizes)) == {}
    with pytest.raises(InvalidArgument, match="1GB"):
        resources.to_oci(asked, ResourceFacts(hugetlb=False, page_sizes=frozenset({"2MB"})))


def test_files_of_version_2_need_version_2() -> None:
    asked = Resources(unified={"memory.high": "5"})
    assert resources.to_oci(asked, ResourceFacts(version=2)) == {"unified": {"memory.high": "5"}}
    with pytest.raises(InvalidArgument, match=r"memory\.high.*version 1"):
        resources.to_oci(asked, ResourceFacts(version=1))


def test_processes() -> None:
    assert resources.to_oci(Resources(), ResourceFacts(pids_limit=7)) == {"pids": {"limit": 7}}


# what a machine can limit


def test_facts_of_version_1(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    for name in ("hugepages-2048kB", "hugepages-1048576kB", "hugepages-64kB", "other"):
        (pages / name).mkdir(parents=True)
    memory, hugetlb = tmp_path / "memory", tmp_path / "hugetlb"
    memory.mkdir()
    hugetlb.mkdir()
    without = Cgroups(layout=CgroupLayout(version=1, hierarchies=(memory,)))
    sizes = frozenset({"2MB", "1GB", "64KB"})
    facts = confinement.resource_facts(without, pages=pages)
    assert facts == ResourceFacts(version=1, swap=False, hugetlb=False, page_sizes=sizes)
    (memory / "memory.memsw.limit_in_bytes").touch()
    both = Cgroups(layout=CgroupLayout(version=1, hierarchies=(memory, hugetlb)))
    facts = confinement.resource_facts(both, pids_limit=3, pages=pages)
    assert facts == ResourceFacts(version=1, swap=True, hugetlb=True, page_sizes=sizes, pids_limit=3)


def test_facts_of_version_2(tmp_path: Path) -> None:
    cgroups = Cgroups(layout=CgroupLayout(version=2, hierarchies=(tmp_path,)))
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    nothing = tmp_path / "nothing"
    facts = confinement.resource_facts(cgroups, pages=nothing)
    assert facts == ResourceFacts(version=2, swap=False, hugetlb=False)
    (tmp_path / "cgroup.controllers").write_text("cpu memory hugetlb\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "memory.swap.max").touch()
    assert confinement.resource_facts(cgroups, pages=nothing) == ResourceFacts(version=2, swap=True, hugetlb=True)
