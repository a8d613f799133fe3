"""What a client is told when the kernel makes no cgroup for its sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from podkeep.base.errors import ResourceExhausted
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.cgroup_driver import pod_cgroups


@pytest.fixture
def pod() -> Iterator[tuple[Cgroups, str]]:
    """The cgroup of a pod that may have no memory."""
    groups, path = Cgroups(), f"/podkeep-test-{os.urandom(4).hex()}"
    groups.create(path)
    try:
        groups.write(path, "memory.limit_in_bytes" if groups.version == 1 else "memory.max", "0")
        yield groups, path
    finally:
        groups.remove(path)


def test_a_limit_that_leaves_no_room_for_a_sandbox_reads_the_same_for_each(pod: tuple[Cgroups, str]) -> None:
    groups, parent = pod
    for sandbox in "ab":
        with pytest.raises(ResourceExhausted) as refused:
            pod_cgroups.create(groups, parent, sandbox)
        assert refused.value.message == f"the memory limit of {parent} leaves no room for the cgroup of a sandbox"
