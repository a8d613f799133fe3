"""``/metrics/resource`` and the metrics of volumes, from a summary; pods' metrics of CRI (kubelet: ``collectors``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from podkeep.base.metrics import Family, Kind, Metric, Sample, counter, gauge
from podkeep.cri.v1 import api_pb2

_CONTAINER = ("container", "pod", "namespace")
_POD = ("pod", "namespace")
NODE_CPU = counter("node_cpu_usage_seconds_total", "Processor time that the node has used, in core-seconds.")
NODE_MEMORY = gauge("node_memory_working_set_bytes", "Working set of the node.")
NODE_SWAP = gauge("node_swap_usage_bytes", "Swap that the node uses.")
START_TIME = gauge(
    "container_start_time_seconds", "When the container was created, in seconds since 1970.", *_CONTAINER
)
CONTAINER_CPU = counter(
    "container_cpu_usage_seconds_total", "Processor time that the container has used, in core-seconds.", *_CONTAINER
)
CONTAINER_MEMORY = gauge("container_memory_working_set_bytes", "Working set of the container.", *_CONTAINER)
CONTAINER_SWAP = gauge("container_swap_usage_bytes", "Swap that the container uses.", *_CONTAINER)
CONTAINER_SWAP_LIMIT = gauge("container_swap_limit_bytes", "Swap that the container may use.", *_CONTAINER)
POD_CPU = counter("pod_cpu_usage_seconds_total", "Processor time that the pod has used, in core-seconds.", *_POD)
POD_MEMORY = gauge("pod_memory_working_set_bytes", "Working set of the pod.", *_POD)
POD_SWAP = gauge("pod_swap_usage_bytes", "Swap that the pod uses.", *_POD)
_FAILED = "Whether figures of containers could not be read: 1, or 0."
ERRORS = (gauge("resource_scrape_error", _FAILED), gauge("scrape_error", _FAILED))
_VOLUMES = tuple(
    (key, gauge(f"kubelet_volume_stats_{name}", text, "namespace", "persistentvolumeclaim"))
    for key, name, text in (
        ("capacityBytes", "capacity_bytes", "Size of the volume's file system."),
        ("availableBytes", "available_bytes", "Bytes that are free in the volume's file system."),
        ("usedBytes", "used_bytes", "Bytes that the volume takes."),
        ("inodes", "inodes", "Inodes of the volume's file system."),
        ("inodesFree", "inodes_free", "Inodes that are free in the volume's file system."),
        ("inodesUsed", "inodes_used", "Inodes that the volume takes."),
    )
)


def resource_families(summary: Mapping[str, Any] | None) -> list[Family]:
    """Return the metrics of ``/metrics/resource``.

    :param summary: None: it could not be had.
    """
    families: dict[Metric, list[Sample]] = {}

    def add(metric: Metric, part: Mapping[str, Any] | None, key: str, labels: tuple[str, ...], unit: float = 1) -> None:
        if part is not None and part.get(key) is not None:
            when = part.get("time")
            moment = when.nanoseconds // 10**6 if when is not None else None
            families.setdefault(metric, []).append(Sample(labels, part[key] / unit, moment))

    if summary is not None:
        node = summary["node"]
        add(NODE_CPU, node.get("cpu"), "usageCoreNanoSeconds", (), 1e9)
        add(NODE_MEMORY, node.get("memory"), "workingSetBytes", ())
        add(NODE_SWAP, node.get("swap"), "swapUsageBytes", ())
        for pod in summary["pods"]:
            whose = pod["podRef"]
            place = (whose["name"], whose["namespace"])
            for container in pod["containers"]:
                labels = (container["name"], *place)
                if (created := container["startTime"]) is not None:
                    families.setdefault(START_TIME, []).append(Sample(labels, created.nanoseconds / 1e9))
                add(CONTAINER_CPU, container.get("cpu"), "usageCoreNanoSeconds", labels, 1e9)
                add(CONTAINER_MEMORY, container.get("memory"), "workingSetBytes", labels)
                swap = container.get("swap")
                add(CONTAINER_SWAP, swap, "swapUsageBytes", labels)
                if swap and swap.get("swapAvailableBytes") is not None:
                    limit = swap["swapAvailableBytes"] + swap.get("swapUsageBytes", 0)
                    add(CONTAINER_SWAP_LIMIT, {**swap, "limit": limit}, "limit", labels)
            add(POD_CPU, pod.get("cpu"), "usageCoreNanoSeconds", place, 1e9)
            add(POD_MEMORY, pod.get("memory"), "workingSetBytes", place)
            add(POD_SWAP, pod.get("swap"), "swapUsageBytes", place)
    for metric in ERRORS:
        families[metric] = [Sample((), float(summary is None))]
    return [Family(metric, samples) for metric, samples in families.items()]


def volume_families(pods: Iterable[Mapping[str, Any]]) -> list[Family]:
    """Return the metrics of the pods' claims, each once."""
    seen: dict[tuple[str, str], Mapping[str, Any]] = {}
    for pod in pods:
        for volume in pod.get("volume", ()):
            if claim := volume.get("pvcRef"):
                seen.setdefault((claim["namespace"], claim["name"]), volume)
    return [
        Family(metric, [Sample(labels, float(volume[key])) for labels, volume in seen.items() if key in volume])
        for key, metric in _VOLUMES
    ]


def cri_families(
    descriptors: Sequence[api_pb2.MetricDescriptor], pods: Sequence[api_pb2.PodSandboxMetrics]
) -> list[Family]:
    """Return the metrics that the runtime has of pods and containers; those that it does not describe are left out.

    A sample without a time was taken now (CRI: Metric).
    """
    described = {item.name: item for item in descriptors}
    metrics: dict[str, Metric] = {}
    samples: dict[str, list[Sample]] = {}
    for pod in pods:
        for found in (pod.metrics, *(container.metrics for container in pod.container_metrics)):
            for item in found:
                descriptor = described.get(item.name)
                # Labels are matched by their place: of another number, values would be shown under wrong names.
                if descriptor is None or len(descriptor.label_keys) != len(item.label_values):
                    continue
                if item.name not in metrics:
                    kind = Kind.COUNTER if item.metric_type == api_pb2.COUNTER else Kind.GAUGE
                    metrics[item.name] = Metric(
                        kind=kind, name=item.name, text=descriptor.help, labels=tuple(descriptor.label_keys)
                    )
                moment = item.timestamp // 10**6 or None
                samples.setdefault(item.name, []).append(
                    Sample(tuple(item.label_values), float(item.value.value), moment)
                )
    return [Family(metrics[name], found) for name, found in samples.items()]
