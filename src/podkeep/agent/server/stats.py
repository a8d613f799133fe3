"""``/stats/summary``: statistics of the node and its pods, in kubelet's form (``stats/v1alpha1``). Pure.

Figures of pods and containers are the runtime's (ListPodSandboxStats), as with kubelet's PodAndContainerStatsFromCRI;
where the runtime says nothing, there is nothing. What is added here: sizes of logs and volumes, and of file systems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from podkeep.agent.server.node_usage import NodeUsage
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.cgroup.cgroup_files import Psi
from podkeep.kernel.cgroup.cgroup_stats import Usage
from podkeep.kernel.network.netdev import Interface

Json = dict[str, Any]
_DEFAULT_INTERFACE = "eth0"


class FileSystem(FrozenStruct, kw_only=True):
    """A file system: sizes in bytes; ``moment`` in nanoseconds since 1970."""

    moment: int
    available: int
    capacity: int
    inodes: int
    inodes_free: int


class Size(FrozenStruct, kw_only=True):
    """What something takes of a file system."""

    used_bytes: int
    inodes: int


class VolumeUsage(FrozenStruct, kw_only=True):
    """A volume of a pod. ``claim``: name of its PersistentVolumeClaim; empty: it goes with the pod."""

    name: str
    size: Size
    file_system: FileSystem
    claim: str = ""
    in_memory: bool = False


class PodDisk(FrozenStruct, kw_only=True):
    """What a pod takes of the node's disk beside its containers' writable layers.

    ``logs`` are by container; ``other``: /etc/hosts and what else of the pod is a file of the agent.
    """

    logs: Mapping[str, Size]
    volumes: Sequence[VolumeUsage] = ()
    other: Size = Size(used_bytes=0, inodes=0)


NO_DISK = PodDisk(logs={})


class Moment:
    """A time in nanoseconds since 1970; in JSON it has seconds only (``metav1.Time``)."""

    __slots__ = ("nanoseconds",)

    def __init__(self, nanoseconds: int) -> None:
        self.nanoseconds = nanoseconds

    def __str__(self) -> str:
        return rfc3339.of_seconds(self.nanoseconds // 10**9)


def encode(value: Any) -> bytes:
    return _ENCODER.encode(value)


# The hook is for Moment, the only class in a summary that msgspec does not know.
_ENCODER = msgspec.json.Encoder(enc_hook=str)


def _moment(nanoseconds: int) -> Moment | None:
    return Moment(nanoseconds) if nanoseconds > 0 else None


def fs_stats(system: FileSystem | None, size: Size | None, moment: int = 0) -> Json:
    found: Json = {"time": _moment(moment or (system.moment if system else 0))}
    if system is not None:
        found |= {"availableBytes": system.available, "capacityBytes": system.capacity}
    if size is not None:
        found["usedBytes"] = size.used_bytes
    if system is not None:
        found |= {"inodesFree": system.inodes_free, "inodes": system.inodes}
    if size is not None:
        found["inodesUsed"] = size.inodes
    return found


def _given(pairs: Iterable[tuple[str, Any, str]]) -> Json:
    """Return values that are set, by name: of (name, message, field)."""
    return {name: getattr(message, part).value for name, message, part in pairs if message.HasField(part)}


def _psi(message: Any) -> Json:
    if not message.HasField("psi"):
        return {}
    return {"psi": {name.lower(): _psi_line(getattr(message.psi, name)) for name in ("Full", "Some")}}


def _psi_line(line: api_pb2.PsiData) -> Json:
    return {"total": line.Total, "avg10": line.Avg10, "avg60": line.Avg60, "avg300": line.Avg300}


def _cpu(message: api_pb2.CpuUsage) -> Json:
    fields = (("usageNanoCores", "usage_nano_cores"), ("usageCoreNanoSeconds", "usage_core_nano_seconds"))
    return {
        "time": _moment(message.timestamp),
        **_given((name, message, part) for name, part in fields),
        **_psi(message),
    }


def _memory(message: api_pb2.MemoryUsage) -> Json:
    fields = (
        ("availableBytes", "available_bytes"),
        ("usageBytes", "usage_bytes"),
        ("workingSetBytes", "working_set_bytes"),
        ("rssBytes", "rss_bytes"),
        ("pageFaults", "page_faults"),
        ("majorPageFaults", "major_page_faults"),
    )
    return {
        "time": _moment(message.timestamp),
        **_given((name, message, part) for name, part in fields),
        **_psi(message),
    }


def _swap(message: api_pb2.SwapUsage) -> Json:
    fields = (("swapAvailableBytes", "swap_available_bytes"), ("swapUsageBytes", "swap_usage_bytes"))
    return {"time": _moment(message.timestamp), **_given((name, message, part) for name, part in fields)}


def _io(message: api_pb2.IoUsage) -> Json:
    return {"time": _moment(message.timestamp), **_psi(message)}


def _interface(message: api_pb2.NetworkInterfaceUsage) -> Json:
    fields = (
        ("rxBytes", "rx_bytes"),
        ("rxErrors", "rx_errors"),
        ("txBytes", "tx_bytes"),
        ("txErrors", "tx_errors"),
    )
    return {"name": message.name, **_given((name, message, part) for name, part in fields)}


def _network(message: api_pb2.NetworkUsage) -> Json:
    found: Json = {"time": _moment(message.timestamp)}
    if message.HasField("default_interface"):
        found |= _interface(message.default_interface)
    else:
        found["name"] = ""
    if message.interfaces:
        found["interfaces"] = [_interface(item) for item in message.interfaces]
    return found


class Inventory(FrozenStruct, kw_only=True):
    """What the statistics of pods are completed with.

    ``created``: when each sandbox and each running container was created, by ID, in nanoseconds since 1970. What is
    not in it is not shown: it has ended. ``file_systems`` are by mount point; ``root`` is where logs and volumes are.
    """

    created: Mapping[str, int]
    root: FileSystem
    file_systems: Mapping[str, FileSystem]
    disks: Mapping[str, PodDisk]
    """By the pod's UID."""


def container_stats(message: api_pb2.ContainerStats, disk: PodDisk, inventory: Inventory) -> Json:
    name = message.attributes.metadata.name
    found: Json = {"name": name, "startTime": _moment(inventory.created.get(message.attributes.id, 0))}
    for key, part, convert in (("cpu", "cpu", _cpu), ("memory", "memory", _memory), ("io", "io", _io)):
        if message.HasField(part):  # type: ignore[arg-type]
            found[key] = convert(getattr(message, part))
    if message.HasField("writable_layer"):
        layer = message.writable_layer
        system = inventory.file_systems.get(layer.fs_id.mountpoint)
        found["rootfs"] = fs_stats(system, _size(layer), layer.timestamp)
    if name in disk.logs:
        found["logs"] = fs_stats(inventory.root, disk.logs[name])
    if message.HasField("swap"):
        found["swap"] = _swap(message.swap)
    return found


def _size(layer: api_pb2.FilesystemUsage) -> Size:
    return Size(used_bytes=layer.used_bytes.value, inodes=layer.inodes_used.value)


def pod_stats(message: api_pb2.PodSandboxStats, inventory: Inventory) -> Json:
    attributes, linux = message.attributes, message.linux
    meta = attributes.metadata
    disk = inventory.disks.get(meta.uid, NO_DISK)
    shown = [item for item in linux.containers if item.attributes.id in inventory.created]
    found: Json = {
        "podRef": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "startTime": _moment(inventory.created.get(attributes.id, 0)),
        "containers": [container_stats(item, disk, inventory) for item in shown],
    }
    for key, convert in (("cpu", _cpu), ("memory", _memory), ("io", _io), ("network", _network)):
        if linux.HasField(key):  # type: ignore[arg-type]
            found[key] = convert(getattr(linux, key))
    if disk.volumes:
        found["volume"] = [_volume(item, meta.namespace) for item in disk.volumes]
    found["ephemeral-storage"] = _ephemeral(shown, disk, inventory.root)
    if linux.HasField("process"):
        found["process_stats"] = _given([("process_count", linux.process, "process_count")])
    if swaps := [item.swap for item in shown if item.HasField("swap")]:
        found["swap"] = {
            "time": _moment(swaps[-1].timestamp),
            "swapAvailableBytes": sum(item.swap_available_bytes.value for item in swaps),
            "swapUsageBytes": sum(item.swap_usage_bytes.value for item in swaps),
        }
    return found


def _volume(usage: VolumeUsage, namespace: str) -> Json:
    found = fs_stats(usage.file_system, usage.size) | {"name": usage.name}
    return found | ({"pvcRef": {"name": usage.claim, "namespace": namespace}} if usage.claim else {})


def _ephemeral(containers: Sequence[api_pb2.ContainerStats], disk: PodDisk, root: FileSystem) -> Json:
    """Return what a pod takes of the node's disk: writable layers, logs, volumes that go with the pod, its files."""
    sizes = [_size(item.writable_layer) for item in containers if item.HasField("writable_layer")]
    sizes += [*disk.logs.values(), disk.other]
    sizes += [item.size for item in disk.volumes if not item.claim and not item.in_memory]
    total = Size(used_bytes=sum(item.used_bytes for item in sizes), inodes=sum(item.inodes for item in sizes))
    return fs_stats(root, total)


class NodeFacts(FrozenStruct, kw_only=True):
    """The node itself. ``started`` is when it was booted, in nanoseconds since 1970, as is ``moment``."""

    name: str
    started: int
    moment: int
    usage: NodeUsage
    nano_cores: int | None
    """Processor time in nanoseconds for each second of the last ones; None: not known yet."""
    root: FileSystem
    images: FileSystem | None
    images_size: Size | None
    containers: FileSystem | None
    containers_size: Size | None
    groups: Mapping[str, tuple[int, Usage]]
    """What cgroups of the system use, ``kubelet`` and ``pods``, with when they were started."""


def node_stats(facts: NodeFacts) -> Json:
    usage, now = facts.usage, _moment(facts.moment)
    runtime: Json = {}
    for key, system, size in (
        ("imageFs", facts.images, facts.images_size),
        ("containerFs", facts.containers, facts.containers_size),
    ):
        if size is not None:
            runtime[key] = fs_stats(system, size, facts.moment)
    cpu: Json = {"time": now, "usageCoreNanoSeconds": usage.cpu_ns, **_kernel_psi(usage.pressure.get("cpu"))}
    if facts.nano_cores is not None:
        cpu["usageNanoCores"] = facts.nano_cores
    root_used = Size(
        used_bytes=facts.root.capacity - facts.root.available, inodes=facts.root.inodes - facts.root.inodes_free
    )
    return {
        "nodeName": facts.name,
        "systemContainers": [_group(name, *value, facts.moment) for name, value in facts.groups.items()],
        "startTime": _moment(facts.started),
        "cpu": cpu,
        "memory": {
            "time": now,
            "availableBytes": usage.available,
            "usageBytes": usage.usage,
            "workingSetBytes": usage.working_set,
            "rssBytes": usage.rss,
            "pageFaults": usage.page_faults,
            "majorPageFaults": usage.major_page_faults,
            **_kernel_psi(usage.pressure.get("memory")),
        },
        "io": {"time": now, **_kernel_psi(usage.pressure.get("io"))},
        "network": _node_network(usage.interfaces, now),
        "fs": fs_stats(facts.root, root_used, facts.moment),
        "runtime": runtime,
        "rlimit": {"time": now, "maxpid": usage.max_processes, "curproc": usage.processes},
        "swap": {"time": now, "swapAvailableBytes": usage.swap_available, "swapUsageBytes": usage.swap_usage},
    }


def _kernel_psi(psi: Psi | None) -> Json:
    if psi is None:
        return {}
    lines = {"full": psi.full, "some": psi.some}
    return {
        "psi": {
            name: {"total": 0, "avg10": 0, "avg60": 0, "avg300": 0}
            if line is None
            else {"total": line.total_ns, "avg10": line.avg10, "avg60": line.avg60, "avg300": line.avg300}
            for name, line in lines.items()
        }
    }


def _node_network(interfaces: Sequence[Interface], now: Moment | None) -> Json:
    shown = [
        {
            "name": item.name,
            "rxBytes": item.rx_bytes,
            "rxErrors": item.rx_errors,
            "txBytes": item.tx_bytes,
            "txErrors": item.tx_errors,
        }
        for item in interfaces
    ]
    default = next((item for item in shown if item["name"] == _DEFAULT_INTERFACE), {"name": ""})
    return {"time": now, **default, **({"interfaces": shown} if shown else {})}


def _group(name: str, started: int, usage: Usage, moment: int) -> Json:
    now, memory = _moment(moment), usage.memory
    found: Json = {
        "name": name,
        "startTime": _moment(started),
        "cpu": {"time": now, "usageCoreNanoSeconds": usage.cpu_ns, **_kernel_psi(usage.pressure.cpu)},
        "memory": {
            "time": now,
            "usageBytes": memory.usage,
            "workingSetBytes": memory.working_set,
            "rssBytes": memory.rss,
            "pageFaults": memory.page_faults,
            "majorPageFaults": memory.major_page_faults,
            **_kernel_psi(usage.pressure.memory),
        },
        "io": {"time": now, **_kernel_psi(usage.pressure.io)},
    }
    if memory.limit is not None:
        found["memory"]["availableBytes"] = max(0, memory.limit - memory.working_set)
    if memory.swap is not None:
        swap: Json = {"time": now, "swapUsageBytes": memory.swap}
        if memory.swap_limit is not None:
            swap["swapAvailableBytes"] = max(0, memory.swap_limit - memory.swap)
        found["swap"] = swap
    return found
