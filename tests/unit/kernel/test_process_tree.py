"""Process trees: which processes one has, and that all of them are stopped before the first is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import process_tree, procfs
from podkeep.kernel.process.process_tree import SharedLook
from podkeep.kernel.process.procfs import Snapshot
from support.waiting import TIMEOUT_S, wait_for

PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.slow
def test_process_ids_that_are_used_again_end_in_no_circle() -> None:
    machine = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    done = subprocess.run(
        [*machine, sys.executable, PROGRAMS / "reused_ids.py"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines() == ["[] False", "[100, 900]"], done.stderr


class _Counted(dict[int, int]):
    """Parents, and how often one was looked up."""

    looked_up = 0

    def get(self, key: int, default: int = 0) -> int:  # type: ignore[override]
        self.looked_up += 1
        return super().get(key, default)


@pytest.mark.parametrize("root", [2, 1 << 30])
def test_the_parents_of_a_line_of_processes_are_looked_at_once_each(root: int) -> None:
    """A pod whose processes were each the child of the one before cost the square of their number."""
    line = range(3, 2003)
    parents = _Counted({pid: pid - 1 for pid in line} | {2: 1})
    found = process_tree.descendants(line, parents, {root})
    assert found == (list(line) if root == 2 else [])
    assert parents.looked_up <= len(parents)


def test_descendants_are_told_from_neighbours_and_circles() -> None:
    parents = {10: 1, 11: 10, 12: 11, 20: 1, 21: 20, 30: 31, 31: 30, 32: 31}
    assert process_tree.descendants([12, 11, 10, 21, 20, 30, 31, 32], parents, {10, 21}) == [12, 11, 10, 21]
    assert process_tree.descendants([32, 31, 30], parents, {30}) == [32, 31, 30]


@pytest.fixture
def cgroup() -> Iterator[str]:
    """A cgroup whose processes are killed."""
    groups, path = Cgroups(), f"/podkeep-test-{uuid.uuid4().hex[:8]}"
    groups.create(path)
    yield path
    groups.kill(path)
    groups.remove(path)


@pytest.mark.slow
def test_a_child_that_is_being_made_while_its_tree_is_killed_is_killed_with_it(cgroup: str) -> None:
    """fork(2) that has begun goes on when the process is stopped: its child comes after that, and only then can others
    see it. In a session of its own it is in no tree any more once its parent is dead.
    """
    groups = Cgroups()
    for _ in range(20):
        with subprocess.Popen([sys.executable, PROGRAMS / "slow_fork.py"], stdout=subprocess.PIPE) as process:
            groups.add(cgroup, process.pid)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            wait_for(lambda: len(groups.processes(cgroup)) > 2, "two children")
            killed = process_tree.kill({process.pid}, ())
            assert process.pid in {found.pid for found in killed}
            assert all(procfs.wait(found, TIMEOUT_S) for found in killed)
        assert groups.processes(cgroup) == []


def test_those_who_ask_at_the_same_time_look_together() -> None:
    """And none of them gets what somebody saw who had begun before: it may not have what is asked for."""
    begun, goes_on = threading.Semaphore(0), threading.Semaphore(0)

    def look() -> Snapshot:
        begun.release()
        assert goes_on.acquire(timeout=TIMEOUT_S)
        return procfs.snapshot()

    shared = SharedLook(look)
    with ThreadPoolExecutor(20) as threads:
        first = threads.submit(shared)
        assert begun.acquire(timeout=TIMEOUT_S)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as later:
            others = [threads.submit(shared) for _ in range(19)]
            wait_for(lambda: len(shared._changed._waiters) == 19, "all of them wait")  # type: ignore[attr-defined]
            for _ in range(2):
                goes_on.release()
            assert os.getpid() in first.result().living
            assert all(later.pid in seen.result().living for seen in others)
    assert begun.acquire(timeout=TIMEOUT_S)
    assert not begun.acquire(blocking=False), "twenty who asked looked more than twice"


def test_a_look_that_fails_is_its_own_only() -> None:
    """Who waited meanwhile looks again."""
    begun, goes_on = threading.Semaphore(0), threading.Semaphore(0)
    fails = [True]

    def look() -> Snapshot:
        begun.release()
        assert goes_on.acquire(timeout=TIMEOUT_S)
        if fails.pop():
            raise OSError
        return procfs.snapshot()

    shared = SharedLook(look)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(shared)
        assert begun.acquire(timeout=TIMEOUT_S)
        fails.insert(0, False)
        second = threads.submit(shared)
        wait_for(lambda: len(shared._changed._waiters) == 1, "it waits")  # type: ignore[attr-defined]
        for _ in range(2):
            goes_on.release()
        with pytest.raises(OSError, match=r"^$"):
            first.result()
        assert os.getpid() in second.result().living
