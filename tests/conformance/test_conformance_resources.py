"""Limits: what reaches the kernel, what is shown, how it is changed, and what happens when memory runs out."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from support.cri import pod
from support.endpoint import Node
from support.waiting import wait_for

MIB = 1 << 20
VERSION = Cgroups().version


def limits(**fields: object) -> api.LinuxContainerResources:
    """Return limits; what is not named is not given."""
    return api.LinuxContainerResources(**fields)


def cgroup(node: Node, container: str, controller: str) -> Path:
    """Return the directory of a container's cgroup, for cgroups of both versions."""
    for line in Path(f"/proc/{node.host_pid(container)}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if VERSION == 2 and not controllers:
            return Path("/sys/fs/cgroup" + path)
        if controller in controllers.split(","):
            return Path(f"/sys/fs/cgroup/{controller}{path}")
    raise AssertionError(f"container {container} is in no cgroup of {controller}")


def value(node: Node, container: str, controller: str, v1: str, v2: str) -> str:
    """Return the content of a file of a container's cgroup."""
    return (cgroup(node, container, controller) / (v1 if VERSION == 1 else v2)).read_text().strip()


def memory_limit(node: Node, container: str) -> str:
    return value(node, container, "memory", "memory.limit_in_bytes", "memory.max")


def test_limits_reach_the_kernel(node: Node) -> None:
    resources = limits(cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, memory_limit_in_bytes=64 * MIB)
    container = node.launch(node.run(), resources=resources)
    assert memory_limit(node, container) == str(64 * MIB)
    if VERSION == 1:
        assert value(node, container, "cpu", "cpu.cfs_quota_us", "") == "50000"
        assert value(node, container, "cpu", "cpu.cfs_period_us", "") == "100000"
        assert value(node, container, "cpu", "cpu.shares", "") == "512"
    else:
        assert value(node, container, "cpu", "", "cpu.max") == "50000 100000"


def test_cpu_set(node: Node) -> None:
    container = node.launch(node.run(), resources=limits(cpuset_cpus="0", cpuset_mems="0"))
    assert value(node, container, "cpuset", "cpuset.cpus", "cpuset.cpus") == "0"
    assert node.read(container, "sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status") == "0"


def test_score_for_the_killer(node: Node) -> None:
    container = node.launch(node.run(), resources=limits(oom_score_adj=500))
    assert node.read(container, "cat /proc/1/oom_score_adj") == "500"


def test_cgroup_is_below_the_pods_parent(node: Node) -> None:
    parent = f"{node.endpoint.cgroup_parent}/pod-of-a-test"
    container = node.launch(node.run(pod(cgroup_parent=parent)))
    assert f"{parent}/" in Path(f"/proc/{node.host_pid(container)}/cgroup").read_text()


def test_limits_are_shown(node: Node) -> None:
    resources = limits(cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, memory_limit_in_bytes=64 * MIB)
    shown = node.status(node.launch(node.run(), resources=resources)).resources.linux
    for field in ("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes"):
        assert getattr(shown, field) == getattr(resources, field), field


@pytest.mark.parametrize(
    "resources", [limits(memory_limit_in_bytes=1), limits(cpuset_cpus="4000"), limits(cpuset_cpus="no list")]
)
def test_limits_that_cannot_be(node: Node, resources: api.LinuxContainerResources) -> None:
    sandbox = node.run()
    node.refused(lambda: node.launch(sandbox, resources=resources), InvalidArgument, FailedPrecondition)


def test_container_out_of_memory(node: Node) -> None:
    resources = limits(memory_limit_in_bytes=16 * MIB, memory_swap_limit_in_bytes=16 * MIB)
    container = node.launch(node.run(), "dd", "if=/dev/zero", "of=/dev/null", "bs=64M", resources=resources)
    assert node.exited(container).exit_code == 137
    # containerd loses the kernel's event if it hears of the exit first.
    reasons = {"OOMKilled", "Error"} if node.endpoint.is_reference else {"OOMKilled"}
    wait_for(lambda: node.status(container).reason in reasons, "the reason, which may come later")


def test_container_that_was_killed_otherwise(node: Node) -> None:
    container = node.launch(node.run(), resources=limits(memory_limit_in_bytes=64 * MIB))
    node.stop(container)
    assert (node.status(container).exit_code, node.status(container).reason) == (137, "Error")


def test_child_out_of_memory_shows_in_the_status(node: Node) -> None:
    """The first process goes on and says how its child ended."""
    resources = limits(memory_limit_in_bytes=16 * MIB, memory_swap_limit_in_bytes=16 * MIB)
    script = "dd if=/dev/zero of=/dev/null bs=64M; exit 5"
    status = node.exited(node.launch(node.run(), "sh", "-c", script, resources=resources))
    assert status.exit_code == 5
    assert status.reason in {"OOMKilled", "Error"}


# updates


def update(node: Node, container: str, **fields: object) -> None:
    request = api.UpdateContainerResourcesRequest(container_id=container, linux=limits(**fields))
    node.call("UpdateContainerResources", request)


def test_update_of_a_running_container(node: Node) -> None:
    container = node.launch(node.run(), resources=limits(memory_limit_in_bytes=64 * MIB, cpu_shares=512))
    update(node, container, memory_limit_in_bytes=128 * MIB)
    assert memory_limit(node, container) == str(128 * MIB)
    update(node, container, memory_limit_in_bytes=32 * MIB, cpu_period=100_000, cpu_quota=20_000)
    assert memory_limit(node, container) == str(32 * MIB)
    assert value(node, container, "cpu", "cpu.cfs_quota_us", "cpu.max").split()[0] == "20000"
    if VERSION == 1:  # what an update does not name stays
        assert value(node, container, "cpu", "cpu.shares", "") == "512"


def test_update_of_a_created_container(node: Node) -> None:
    container = node.create(node.run(), resources=limits(memory_limit_in_bytes=64 * MIB))
    update(node, container, memory_limit_in_bytes=128 * MIB)
    node.start(container)
    assert memory_limit(node, container) == str(128 * MIB)


def test_update_is_shown(node: Node) -> None:
    container = node.launch(node.run(), resources=limits(memory_limit_in_bytes=64 * MIB, cpu_shares=512))
    update(node, container, memory_limit_in_bytes=128 * MIB)
    shown = node.status(container).resources.linux
    assert (shown.memory_limit_in_bytes, shown.cpu_shares) == (128 * MIB, 512)


def test_update_that_fails_changes_nothing(node: Node) -> None:
    container = node.launch(node.run(), resources=limits(memory_limit_in_bytes=64 * MIB, cpu_shares=512))
    node.refused(
        lambda: update(node, container, cpu_shares=1024, memory_limit_in_bytes=128 * MIB, cpuset_cpus="4000"),
        InvalidArgument,
        FailedPrecondition,
    )
    assert memory_limit(node, container) == str(64 * MIB)
    if VERSION == 1:
        assert value(node, container, "cpu", "cpu.shares", "") == "512"


@pytest.mark.reference(differs="only the record of an exited container is changed")
def test_update_of_an_exited_container_is_refused(node: Node) -> None:
    container = node.launch(node.run())
    node.stop(container)
    node.refused(lambda: update(node, container, cpu_shares=512), FailedPrecondition)


def test_update_of_an_unknown_container(node: Node) -> None:
    node.refused(lambda: update(node, "0" * 64, cpu_shares=512), NotFound)


def test_container_uses_its_share(node: Node) -> None:
    """A limit of a tenth of a CPU throttles a busy loop."""
    resources = limits(cpu_period=100_000, cpu_quota=10_000)
    container = node.launch(node.run(), "sh", "-c", "while :; do :; done", resources=resources)
    throttled = cgroup(node, container, "cpu") / "cpu.stat"
    wait_for(lambda: "nr_throttled 0\n" not in throttled.read_text(), "throttling")
    assert "nr_throttled" in throttled.read_text()
