"""Statistics in kubelet's form, and the metrics made of them."""

from __future__ import annotations

import json
from pathlib import Path

from podkeep.agent.server import node_usage, stats
from podkeep.agent.server.resource_metrics import cri_families, resource_families, volume_families
from podkeep.agent.server.stats import FileSystem, Inventory, NodeFacts, PodDisk, Size, VolumeUsage
from podkeep.base.metrics import text_of
from podkeep.cri.v1 import api_pb2

T = 1_769_853_600 * 10**9
TIME = "2026-01-31T10:00:00Z"
ROOT = FileSystem(moment=T, available=40, capacity=100, inodes=10, inodes_free=7)
FS = {"time": TIME, "availableBytes": 40, "capacityBytes": 100, "inodes": 10, "inodesFree": 7}


def value(number: int) -> api_pb2.UInt64Value:
    return api_pb2.UInt64Value(value=number)


def sandbox() -> api_pb2.PodSandboxStats:
    container = api_pb2.ContainerStats(
        attributes=api_pb2.ContainerAttributes(id="c1", metadata=api_pb2.ContainerMetadata(name="main")),
        cpu=api_pb2.CpuUsage(timestamp=T, usage_core_nano_seconds=value(5_000_000_000), usage_nano_cores=value(7)),
        memory=api_pb2.MemoryUsage(timestamp=T, working_set_bytes=value(1000)),
        writable_layer=api_pb2.FilesystemUsage(
            timestamp=T,
            fs_id=api_pb2.FilesystemIdentifier(mountpoint="/images"),
            used_bytes=value(11),
            inodes_used=value(2),
        ),
        swap=api_pb2.SwapUsage(timestamp=T, swap_usage_bytes=value(3), swap_available_bytes=value(4)),
    )
    ended = api_pb2.ContainerStats(attributes=api_pb2.ContainerAttributes(id="c0"))
    return api_pb2.PodSandboxStats(
        attributes=api_pb2.PodSandboxAttributes(
            id="s1", metadata=api_pb2.PodSandboxMetadata(name="web", namespace="default", uid="u1")
        ),
        linux=api_pb2.LinuxPodSandboxStats(
            cpu=api_pb2.CpuUsage(
                timestamp=T,
                usage_core_nano_seconds=value(6_000_000_000),
                psi=api_pb2.PsiStats(Full=api_pb2.PsiData(Total=1), Some=api_pb2.PsiData(Total=2, Avg10=0.5)),
            ),
            memory=api_pb2.MemoryUsage(timestamp=T, working_set_bytes=value(2000), available_bytes=value(9)),
            network=api_pb2.NetworkUsage(
                timestamp=T,
                default_interface=api_pb2.NetworkInterfaceUsage(name="eth0", rx_bytes=value(1)),
                interfaces=[api_pb2.NetworkInterfaceUsage(name="eth0", rx_bytes=value(1))],
            ),
            process=api_pb2.ProcessUsage(timestamp=T, process_count=value(3)),
            containers=[container, ended],
        ),
    )


DISK = PodDisk(
    logs={"main": Size(used_bytes=100, inodes=1)},
    volumes=[
        VolumeUsage(name="data", size=Size(used_bytes=1000, inodes=3), file_system=ROOT, claim="claim"),
        VolumeUsage(name="cache", size=Size(used_bytes=10_000, inodes=4), file_system=ROOT),
        VolumeUsage(name="memory", size=Size(used_bytes=100_000, inodes=5), file_system=ROOT, in_memory=True),
    ],
    other=Size(used_bytes=1_000_000, inodes=1),
)
INVENTORY = Inventory(created={"s1": T, "c1": T + 10**9}, root=ROOT, file_systems={"/images": ROOT}, disks={"u1": DISK})


def test_a_pod_in_the_summary() -> None:
    """Every field that a kubelet has of what the runtime says; what has ended is left out."""
    found = json.loads(stats.encode(stats.pod_stats(sandbox(), INVENTORY)))
    assert found == {
        "podRef": {"name": "web", "namespace": "default", "uid": "u1"},
        "startTime": TIME,
        "containers": [
            {
                "name": "main",
                "startTime": "2026-01-31T10:00:01Z",
                "cpu": {"time": TIME, "usageNanoCores": 7, "usageCoreNanoSeconds": 5_000_000_000},
                "memory": {"time": TIME, "workingSetBytes": 1000},
                "rootfs": FS | {"usedBytes": 11, "inodesUsed": 2},
                "logs": FS | {"usedBytes": 100, "inodesUsed": 1},
                "swap": {"time": TIME, "swapAvailableBytes": 4, "swapUsageBytes": 3},
            }
        ],
        "cpu": {
            "time": TIME,
            "usageCoreNanoSeconds": 6_000_000_000,
            "psi": {
                "full": {"total": 1, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0},
                "some": {"total": 2, "avg10": 0.5, "avg60": 0.0, "avg300": 0.0},
            },
        },
        "memory": {"time": TIME, "availableBytes": 9, "workingSetBytes": 2000},
        "network": {"time": TIME, "name": "eth0", "rxBytes": 1, "interfaces": [{"name": "eth0", "rxBytes": 1}]},
        "volume": [
            FS
            | {
                "usedBytes": 1000,
                "inodesUsed": 3,
                "name": "data",
                "pvcRef": {"name": "claim", "namespace": "default"},
            },
            FS | {"usedBytes": 10_000, "inodesUsed": 4, "name": "cache"},
            FS | {"usedBytes": 100_000, "inodesUsed": 5, "name": "memory"},
        ],
        # The writable layer, logs, the volume that goes with the pod and is on disk, and the pod's own files.
        "ephemeral-storage": FS | {"usedBytes": 1_010_111, "inodesUsed": 8},
        "process_stats": {"process_count": 3},
        "swap": {"time": TIME, "swapAvailableBytes": 4, "swapUsageBytes": 3},
    }


def test_a_runtime_that_says_nothing_leaves_nothing_made_up() -> None:
    bare = api_pb2.PodSandboxStats(
        attributes=api_pb2.PodSandboxAttributes(
            id="s1", metadata=api_pb2.PodSandboxMetadata(name="web", namespace="default", uid="u2")
        )
    )
    found = json.loads(stats.encode(stats.pod_stats(bare, INVENTORY)))
    assert found == {
        "podRef": {"name": "web", "namespace": "default", "uid": "u2"},
        "startTime": TIME,
        "containers": [],
        "ephemeral-storage": FS | {"usedBytes": 0, "inodesUsed": 0},
    }


def proc(root: Path) -> Path:
    files = {
        "meminfo": "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\nAnonPages: 300 kB\n"
        "SwapTotal: 50 kB\nSwapFree: 20 kB\n",
        "vmstat": "pgfault 12\npgmajfault 3\n",
        "stat": "cpu  100 1 2 1000 50 3 4 5 0 0\nbtime 1769853600\n",
        "loadavg": "0.1 0.2 0.3 2/345 6789\n",
        "sys/kernel/pid_max": "4194304\n",
        "sys/kernel/threads-max": "1000\n",
        "net/dev": "Inter-|\n face |\n"
        + "".join(f"{name}: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n" for name in ("lo", "eth0", "veth1", "wlan0")),
        "pressure/cpu": "some avg10=1.50 avg60=0.00 avg300=0.00 total=7\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_node_in_the_summary(tmp_path: Path) -> None:
    """What cAdvisor makes of the same files: working set without inactive files, busy processor time."""
    usage = node_usage.read(proc(tmp_path))
    facts = NodeFacts(
        name="n1",
        started=int(node_usage.boot_time(tmp_path) * 1e9),
        moment=T,
        usage=usage,
        nano_cores=5,
        root=ROOT,
        images=ROOT,
        images_size=Size(used_bytes=1, inodes=2),
        containers=None,
        containers_size=None,
        groups={},
    )
    found = json.loads(stats.encode(stats.node_stats(facts)))
    interface = {"rxBytes": 1, "rxErrors": 3, "txBytes": 5, "txErrors": 7}
    assert found == {
        "nodeName": "n1",
        "systemContainers": [],
        "startTime": TIME,
        "cpu": {
            "time": TIME,
            "usageNanoCores": 5,
            "usageCoreNanoSeconds": 1_150_000_000,
            "psi": {
                "full": {"total": 0, "avg10": 0, "avg60": 0, "avg300": 0},
                "some": {"total": 7000, "avg10": 1.5, "avg60": 0.0, "avg300": 0.0},
            },
        },
        "memory": {
            "time": TIME,
            "usageBytes": 600 * 1024,
            "workingSetBytes": 500 * 1024,
            "availableBytes": 500 * 1024,
            "rssBytes": 300 * 1024,
            "pageFaults": 12,
            "majorPageFaults": 3,
        },
        "io": {"time": TIME},
        "network": {
            "time": TIME,
            "name": "eth0",
            **interface,
            "interfaces": [{"name": "eth0", **interface}, {"name": "wlan0", **interface}],
        },
        "fs": FS | {"usedBytes": 60, "inodesUsed": 3},
        "runtime": {"imageFs": FS | {"usedBytes": 1, "inodesUsed": 2}},
        "rlimit": {"time": TIME, "maxpid": 1000, "curproc": 345},
        "swap": {"time": TIME, "swapAvailableBytes": 20 * 1024, "swapUsageBytes": 30 * 1024},
    }


def test_metrics_of_resources_have_the_time_of_their_measurement(tmp_path: Path) -> None:
    pod = stats.pod_stats(sandbox(), INVENTORY)
    text = text_of(resource_families({"node": {}, "pods": [pod]}))
    lines = {line for line in text.splitlines() if not line.startswith("#")}
    labels = 'container="main",namespace="default",pod="web"'
    assert lines == {
        f"container_start_time_seconds{{{labels}}} {T // 10**9 + 1}",
        f"container_cpu_usage_seconds_total{{{labels}}} 5 {T // 10**6}",
        f"container_memory_working_set_bytes{{{labels}}} 1000 {T // 10**6}",
        f"container_swap_usage_bytes{{{labels}}} 3 {T // 10**6}",
        f"container_swap_limit_bytes{{{labels}}} 7 {T // 10**6}",
        f'pod_cpu_usage_seconds_total{{namespace="default",pod="web"}} 6 {T // 10**6}',
        f'pod_memory_working_set_bytes{{namespace="default",pod="web"}} 2000 {T // 10**6}',
        f'pod_swap_usage_bytes{{namespace="default",pod="web"}} 3 {T // 10**6}',
        "resource_scrape_error 0",
        "scrape_error 0",
    }


def test_statistics_that_cannot_be_had_are_an_error_in_the_metrics() -> None:
    lines = text_of(resource_families(None)).splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["resource_scrape_error 1", "scrape_error 1"]


def test_a_claim_of_several_pods_is_told_once() -> None:
    pod = stats.pod_stats(sandbox(), INVENTORY)
    lines = [line for line in text_of(volume_families([pod, pod])).splitlines() if not line.startswith("#")]
    place = 'namespace="default",persistentvolumeclaim="claim"'
    assert lines == [
        f"kubelet_volume_stats_{name}{{{place}}} {number}"
        for name, number in (
            ("capacity_bytes", 100),
            ("available_bytes", 40),
            ("used_bytes", 1000),
            ("inodes", 10),
            ("inodes_free", 7),
            ("inodes_used", 3),
        )
    ]


def test_metrics_of_the_runtime_without_a_descriptor_or_with_other_labels_are_left_out() -> None:
    descriptors = [api_pb2.MetricDescriptor(name="fine", help="Fine.", label_keys=["id"])]

    def metric(name: str, *labels: str, moment: int = 0) -> api_pb2.Metric:
        return api_pb2.Metric(
            name=name, metric_type=api_pb2.COUNTER, label_values=labels, value=value(3), timestamp=moment
        )

    pods = [
        api_pb2.PodSandboxMetrics(
            metrics=[metric("fine", "a"), metric("unknown", "a"), metric("fine", "a", "b")],
            container_metrics=[api_pb2.ContainerMetrics(metrics=[metric("fine", "c", moment=T)])],
        )
    ]
    assert text_of(cri_families(descriptors, pods)) == (
        f'# HELP fine Fine.\n# TYPE fine counter\nfine{{id="a"}} 3\nfine{{id="c"}} 3 {T // 10**6}\n'
    )
