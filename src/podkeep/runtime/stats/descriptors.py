"""The metrics of pods and containers: cAdvisor's names, with their labels. A table, pure.

Every sample's label values stand in the order of its descriptor's keys: first those of :data:`BASE_LABELS`, then the
metric's own. The kubelet refuses anything else.
"""

from __future__ import annotations

from podkeep.base.frozen import FrozenStruct

BASE_LABELS = ("container", "id", "image", "name", "namespace", "pod")
"""cAdvisor's. ``id`` and ``name`` are the container's ID; of a pod's own metrics ``container`` is POD."""


class Descriptor(FrozenStruct, kw_only=True):
    """One metric; ``counter``: it only grows, else it is a gauge."""

    name: str
    help: str
    counter: bool
    labels: tuple[str, ...] = ()
    """Beside the base labels."""


def _counter(name: str, text: str, *labels: str) -> Descriptor:
    return Descriptor(name=name, help=text, counter=True, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> Descriptor:
    return Descriptor(name=name, help=text, counter=False, labels=labels)


_NETWORK = tuple(
    _counter(f"container_network_{direction}_{what}_total", f"{text} {verb}, by network interface.", "interface")
    for direction, verb in (("receive", "received"), ("transmit", "sent"))
    for what, text in (
        ("bytes", "Bytes"),
        ("packets", "Packets"),
        ("packets_dropped", "Packets dropped that were to be"),
        ("errors", "Packets with errors"),
    )
)
_PRESSURE = tuple(
    _counter(f"container_pressure_{resource}_{kind}_seconds_total", text.format(name))
    for resource, name in (("cpu", "CPU"), ("memory", "memory"), ("io", "I/O"))
    for kind, text in (
        ("waiting", "Time in which some task waited for {}, in whole seconds."),
        ("stalled", "Time in which all tasks waited for {}, in whole seconds."),
    )
)

OF_RDT: tuple[Descriptor, ...] = (
    # cAdvisor calls them gauges, and its label is that of the cache, of which each NUMA node has one.
    _gauge("container_llc_occupancy_bytes", "Last level cache in use in bytes, by cache (RDT).", "node_id"),
    _gauge("container_memory_bandwidth_bytes", "Bytes moved from and to memory, by cache (RDT).", "node_id"),
    _gauge("container_memory_bandwidth_local_bytes", "Those of the cache's own memory (RDT).", "node_id"),
)
"""What containers in a class of RDT have."""

_UNCOUNTED_IO: tuple[Descriptor, ...] = (
    _counter("container_fs_reads_merged_total", "Read operations that were merged; 0.", "device"),
    _counter("container_fs_writes_merged_total", "Write operations that were merged; 0.", "device"),
    _counter("container_fs_read_seconds_total", "Time spent reading; 0.", "device"),
    _counter("container_fs_write_seconds_total", "Time spent writing; 0.", "device"),
    _counter("container_fs_sector_reads_total", "Sectors read; 0.", "device"),
    _counter("container_fs_sector_writes_total", "Sectors written; 0.", "device"),
    _gauge("container_fs_io_current", "Operations under way; 0.", "device"),
    _counter("container_fs_io_time_seconds_total", "Time with operations under way; 0.", "device"),
    _counter("container_fs_io_time_weighted_seconds_total", "That time, times the operations; 0.", "device"),
)
"""The I/O scheduler that counted them for cgroups left with Linux 5.0; readers of /metrics/cadvisor expect them."""
UNCOUNTED = tuple(item.name for item in _UNCOUNTED_IO)

DESCRIPTORS: tuple[Descriptor, ...] = (
    _counter("container_cpu_usage_seconds_total", "CPU time used, in whole seconds.", "cpu"),
    _counter("container_cpu_user_seconds_total", "CPU time used in user mode, in whole seconds."),
    _counter("container_cpu_system_seconds_total", "CPU time used in the kernel, in whole seconds."),
    _counter("container_cpu_cfs_periods_total", "Periods of the CPU quota that have passed."),
    _counter("container_cpu_cfs_throttled_periods_total", "Periods in which the CPU quota was used up."),
    _counter("container_cpu_cfs_throttled_seconds_total", "Time spent throttled by the CPU quota, in whole seconds."),
    _gauge("container_memory_cache", "Page cache in bytes."),
    _gauge("container_memory_rss", "Anonymous memory in bytes."),
    _gauge("container_memory_kernel_usage", "Memory of the kernel's own in bytes."),
    _gauge("container_memory_mapped_file", "Mapped files in bytes."),
    _gauge("container_memory_swap", "Swap in use in bytes."),
    _counter("container_memory_failcnt", "How often memory reached its limit."),
    _gauge("container_memory_usage_bytes", "Memory in use in bytes, page cache included."),
    _gauge("container_memory_max_usage_bytes", "The most memory that was in use, in bytes."),
    _gauge("container_memory_working_set_bytes", "Memory in use without inactive page cache, in bytes."),
    _gauge("container_memory_total_active_file_bytes", "Active page cache in bytes."),
    _gauge("container_memory_total_inactive_file_bytes", "Inactive page cache in bytes."),
    _counter("container_memory_failures_total", "Page faults, by kind and scope.", "failure_type", "scope"),
    _counter("container_oom_events_total", "Processes that were killed because memory ran out."),
    _gauge("container_fs_inodes_free", "Free inodes of the file system of writable layers.", "device"),
    _gauge("container_fs_inodes_total", "Inodes of the file system of writable layers.", "device"),
    _gauge("container_fs_limit_bytes", "Size of the file system of writable layers in bytes.", "device"),
    _gauge("container_fs_usage_bytes", "Size of the writable layer in bytes.", "device"),
    _counter("container_fs_reads_bytes_total", "Bytes read, by device.", "device"),
    _counter("container_fs_reads_total", "Read operations, by device.", "device"),
    _counter("container_fs_writes_bytes_total", "Bytes written, by device.", "device"),
    _counter("container_fs_writes_total", "Write operations, by device.", "device"),
    *_UNCOUNTED_IO,
    _counter("container_blkio_device_usage_total", "Bytes of block I/O.", "device", "major", "minor", "operation"),
    _gauge("container_hugetlb_usage_bytes", "Huge pages in use in bytes.", "pagesize"),
    _gauge("container_hugetlb_max_usage_bytes", "The most huge pages that were in use, in bytes.", "pagesize"),
    *OF_RDT,
    _gauge("container_processes", "Processes in the container."),
    _gauge("container_threads", "Processes and threads in the container."),
    _gauge("container_threads_max", "Processes and threads that there may be; 0: no limit."),
    _gauge("container_file_descriptors", "Open file descriptors of all processes."),
    _gauge("container_sockets", "Open sockets of all processes."),
    _gauge("container_ulimits_soft", "Soft limits of the first process.", "ulimit"),
    _gauge("container_last_seen", "When the container was last looked at, in seconds since the epoch."),
    _gauge("container_start_time_seconds", "When the container was started, in seconds since the epoch."),
    _gauge("container_spec_cpu_period", "Period of the CPU quota in microseconds."),
    _gauge("container_spec_cpu_quota", "CPU quota per period in microseconds."),
    _gauge("container_spec_cpu_shares", "CPU shares."),
    _gauge("container_spec_memory_limit_bytes", "Memory limit in bytes; 0: none."),
    _gauge("container_spec_memory_reservation_limit_bytes", "Memory protected from reclaim in bytes; 0: none."),
    _gauge("container_spec_memory_swap_limit_bytes", "Limit of memory and swap together in bytes; 0: none."),
    *_PRESSURE,
    *_NETWORK,
)

BY_NAME = {item.name: item for item in DESCRIPTORS}
