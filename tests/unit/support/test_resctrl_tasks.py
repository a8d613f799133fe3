"""The stand-in for resctrl behaves as the kernel does: which task is in which group."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import processes
from support.resctrl.fixture import Mount
from support.resctrl.hardware import INTEL, Cache, Hardware
from support.resctrl.mount import Resctrl, stand_in

_PROGRAM = Path(__file__).with_name("programs") / "family.py"


class Family:
    """A process that makes children and threads when it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = self._said()

    def make(self, what: str) -> int:
        """Make a ``child`` or a ``thread`` and return its ID."""
        self._tell(what)
        return self._said()

    def end_child(self) -> None:
        """End the last child, and wait for it."""
        self._tell("end")
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ended\n"

    def _tell(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()

    def _said(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextmanager
def _family() -> Iterator[Family]:
    command = [sys.executable, _PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Family(process)
        finally:
            process.kill()


@pytest.fixture
def family() -> Iterator[Family]:
    """A process with children and threads of its own."""
    with _family() as running:
        yield running


@pytest.fixture
def rdt(resctrl: Mount) -> Resctrl:
    """A machine with the groups gold and silver."""
    mounted = resctrl(INTEL)
    (mounted.path / "gold").mkdir()
    (mounted.path / "silver").mkdir()
    return mounted


def move(path: Path, *tasks: int) -> None:
    """Write tasks to a group, one by one."""
    for task in tasks:
        path.joinpath("tasks").write_text(f"{task}\n")


def test_everybody_is_in_the_root_at_first(rdt: Resctrl, family: Family) -> None:
    thread = family.make("thread")

    assert {os.getpid(), family.pid, thread} <= rdt.tasks()
    assert rdt.tasks("gold") == set()


def test_a_task_is_in_one_group(rdt: Resctrl, family: Family) -> None:
    move(rdt.path / "gold", family.pid)
    assert rdt.tasks("gold") == {family.pid}
    assert family.pid not in rdt.tasks()

    move(rdt.path / "silver", family.pid)
    assert (rdt.tasks("gold"), rdt.tasks("silver")) == (set(), {family.pid})

    move(rdt.path, family.pid)
    assert rdt.tasks("silver") == set()
    assert family.pid in rdt.tasks()


def test_threads_and_children_are_not_moved_along(rdt: Resctrl, family: Family) -> None:
    thread, child = family.make("thread"), family.make("child")

    move(rdt.path / "gold", family.pid)

    assert rdt.tasks("gold") == {family.pid}
    assert {thread, child} <= rdt.tasks()
    move(rdt.path / "gold", thread)
    assert rdt.tasks("gold") == {family.pid, thread}


def test_new_threads_and_children_are_where_their_creator_is(rdt: Resctrl, family: Family) -> None:
    move(rdt.path / "gold", family.pid)
    first = family.make("child"), family.make("thread")
    move(rdt.path / "silver", family.pid)
    second = family.make("child"), family.make("thread")

    assert rdt.tasks("gold") == {*first}
    assert rdt.tasks("silver") == {family.pid, *second}


def test_who_ended_is_in_no_group(rdt: Resctrl, family: Family) -> None:
    child = family.make("child")
    move(rdt.path / "gold", family.pid, child)

    family.end_child()

    assert rdt.tasks("gold") == {family.pid}
    with pytest.raises(ProcessLookupError):
        move(rdt.path / "gold", child)
    assert rdt.last_cmd_status() == f"No task {child}\nError while processing task {child}"


def test_zero_is_the_writer(rdt: Resctrl) -> None:
    command = f"echo 0 > {rdt.path}/gold/tasks && echo $$ && exec cat {rdt.path}/gold/tasks"
    me, *members = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.split()

    assert members == [me]
    assert rdt.tasks("gold") == set()


def test_several_tasks_in_one_write(rdt: Resctrl, family: Family) -> None:
    child = family.make("child")

    (rdt.path / "gold/tasks").write_text(f"{family.pid},{child}\n")
    assert rdt.tasks("gold") == {family.pid, child}

    with pytest.raises(ProcessLookupError):
        (rdt.path / "silver/tasks").write_text(f"{family.pid},{2**22 + 1},{child}\n")
    assert (rdt.tasks("gold"), rdt.tasks("silver")) == ({child}, {family.pid})


@pytest.mark.slow
def test_one_task_in_one_write_on_an_old_kernel(resctrl: Mount, family: Family) -> None:
    rdt = resctrl(Hardware(l3=Cache(), task_lists=False))
    (rdt.path / "gold").mkdir()
    child = family.make("child")

    with pytest.raises(OSError, match="Invalid argument"):
        (rdt.path / "gold/tasks").write_text(f"{family.pid},{child}\n")
    move(rdt.path / "gold", family.pid)
    assert rdt.tasks("gold") == {family.pid}
    with pytest.raises(ProcessLookupError):
        move(rdt.path / "gold", 2**22 + 1)
    assert rdt.last_cmd_status() == f"No task {2**22 + 1}"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("me\n", "Task list parsing error pid me"),
        ("-5\n", "Invalid pid -5"),
        (f"{2**31}\n", f"Task list parsing error pid {2**31}"),
    ],
)
def test_what_is_no_task(rdt: Resctrl, text: str, status: str) -> None:
    with pytest.raises(OSError) as caught:
        (rdt.path / "gold/tasks").write_text(text)

    assert caught.value.errno == errno.EINVAL
    assert rdt.last_cmd_status() == status


def test_removing_a_group_gives_its_tasks_to_the_root(rdt: Resctrl, family: Family) -> None:
    (rdt.path / "gold/mon_groups/one").mkdir()
    child = family.make("child")
    move(rdt.path / "gold", family.pid, child)
    move(rdt.path / "gold/mon_groups/one", child)

    (rdt.path / "gold").rmdir()

    assert {family.pid, child} <= rdt.tasks()
    (rdt.path / "gold").mkdir()
    assert rdt.tasks("gold") == set()


def test_monitoring_groups_take_from_their_own_control_group(rdt: Resctrl, family: Family) -> None:
    one = rdt.path / "gold/mon_groups/one"
    one.mkdir()

    with pytest.raises(OSError, match="Invalid argument"):
        move(one, family.pid)
    assert rdt.last_cmd_status().startswith("Can't move task to different control group")
    move(rdt.path / "gold", family.pid)
    move(one, family.pid)
    child = family.make("child")

    assert rdt.tasks("gold/mon_groups/one") == {family.pid, child}
    assert rdt.tasks("gold") == {family.pid, child}
    move(rdt.path / "gold", child)
    assert rdt.tasks("gold/mon_groups/one") == {family.pid}
    one.rmdir()
    assert rdt.tasks("gold") == {family.pid, child}


def test_a_monitoring_group_takes_its_tasks_and_counts_along(rdt: Resctrl, family: Family) -> None:
    one = rdt.path / "gold/mon_groups/one"
    one.mkdir()
    move(rdt.path / "gold", family.pid)
    move(one, family.pid)
    rdt.count("llc_occupancy", 7, group="gold", mon_group="one")

    moved = one.rename(rdt.path / "silver/mon_groups/two")

    assert (rdt.tasks("gold"), rdt.tasks("silver")) == (set(), {family.pid})
    assert (moved / "mon_data/mon_L3_00/llc_occupancy").read_text() == "7\n"
    assert not one.exists()


@pytest.mark.parametrize(
    ("source", "target", "status"),
    [
        ("gold", "bronze", "Source must be a MON group"),
        ("gold", "silver/mon_groups/gold", "Source must be a MON group"),
        ("gold/mon_groups/one", "one", "Destination must be a mon_groups subdirectory"),
        ("gold/tasks", "gold/mon_groups/tasks", "Source and destination must be directories"),
        ("silver/mon_groups/cpu", "gold/mon_groups/cpu", "Cannot move a MON group that monitors CPUs"),
    ],
)
def test_nothing_else_moves(rdt: Resctrl, source: str, target: str, status: str) -> None:
    (rdt.path / "gold/mon_groups/one").mkdir()
    cpu = rdt.path / "silver/mon_groups/cpu"
    cpu.mkdir()
    (rdt.path / "silver/cpus_list").write_text("0\n")
    (cpu / "cpus_list").write_text("0\n")

    with pytest.raises(PermissionError):
        (rdt.path / source).rename(rdt.path / target)

    assert rdt.last_cmd_status() == status
    assert (rdt.path / source).exists()


@pytest.mark.slow
def test_the_mount_is_the_tests_own_and_its_server_ends_with_it(resctrl: Mount, tmp_path: Path) -> None:
    here = resctrl(INTEL).path
    assert f" {here} " in Path("/proc/self/mountinfo").read_text()
    assert f" {here} " not in Path("/proc/1/mountinfo").read_text()

    before = processes.children(os.getpid())
    with stand_in(INTEL, tmp_path):
        assert len(processes.children(os.getpid()) - before) == 1
    assert processes.children(os.getpid()) == before
    assert list(tmp_path.iterdir()) == []
