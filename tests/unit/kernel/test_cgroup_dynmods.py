"""favordynmods: which kernels keep it, and where a process's own cgroup is."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.kernel.cgroup import cgroup_dynmods, cgroups
from podkeep.kernel.cgroup.cgroups import CgroupLayout

VERSION_1 = CgroupLayout(version=1, hierarchies=(Path("/cg/cpu,cpuacct"), Path("/cg/pids")))
VERSION_2 = CgroupLayout(version=2, hierarchies=(Path("/cg"),))


@pytest.mark.parametrize(
    ("release", "stays"),
    [("6.18.44-fc-v657", True), ("7.0", True), ("6.17.9-amd64", False), ("5.10.0-1", False), ("unknown", False)],
)
def test_which_kernels_keep_it(release: str, stays: bool) -> None:
    assert cgroup_dynmods.stays(release) is stays


@pytest.mark.parametrize(
    ("layout", "text", "expected"),
    [
        (VERSION_1, "8:pids:/a\n5:cpu,cpuacct:/b/c\n0::/d\n", "/cg/cpu,cpuacct/b/c"),
        (VERSION_1, "5:cpu,cpuacct:/\n", "/cg/cpu,cpuacct"),
        (VERSION_2, "1:name=systemd:/a\n0::/b:c\n", "/cg/b:c"),
        (VERSION_2, "0::/\n", "/cg"),
    ],
)
def test_the_cgroup_of_a_process(layout: CgroupLayout, text: str, expected: str) -> None:
    assert cgroup_dynmods.own_cgroup(layout, text) == Path(expected)


def test_a_process_that_is_in_none() -> None:
    with pytest.raises(FileNotFoundError, match="in no cgroup below /cg"):
        cgroup_dynmods.own_cgroup(VERSION_2, "1:name=systemd:/a\n")


def test_looking_moves_no_process() -> None:
    before = Path("/proc/self/cgroup").read_text()
    assert 0 < cgroup_dynmods.shortest_move(cgroups.detect()) < 10
    assert Path("/proc/self/cgroup").read_text() == before


def test_expecting_a_move_moves_nothing() -> None:
    before = Path("/proc/self/cgroup").read_text()
    cgroup_dynmods.expect_move(cgroups.detect())
    assert Path("/proc/self/cgroup").read_text() == before
    assert Path("/proc/thread-self/cgroup").read_text() == before
