"""What cgroups use, read from the kernel: CPU, memory, processes, pressure, block I/O, huge pages.

Owns: which file of which hierarchy says what, for version 1 and version 2 behind one interface. Does not own: the
formats (``cgroup_files``), rates, and whose cgroup it is (``runtime/stats/``).

A cgroup that is gone, also one that goes while it is read, is None and no error: containers end at any time. Files are
opened relative to a descriptor per hierarchy; one cgroup's :class:`Usage` costs some 30 microseconds.
"""

from __future__ import annotations

import errno
import os
from typing import Protocol

import msgspec

from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.kernel.cgroup import cgroup_files as files
from podkeep.kernel.cgroup.cgroup_files import DeviceIo, Psi, Table
from podkeep.kernel.cgroup.cgroups import CgroupLayout, Cgroups
from podkeep.kernel.tables import GONE

_READ_BYTES = 16 << 10
"""More than any file here holds, but the lists of processes and devices."""
_OOM_FILES = {1: "memory.oom_control", 2: "memory.events"}
"""Where each version counts what was killed because memory ran out."""


class Memory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Bytes; of version 1 the hierarchical values. None: no limit, or not known."""

    usage: int
    working_set: int
    """Usage without the page cache that the kernel would drop first, as the kubelet's eviction counts it."""
    rss: int
    """Anonymous memory."""
    page_faults: int
    major_page_faults: int
    limit: int | None = None
    swap: int | None = None
    """None: swap is not accounted."""
    swap_limit: int | None = None


class Pressure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Each None where the kernel has none: version 1, or ``psi=0`` on the kernel's command line."""

    cpu: Psi | None = None
    memory: Psi | None = None
    io: Psi | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is asked for often."""

    cpu_ns: int
    memory: Memory
    pressure: Pressure


class Detail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What only the metrics show. Times in nanoseconds, sizes in bytes; a limit of None: none."""

    cpu_user_ns: int
    cpu_system_ns: int
    cfs_periods: int
    cfs_throttled_periods: int
    cfs_throttled_ns: int
    cache: int
    mapped_file: int
    active_file: int
    inactive_file: int
    kernel: int
    max_usage: int | None
    failures: int
    """How often memory was to grow beyond its limit."""
    oom_kills: int
    devices: tuple[DeviceIo, ...]
    hugepages: dict[str, tuple[int, int]]
    """By page size ("2MB"): bytes in use, and the most there were."""
    processes: tuple[int, ...]
    """Process IDs."""
    tasks: int | None
    """Processes and threads."""
    tasks_limit: int | None


class StatsReader(Protocol):
    """Reads cgroups by their paths ("/podkeep/pod-…"). Any thread may call it."""

    def cpu_ns(self, path: str) -> int | None:
        """Return the CPU time a cgroup has used, in nanoseconds; None if it is gone."""
        ...

    def usage(self, path: str) -> Usage | None:
        """Return what a cgroup uses; None if it is gone.

        :raises KernelCallError: if the kernel refuses to say.
        """
        ...

    def tasks(self, path: str) -> int | None:
        """Return how many processes and threads a cgroup and those below it have; None where nobody counts them."""
        ...

    def detail(self, path: str) -> Detail | None:
        """Return the rest; None if it is gone.

        :raises KernelCallError: if the kernel refuses to say.
        """
        ...

    def close(self) -> None: ...


def open_reader(layout: CgroupLayout) -> StatsReader:
    """Return a reader of the machine's cgroups; it holds a descriptor per hierarchy until it is closed.

    :raises KernelCallError: if a hierarchy cannot be opened.
    :raises FailedPrecondition: if the one for memory or CPU time is missing.
    """
    return _V2(layout) if layout.version == 2 else _V1(layout)


def oom_kills(cgroups: Cgroups, path: str) -> int | None:
    """Return how many processes of a cgroup the kernel has killed because memory ran out, None if the cgroup is gone.

    Version 2 counts those of cgroups below it too, also of such as are gone, version 1 does not.

    :raises KernelCallError: if the kernel refuses to say.
    """
    text = cgroups.read(path, _OOM_FILES[cgroups.version])
    return None if text is None else Table(text.encode()).get(b"oom_kill")


class _Gone(Exception):
    """The cgroup is not there, or not any more."""


class _Hierarchy:
    """The files of one mounted hierarchy."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise KernelCallError(f"open({path})", error.errno or 0) from error
        self._path = path

    def read(self, file: str) -> bytes:
        """Return the content of ``file``, a path relative to the hierarchy.

        :raises _Gone: if it is not there.
        :raises KernelCallError: if the kernel refuses.
        """
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                return os.read(fd, _READ_BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            # ENODEV: the cgroup was removed between opening and reading.
            if error.errno in GONE:
                raise _Gone from error
            raise KernelCallError(f"read({self._path}/{file})", error.errno or 0) from error

    def optional(self, file: str) -> bytes:
        """Return the content of a file that this kernel may lack or refuse, then empty."""
        try:
            return self.read(file)
        except (_Gone, KernelCallError):
            return b""

    def whole(self, file: str) -> bytes:
        """Return the content of a file of any length; empty if it is missing."""
        content = bytearray()
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                while part := os.read(fd, _READ_BYTES):
                    content += part
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in GONE | {errno.EOPNOTSUPP}:
                return b""
            raise KernelCallError(f"read({self._path}/{file})", error.errno or 0) from error
        return bytes(content)

    def names(self, directory: str) -> list[str]:
        """Return the names of the files in a cgroup; none if it is missing."""
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            return []
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        os.close(self._fd)


class _V1:
    """A hierarchy per controller, or for some together; also on hybrid machines."""

    def __init__(self, layout: CgroupLayout) -> None:
        self._opened: list[_Hierarchy] = []
        by_controller: dict[str, _Hierarchy] = {}
        try:
            for path in layout.hierarchies:
                hierarchy = _Hierarchy(str(path))
                self._opened.append(hierarchy)
                # Named after its controllers, as everywhere: "memory", "cpu,cpuacct".
                by_controller.update(dict.fromkeys(path.name.split(","), hierarchy))
            missing = {"cpuacct", "memory"} - by_controller.keys()
            if missing:
                raise FailedPrecondition(f"no cgroup hierarchy is mounted for {', '.join(sorted(missing))}")
        except BaseException:
            self.close()
            raise
        self._cpu, self._cpuacct = by_controller.get("cpu"), by_controller["cpuacct"]
        self._memory = by_controller["memory"]
        self._pids, self._blkio = by_controller.get("pids"), by_controller.get("blkio")
        self._hugetlb = by_controller.get("hugetlb")

    def cpu_ns(self, path: str) -> int | None:
        try:
            return files.number(self._cpuacct.read(f"{path[1:]}/cpuacct.usage"))
        except _Gone:
            return None

    def usage(self, path: str) -> Usage | None:
        relative = path[1:]
        try:
            cpu = files.number(self._cpuacct.read(f"{relative}/cpuacct.usage"))
            memory = self._usage_of_memory(relative)
        except _Gone:
            return None
        return Usage(cpu_ns=cpu, memory=memory, pressure=_NO_PRESSURE)

    def tasks(self, path: str) -> int | None:
        return None if self._pids is None else _tasks(self._pids, path)

    def _usage_of_memory(self, relative: str) -> Memory:
        read = self._memory.read
        usage = files.number(read(f"{relative}/memory.usage_in_bytes"))
        stat = Table(read(f"{relative}/memory.stat"))
        limit = both = None
        # Opening a file costs more than all else here. Where nothing above has a limit, this cgroup has none either.
        if stat[b"hierarchical_memory_limit"] < files.UNLIMITED:
            limit = files.limit(read(f"{relative}/memory.limit_in_bytes"))
        if limit is not None:
            both = files.limit(self._memory.optional(f"{relative}/memory.memsw.limit_in_bytes") or b"max")
        return Memory(
            usage=usage,
            working_set=max(usage - stat[b"total_inactive_file"], 0),
            rss=stat[b"total_rss"],
            page_faults=stat[b"total_pgfault"],
            major_page_faults=stat[b"total_pgmajfault"],
            limit=limit,
            swap=stat[b"total_swap"],
            # memsw counts memory and swap together.
            swap_limit=None if both is None or limit is None else max(both - limit, 0),
        )

    def detail(self, path: str) -> Detail | None:
        relative = path[1:]
        memory = self._memory
        try:
            ticks = Table(self._cpuacct.read(f"{relative}/cpuacct.stat"))
            stat = Table(memory.read(f"{relative}/memory.stat"))
        except _Gone:
            return None
        throttling = Table(self._cpu.optional(f"{relative}/cpu.stat")) if self._cpu is not None else Table(b"")
        oom = Table(memory.optional(f"{relative}/{_OOM_FILES[1]}"))
        most = memory.optional(f"{relative}/memory.max_usage_in_bytes")
        tasks_limit = self._pids.optional(f"{relative}/pids.max") if self._pids is not None else b""
        return Detail(
            cpu_user_ns=ticks[b"user"] * _TICK_NS,
            cpu_system_ns=ticks[b"system"] * _TICK_NS,
            cfs_periods=throttling.get(b"nr_periods", 0),
            cfs_throttled_periods=throttling.get(b"nr_throttled", 0),
            cfs_throttled_ns=throttling.get(b"throttled_time", 0),
            cache=stat[b"total_cache"],
            mapped_file=stat[b"total_mapped_file"],
            active_file=stat[b"total_active_file"],
            inactive_file=stat[b"total_inactive_file"],
            kernel=int(memory.optional(f"{relative}/memory.kmem.usage_in_bytes") or 0),
            max_usage=int(most) if most else None,
            failures=int(memory.optional(f"{relative}/memory.failcnt") or 0),
            oom_kills=oom.get(b"oom_kill", 0),
            devices=self._devices(relative),
            hugepages=_hugepages(self._hugetlb, relative, ".usage_in_bytes", ".max_usage_in_bytes"),
            processes=tuple(map(int, memory.whole(f"{relative}/cgroup.procs").split())),
            tasks=self.tasks(path),
            tasks_limit=files.limit(tasks_limit or b"max"),
        )

    def _devices(self, relative: str) -> tuple[DeviceIo, ...]:
        if self._blkio is None:
            return ()
        # With the BFQ scheduler only its own files count; the other ones see what is throttled, on any scheduler.
        for prefix in ("blkio.throttle.", "blkio.bfq."):
            sizes = self._blkio.whole(f"{relative}/{prefix}io_service_bytes_recursive")
            found = files.blkio(sizes, self._blkio.whole(f"{relative}/{prefix}io_serviced_recursive"))
            if found:
                return found
        return ()

    def close(self) -> None:
        for hierarchy in self._opened:
            hierarchy.close()
        self._opened = []


class _V2:
    """One tree with every controller."""

    def __init__(self, layout: CgroupLayout) -> None:
        self._tree = _Hierarchy(str(layout.hierarchies[0]))

    def cpu_ns(self, path: str) -> int | None:
        try:
            return Table(self._tree.read(f"{path[1:]}/cpu.stat"))[b"usage_usec"] * 1000
        except _Gone:
            return None

    def usage(self, path: str) -> Usage | None:
        relative, tree = path[1:], self._tree
        cpu_ns = self.cpu_ns(path)
        if cpu_ns is None:
            return None
        try:
            memory = self._usage_of_memory(relative)
        except _Gone:
            return None
        pressure = Pressure(
            cpu=files.psi(tree.optional(f"{relative}/cpu.pressure")),
            memory=files.psi(tree.optional(f"{relative}/memory.pressure")),
            io=files.psi(tree.optional(f"{relative}/io.pressure")),
        )
        return Usage(cpu_ns=cpu_ns, memory=memory, pressure=pressure)

    def tasks(self, path: str) -> int | None:
        return _tasks(self._tree, path)

    def _usage_of_memory(self, relative: str) -> Memory:
        tree = self._tree
        usage = files.number(tree.read(f"{relative}/memory.current"))
        stat = Table(tree.read(f"{relative}/memory.stat"))
        swap = tree.optional(f"{relative}/memory.swap.current")
        return Memory(
            usage=usage,
            working_set=max(usage - stat[b"inactive_file"], 0),
            rss=stat[b"anon"],
            page_faults=stat[b"pgfault"],
            major_page_faults=stat[b"pgmajfault"],
            limit=files.limit(tree.read(f"{relative}/memory.max")),
            swap=int(swap) if swap else None,
            swap_limit=files.limit(tree.optional(f"{relative}/memory.swap.max") or b"max"),
        )

    def detail(self, path: str) -> Detail | None:
        relative, tree = path[1:], self._tree
        try:
            cpu = Table(tree.read(f"{relative}/cpu.stat"))
            stat = Table(tree.read(f"{relative}/memory.stat"))
        except _Gone:
            return None
        events = Table(tree.optional(f"{relative}/{_OOM_FILES[2]}"))
        most = tree.optional(f"{relative}/memory.peak")  # Linux 5.19
        return Detail(
            cpu_user_ns=cpu[b"user_usec"] * 1000,
            cpu_system_ns=cpu[b"system_usec"] * 1000,
            cfs_periods=cpu.get(b"nr_periods", 0),
            cfs_throttled_periods=cpu.get(b"nr_throttled", 0),
            cfs_throttled_ns=cpu.get(b"throttled_usec", 0) * 1000,
            cache=stat[b"file"],
            mapped_file=stat[b"file_mapped"],
            active_file=stat[b"active_file"],
            inactive_file=stat[b"inactive_file"],
            kernel=_kernel_memory(stat),
            max_usage=int(most) if most else None,
            failures=events.get(b"max", 0),
            oom_kills=events.get(b"oom_kill", 0),
            devices=files.io_stat(tree.whole(f"{relative}/io.stat")),
            hugepages=_hugepages(tree, relative, ".current", ".max_usage_in_bytes"),
            processes=tuple(map(int, tree.whole(f"{relative}/cgroup.procs").split())),
            tasks=self.tasks(path),
            tasks_limit=files.limit(tree.optional(f"{relative}/pids.max") or b"max"),
        )

    def close(self) -> None:
        self._tree.close()


_NO_PRESSURE = Pressure()
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _tasks(hierarchy: _Hierarchy, path: str) -> int | None:
    text = hierarchy.optional(f"{path[1:]}/pids.current")
    return int(text) if text else None


def _kernel_memory(stat: Table) -> int:
    if b"kernel" in stat:  # Linux 5.18
        return stat[b"kernel"]
    return sum(stat.get(key, 0) for key in (b"kernel_stack", b"pagetables", b"percpu", b"sock", b"slab"))


def _hugepages(hierarchy: _Hierarchy | None, relative: str, now: str, most: str) -> dict[str, tuple[int, int]]:
    """Return what ``hugetlb.SIZE<now>`` and ``hugetlb.SIZE<most>`` say, by size; version 2 does not keep the most."""
    if hierarchy is None:
        return {}
    found = {}
    for name in hierarchy.names(relative):
        # The .rsvd files count what is reserved and not what is in use.
        if not name.startswith("hugetlb.") or not name.endswith(now) or ".rsvd." in name or name.count(".") != 2:
            continue
        size = name.split(".")[1]
        used = int(hierarchy.optional(f"{relative}/{name}") or 0)
        found[size] = (used, int(hierarchy.optional(f"{relative}/hugetlb.{size}{most}") or used))
    return found
