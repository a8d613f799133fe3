"""Members of a cgroup, asked of one hierarchy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from kernel.isolation import in_new_namespaces
from podkeep.kernel.cgroup.cgroups import CgroupLayout, Cgroups
from support import cgroup2


def test_members_are_those_of_the_cgroup_and_below() -> None:
    cgroups, path = Cgroups(), f"/podkeep-test-{uuid.uuid4().hex[:8]}"
    assert cgroups.members(path) == []
    # On version 2 a cgroup with children that are limited has no processes of its own.
    first, second = f"{path}/a", f"{path}/b/c"
    running = [subprocess.Popen(["cat"], stdin=subprocess.PIPE) for _ in range(2)]
    try:
        for process, place in zip(running, (first, second), strict=True):
            cgroups.create(place)
            cgroups.add(place, process.pid)
        expected = sorted(process.pid for process in running)
        assert cgroups.members(path) == expected == cgroups.processes(path, recursive=True)
    finally:
        for process in running:
            process.communicate()
        cgroups.remove(path)


def test_cgroups_that_are_deeper_than_paths_are_long() -> None:
    """A pod that may make cgroups had its processes outlive it there, and its cgroup could never be removed."""
    cgroups, path = Cgroups(), f"/podkeep-test-{uuid.uuid4().hex[:8]}"
    cgroups.create(f"{path}/beside")
    names = ["d" * 250] * 20
    at = os.open(cgroups.directories(path)[0], os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    with subprocess.Popen(["sleep", "300"]) as process:
        procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=at)
        os.write(procs, str(process.pid).encode())
        os.close(procs)
        os.close(at)
        try:
            found = [cgroups.members(path), cgroups.processes(path, recursive=True), cgroups.threads(path)]
            cgroups.kill(path)
            assert process.wait(10) == -signal.SIGKILL
        finally:
            process.kill()
    cgroups.remove(path)
    assert found == [[process.pid]] * 3
    assert not cgroups.exists(path)


@pytest.mark.slow
@in_new_namespaces()
@pytest.mark.parametrize("whole", [True, False], ids=["a domain", "a threaded one"])
def test_a_threaded_cgroup(tmp_path: Path, whole: bool) -> None:
    """A pod makes a cgroup below its own threaded; that has no list of processes (cgroup-v2.rst, Threads)."""
    cgroup2.mount(tmp_path)
    cgroups = Cgroups(layout=CgroupLayout(version=2, hierarchies=(tmp_path,)))
    path = f"/podkeep-test-{uuid.uuid4().hex[:8]}"
    top, threaded = tmp_path / path[1:], tmp_path / path[1:] / "threaded"
    threaded.mkdir(parents=True)
    script = "import threading, time; threading.Thread(target=time.sleep, args=(300,)).start(); print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            (top / "cgroup.procs").write_text(str(process.pid))
            (threaded / "cgroup.type").write_text("threaded")
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                (threaded / "cgroup.threads").write_text(thread)
            asked = path if whole else f"{path}/threaded"
            assert cgroups.members(asked) == cgroups.processes(asked, recursive=True) == [process.pid]
            assert len(cgroups.threads(asked)) == 2
            cgroups.kill(asked)
            assert process.wait(10) == -signal.SIGKILL
            assert cgroups.processes(asked) == []
        finally:
            process.kill()
    cgroups.remove(path)
    assert not top.exists()
