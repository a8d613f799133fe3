"""Members of a cgroup, asked of one hierarchy."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid

from podkeep.kernel.cgroups import Cgroups


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
