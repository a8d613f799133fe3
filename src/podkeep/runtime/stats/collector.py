"""One pass over what is asked for: cgroups, network namespaces, processes.

Owns: the order of reading, and that what goes away meanwhile is no error. Does not own: which sandboxes and containers
are asked for (``rpc/stats.py``), messages (``rpc/convert/``). Blocks; the server calls it on a thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from podkeep.base.errors import KernelCallError
from podkeep.kernel.cgroup.cgroup_stats import Detail, StatsReader, Usage
from podkeep.kernel.mount.blockdev import device_name, disk_of
from podkeep.kernel.network import netdev
from podkeep.kernel.network.netdev import Interface
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import Descriptors
from podkeep.runtime.class_resources.model import RDT
from podkeep.runtime.model.records import Container, Sandbox
from podkeep.runtime.stats.layers import Layers, LayerSize
from podkeep.runtime.stats.rates import Rates, Sample, now
from podkeep.runtime.stats.targets import ContainerTarget, SandboxTarget

if TYPE_CHECKING:
    from podkeep.runtime.class_resources.rdt.monitoring import DomainUsage

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
MAX_DESCRIPTORS = 4096
"""Descriptors of a container that are looked at one by one, for which are sockets."""
MAX_PROCESSES = 1000
"""Processes of a container whose descriptors are counted."""


# gc=False: nothing here can be part of a cycle, and lists make hundreds of them.
class ContainerReading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``at`` in nanoseconds since the epoch; ``usage`` is None if the container has ended."""

    container: Container
    at: int
    usage: Usage | None = None
    nano_cores: int | None = None
    """Billionths of a core in use; None: not known yet."""
    layer: LayerSize | None = None


class SandboxReading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``interfaces`` is None on the host's network."""

    sandbox: Sandbox
    at: int
    usage: Usage
    tasks: int | None = None
    """Processes and threads."""
    nano_cores: int | None = None
    interfaces: tuple[Interface, ...] | None = None
    containers: tuple[ContainerReading, ...] = ()


class Processes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the processes of a container hold. ``open_files_limit``: the first one's soft limit; None: it is gone."""

    descriptors: int
    sockets: int
    open_files_limit: int | None


class FileSystem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The file system that writable layers are on; sizes in bytes."""

    device: str
    disk: tuple[int, int]
    """Major and minor number of the disk that the device is on."""
    size: int
    inodes: int
    inodes_free: int


class ContainerMetrics(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything about one running container."""

    reading: ContainerReading
    usage: Usage
    detail: Detail
    processes: Processes
    domains: tuple[DomainUsage, ...] = ()
    """Caches and the memory behind them, as far as the hardware counts what a container in an RDT class uses."""


class SandboxMetrics(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything about one pod and its running containers."""

    sandbox: Sandbox
    at: int
    interfaces: tuple[Interface, ...]
    containers: tuple[ContainerMetrics, ...]


class Collector:
    """Reads; remembers nothing but what the rates and layers do."""

    def __init__(
        self, reader: StatsReader, rates: Rates, layers: Layers, data: Path, *, resctrl: Path | None = None
    ) -> None:
        """Make a collector.

        :param data: a directory on the file system of the writable layers.
        :param resctrl: where resctrl is mounted, if it is.
        """
        self._reader, self._rates, self._layers, self._data = reader, rates, layers, data
        self._resctrl = resctrl

    def containers(self, targets: Sequence[ContainerTarget]) -> list[ContainerReading]:
        return [self._container(target) for target in targets]

    def sandboxes(self, targets: Sequence[SandboxTarget]) -> list[SandboxReading]:
        """Read sandboxes with the containers in them; those that are gone are left out."""
        networks = self._networks(targets)
        found = []
        for target in targets:
            usage = self._reader.usage(target.cgroup)
            if usage is None:
                continue
            sample = Sample(at=now(), used=usage.cpu_ns)
            found.append(
                SandboxReading(
                    sandbox=target.sandbox,
                    at=time.time_ns(),
                    usage=usage,
                    tasks=self._reader.tasks(target.cgroup),
                    nano_cores=self._rates.rate(target.sandbox.id, sample),
                    interfaces=networks.get(target.network) if target.network is not None else None,
                    containers=tuple([self._container(item) for item in target.containers]),
                )
            )
        return found

    def count_layers(self, target: SandboxTarget) -> None:
        """Count what the containers of one sandbox have written, so that what is read next says what there is now."""
        self._layers.walk_now(target.containers)

    def metrics(self, targets: Sequence[SandboxTarget]) -> list[SandboxMetrics]:
        """Read everything about sandboxes and their running containers; those that are gone are left out."""
        networks = self._networks(targets)
        return [
            SandboxMetrics(
                sandbox=target.sandbox,
                at=time.time_ns(),
                interfaces=(networks.get(target.network) or ()) if target.network is not None else (),
                containers=tuple(
                    found for item in target.containers if (found := self._container_metrics(item)) is not None
                ),
            )
            for target in targets
        ]

    def file_system(self) -> FileSystem:
        """Return what the writable layers share.

        :raises KernelCallError: if the file system does not answer.
        """
        try:
            status, device = os.statvfs(self._data), self._data.stat().st_dev
        except OSError as error:
            raise KernelCallError(f"statvfs({self._data})", error.errno or 0) from error
        return FileSystem(
            device=device_name(os.major(device), os.minor(device)),
            disk=disk_of(os.major(device), os.minor(device)),
            size=status.f_blocks * status.f_frsize,
            inodes=status.f_files,
            inodes_free=status.f_ffree,
        )

    def sample(self, sandboxes: Sequence[SandboxTarget], containers: Sequence[ContainerTarget]) -> None:
        """Note the CPU time of everything that lives, for the rates."""
        samples: dict[str, Sample] = {}
        cgroups = [(str(item.sandbox.id), item.cgroup) for item in sandboxes]
        cgroups += [(str(item.container.id), item.cgroup) for item in containers if item.cgroup is not None]
        for key, cgroup in cgroups:
            used = self._reader.cpu_ns(cgroup)
            if used is not None:
                samples[key] = Sample(at=now(), used=used)
        self._rates.add(samples)

    def _networks(self, targets: Sequence[SandboxTarget]) -> dict[str, tuple[Interface, ...] | None]:
        pins = [target.network for target in targets if target.network is not None]
        return dict(zip(pins, netdev.read_all(pins), strict=True))

    def _container(self, target: ContainerTarget) -> ContainerReading:
        container = target.container
        usage = self._reader.usage(target.cgroup) if target.cgroup is not None else None
        rate = None
        if usage is not None:
            process = container.status.process
            # proc(5) has it in clock ticks since boot, on the clock of rates.now().
            born = process.start_time * _TICK_NS if process is not None else None
            rate = self._rates.rate(container.id, Sample(at=now(), used=usage.cpu_ns), born=born)
        return ContainerReading(
            container=container,
            at=time.time_ns(),
            usage=usage,
            nano_cores=rate,
            layer=self._layers.size(container.id),
        )

    def _container_metrics(self, target: ContainerTarget) -> ContainerMetrics | None:
        if target.cgroup is None:
            return None
        reading, detail = self._container(target), self._reader.detail(target.cgroup)
        if reading.usage is None or detail is None:
            return None
        held = _descriptors(detail.processes)
        process = target.container.status.process
        return ContainerMetrics(
            reading=reading,
            usage=reading.usage,
            detail=detail,
            processes=_sum(held, None if process is None else procfs.open_files_limit(process.pid)),
            domains=self._domains(target.container),
        )

    def _domains(self, container: Container) -> tuple[DomainUsage, ...]:
        class_name = container.status.class_resources.get(RDT)
        if class_name is None or self._resctrl is None:
            return ()
        # Imported where they are needed: most nodes have no such classes.
        from podkeep.kernel.cgroup.resctrl import Resctrl
        from podkeep.runtime.class_resources.rdt.monitoring import Monitoring

        return Monitoring(Resctrl(self._resctrl)).usage(class_name, container.id)


def _descriptors(processes: Sequence[int]) -> list[Descriptors]:
    """Return what the processes of a container have open, in bounded time: they may share a table that is full."""
    found: list[Descriptors] = []
    left = MAX_DESCRIPTORS
    for pid in processes[:MAX_PROCESSES]:
        found.append(procfs.descriptors(pid, most=left))
        left = max(left - found[-1].count, 0)
    return found


def _sum(held: Sequence[Descriptors], open_files_limit: int | None) -> Processes:
    return Processes(
        descriptors=sum(item.count for item in held),
        sockets=sum(item.sockets for item in held),
        open_files_limit=open_files_limit,
    )
