"""What a file means on a machine on which others have groups, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument, ResourceExhausted
from podkeep.kernel.cgroup.resctrl import Resctrl
from podkeep.runtime.class_resources import yamlfile
from podkeep.runtime.class_resources.rdt import configuration, planning
from podkeep.runtime.class_resources.rdt.allocation import Plan
from podkeep.runtime.class_resources.rdt.groups import ControlGroups
from support.resctrl.fixture import Mount
from support.resctrl.hardware import HASWELL, MONITORING_ONLY, Cache, Hardware
from support.resctrl.mount import Resctrl as Mounted

TWO = "partitions: {all: {l3Allocation: 100%, classes: {gold: {}, silver: {}}}}\n"


def planned(mounted: Mounted, root: Path, text: str = TWO) -> Plan:
    resctrl = Resctrl(mounted.path)
    groups = ControlGroups(resctrl, root)
    return planning.plan(configuration.read(yamlfile.parse(text, source="rdt.yaml")), groups)


@pytest.mark.slow
@pytest.mark.requirement("Q37")
def test_a_group_that_locks_a_part_of_a_cache_takes_no_closid(resctrl: Mount, tmp_path: Path) -> None:
    mounted = resctrl(Hardware(l3=Cache(num_closids=3, domains=(0,)), pseudo_locking=True))
    (mounted.path / "schemata").write_text("L3:0=ff\n")
    group = mounted.path / "theirs"
    group.mkdir()
    (group / "mode").write_text("pseudo-locksetup\n")
    with pytest.raises(ResourceExhausted, match="theirs"):
        planned(mounted, tmp_path)
    (group / "schemata").write_text("L3:0=f0000\n")

    plan = planned(mounted, tmp_path)

    assert (group / "mode").read_text() == "pseudo-locked\n"
    assert (list(plan.classes), plan.foreign) == (["gold", "silver"], ())
    for name in plan.classes:
        (mounted.path / name).mkdir()


@pytest.mark.slow
@pytest.mark.requirement("Q37")
def test_a_group_of_ours_counts_as_long_as_something_is_in_it(resctrl: Mount, tmp_path: Path) -> None:
    mounted = resctrl(HASWELL)
    there = Resctrl(mounted.path)
    ControlGroups(there, tmp_path).establish({"bronze": (), "tin": ()})
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (mounted.path / "bronze/tasks").write_text(f"{process.pid}\n")
        assert planned(mounted, tmp_path).foreign == ("bronze",)
        process.communicate(b"\n")
    assert planned(mounted, tmp_path).foreign == ()


@pytest.mark.slow
@pytest.mark.requirement("Q39")
def test_where_nothing_can_be_allocated_the_file_is_checked_all_the_same(resctrl: Mount, tmp_path: Path) -> None:
    mounted = resctrl(MONITORING_ONLY)
    absent = planning.absence(Resctrl(mounted.path))
    assert absent is not None
    assert "can only monitor" in absent.message
    assert absent.hint
    assert planned(mounted, tmp_path).classes == {}
    with pytest.raises(InvalidArgument, match=r"^rdt\.yaml:1"):
        planned(mounted, tmp_path, TWO.replace("100%", "101%"))
