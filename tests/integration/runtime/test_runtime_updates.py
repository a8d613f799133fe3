"""UpdateContainerResources and UpdatePodSandboxResources on the machine's cgroups, whatever their version."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PodkeepError
from podkeep.base.ids import ContainerID, SandboxID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.lifecycle import resource_plan
from podkeep.runtime.model.layout import container_cgroup, sandbox_cgroup
from support.cri import Pods, error_of, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.waiting import wait_for

MIB = 1 << 20
UNLIMITED = -1


def update(pods: Pods, container: str, **linux: Any) -> None:
    request = api.UpdateContainerResourcesRequest(
        container_id=container, linux=api.LinuxContainerResources(**linux), annotations={"ignored": "yes"}
    )
    pods.call("UpdateContainerResources", request)


def limits(daemon: Daemon, pods: Pods, container: str) -> dict[str, int | str]:
    """Return the limits of a container as the kernel has them, see :func:`held_by`."""
    (listed,) = pods.containers(id=container)
    return held_by(container_cgroup(daemon.cgroup_parent, SandboxID(listed.pod_sandbox_id), ContainerID(container)))


def held_by(cgroup: str) -> dict[str, int | str]:
    """Return what a cgroup's files hold, in the terms of version 1: -1 for no limit, swap and memory together.

    ``weight`` is what :func:`weight` says of the shares.
    """
    groups = Cgroups()

    def read(name: str) -> str:
        return (groups.read(cgroup, name) or "").strip()

    if groups.version == 1:
        sizes = [int(read(f"memory.{name}limit_in_bytes")) for name in ("", "memsw.")]
        memory, memsw = (UNLIMITED if size > 1 << 60 else size for size in sizes)
        bandwidth = [int(read(f"cpu.cfs_{name}_us")) for name in ("quota", "period")]
        weight = int(read("cpu.shares"))
    else:
        memory, swap, *bandwidth = [
            UNLIMITED if text == "max" else int(text)
            for text in (read("memory.max"), read("memory.swap.max"), *read("cpu.max").split())
        ]
        memsw = UNLIMITED if UNLIMITED in (memory, swap) else memory + swap
        weight = int(read("cpu.weight"))
    return {
        "memory": memory,
        "memsw": memsw,
        "quota": bandwidth[0],
        "period": bandwidth[1],
        "weight": weight,
        "cpus": read("cpuset.cpus"),
    }


def weight(shares: int) -> int:
    """Return what the kernel holds for a number of shares."""
    return shares if Cgroups().version == 1 else resource_plan.weight_of(shares)


def test_limits_grow_and_shrink(pods: Pods, daemon: Daemon) -> None:
    resources = api.LinuxContainerResources(
        memory_limit_in_bytes=64 * MIB, cpu_shares=512, cpu_quota=50_000, cpu_period=100_000
    )
    container = pods.launch(pods.run(), resources=resources)
    assert limits(daemon, pods, container)["memory"] == 64 * MIB
    for size in (256, 32, 128):
        update(pods, container, memory_limit_in_bytes=size * MIB, cpu_shares=size, cpu_quota=size * 1000)
        held = limits(daemon, pods, container)
        assert (held["memory"], held["memsw"]) == (size * MIB, size * MIB)
        assert (held["weight"], held["quota"], held["period"]) == (weight(size), size * 1000, 100_000)
        linux = pods.status(container).resources.linux
        assert (linux.memory_limit_in_bytes, linux.cpu_shares, linux.cpu_quota) == (size * MIB, size, size * 1000)
        assert linux.cpu_period == 100_000
    update(pods, container, cpu_quota=-1)
    assert limits(daemon, pods, container)["quota"] == UNLIMITED
    update(pods, container, memory_limit_in_bytes=-1, memory_swap_limit_in_bytes=-1)
    assert limits(daemon, pods, container)["memory"] == UNLIMITED


def test_swap_is_limited_apart(pods: Pods, daemon: Daemon) -> None:
    container = pods.launch(pods.run(), resources=api.LinuxContainerResources(memory_limit_in_bytes=64 * MIB))
    update(pods, container, memory_limit_in_bytes=128 * MIB, memory_swap_limit_in_bytes=256 * MIB)
    held = limits(daemon, pods, container)
    assert (held["memory"], held["memsw"]) == (128 * MIB, 256 * MIB)
    message = error_of(lambda: update(pods, container, memory_swap_limit_in_bytes=64 * MIB), InvalidArgument)
    assert "memory_swap_limit_in_bytes" in message
    assert limits(daemon, pods, container) == held


def test_cpus(pods: Pods, daemon: Daemon) -> None:
    container = pods.launch(pods.run())
    update(pods, container, cpuset_cpus="0")
    assert limits(daemon, pods, container)["cpus"] == "0"
    assert os.sched_getaffinity(pods.host_pid(container)) == {0}
    assert "4095 not available" in error_of(lambda: update(pods, container, cpuset_cpus="0,4095"), InvalidArgument)
    assert pods.status(container).resources.linux.cpuset_cpus == "0"


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu_period": 10},
        {"cpu_quota": 10},
        {"cpu_shares": -1},
        {"memory_limit_in_bytes": -2},
        {"cpuset_cpus": "1-"},
        {"cpuset_cpus": "0\n"},
        {"unified": {"no.such.file": "1"}},
        {"unified": {"../../x": "1"}},
        {"hugepage_limits": [api.HugepageLimit(page_size="many", limit=1)]},
    ],
)
def test_wrong_values_change_nothing(pods: Pods, daemon: Daemon, wrong: dict[str, Any]) -> None:
    container = pods.launch(pods.run(), resources=api.LinuxContainerResources(memory_limit_in_bytes=64 * MIB))
    before, shown = limits(daemon, pods, container), pods.status(container).resources
    error_of(lambda: update(pods, container, **({"cpu_shares": 77} | wrong)), InvalidArgument)
    assert limits(daemon, pods, container) == before
    assert pods.status(container).resources == shown


def test_a_limit_below_what_is_used_takes_everything_back(pods: Pods, daemon: Daemon) -> None:
    resources = api.LinuxContainerResources(memory_limit_in_bytes=256 * MIB, cpu_shares=512)
    script = "dd if=/dev/zero of=/dev/shm/f bs=1M count=48; echo done; sleep 1000"
    container = pods.launch(pods.run(), "sh", "-c", script, resources=resources)
    wait_for(lambda: pods.read(container, "stat -c %s /dev/shm/f") == str(48 * MIB), "memory to be used")
    before = limits(daemon, pods, container)
    message = error_of(
        lambda: update(pods, container, cpu_shares=77, cpu_quota=30_000, memory_limit_in_bytes=16 * MIB),
        FailedPrecondition,
    )
    assert "in use" in message
    assert limits(daemon, pods, container) == before
    assert pods.status(container).resources.linux.cpu_shares == 512
    assert pods.status(container).state == api.CONTAINER_RUNNING


def test_a_created_container_can_be_updated_and_an_ended_one_not(pods: Pods, daemon: Daemon) -> None:
    sandbox = pods.run()
    container = pods.create(sandbox, resources=api.LinuxContainerResources(memory_limit_in_bytes=64 * MIB))
    update(pods, container, memory_limit_in_bytes=96 * MIB)
    pods.start(container)
    assert limits(daemon, pods, container)["memory"] == 96 * MIB
    pods.stop(container)
    message = error_of(lambda: update(pods, container, memory_limit_in_bytes=64 * MIB), FailedPrecondition)
    assert "is exited" in message
    error_of(lambda: update(pods, "no-such-container", cpu_shares=2), NotFound)


def test_updates_at_the_same_time_end_as_one_of_them(pods: Pods, daemon: Daemon) -> None:
    container = pods.launch(pods.run(), resources=api.LinuxContainerResources(memory_limit_in_bytes=64 * MIB))
    requests = [
        (
            "UpdateContainerResources",
            api.UpdateContainerResourcesRequest(
                container_id=container,
                linux=api.LinuxContainerResources(memory_limit_in_bytes=size * MIB, cpu_shares=size),
            ),
        )
        for size in range(32, 64)
    ]
    assert all(isinstance(answer, api.UpdateContainerResourcesResponse) for answer in pods.call_all(requests))
    linux = pods.status(container).resources.linux
    held = limits(daemon, pods, container)
    assert (held["weight"], held["memory"]) == (weight(linux.cpu_shares), linux.memory_limit_in_bytes)
    assert linux.memory_limit_in_bytes == linux.cpu_shares * MIB


def test_what_is_in_force_survives_a_restart(mortal: Mortal) -> None:
    pods = mortal.start()
    container = pods.launch(pods.run())
    update(pods, container, memory_limit_in_bytes=96 * MIB)
    mortal.daemon.kill()
    pods = mortal.start()
    assert pods.status(container).resources.linux.memory_limit_in_bytes == 96 * MIB


@pytest.mark.parametrize("point", ["update.noted", "update.written"])
def test_a_daemon_killed_in_an_update_takes_it_back(mortal: Mortal, point: str) -> None:
    pods = mortal.start()
    container = pods.launch(pods.run(), resources=api.LinuxContainerResources(memory_limit_in_bytes=64 * MIB))
    before = limits(mortal.daemon, pods, container)
    mortal.daemon.stop()
    pods = mortal.start(failpoints=f"{point}=kill")
    with pytest.raises(PodkeepError):
        update(pods, container, memory_limit_in_bytes=96 * MIB, cpu_shares=77)
    assert mortal.daemon.process is not None
    mortal.daemon.process.wait(10)
    pods = mortal.start()
    assert limits(mortal.daemon, pods, container) == before
    assert pods.status(container).resources.linux.memory_limit_in_bytes == 64 * MIB
    update(pods, container, memory_limit_in_bytes=96 * MIB)


def test_the_cgroup_of_a_sandbox_is_limited(pods: Pods, daemon: Daemon) -> None:
    sandbox = pods.run()
    cgroup = sandbox_cgroup(daemon.cgroup_parent, SandboxID(sandbox))
    resources = api.LinuxContainerResources(memory_limit_in_bytes=128 * MIB, cpu_quota=50_000, cpu_period=100_000)
    overhead = api.LinuxContainerResources(memory_limit_in_bytes=16 * MIB, cpu_quota=10_000, cpu_period=100_000)
    request = api.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox, resources=resources, overhead=overhead)
    pods.call("UpdatePodSandboxResources", request)
    held = held_by(cgroup)
    assert (held["memory"], held["quota"]) == (144 * MIB, 60_000)
    verbose = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True)
    record = json.loads(pods.call("PodSandboxStatus", verbose).info["info"])
    assert record["status"]["resources"]["memory_limit"] == 128 * MIB
    assert record["status"]["overhead"]["memory_limit"] == 16 * MIB
    pods.stop_pod(sandbox)
    assert "notready" in error_of(lambda: pods.call("UpdatePodSandboxResources", request), FailedPrecondition)
    unknown = api.UpdatePodSandboxResourcesRequest(pod_sandbox_id="no-such-sandbox")
    error_of(lambda: pods.call("UpdatePodSandboxResources", unknown), NotFound)


@pytest.mark.parametrize("point", ["update.noted", "update.limited", "update.written"])
def test_a_daemon_killed_in_an_update_of_a_sandbox_takes_it_back(mortal: Mortal, point: str) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    cgroup = sandbox_cgroup(mortal.daemon.cgroup_parent, SandboxID(sandbox))
    resources = api.LinuxContainerResources(memory_limit_in_bytes=128 * MIB, cpu_shares=77)
    request = api.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox, resources=resources)
    before = held_by(cgroup)
    mortal.daemon.stop()
    pods = mortal.start(failpoints=f"{point}=kill")
    with pytest.raises(PodkeepError):
        pods.call("UpdatePodSandboxResources", request)
    assert mortal.daemon.process is not None
    mortal.daemon.process.wait(10)
    pods = mortal.start()
    assert held_by(cgroup) == before
    verbose = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True)
    assert "resources" not in json.loads(pods.call("PodSandboxStatus", verbose).info["info"])["status"]
    pods.call("UpdatePodSandboxResources", request)
    assert held_by(cgroup)["memory"] == 128 * MIB


def test_a_quota_is_raised_before_the_cgroup_above_as_a_kubelet_does(pods: Pods, daemon: Daemon) -> None:
    groups, above = Cgroups(), f"{daemon.cgroup_parent}/limited"
    file, form = ("cpu.cfs_quota_us", "{}") if groups.version == 1 else ("cpu.max", "{} 100000")
    groups.create(above)
    try:
        groups.write(above, file, form.format(20_000))
        sandbox = pods.run(pod(cgroup_parent=above))
        container = pods.launch(sandbox, "sleep", "1000", resources=linux(20_000))
        ids = SandboxID(sandbox), ContainerID(container)

        def resize_pod(quota: int) -> None:
            request = api.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox, resources=linux(quota))
            pods.call("UpdatePodSandboxResources", request)
            groups.write(above, file, form.format(quota))

        resize_pod(30_000)
        update(pods, container, cpu_quota=30_000)
        assert held_by(container_cgroup(above, *ids))["quota"] == 30_000
        # Version 1 has no quota above the parent's; the parent's counts.
        assert held_by(sandbox_cgroup(above, ids[0]))["quota"] == (30_000 if groups.version == 2 else UNLIMITED)
        update(pods, container, cpu_quota=25_000)
        resize_pod(25_000)
        assert held_by(sandbox_cgroup(above, ids[0]))["quota"] == 25_000
        pods.remove(sandbox)
    finally:
        groups.remove(above)


def linux(quota: int) -> api.LinuxContainerResources:
    return api.LinuxContainerResources(cpu_quota=quota, cpu_period=100_000)


def test_memory_that_runs_out_is_the_reason_of_the_end(pods: Pods) -> None:
    resources = api.LinuxContainerResources(memory_limit_in_bytes=16 * MIB)
    status = pods.exited(pods.launch(pods.run(), "tail", "/dev/zero", resources=resources))
    assert (status.exit_code, status.reason) == (137, "OOMKilled")


def test_a_child_that_memory_ran_out_for(pods: Pods) -> None:
    """Only the end of the container has a reason: one that goes on and succeeds was not killed."""
    resources = api.LinuxContainerResources(memory_limit_in_bytes=16 * MIB)
    sandbox = pods.run()
    survivor = pods.launch(sandbox, "sh", "-c", "tail /dev/zero; exit 0", resources=resources, name="a")
    assert (pods.exited(survivor).exit_code, pods.status(survivor).reason) == (0, "Completed")
    failing = pods.launch(sandbox, "sh", "-c", "tail /dev/zero; exit $?", resources=resources, name="b")
    assert (pods.exited(failing).exit_code, pods.status(failing).reason) == (137, "OOMKilled")


def test_limits_of_huge_pages_that_nothing_counts_are_passed_over(pods: Pods) -> None:
    """The kubelet sends them with every update."""
    container = pods.create(pods.run())
    update(pods, container, cpu_shares=77, hugepage_limits=[api.HugepageLimit(page_size="2MB", limit=0)])
    assert pods.status(container).resources.linux.cpu_shares == 77
