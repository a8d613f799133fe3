"""Members of a cgroup, asked of one hierarchy."""

from __future__ import annotations

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
