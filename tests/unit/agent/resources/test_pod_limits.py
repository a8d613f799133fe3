"""What cgroups of pods and QoS classes are limited to: tables of pods, files of both versions of cgroups."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.agent.resources import pod_limits, qos
from podkeep.agent.resources.pod_limits import CgroupLimits
from podkeep.api.pod import Pod
from support.pods import container, pod, resources

MI = 1 << 20
NODE_CRITICAL: dict[str, Any] = {"priority": 2_000_001_000, "priorityClassName": "system-node-critical"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pod(), CgroupLimits(shares=2)),
        (
            pod(container(limits="cpu=500m memory=64Mi")),
            CgroupLimits(shares=512, quota_us=50_000, memory=64 * MI),
        ),
        (pod(container(requests="cpu=1 memory=64Mi")), CgroupLimits(shares=1024)),
        # More processors than there can be: the kernel counts no such quota.
        (
            pod(container(limits="cpu=8192 memory=64Mi")),
            CgroupLimits(shares=262_144, quota_us=819_200_000, memory=64 * MI),
        ),
        (pod(container(limits="cpu=8193 memory=64Mi")), CgroupLimits(shares=262_144, quota_us=0, memory=64 * MI)),
        (pod(container(limits="cpu=9E memory=64Mi")), CgroupLimits(shares=262_144, quota_us=0, memory=64 * MI)),
        # One container without a limit, and the pod has none.
        (
            pod(container(limits="cpu=1 memory=64Mi"), container("b", limits="cpu=1")),
            CgroupLimits(shares=2048, quota_us=200_000),
        ),
        (
            pod(container(limits="cpu=1 memory=64Mi"), init=[container("i", limits="cpu=2 memory=128Mi")]),
            CgroupLimits(shares=2048, quota_us=200_000, memory=128 * MI),
        ),
        (
            pod(
                container(limits="cpu=1 memory=64Mi"),
                init=[container("s", limits="cpu=1 memory=16Mi", restartPolicy="Always")],
            ),
            CgroupLimits(shares=2048, quota_us=200_000, memory=80 * MI),
        ),
        (
            pod(container(limits="cpu=1 memory=64Mi"), overhead={"cpu": "250m", "memory": "16Mi"}),
            CgroupLimits(shares=1280, quota_us=125_000, memory=80 * MI),
        ),
        # What the pod asks for as a whole counts instead of the sum.
        (
            pod(container(requests="cpu=1"), resources=resources(limits="cpu=2 memory=1Gi")),
            CgroupLimits(shares=2048, quota_us=200_000, memory=1024 * MI),
        ),
        (
            pod(container(limits="cpu=1 memory=64Mi hugepages-2Mi=4Mi hugepages-1Gi=1Gi")),
            CgroupLimits(shares=1024, quota_us=100_000, memory=64 * MI, hugepages={"2MB": 4 * MI, "1GB": 1024 * MI}),
        ),
    ],
)
def test_limits_of_a_pod(given: Pod, expected: CgroupLimits) -> None:
    assert pod_limits.of_pod(given) == expected


def test_limits_that_the_node_gives_every_pod() -> None:
    assert pod_limits.of_pod(pod(), pids_limit=100).pids == 100
    assert pod_limits.of_pod(pod(container(limits="cpu=1 memory=1Mi")), cfs_quota=False).quota_us == 0


@pytest.mark.parametrize(
    ("limits", "first", "second"),
    [
        (
            CgroupLimits(shares=1024, quota_us=50_000, memory=MI, pids=5, hugepages={"2MB": 0}),
            {
                "cpu.shares": "1024",
                "cpu.cfs_period_us": "100000",
                "cpu.cfs_quota_us": "50000",
                "memory.limit_in_bytes": "1048576",
                "pids.max": "5",
                "hugetlb.2MB.limit_in_bytes": "0",
            },
            {
                "cpu.weight": "39",
                "cpu.max": "50000 100000",
                "memory.max": "1048576",
                "pids.max": "5",
                "hugetlb.2MB.max": "0",
            },
        ),
        (
            CgroupLimits(quota_us=0),
            {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1"},
            {"cpu.max": "max 100000"},
        ),
        (CgroupLimits(shares=2), {"cpu.shares": "2"}, {"cpu.weight": "1"}),
    ],
)
def test_files(limits: CgroupLimits, first: dict[str, str], second: dict[str, str]) -> None:
    assert dict(pod_limits.files(limits, 1)) == first
    assert dict(pod_limits.files(limits, 2)) == second


def test_properties_of_a_slice() -> None:
    limits = CgroupLimits(shares=1024, quota_us=150_000, memory=MI, pids=5)

    assert pod_limits.properties(limits, 2) == ["CPUWeight=39", "CPUQuota=150%", "MemoryMax=1048576", "TasksMax=5"]
    assert pod_limits.properties(limits, 1) == ["CPUShares=1024", "CPUQuota=150%", "MemoryLimit=1048576", "TasksMax=5"]
    assert pod_limits.properties(CgroupLimits(quota_us=0), 2) == ["CPUQuota="]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            {"cpu.shares": "512\n", "cpu.cfs_quota_us": "-1\n", "memory.limit_in_bytes": "9223372036854771712\n"},
            CgroupLimits(shares=512, quota_us=0),
        ),
        (
            {"cpu.shares": "512", "cpu.cfs_quota_us": "50000", "memory.limit_in_bytes": "1048576"},
            CgroupLimits(shares=512, quota_us=50_000, memory=MI),
        ),
        ({"cpu.weight": "1\n", "cpu.max": "max 100000\n", "memory.max": "max\n"}, CgroupLimits(shares=2, quota_us=0)),
        (
            {"cpu.weight": "10000", "cpu.max": "5000 100000", "memory.max": "4096"},
            CgroupLimits(shares=262144, quota_us=5000, memory=4096),
        ),
    ],
)
def test_limits_that_are_in_force(texts: dict[str, str], expected: CgroupLimits) -> None:
    assert pod_limits.parse(texts) == expected


def test_a_class_weighs_what_its_pods_do() -> None:
    assert pod_limits.level_shares([102, 1024], 1) == 1126
    assert pod_limits.level_shares([], 1) == 2
    assert pod_limits.level_shares([pod_limits.weight(1024)] * 4, 2) == pytest.approx(4096, abs=4 * 26)
    assert pod_limits.level_shares([262_144] * 3, 1) == 262_144


@pytest.mark.parametrize(
    ("given", "name", "score"),
    [
        (pod(), "main", 1000),
        (pod(container(limits="cpu=1 memory=1Gi")), "main", -997),
        (pod(container(requests="memory=1Gi")), "main", 900),
        (pod(container(requests="cpu=1")), "main", 999),
        (pod(container(requests="memory=10Gi")), "main", 3),
        (pod(**NODE_CRITICAL), "main", -997),
        # A sidecar lives as long as those that it serves.
        (pod(container(requests="memory=2Gi"), init=[container("s", "memory=1Mi", restartPolicy="Always")]), "s", 800),
        (pod(container(requests="memory=2Gi"), init=[container("i", "memory=1Gi")]), "i", 900),
        # Memory of the pod as a whole is shared out among its containers.
        (pod(container(), container("b"), resources=resources("memory=2Gi")), "main", 900),
    ],
)
def test_oom_score(given: Pod, name: str, score: int) -> None:
    (one,) = [item for item in (*given.spec.init_containers, *given.spec.containers) if item.name == name]

    assert qos.oom_score_adj(given, one, 10 << 30) == score


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pod(), "BestEffort"),
        (pod(container(requests="cpu=0")), "BestEffort"),
        (pod(container(requests="example.com/gpu=1")), "BestEffort"),
        (pod(container(requests="cpu=1")), "Burstable"),
        (pod(container(limits="cpu=1")), "Burstable"),
        (pod(container(limits="cpu=1 memory=1Mi")), "Guaranteed"),
        (pod(container(requests="cpu=500m", limits="cpu=1 memory=1Mi")), "Burstable"),
        (pod(container(limits="cpu=1 memory=1Mi"), container("b")), "Burstable"),
        (pod(container(limits="cpu=1 memory=1Mi"), init=[container("i")]), "Burstable"),
        (pod(container(), resources=resources(limits="cpu=1 memory=1Mi")), "Guaranteed"),
        (pod(container(requests="cpu=1"), resources={}), "BestEffort"),
        (pod(container(requests="cpu=1"), resources={"classes": {"qos": "gold"}}), "Burstable"),
    ],
)
def test_qos_class(given: Pod, expected: str) -> None:
    assert qos.qos_class(given) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"limits": "cpu=100m"}, (10_000, 102, 0)),
        # A limit so small that the kernel could not count it.
        ({"limits": "cpu=1m"}, (1000, 2, 0)),
        ({"requests": "cpu=2"}, (0, 2048, 0)),
        ({}, (0, 2, 0)),
    ],
)
def test_resources_of_a_container(fields: dict[str, Any], expected: tuple[int, int, int]) -> None:
    given = pod(container(**fields))

    found = qos.linux_resources(given, given.spec.containers[0], 1 << 30, ("2MB",))

    assert (found.cpu_quota_us, found.cpu_shares, found.memory_limit_bytes) == expected
    assert found.hugepage_limits == {"2MB": 0}


def test_a_container_without_a_limit_has_the_pods() -> None:
    given = pod(
        container(),
        container("b", limits="memory=8Mi"),
        resources=resources(limits="cpu=2 memory=64Mi hugepages-2Mi=2Mi"),
    )

    first, second = (qos.linux_resources(given, item, 1 << 30, ("1GB", "2MB")) for item in given.spec.containers)

    assert (first.cpu_quota_us, first.memory_limit_bytes) == (200_000, 64 * MI)
    assert second.memory_limit_bytes == 8 * MI
    assert first.hugepage_limits == {"1GB": 0, "2MB": 2 * MI}
