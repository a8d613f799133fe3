"""Control groups on a stand-in that behaves as the kernel does: made, adopted, rewritten, removed, and taken back."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, KernelCallError, ResourceExhausted
from podkeep.kernel.cgroup.resctrl import Group, Resctrl, ResctrlError
from podkeep.runtime.class_resources.model import RDT_NOTES
from podkeep.runtime.class_resources.rdt import groups as module
from podkeep.runtime.class_resources.rdt.groups import DEFAULT, ControlGroups, Notes, Wanted
from support.resctrl.hardware import INTEL, Cache, Hardware, Monitoring
from support.resctrl.mount import Resctrl as Mounted

Mount = Callable[..., Mounted]
GOLD_AND_SILVER: Wanted = {
    "gold": ("L3:0=ff000;1=ff000", "MB:0=100;1=100"),
    "silver": ("L3:0=fff;1=fff", "MB:0=50;1=20"),
}


@pytest.fixture
def mounted(resctrl: Mount) -> Mounted:
    return resctrl(INTEL)


def control(mounted: Mounted, root: Path) -> ControlGroups:
    """As a daemon that has just been started sees it."""
    resctrl = Resctrl(mounted.path)
    return ControlGroups(resctrl, root)


def noted(root: Path) -> set[str]:
    file = root / RDT_NOTES
    return set(json.loads(file.read_bytes())["groups"]) if file.exists() else set()


def everything(mounted: Mounted) -> dict[str, object]:
    return {name: (mounted.schemata(name), mounted.mode(name)) for name in ("", *mounted.groups())}


@contextmanager
def task_in(mounted: Mounted, name: str) -> Iterator[int]:
    with subprocess.Popen(["sleep", "300"]) as process:
        try:
            Resctrl(mounted.path).add_task(Group(name=name), process.pid)
            yield process.pid
        finally:
            process.kill()


@pytest.mark.requirement("Q37", "Q40")
def test_groups_are_made_with_their_schemata(mounted: Mounted, tmp_path: Path) -> None:
    control(mounted, tmp_path).establish(GOLD_AND_SILVER)

    assert mounted.groups() == {"gold", "silver"}
    assert mounted.schemata("gold") == {"L3": {0: "ff000", 1: "ff000"}, "MB": {0: "100", 1: "100"}}
    assert mounted.schemata("silver") == {"L3": {0: "fff", 1: "fff"}, "MB": {0: "50", 1: "20"}}
    assert noted(tmp_path) == {"gold", "silver"}


@pytest.mark.requirement("Q37")
def test_another_configuration_rewrites_makes_and_removes(mounted: Mounted, tmp_path: Path) -> None:
    control(mounted, tmp_path).establish(GOLD_AND_SILVER)

    control(mounted, tmp_path).establish({"gold": ("L3:0=f;1=f",), "bronze": ("L3:0=f0;1=f0",)})

    assert mounted.groups() == {"gold", "bronze"}
    assert mounted.schemata("gold")["L3"] == {0: "f", 1: "f"}
    assert noted(tmp_path) == {"gold", "bronze"}


@pytest.mark.requirement("Q37")
def test_a_foreign_group_is_never_touched(mounted: Mounted, tmp_path: Path) -> None:
    (mounted.path / "foreign").mkdir()
    (mounted.path / "foreign/schemata").write_text("L3:0=1;1=1\n")
    before = everything(mounted)["foreign"]

    control(mounted, tmp_path).establish(GOLD_AND_SILVER)
    control(mounted, tmp_path).establish({})

    assert mounted.groups() == {"foreign"}
    assert everything(mounted)["foreign"] == before


@pytest.mark.requirement("Q37")
def test_a_group_that_was_there_is_adopted_and_never_removed(mounted: Mounted, tmp_path: Path) -> None:
    (mounted.path / "gold").mkdir()

    control(mounted, tmp_path).establish(GOLD_AND_SILVER)
    adopted = mounted.schemata("gold")["L3"]
    control(mounted, tmp_path).establish({})

    assert adopted == {0: "ff000", 1: "ff000"}
    assert mounted.groups() == {"gold"}


def test_a_group_that_somebody_made_anew_is_theirs(mounted: Mounted, tmp_path: Path) -> None:
    control(mounted, tmp_path).establish(GOLD_AND_SILVER)
    (mounted.path / "gold").rmdir()
    (mounted.path / "gold").mkdir()

    control(mounted, tmp_path).establish({})

    assert mounted.groups() == {"gold"}


@pytest.mark.parametrize("text", [b"", b"{", b'{"boot": "another", "resctrl": "/", "groups": {"gold": ""}}'])
def test_notes_that_say_nothing_of_now_leave_all_groups_to_others(
    mounted: Mounted, tmp_path: Path, text: bytes
) -> None:
    (mounted.path / "gold").mkdir()
    (tmp_path / RDT_NOTES).write_bytes(text)

    control(mounted, tmp_path).establish({})

    assert mounted.groups() == {"gold"}


@pytest.mark.requirement("Q33")
def test_a_group_with_tasks_outlives_its_class(mounted: Mounted, tmp_path: Path) -> None:
    control(mounted, tmp_path).establish(GOLD_AND_SILVER)
    before = mounted.schemata("gold")
    with task_in(mounted, "gold") as task:
        control(mounted, tmp_path).establish({})
        there = (mounted.groups(), task in mounted.tasks("gold"), mounted.schemata("gold"))
    control(mounted, tmp_path).remove_unused(["gold"])

    assert there == ({"gold"}, True, before)
    assert mounted.groups() == set()
    assert noted(tmp_path) == set()


def test_the_default_group_is_restricted_only_if_asked(mounted: Mounted, tmp_path: Path) -> None:
    control(mounted, tmp_path).establish(GOLD_AND_SILVER)
    untouched = mounted.schemata()
    control(mounted, tmp_path).establish({**GOLD_AND_SILVER, DEFAULT: ("L3:0=fff;1=fff",)})

    assert untouched["L3"] == {0: "fffff", 1: "fffff"}
    assert mounted.schemata()["L3"] == {0: "fff", 1: "fff"}
    assert Notes(tmp_path, mounted.path).default_changed


BAD: list[Wanted] = [
    {"gold": ("L3:0=1;1=1",), "silver": ("L3:0=5",)},
    {"silver": ("MB:0=1",), "bronze": ("L3:0=3;1=3",)},
    {"bronze": ("L3:0=3;1=3",), "gold": ("L9:0=1",), DEFAULT: ("L3:0=f;1=f",)},
]


@pytest.mark.slow
@pytest.mark.requirement("Q37")
@pytest.mark.parametrize("bad", BAD)
def test_what_fails_leaves_everything_as_it_was(mounted: Mounted, tmp_path: Path, bad: Wanted) -> None:
    control(mounted, tmp_path).establish(GOLD_AND_SILVER)
    before, notes = everything(mounted), noted(tmp_path)

    with pytest.raises(ResctrlError) as caught:
        control(mounted, tmp_path).establish(bad)

    assert caught.value.status
    assert (everything(mounted), noted(tmp_path)) == (before, notes)
    assert not Notes(tmp_path, mounted.path).default_changed


@pytest.mark.slow
@pytest.mark.requirement("Q37")
def test_too_few_closids_are_counted_in_the_error(resctrl: Mount, tmp_path: Path) -> None:
    mounted = resctrl(Hardware(l3=Cache(num_closids=3)))
    (mounted.path / "foreign").mkdir()

    with pytest.raises(ResourceExhausted) as caught:
        control(mounted, tmp_path).establish({"gold": (), "silver": ()})

    assert "no CLOSID is left for class 'silver': the hardware has 3 (L3 3)" in str(caught.value)
    assert "/, foreign, gold" in str(caught.value)
    assert "Out of CLOSIDs" in str(caught.value)
    assert mounted.groups() == {"foreign"}
    assert noted(tmp_path) == set()


@pytest.mark.slow
def test_classes_may_take_the_place_of_others_where_closids_are_few(resctrl: Mount, tmp_path: Path) -> None:
    mounted = resctrl(Hardware(l3=Cache(num_closids=3)))
    control(mounted, tmp_path).establish({"gold": ("L3:0=f0;1=f0",), "silver": ()})
    before = everything(mounted)

    with pytest.raises(ResctrlError):
        control(mounted, tmp_path).establish({"bronze": ("L3:0=5",), "iron": ()})
    taken_back = everything(mounted)
    control(mounted, tmp_path).establish({"bronze": ("L3:0=7;1=7",), "iron": ()})

    assert taken_back == before
    assert mounted.groups() == {"bronze", "iron"}


@pytest.mark.slow
def test_too_few_rmids_are_explained(resctrl: Mount, tmp_path: Path) -> None:
    mounted = resctrl(Hardware(l3=Cache(), monitoring=Monitoring(num_rmids=2)))

    with pytest.raises(ResourceExhausted, match=r"no RMID is left for class 'silver'.*Out of RMIDs"):
        control(mounted, tmp_path).establish({"gold": (), "silver": ()})

    assert mounted.groups() == set()


def test_a_cache_that_is_exclusively_anothers_is_explained(mounted: Mounted, tmp_path: Path) -> None:
    (mounted.path / "foreign").mkdir()
    (mounted.path / "schemata").write_text("L3:0=1;1=1\n")
    (mounted.path / "foreign/schemata").write_text("L3:0=ffffe;1=ffffe\n")
    (mounted.path / "foreign/mode").write_text("exclusive\n")
    mounted.fail("", "mkdir", errno.ENOSPC)

    with pytest.raises(ResourceExhausted, match="no part of a cache is left for class 'gold'"):
        control(mounted, tmp_path).establish({"gold": ()})


def test_exclusive_groups_hand_over_in_the_order_that_the_kernel_needs(mounted: Mounted, tmp_path: Path) -> None:
    (mounted.path / "schemata").write_text("L3:0=1;1=1\n")
    control(mounted, tmp_path).establish({"a": ("L3:0=ff0;1=ff0",), "b": ("L3:0=ff000;1=ff000",)})
    for name in ("a", "b"):
        (mounted.path / name / "mode").write_text("exclusive\n")

    control(mounted, tmp_path).establish({"a": ("L3:0=fff0;1=fff0",), "b": ("L3:0=f0000;1=f0000",)})

    assert mounted.schemata("a")["L3"] == {0: "fff0", 1: "fff0"}
    assert mounted.schemata("b")["L3"] == {0: "f0000", 1: "f0000"}
    assert mounted.mode("a") == mounted.mode("b") == "exclusive"


def test_a_swap_in_which_each_waits_for_the_other_is_refused_whole(mounted: Mounted, tmp_path: Path) -> None:
    (mounted.path / "schemata").write_text("L3:0=1;1=1\n")
    control(mounted, tmp_path).establish({"a": ("L3:0=ff0;1=ff0",), "b": ("L3:0=ff000;1=ff000",)})
    for name in ("a", "b"):
        (mounted.path / name / "mode").write_text("exclusive\n")
    before = everything(mounted)

    with pytest.raises(ResctrlError, match="Overlaps with exclusive group"):
        control(mounted, tmp_path).establish({"b": ("L3:0=ff0;1=ff0",), "a": ("L3:0=ff000;1=ff000",)})

    assert everything(mounted) == before


def test_what_only_shrinks_is_written_first() -> None:
    before = "    L3:0=ff;1=ff\n    MB:0= 10;1= 10\n"

    assert not module.gains(before, ("L3:0=f;1=ff", "MB:0=100;1=100"))
    assert module.gains(before, ("L3:0=f;1=100",))


@pytest.mark.requirement("Q37")
def test_what_somebody_else_changed_is_mended(mounted: Mounted, tmp_path: Path) -> None:
    groups = control(mounted, tmp_path)
    groups.establish(GOLD_AND_SILVER)
    (mounted.path / "gold/schemata").write_text("L3:0=1\n")
    (mounted.path / "silver").rmdir()
    found = groups.differences("gold", GOLD_AND_SILVER["gold"])

    for name, lines in GOLD_AND_SILVER.items():
        groups.fix(name, lines)

    assert found == ["L3 of cache 0 is 1 instead of ff000"]
    assert mounted.schemata("gold")["L3"] == {0: "ff000", 1: "ff000"}
    assert mounted.schemata("silver")["L3"] == {0: "fff", 1: "fff"}
    assert control(mounted, tmp_path).ours() == {"gold", "silver"}


def test_a_failed_write_of_the_kernel_is_taken_back(mounted: Mounted, tmp_path: Path) -> None:
    groups = control(mounted, tmp_path)
    groups.establish(GOLD_AND_SILVER)
    before = everything(mounted)
    mounted.fail("silver/schemata", "write", errno.EIO)

    with pytest.raises(ResctrlError, match="EIO"):
        groups.establish({"gold": ("L3:0=1;1=1",), "silver": ("L3:0=2;1=2",), "bronze": ()})

    assert everything(mounted) == before


def test_notes_that_cannot_be_written_stop_it_before_a_group_is_made(mounted: Mounted, tmp_path: Path) -> None:
    groups = control(mounted, tmp_path / "missing")

    with pytest.raises(KernelCallError, match=RDT_NOTES):
        groups.establish(GOLD_AND_SILVER)

    assert mounted.groups() == set()


_ESTABLISH = Path(__file__).with_name("programs") / "establish.py"


@pytest.mark.slow
@pytest.mark.requirement("Q37")
@pytest.mark.parametrize("point", ["rdt.group.noted", "rdt.groups.made", "rdt.schemata.written"])
def test_what_a_killed_daemon_left_is_ours(mounted: Mounted, tmp_path: Path, point: str) -> None:
    environment = {**os.environ, "PODKEEP_FAILPOINTS": f"{point}=kill"}
    killed = subprocess.run(
        [sys.executable, _ESTABLISH, mounted.path, tmp_path], env=environment, timeout=60, check=False
    )

    control(mounted, tmp_path).establish({"silver": ("L3:0=f0;1=f0",)})
    after = mounted.groups()
    control(mounted, tmp_path).establish({})

    assert killed.returncode == -signal.SIGKILL
    assert after == {"silver"}
    assert mounted.groups() == set()


@pytest.mark.slow
def test_a_pseudo_locked_group_is_refused(resctrl: Mount, tmp_path: Path) -> None:
    mounted = resctrl(Hardware(l3=Cache(), pseudo_locking=True))
    (mounted.path / "gold").mkdir()
    (mounted.path / "gold/mode").write_text("pseudo-locksetup\n")

    with pytest.raises(FailedPrecondition, match="gold is pseudo-locksetup"):
        control(mounted, tmp_path).establish({"gold": ("L3:0=f;1=f",)})
