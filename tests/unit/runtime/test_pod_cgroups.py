"""What a client is told when the kernel makes no cgroup for its sandbox."""

from __future__ import annotations

import errno

from podkeep.base.errors import KernelCallError, ResourceExhausted
from podkeep.runtime.cgroup_driver.pod_cgroups import refusal


def test_a_limit_that_leaves_no_room_for_a_sandbox_reads_the_same_for_each() -> None:
    tried = [KernelCallError(f"mkdir(/sys/fs/cgroup/memory/pods/p/pod-{box})", errno.ENOMEM) for box in "ab"]
    first, second = (refusal(error, "/pods/p") for error in tried)
    assert isinstance(first, ResourceExhausted)
    assert str(first) == str(second)
    assert first.message == "the memory limit of /pods/p leaves no room for the cgroup of a sandbox"


def test_another_refusal_stays_as_it_is() -> None:
    error = KernelCallError("mkdir(/sys/fs/cgroup/pods/p/pod-a)", errno.EROFS)
    assert refusal(error, "/pods/p") is error
