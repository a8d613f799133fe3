"""Limits of containers on a live daemon, with cgroups of both versions, and cgroup parents."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import Internal, InvalidArgument, PodkeepError
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import procfs
from podkeep.runtime.oci.confinement import resource_facts
from support import cgroup2
from support.cri import Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.waiting import wait_for

MIB = 1 << 20
LONG = "1," * 5_000_000


def files(daemon: Daemon, sandbox: str, container: str, *names: str) -> dict[str, str]:
    """Return those of the named files that the container's cgroup has."""
    path = f"{daemon.cgroup_parent}/pod-{sandbox}/{container}"
    found = {name: Cgroups().read(path, name) for name in names}
    return {name: text.strip() for name, text in found.items() if text is not None}


def test_every_limit_reaches_the_cgroup(pods: Pods, daemon: Daemon) -> None:
    resources = api.LinuxContainerResources(
        cpu_shares=512, cpu_quota=20_000, cpu_period=50_000, cpuset_cpus="0", cpuset_mems="0",
        memory_limit_in_bytes=64 * MIB, memory_swap_limit_in_bytes=96 * MIB,
    )  # fmt: skip
    sandbox = pods.run()
    container = pods.launch(sandbox, resources=resources)
    assert pods.status(container).resources.linux == resources
    if Cgroups().version == 1:
        expected = {
            "cpu.shares": "512", "cpu.cfs_quota_us": "20000", "cpu.cfs_period_us": "50000", "cpuset.cpus": "0",
            "cpuset.mems": "0", "memory.limit_in_bytes": str(64 * MIB),
            "memory.memsw.limit_in_bytes": str(96 * MIB),
        }  # fmt: skip
    else:
        expected = {
            "cpu.max": "20000 50000", "cpuset.cpus": "0", "cpuset.mems": "0", "memory.max": str(64 * MIB),
            "memory.swap.max": str(32 * MIB),
        }  # fmt: skip
    if not resource_facts(Cgroups()).swap:
        expected = {name: text for name, text in expected.items() if "sw" not in name}
    assert files(daemon, sandbox, container, *expected) == expected


def test_shares_out_of_the_kernels_range(pods: Pods, daemon: Daemon) -> None:
    sandbox = pods.run()
    for shares, expected in ((1, "2"), (2**40, "262144")):
        container = pods.launch(sandbox, name=f"c{shares}", resources=api.LinuxContainerResources(cpu_shares=shares))
        found = files(daemon, sandbox, container, "cpu.shares", "cpu.weight")
        assert found in ({"cpu.shares": expected}, {"cpu.weight": "1"}, {"cpu.weight": "10000"})


@pytest.mark.parametrize("score", [-1000, -998, -1, 0, 500, 1000])
def test_oom_scores_are_clamped_to_what_the_daemon_may_give(pods: Pods, score: int) -> None:
    container = pods.launch(pods.run(), resources=api.LinuxContainerResources(oom_score_adj=score))
    own = int(Path("/proc/self/oom_score_adj").read_text())
    floor = -1000 if "CAP_SYS_RESOURCE" in procfs.capability_bounding_set() else own
    found = int(Path(f"/proc/{pods.host_pid(container)}/oom_score_adj").read_text())
    assert found == max(score, floor)
    # Commands, also by OCI runtimes that leave them what they were started with, which is the daemon's.
    assert int(pods.read(container, "cat /proc/self/oom_score_adj")) == found
    assert pods.status(container).resources.linux.oom_score_adj == score


def test_limits_of_huge_pages_as_the_kubelet_sends_them(pods: Pods) -> None:
    sizes = sorted(resource_facts(Cgroups()).page_sizes)
    limits = [api.HugepageLimit(page_size=size, limit=0) for size in sizes]
    container = pods.launch(pods.run(), resources=api.LinuxContainerResources(hugepage_limits=limits))
    assert list(pods.status(container).resources.linux.hugepage_limits) == limits


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "period": ({"cpu_period": 1}, "cpu_period"),
    "period negative": ({"cpu_period": -5}, "cpu_period"),
    "quota": ({"cpu_quota": 999}, "cpu_quota"),
    "quota negative": ({"cpu_quota": -2}, "cpu_quota"),
    "shares": ({"cpu_shares": -1}, "cpu_shares"),
    "memory": ({"memory_limit_in_bytes": -2}, "memory_limit_in_bytes"),
    "swap alone": ({"memory_swap_limit_in_bytes": 5}, "memory_swap_limit_in_bytes"),
    "swap less": ({"memory_limit_in_bytes": 6, "memory_swap_limit_in_bytes": 5}, "memory_swap_limit_in_bytes"),
    "oom score": ({"oom_score_adj": -1001}, "oom_score_adj"),
    "cpus": ({"cpuset_cpus": "0-"}, "cpuset_cpus"),
    "cpus long": ({"cpuset_cpus": LONG}, "cpuset_cpus"),
    "mems": ({"cpuset_mems": "a\nb"}, "cpuset_mems"),
    "page size": ({"hugepage_limits": [api.HugepageLimit(page_size="2XB")]}, "hugepage_limits"),
    "page size of no machine": ({"hugepage_limits": [api.HugepageLimit(page_size="3MB")]}, "hugepage_limits"),
    "page size twice": ({"hugepage_limits": [api.HugepageLimit(page_size="2MB")] * 2}, "hugepage_limits"),
    "unified path": ({"unified": {"../memory.high": "1"}}, "unified"),
    "unified kill": ({"unified": {"cgroup.kill": "1"}}, "unified"),
    "unified long": ({"unified": {"memory.high": LONG}}, "unified"),
}


@pytest.mark.parametrize("case", BAD)
def test_limits_that_are_refused(pods: Pods, daemon: Daemon, case: str) -> None:
    asked, told = BAD[case]
    sandbox = pods.run()
    before = daemon.resources()
    resources = api.LinuxContainerResources(**asked)
    message = error_of(lambda: pods.create(sandbox, resources=resources), InvalidArgument)
    assert f"resources.{told}" in message
    assert len(message) < 600
    assert daemon.resources() == before


@pytest.mark.parametrize("asked", [{"cpuset_cpus": "4000"}, {"memory_limit_in_bytes": 1}])
def test_limits_that_the_kernel_refuses_leave_nothing(pods: Pods, daemon: Daemon, asked: dict[str, Any]) -> None:
    sandbox = pods.run()
    before = daemon.resources()
    with pytest.raises(PodkeepError):
        pods.create(sandbox, resources=api.LinuxContainerResources(**asked))
    assert daemon.resources() == before


@pytest.mark.skipif(Cgroups().version == 2, reason="this machine has cgroup version 2")
def test_files_of_version_2_are_refused_on_version_1(pods: Pods) -> None:
    resources = api.LinuxContainerResources(unified={"memory.high": "1000000"})
    sandbox = pods.run()
    assert "memory.high" in error_of(lambda: pods.create(sandbox, resources=resources), InvalidArgument)
    assert pods.containers() == []


@pytest.mark.parametrize("parent", ["kubepods-pod1.slice", "/kubepods.slice/kubepods-pod1.slice"])
def test_a_slice_is_refused_by_the_cgroupfs_driver(pods: Pods, parent: str) -> None:
    assert "cgroupfs" in error_of(lambda: pods.run(pod(cgroup_parent=parent)), InvalidArgument)
    assert pods.sandboxes() == []


def test_the_driver_is_told(pods: Pods) -> None:
    answer = pods.call("RuntimeConfig", api.RuntimeConfigRequest())
    assert answer.linux.cgroup_driver == api.CGROUPFS


# version 2


class VersionTwo(Daemon):
    """A daemon that sees nothing of cgroups but the version 2 tree, with the controllers that version 1 leaves it."""

    def command(self, *arguments: str) -> list[str]:
        """Return a command line in a mount namespace of its own."""
        options = ",".join(("rw", *cgroup2.options()))
        script = f'umount -R -l /sys/fs/cgroup && mount -t cgroup2 -o {options} none /sys/fs/cgroup && exec "$@"'
        return ["unshare", "-m", "--propagation", "slave", "sh", "-c", script, "sh", *super().command(*arguments)]

    @property
    def cgroup_root(self) -> Path:
        """The version 2 tree, as seen from outside."""
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}/root/sys/fs/cgroup")


@pytest.fixture
def version_two(open_directory: Path, registry: Any, image: str) -> Iterator[tuple[VersionTwo, Pods]]:
    """A daemon on version 2. crun 1.8 needs CAP_SYS_RESOURCE there (for RLIMIT_MEMLOCK), runc does not."""
    runc = shutil.which("runc", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if runc is None:
        pytest.skip("runc is not installed")
    base = open_directory / f"v2-{time.monotonic_ns()}"
    base.mkdir()
    daemon = VersionTwo(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n')
    text = daemon.config.read_text()
    handler = f'default_handler = "runc"\n[runtime.handlers.runc]\npath = "{runc}"\n[network]'
    daemon.config.write_text(text.replace("[network]", handler))
    mortal = Mortal(daemon, image)
    yield daemon, mortal.start()
    mortal.close()


@pytest.mark.parametrize("pid", [api.POD, api.CONTAINER])
def test_version_2(version_two: tuple[VersionTwo, Pods], pid: api.NamespaceMode.ValueType) -> None:
    daemon, pods = version_two
    sandbox = pods.run(pod(options=namespaces(pid=pid)))
    controllers = (daemon.cgroup_root / "cgroup.controllers").read_text().split()
    limits = {}
    if "hugetlb" in controllers:
        limits = {
            "hugepage_limits": [api.HugepageLimit(page_size="2MB", limit=4 * MIB)],
            "unified": {"hugetlb.1GB.max": "0"},
        }
    container = pods.launch(sandbox, resources=api.LinuxContainerResources(**limits))
    top = daemon.cgroup_root / daemon.cgroup_parent.strip("/") / f"pod-{sandbox}"
    if limits:
        assert (top / container / "hugetlb.2MB.max").read_text() == f"{4 * MIB}\n"
        assert (top / container / "hugetlb.1GB.max").read_text() == "0\n"
    # Whatever has children with controllers has no process of its own.
    for cgroup in (top.parent, top):
        assert (cgroup / "cgroup.subtree_control").read_text().split() == controllers
        assert (cgroup / "cgroup.procs").read_text() == ""
    members = {path.parent.name: len(path.read_text().split()) for path in top.glob("*/cgroup.procs")}
    assert members == {container: 1, **({"infra": 1} if pid == api.POD else {})}
    assert "0::/" in pods.read(container, "cat /proc/self/cgroup").splitlines()
    assert "hugetlb.events" not in pods.read(container, "ls /sys/fs/cgroup").split() or limits
    pods.stop(container)
    pods.remove(sandbox)
    assert not top.exists()
    assert top.parent.exists()


def test_a_parent_with_processes_is_refused_by_version_2(version_two: tuple[VersionTwo, Pods]) -> None:
    daemon, pods = version_two
    if not (daemon.cgroup_root / "cgroup.controllers").read_text().split():
        pytest.skip("version 2 has no controller on this machine")
    name = f"{daemon.cgroup_parent.strip('/')}-busy"
    busy = daemon.cgroup_root / name
    busy.mkdir()
    with subprocess.Popen(["sleep", "1000"]) as process:
        (busy / "cgroup.procs").write_text(str(process.pid))
        message = error_of(lambda: pods.run(pod(cgroup_parent=f"/{name}")), Internal)
        assert "has processes of its own" in message
        assert [path.name for path in busy.iterdir() if path.is_dir()] == []
        process.kill()
    assert pods.sandboxes() == []
    wait_for(lambda: (busy / "cgroup.procs").read_text() == "", "the end of the process")
    busy.rmdir()
