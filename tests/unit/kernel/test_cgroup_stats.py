"""Statistics of cgroups: the files of both versions word for word, and a real cgroup of this machine."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, Internal, KernelCallError
from podkeep.kernel.cgroup import cgroup_files as files
from podkeep.kernel.cgroup.cgroup_files import DeviceIo, Psi, PsiLine, Table
from podkeep.kernel.cgroup.cgroup_stats import StatsReader, open_reader
from podkeep.kernel.cgroup.cgroups import CgroupLayout, Cgroups

CALM = "avg10=0.00 avg60=0.00 avg300=0.00"
V2 = {
    "cpu.stat": """usage_usec 1500000
user_usec 1000000
system_usec 500000
nice_usec 0
core_sched.force_idle_usec 0
nr_periods 20
nr_throttled 3
throttled_usec 4500
nr_bursts 0
burst_usec 0
""",
    "memory.current": "104857600\n",
    "memory.max": "209715200\n",
    "memory.peak": "125829120\n",
    "memory.swap.current": "4096\n",
    "memory.swap.max": "8192\n",
    "memory.stat": """anon 52428800
file 41943040
kernel 2097152
kernel_stack 16384
pagetables 65536
percpu 0
sock 0
shmem 0
file_mapped 1048576
file_dirty 0
inactive_anon 52428800
active_anon 0
inactive_file 31457280
active_file 10485760
slab_reclaimable 0
slab_unreclaimable 0
slab 0
pgfault 12345
pgmajfault 67
""",
    "memory.events": "low 0\nhigh 0\nmax 5\noom 2\noom_kill 1\noom_group_kill 0\n",
    "pids.current": "7\n",
    "pids.max": "max\n",
    "cgroup.procs": "101\n102\n",
    "cpu.pressure": f"some avg10=1.50 avg60=0.25 avg300=0.05 total=1000\nfull {CALM} total=0\n",
    "memory.pressure": f"some {CALM} total=2\nfull {CALM} total=1\n",
    "io.pressure": f"some {CALM} total=30\nfull {CALM} total=20\n",
    "io.stat": "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n7:0\n",
    "hugetlb.2MB.current": "4194304\n",
    "hugetlb.2MB.max": "max\n",
    "hugetlb.2MB.rsvd.current": "0\n",
}

V1 = {
    "cpuacct/cpuacct.usage": "1500000000\n",
    "cpuacct/cpuacct.stat": "user 100\nsystem 50\n",
    "cpu/cpu.stat": "nr_periods 20\nnr_throttled 3\nthrottled_time 4500000\nnr_bursts 0\nburst_time 0\n",
    "memory/memory.usage_in_bytes": "104857600\n",
    "memory/memory.max_usage_in_bytes": "125829120\n",
    "memory/memory.limit_in_bytes": "209715200\n",
    "memory/memory.memsw.limit_in_bytes": "209723392\n",
    "memory/memory.kmem.usage_in_bytes": "2097152\n",
    "memory/memory.failcnt": "5\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "memory/memory.stat": """cache 1
rss 2
inactive_file 3
hierarchical_memory_limit 209715200
hierarchical_memsw_limit 209723392
total_cache 41943040
total_rss 52428800
total_rss_huge 0
total_mapped_file 1048576
total_swap 4096
total_pgfault 12345
total_pgmajfault 67
total_inactive_file 31457280
total_active_file 10485760
""",
    "memory/cgroup.procs": "101\n102\n",
    "pids/pids.current": "7\n",
    "pids/pids.max": "max\n",
    "blkio/blkio.throttle.io_service_bytes_recursive": (
        "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 12288\n8:0 Async 0\n8:0 Discard 0\n8:0 Total 12288\nTotal 12288\n"
    ),
    "blkio/blkio.throttle.io_serviced_recursive": "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n",
    "hugetlb/hugetlb.2MB.usage_in_bytes": "4194304\n",
    "hugetlb/hugetlb.2MB.max_usage_in_bytes": "6291456\n",
}

PATH = "/podkeep/pod-1/ctr"


def v1_tree(root: Path) -> tuple[CgroupLayout, Callable[[str], Path]]:
    """The files as version 1 has them: a hierarchy for ``cpu`` and ``cpuacct`` together, one for each other."""
    for name, text in V1.items():
        hierarchy, file = name.split("/")
        path = _v1_file(root, f"{hierarchy}/{file}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    names = ("cpu,cpuacct", "memory", "pids", "blkio", "hugetlb")
    return CgroupLayout(version=1, hierarchies=tuple(root / name for name in names)), lambda name: _v1_file(root, name)


def _v1_file(root: Path, name: str) -> Path:
    hierarchy, file = name.split("/")
    return root / ("cpu,cpuacct" if hierarchy in {"cpu", "cpuacct"} else hierarchy) / PATH[1:] / file


def v2_tree(root: Path) -> tuple[CgroupLayout, Callable[[str], Path]]:
    """The files as version 2 has them, in a directory."""
    directory = root / PATH[1:]
    directory.mkdir(parents=True)
    for name, text in V2.items():
        (directory / name).write_text(text)
    return CgroupLayout(version=2, hierarchies=(root,)), lambda name: directory / name.rpartition("/")[2]


Opener = Callable[[CgroupLayout], StatsReader]


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens readers and closes them afterwards."""
    with ExitStack() as closing:

        def opening(layout: CgroupLayout) -> StatsReader:
            reader = open_reader(layout)
            closing.callback(reader.close)
            return reader

        yield opening


TREES = pytest.mark.parametrize("tree", [v1_tree, v2_tree])
Tree = Callable[[Path], tuple[CgroupLayout, Callable[[str], Path]]]


@TREES
def test_both_versions_say_the_same(tree: Tree, tmp_path: Path, opened: Opener) -> None:
    reader = opened(tree(tmp_path)[0])
    usage, detail = reader.usage(PATH), reader.detail(PATH)
    assert usage is not None
    assert detail is not None
    assert usage.cpu_ns == reader.cpu_ns(PATH) == 1_500_000_000
    memory = usage.memory
    assert (memory.usage, memory.working_set, memory.rss) == (104857600, 104857600 - 31457280, 52428800)
    assert (memory.limit, memory.swap, memory.swap_limit) == (209715200, 4096, 8192)
    assert (memory.page_faults, memory.major_page_faults) == (12345, 67)
    assert reader.tasks(PATH) == detail.tasks == 7
    assert (detail.cpu_user_ns, detail.cpu_system_ns) == (1_000_000_000, 500_000_000)
    assert (detail.cfs_periods, detail.cfs_throttled_periods, detail.cfs_throttled_ns) == (20, 3, 4_500_000)
    assert (detail.cache, detail.mapped_file, detail.kernel) == (41943040, 1048576, 2097152)
    assert (detail.active_file, detail.inactive_file) == (10485760, 31457280)
    assert (detail.max_usage, detail.failures, detail.oom_kills) == (125829120, 5, 1)
    assert detail.devices == (DeviceIo(major=8, minor=0, read_bytes=4096, write_bytes=8192, reads=1, writes=2),)
    assert detail.hugepages["2MB"][0] == 4194304
    assert detail.processes == (101, 102)
    assert detail.tasks_limit is None


def test_pressure_is_known_with_version_2_only(tmp_path: Path, opened: Opener) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    old, new = (
        opened(v1_tree(tmp_path / "one")[0]).usage(PATH),
        opened(v2_tree(tmp_path / "two")[0]).usage(PATH),
    )
    assert old is not None
    assert new is not None
    assert (old.pressure.cpu, old.pressure.memory, old.pressure.io) == (None, None, None)
    assert new.pressure.cpu is not None
    assert new.pressure.cpu.some == PsiLine(avg10=1.5, avg60=0.25, avg300=0.05, total_ns=1_000_000)
    assert new.pressure.io is not None
    assert new.pressure.io.full is not None
    assert new.pressure.io.full.total_ns == 20_000


@TREES
def test_a_cgroup_that_is_gone_is_no_error(tree: Tree, tmp_path: Path, opened: Opener) -> None:
    reader = opened(tree(tmp_path)[0])
    gone = "/podkeep/pod-1/other"
    assert (reader.cpu_ns(gone), reader.usage(gone), reader.detail(gone), reader.tasks(gone)) == (None,) * 4


@pytest.mark.parametrize(
    ("tree", "file"),
    [
        (v1_tree, "cpuacct/cpuacct.usage"),
        (v1_tree, "memory/memory.stat"),
        (v1_tree, "memory/memory.limit_in_bytes"),
        (v2_tree, "cpu.stat"),
        (v2_tree, "memory.current"),
        (v2_tree, "memory.stat"),
        (v2_tree, "memory.max"),
    ],
)
def test_a_cgroup_that_goes_while_it_is_read_is_no_error(tree: Tree, file: str, tmp_path: Path, opened: Opener) -> None:
    layout, path = tree(tmp_path)
    path(file).unlink()
    assert opened(layout).usage(PATH) is None


@pytest.mark.parametrize(
    ("tree", "missing"),
    [
        (v1_tree, ["memory/memory.memsw.limit_in_bytes", "pids/pids.current", "memory/memory.kmem.usage_in_bytes"]),
        (v2_tree, ["memory.swap.current", "memory.swap.max", "pids.current", "cpu.pressure", "memory.peak", "io.stat"]),
    ],
)
def test_what_a_kernel_lacks_is_left_out(tree: Tree, missing: list[str], tmp_path: Path, opened: Opener) -> None:
    layout, path = tree(tmp_path)
    for name in missing:
        path(name).unlink()
    reader = opened(layout)
    usage, detail = reader.usage(PATH), reader.detail(PATH)
    assert usage is not None
    assert detail is not None
    assert usage.memory.swap_limit is None
    assert usage.pressure.cpu is None
    assert reader.tasks(PATH) is None


def test_without_limits(tmp_path: Path, opened: Opener) -> None:
    layout, path = v1_tree(tmp_path)
    none = "9223372036854771712"
    text = path("memory/memory.stat").read_text()
    path("memory/memory.stat").write_text(text.replace("209715200", none).replace("209723392", none))
    usage = opened(layout).usage(PATH)
    assert usage is not None
    assert (usage.memory.limit, usage.memory.swap_limit) == (None, None)
    # A limit above, and none of its own.
    path("memory/memory.stat").write_text(text)
    path("memory/memory.limit_in_bytes").write_text(f"{none}\n")
    usage = opened(layout).usage(PATH)
    assert usage is not None
    assert (usage.memory.limit, usage.memory.swap_limit) == (None, None)


def test_more_page_cache_than_usage_leaves_no_negative_working_set(tmp_path: Path, opened: Opener) -> None:
    layout, path = v2_tree(tmp_path)
    path("memory.current").write_text("4096\n")
    usage = opened(layout).usage(PATH)
    assert usage is not None
    assert usage.memory.working_set == 0


def test_kernel_memory_before_linux_5_18(tmp_path: Path, opened: Opener) -> None:
    layout, path = v2_tree(tmp_path)
    path("memory.stat").write_text(V2["memory.stat"].replace("kernel 2097152\n", ""))
    detail = opened(layout).detail(PATH)
    assert detail is not None
    assert detail.kernel == 16384 + 65536


def test_devices_of_the_bfq_scheduler(tmp_path: Path, opened: Opener) -> None:
    layout, path = v1_tree(tmp_path)
    for name in ("io_service_bytes_recursive", "io_serviced_recursive"):
        throttled, scheduled = path(f"blkio/blkio.throttle.{name}"), path(f"blkio/blkio.bfq.{name}")
        scheduled.write_text(throttled.read_text())
        throttled.write_text("Total 0\n")
    detail = opened(layout).detail(PATH)
    assert detail is not None
    assert [device.read_bytes for device in detail.devices] == [4096]


@pytest.mark.parametrize(
    "parse",
    [
        lambda: files.number(b"lots\n"),
        lambda: files.number(b""),
        lambda: files.limit(b"minimum"),
        lambda: Table(b"a 1\nb x\n")[b"b"],
        lambda: Table(b"a 1\n")[b"missing"],
        lambda: files.psi(b"some avg10=0.00\n"),
        lambda: files.psi(b"some avg10=a avg60=0 avg300=0 total=0\n"),
        lambda: files.io_stat(b"8:0 rbytes=1 wbytes\n"),
        lambda: files.io_stat(b"sda rbytes=1 wbytes=1 rios=1 wios=1\n"),
        lambda: files.blkio(b"8:0 Read one\n", b""),
        lambda: files.blkio(b"8 Read 1\n", b""),
    ],
)
def test_an_unknown_shape_is_an_error_with_the_text(parse: Callable[[], object]) -> None:
    with pytest.raises(Internal):
        parse()


def test_small_shapes() -> None:
    assert files.limit(b"max\n") is None
    assert files.limit(b"-1\n") is None
    assert files.limit(b"9223372036854771712\n") is None
    assert files.limit(b"4096\n") == 4096
    assert files.psi(b"") is None
    line = PsiLine(avg10=0.0, avg60=0.0, avg300=0.0, total_ns=1000)
    assert files.psi(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n") == Psi(some=line, full=None)
    assert files.io_stat(b"") == ()
    assert files.blkio(b"Total 0\n", b"Total 0\n") == ()
    assert Table(b"").get(b"x") == 0
    assert b"a" in Table(b"a 1\n")


def test_a_missing_hierarchy_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KernelCallError):
        open_reader(CgroupLayout(version=2, hierarchies=(tmp_path / "missing",)))
    with pytest.raises(KernelCallError):
        open_reader(CgroupLayout(version=1, hierarchies=(tmp_path, tmp_path / "missing")))
    with pytest.raises(FailedPrecondition, match="cpuacct, memory"):
        open_reader(CgroupLayout(version=1, hierarchies=(tmp_path,)))


@pytest.fixture
def machine() -> Iterator[tuple[Cgroups, StatsReader, str]]:
    """This machine's cgroups, and one of our own."""
    groups, path = Cgroups(), f"/podkeep-test-{uuid.uuid4().hex[:8]}"
    groups.create(f"{path}/below")
    reader = open_reader(groups.layout)
    yield groups, reader, path
    groups.kill(path)
    groups.remove(path)
    assert reader.usage(path) is None
    reader.close()


def test_a_real_cgroup(machine: tuple[Cgroups, StatsReader, str]) -> None:
    groups, reader, path = machine
    descriptors = len(os.listdir("/proc/self/fd"))
    script = "read go; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; exec sleep 300"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            groups.add(f"{path}/below", process.pid)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"done\n"
            usage, detail = reader.usage(path), reader.detail(f"{path}/below")
            assert usage is not None
            assert usage.cpu_ns > 0, "what is below counts"
            assert usage.memory.usage >= usage.memory.working_set > 0
            assert reader.tasks(path) == 1
            assert detail is not None
            assert detail.processes == (process.pid,)
        finally:
            process.kill()
    assert len(os.listdir("/proc/self/fd")) == descriptors
