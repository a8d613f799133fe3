"""Statistics as CRI's messages. Pure, and fast: a list of 110 pods has some 4000 values.

A value that is not known is not set, so that a client can tell it from 0; timestamps are always set where a message is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroup_files import Psi, PsiLine
from podkeep.kernel.cgroup.cgroup_stats import Memory, Usage
from podkeep.kernel.network.netdev import Interface
from podkeep.runtime.model.records import Container, Sandbox
from podkeep.runtime.rpc.chunks import LIST_BYTES
from podkeep.runtime.rpc.encoded import Encoded
from podkeep.runtime.stats.collector import ContainerReading, SandboxReading
from podkeep.runtime.stats.layers import LayerSize

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer as _Repeated

ATTRIBUTE_BYTES = LIST_BYTES // 4
"""Of a list what labels, annotations and names of sandboxes may have, and what those of containers; the rest is for the
values, some 500 bytes of a container."""
DEFAULT_INTERFACE = "eth0"
"""What the kubelet and CNI call a pod's own interface."""

# Fields are set one by one: half the time of building a message from messages.


class StatsMessages:
    """Fills messages; what stays the same of a record is encoded once."""

    def __init__(self, *, mountpoint: str) -> None:
        """``mountpoint`` is what identifies the file system of writable layers."""
        self._mountpoint = mountpoint
        self._containers, self._sandboxes = Encoded(_container_attributes), Encoded(_sandbox_attributes)

    def fill_containers(
        self, into: _Repeated[api.ContainerStats], readings: Sequence[ContainerReading], *, most: int = ATTRIBUTE_BYTES
    ) -> None:
        """Add a message for each container; one that has ended still has a writable layer.

        :param most: bytes of all attributes; see :meth:`Encoded.within`.
        """
        attributes = self._containers.within([reading.container for reading in readings], most)
        for reading, data in zip(readings, attributes, strict=True):
            self._fill_container(into.add(), reading, data)

    def fill_sandboxes(
        self, into: _Repeated[api.PodSandboxStats], readings: Sequence[SandboxReading], *, most: int = ATTRIBUTE_BYTES
    ) -> None:
        """Add a message for each sandbox and the containers in it.

        :param most: bytes of all attributes of sandboxes, and as many of containers.
        """
        inside = [container for reading in readings for container in reading.containers]
        containers = iter(self._containers.within([item.container for item in inside], most))
        sandboxes = self._sandboxes.within([reading.sandbox for reading in readings], most)
        for reading, data in zip(readings, sandboxes, strict=True):
            message = into.add()
            self._fill_sandbox(message, reading, data)
            for item in reading.containers:
                self._fill_container(message.linux.containers.add(), item, next(containers))

    def _fill_container(self, message: api.ContainerStats, reading: ContainerReading, attributes: bytes) -> None:
        message.attributes.MergeFromString(attributes)
        usage, at = reading.usage, reading.at
        if usage is not None:
            _fill_cpu(message.cpu, usage, at, reading.nano_cores)
            _fill_memory(message.memory, usage, at)
            if usage.pressure.io is not None:
                message.io.timestamp = at
                _fill_psi(message.io.psi, usage.pressure.io)
            _fill_swap(message, usage.memory, at)
        _fill_layer(message.writable_layer, reading.layer, self._mountpoint, at)

    def _fill_sandbox(self, message: api.PodSandboxStats, reading: SandboxReading, attributes: bytes) -> None:
        message.attributes.MergeFromString(attributes)
        linux, usage = message.linux, reading.usage
        _fill_cpu(linux.cpu, usage, reading.at, reading.nano_cores)
        _fill_memory(linux.memory, usage, reading.at)
        if usage.pressure.io is not None:
            linux.io.timestamp = reading.at
            _fill_psi(linux.io.psi, usage.pressure.io)
        if reading.interfaces is not None:
            _fill_network(linux.network, reading.interfaces, reading.at)
        linux.process.timestamp = reading.at
        if reading.tasks is not None:
            linux.process.process_count.value = reading.tasks


def _container_attributes(container: Container) -> api.ContainerAttributes:
    config = container.config
    return api.ContainerAttributes(
        id=container.id,
        metadata=api.ContainerMetadata(name=config.name, attempt=config.attempt),
        labels=config.labels,
        annotations=config.annotations,
    )


def _sandbox_attributes(sandbox: Sandbox) -> api.PodSandboxAttributes:
    config = sandbox.config
    metadata = api.PodSandboxMetadata(
        name=config.name, uid=config.uid, namespace=config.namespace, attempt=config.attempt
    )
    return api.PodSandboxAttributes(
        id=sandbox.id, metadata=metadata, labels=config.labels, annotations=config.annotations
    )


def _fill_cpu(message: api.CpuUsage, usage: Usage, at: int, nano_cores: int | None) -> None:
    message.timestamp = at
    message.usage_core_nano_seconds.value = usage.cpu_ns
    if nano_cores is not None:
        message.usage_nano_cores.value = nano_cores
    if usage.pressure.cpu is not None:
        _fill_psi(message.psi, usage.pressure.cpu)


def _fill_memory(message: api.MemoryUsage, usage: Usage, at: int) -> None:
    memory = usage.memory
    message.timestamp = at
    message.usage_bytes.value = memory.usage
    message.working_set_bytes.value = memory.working_set
    message.rss_bytes.value = memory.rss
    message.page_faults.value = memory.page_faults
    message.major_page_faults.value = memory.major_page_faults
    if memory.limit is not None:
        message.available_bytes.value = max(memory.limit - memory.working_set, 0)
    if usage.pressure.memory is not None:
        _fill_psi(message.psi, usage.pressure.memory)


def _fill_swap(message: api.ContainerStats, memory: Memory, at: int) -> None:
    if memory.swap is None:
        return
    message.swap.timestamp = at
    message.swap.swap_usage_bytes.value = memory.swap
    if memory.swap_limit is not None:
        message.swap.swap_available_bytes.value = max(memory.swap_limit - memory.swap, 0)


def _fill_layer(message: api.FilesystemUsage, layer: LayerSize | None, mountpoint: str, at: int) -> None:
    message.fs_id.mountpoint = mountpoint
    message.timestamp = at if layer is None else layer.at
    if layer is not None:
        message.used_bytes.value = layer.size.used_bytes
        message.inodes_used.value = layer.size.inodes


def _fill_network(message: api.NetworkUsage, interfaces: tuple[Interface, ...], at: int) -> None:
    message.timestamp = at
    for item in interfaces:
        _fill_interface(message.interfaces.add(), item)
    default = next((item for item in interfaces if item.name == DEFAULT_INTERFACE), None)
    if default is None and interfaces:
        default = interfaces[0]
    if default is not None:
        _fill_interface(message.default_interface, default)


def _fill_interface(message: api.NetworkInterfaceUsage, interface: Interface) -> None:
    message.name = interface.name
    message.rx_bytes.value = interface.rx_bytes
    message.rx_errors.value = interface.rx_errors
    message.tx_bytes.value = interface.tx_bytes
    message.tx_errors.value = interface.tx_errors


def _fill_psi(message: api.PsiStats, psi: Psi) -> None:
    _fill_psi_line(message.Some, psi.some)
    if psi.full is not None:
        _fill_psi_line(message.Full, psi.full)


def _fill_psi_line(message: api.PsiData, line: PsiLine) -> None:
    message.Total = line.total_ns
    message.Avg10, message.Avg60, message.Avg300 = line.avg10, line.avg60, line.avg300
