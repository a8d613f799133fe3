"""Samples of the metrics in ``descriptors.py`` from what was read. Pure.

CRI carries whole numbers only, so times are whole seconds, rounded down, as the peers have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from podkeep.kernel.cgroup.cgroup_files import DeviceIo, Psi
from podkeep.kernel.cgroup.cgroup_stats import Memory
from podkeep.kernel.network.netdev import Interface
from podkeep.runtime.model.records import Container, Resources, Sandbox
from podkeep.runtime.stats.collector import ContainerMetrics, FileSystem
from podkeep.runtime.stats.descriptors import UNCOUNTED

if TYPE_CHECKING:
    from podkeep.runtime.class_resources.rdt.monitoring import DomainUsage

_SECOND_NS = 1_000_000_000
POD_CONTAINER = "POD"
"""The container label of what belongs to a pod as a whole."""
_DEFAULT_PERIOD_US = 100_000
"""The kernel's period of the CPU quota."""


class MetricSample(msgspec.Struct, frozen=True, gc=False):
    """One value; ``labels`` are the metric's own, after the base labels."""

    name: str
    value: int
    labels: tuple[str, ...] = ()


def sandbox_labels(sandbox: Sandbox) -> tuple[str, ...]:
    """Return the values of the base labels of a pod's own metrics."""
    config = sandbox.config
    return (POD_CONTAINER, sandbox.id, "", sandbox.id, config.namespace, config.name)


def container_labels(container: Container, sandbox: Sandbox) -> tuple[str, ...]:
    """Return the values of the base labels of a container's metrics."""
    config, pod = container.config, sandbox.config
    return (config.name, container.id, container.reported_image, container.id, pod.namespace, pod.name)


def network_samples(interfaces: tuple[Interface, ...]) -> Iterator[MetricSample]:
    """Yield what a pod's interfaces have carried."""
    for item in interfaces:
        values = {
            "receive_bytes": item.rx_bytes,
            "receive_packets": item.rx_packets,
            "receive_packets_dropped": item.rx_dropped,
            "receive_errors": item.rx_errors,
            "transmit_bytes": item.tx_bytes,
            "transmit_packets": item.tx_packets,
            "transmit_packets_dropped": item.tx_dropped,
            "transmit_errors": item.tx_errors,
        }
        for name, value in values.items():
            yield MetricSample(f"container_network_{name}_total", value, (item.name,))


def container_samples(
    metrics: ContainerMetrics, file_system: FileSystem, device_name: Callable[[int, int], str]
) -> Iterator[MetricSample]:
    """Yield everything about a running container.

    :param device_name: returns the name of a block device by its numbers.
    """
    yield from _cpu(metrics)
    yield from _memory(metrics)
    yield from _files(metrics, file_system)
    for device in _devices(metrics.detail.devices, file_system):
        yield from _device(device, device_name(device.major, device.minor))
    for size, (used, most) in sorted(metrics.detail.hugepages.items()):
        yield MetricSample("container_hugetlb_usage_bytes", used, (size,))
        yield MetricSample("container_hugetlb_max_usage_bytes", most, (size,))
    yield from _processes(metrics)
    for domain in metrics.domains:
        yield from _domain(domain)
    yield from _spec(metrics.reading.container)
    yield from _memory_limits(metrics.usage.memory)
    pressure = metrics.usage.pressure
    for resource, psi in (("cpu", pressure.cpu), ("memory", pressure.memory), ("io", pressure.io)):
        yield from _pressure(resource, psi)
    status = metrics.reading.container.status
    yield MetricSample("container_last_seen", metrics.reading.at // _SECOND_NS)
    yield MetricSample("container_start_time_seconds", (status.started_at or status.created_at) // _SECOND_NS)


def _cpu(metrics: ContainerMetrics) -> Iterator[MetricSample]:
    detail = metrics.detail
    # One series for all processors, as the kubelet configures cAdvisor.
    yield MetricSample("container_cpu_usage_seconds_total", metrics.usage.cpu_ns // _SECOND_NS, ("total",))
    yield MetricSample("container_cpu_user_seconds_total", detail.cpu_user_ns // _SECOND_NS)
    yield MetricSample("container_cpu_system_seconds_total", detail.cpu_system_ns // _SECOND_NS)
    yield MetricSample("container_cpu_cfs_periods_total", detail.cfs_periods)
    yield MetricSample("container_cpu_cfs_throttled_periods_total", detail.cfs_throttled_periods)
    yield MetricSample("container_cpu_cfs_throttled_seconds_total", detail.cfs_throttled_ns // _SECOND_NS)


def _memory(metrics: ContainerMetrics) -> Iterator[MetricSample]:
    memory, detail = metrics.usage.memory, metrics.detail
    values = {
        "cache": detail.cache,
        "rss": memory.rss,
        "kernel_usage": detail.kernel,
        "mapped_file": detail.mapped_file,
        "swap": memory.swap or 0,
        "failcnt": detail.failures,
        "usage_bytes": memory.usage,
        # Version 2 has memory.peak since Linux 5.19.
        "max_usage_bytes": detail.max_usage or memory.usage,
        "working_set_bytes": memory.working_set,
        "total_active_file_bytes": detail.active_file,
        "total_inactive_file_bytes": detail.inactive_file,
    }
    for name, value in values.items():
        yield MetricSample(f"container_memory_{name}", value)
    for kind, value in (("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)):
        for scope in ("container", "hierarchy"):
            yield MetricSample("container_memory_failures_total", value, (kind, scope))
    yield MetricSample("container_oom_events_total", detail.oom_kills)


def _files(metrics: ContainerMetrics, file_system: FileSystem) -> Iterator[MetricSample]:
    layer, device = metrics.reading.layer, file_system.device
    yield MetricSample("container_fs_inodes_free", file_system.inodes_free, (device,))
    yield MetricSample("container_fs_inodes_total", file_system.inodes, (device,))
    yield MetricSample("container_fs_limit_bytes", file_system.size, (device,))
    if layer is not None:
        yield MetricSample("container_fs_usage_bytes", layer.size.used_bytes, (device,))


def _devices(counted: tuple[DeviceIo, ...], file_system: FileSystem) -> tuple[DeviceIo, ...]:
    """Return the devices of a container: the disk of its writable layer is among them, also before it was used."""
    major, minor = file_system.disk
    if any((io.major, io.minor) == (major, minor) for io in counted):
        return counted
    return (*counted, DeviceIo(major=major, minor=minor))


def _device(io: DeviceIo, name: str) -> Iterator[MetricSample]:
    yield MetricSample("container_fs_reads_bytes_total", io.read_bytes, (name,))
    yield MetricSample("container_fs_reads_total", io.reads, (name,))
    yield MetricSample("container_fs_writes_bytes_total", io.write_bytes, (name,))
    yield MetricSample("container_fs_writes_total", io.writes, (name,))
    for operation, value in (("Read", io.read_bytes), ("Write", io.write_bytes)):
        labels = (name, str(io.major), str(io.minor), operation)
        yield MetricSample("container_blkio_device_usage_total", value, labels)
    for family in UNCOUNTED:
        yield MetricSample(family, 0, (name,))


def _processes(metrics: ContainerMetrics) -> Iterator[MetricSample]:
    detail, held = metrics.detail, metrics.processes
    yield MetricSample("container_processes", len(detail.processes))
    yield MetricSample("container_threads", detail.tasks or 0)
    yield MetricSample("container_threads_max", detail.tasks_limit or 0)
    yield MetricSample("container_file_descriptors", held.descriptors)
    yield MetricSample("container_sockets", held.sockets)
    if held.open_files_limit is not None:
        yield MetricSample("container_ulimits_soft", held.open_files_limit, ("max_open_files",))


def _domain(usage: DomainUsage) -> Iterator[MetricSample]:
    values = {
        "container_llc_occupancy_bytes": usage.occupancy,
        "container_memory_bandwidth_bytes": usage.total_bytes,
        "container_memory_bandwidth_local_bytes": usage.local_bytes,
    }
    for name, value in values.items():
        if value is not None:
            yield MetricSample(name, value, (str(usage.domain),))


def _spec(container: Container) -> Iterator[MetricSample]:
    resources: Resources = container.status.resources or container.config.resources
    yield MetricSample("container_spec_cpu_period", resources.cpu_period or _DEFAULT_PERIOD_US)
    if resources.cpu_quota > 0:
        yield MetricSample("container_spec_cpu_quota", resources.cpu_quota)
    yield MetricSample("container_spec_cpu_shares", resources.cpu_shares)
    reserved = 0
    with suppress(ValueError):  # "max", or what the kernel has refused
        reserved = int(resources.unified.get("memory.min", "0"))
    yield MetricSample("container_spec_memory_reservation_limit_bytes", reserved)


def _memory_limits(memory: Memory) -> Iterator[MetricSample]:
    """Yield what the kernel holds, in whole pages."""
    limit = memory.limit or 0
    together = limit + memory.swap_limit if limit and memory.swap_limit is not None else 0
    yield MetricSample("container_spec_memory_limit_bytes", limit)
    yield MetricSample("container_spec_memory_swap_limit_bytes", together)


def _pressure(resource: str, psi: Psi | None) -> Iterator[MetricSample]:
    if psi is None:
        return
    yield MetricSample(f"container_pressure_{resource}_waiting_seconds_total", psi.some.total_ns // _SECOND_NS)
    if psi.full is not None:
        yield MetricSample(f"container_pressure_{resource}_stalled_seconds_total", psi.full.total_ns // _SECOND_NS)
