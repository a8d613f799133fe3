"""Cgroup directories: real ones of this machine, and version 2 layouts in a temporary directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernel.isolation import in_new_namespaces
from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError
from podkeep.kernel.cgroup import cgroups
from podkeep.kernel.cgroup.cgroups import CgroupLayout, Cgroups
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.process import process_tree, procfs
from support import cgroup2
from support.escaped import PROGRAMS
from support.waiting import wait_for


@pytest.fixture
def tree() -> Iterator[tuple[Cgroups, str]]:
    """The machine's cgroups, and the path of one of our own that goes afterwards."""
    groups = Cgroups()
    path = f"/podkeep-test-{uuid.uuid4().hex[:8]}"
    yield groups, path
    groups.kill(path)
    groups.remove(path)
    assert not groups.exists(path)


def start(groups: Cgroups, path: str, program: str = "exec sleep 300") -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["/bin/sh", "-c", f"read go; {program}"], stdin=subprocess.PIPE)
    groups.add(path, process.pid)
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.close()
    return process


def test_create_fill_kill_and_remove(tree: tuple[Cgroups, str]) -> None:
    groups, path = tree
    deep = f"{path}/pod1/ctr"
    assert not groups.exists(deep)
    assert groups.processes(deep) == groups.children(deep) == []
    groups.create(deep)
    groups.create(deep)
    assert groups.exists(deep)
    assert all(directory.is_dir() for directory in groups.directories(deep))
    assert groups.children(path) == [f"{path}/pod1"]
    assert groups.children(f"{path}/pod1") == [deep]

    process = start(groups, deep)
    assert groups.processes(deep) == [process.pid]
    assert groups.processes(path) == []
    assert groups.processes(path, recursive=True) == [process.pid]
    groups.kill(path)
    assert process.wait(10) == -signal.SIGKILL
    groups.remove(path)
    assert not groups.exists(path)
    groups.remove(path)
    groups.kill(path)


def test_kill_gets_every_process_of_a_family(tree: tuple[Cgroups, str]) -> None:
    groups, path = tree
    groups.create(f"{path}/a")
    process = start(groups, f"{path}/a", "sleep 300 & sleep 300 & (sleep 300; sleep 300) & wait")
    groups.kill(path)
    assert process.wait(10) == -signal.SIGKILL
    assert groups.processes(path, recursive=True) == []


PASSING_ON = """
import os, sys
turns = 0
while True:
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        continue
    turns += 1
    if turns == 50:
        os.mkdir(sys.argv[1])
"""


class _BusyMachine(Cgroups):
    """Cgroups of a machine on which who looks at processes has to wait for its turn."""

    def processes(self, path: str, *, recursive: bool = False) -> list[int]:
        found = super().processes(path, recursive=recursive)
        time.sleep(0.02)
        return found


@pytest.mark.slow
def test_kill_gets_what_is_another_process_each_time(tree: tuple[Cgroups, str], tmp_path: Path) -> None:
    """Each starts the next one and ends before it can be sent a signal."""
    groups, path = tree
    groups.create(path)
    (tmp_path / "program.py").write_text(PASSING_ON)
    passed_on = tmp_path / "passed-on"
    process = start(groups, path, f"{sys.executable} -I -S {tmp_path}/program.py {passed_on} & exec sleep 300")
    wait_for(passed_on.is_dir, "those after the first")
    _BusyMachine().kill(path)
    assert process.wait(10) == -signal.SIGKILL
    assert groups.processes(path) == []


def test_kill_gets_a_process_whose_first_thread_has_ended(tree: tuple[Cgroups, str]) -> None:
    """It is shown as a zombie, and goes on with its other threads."""
    groups, path = tree
    groups.create(path)
    command = [sys.executable, PROGRAMS / "leaderless.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        groups.add(path, process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "ready\n"
        identity = procfs.identify(process.pid)
        assert procfs.alive(identity)
        assert identity in process_tree.find([process.pid], ())

        groups.kill(path)

        assert not procfs.alive(identity)
        assert process.wait(10) == -signal.SIGKILL


class _AnIdPasses(Cgroups):
    """Cgroups of which a process is gone as soon as it is listed, and its ID is one of a process elsewhere."""

    def processes(self, path: str, *, recursive: bool = False) -> list[int]:
        found = super().processes(path, recursive=recursive)
        for pid in found:
            self.add("/", pid)
        return found


def test_kill_gets_nobody_who_is_not_in_the_cgroup(tree: tuple[Cgroups, str]) -> None:
    """Pods use up IDs of processes: one that was listed may be somebody else's when the signal is sent."""
    groups, path = tree
    groups.create(path)
    process = start(groups, path)
    try:
        _AnIdPasses().kill(path)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(10)


def test_threads_are_those_of_the_cgroup_and_below(tree: tuple[Cgroups, str]) -> None:
    groups, path = tree
    groups.create(f"{path}/a")
    assert groups.threads(f"{path}/missing") == groups.threads(path) == []
    outer, inner = start(groups, path), start(groups, f"{path}/a")
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(300,)).start()\nprint(flush=True)"
    with subprocess.Popen([sys.executable, "-c", f"input()\n{threads}"], stdin=-1, stdout=-1) as several:
        groups.add(f"{path}/a", several.pid)
        assert several.stdin is not None
        assert several.stdout is not None
        several.stdin.write(b"go\n")
        several.stdin.flush()
        several.stdout.readline()

        expected = sorted([inner.pid, *map(int, os.listdir(f"/proc/{several.pid}/task"))])
        assert len(expected) == 3
        assert groups.threads(f"{path}/a") == expected
        assert groups.threads(path) == sorted([outer.pid, *expected])
        groups.kill(path)
    assert (outer.wait(10), inner.wait(10)) == (-signal.SIGKILL, -signal.SIGKILL)


def test_frozen_processes_are_killed_too(tree: tuple[Cgroups, str]) -> None:
    groups, path = tree
    groups.create(f"{path}/a")
    process = start(groups, f"{path}/a")
    name, frozen = ("freezer.state", "FROZEN") if groups.version == 1 else ("cgroup.freeze", "1")
    files = [directory / name for directory in groups.directories(path) if (directory / name).exists()]
    assert len(files) == 1
    files[0].write_text(frozen)
    groups.kill(path)
    assert process.wait(10) == -signal.SIGKILL


def test_only_an_empty_cgroup_is_removed_by_itself(tree: tuple[Cgroups, str]) -> None:
    groups, path = tree
    groups.create(f"{path}/a")
    assert not groups.remove_empty(path)
    process = start(groups, f"{path}/a")
    assert not groups.remove_empty(f"{path}/a")
    assert groups.processes(f"{path}/a") == [process.pid]
    groups.kill(path)
    assert process.wait(10) == -signal.SIGKILL
    assert [groups.remove_empty(f"{path}/a"), groups.remove_empty(path), groups.remove_empty(path)] == [True] * 3
    assert not groups.exists(path)
    with pytest.raises(InvalidArgument):
        groups.remove_empty("/")


@pytest.mark.slow
def test_a_parent_that_others_remove_when_it_is_empty(tree: tuple[Cgroups, str]) -> None:
    """Whoever creates a cgroup in it gets it, also in the moment in which the last user has left."""
    groups, path = tree
    groups.create(path)
    done = threading.Event()

    def remove_again_and_again() -> None:
        while not done.is_set():
            groups.remove_empty(f"{path}/parent")

    with ThreadPoolExecutor(1) as pool:
        removing = pool.submit(remove_again_and_again)
        try:
            for _ in range(50):
                groups.create(f"{path}/parent/a")
                assert all(directory.is_dir() for directory in groups.directories(f"{path}/parent/a"))
                groups.remove(f"{path}/parent/a")
        finally:
            done.set()
        removing.result()


def test_an_occupied_cgroup_is_not_removed(tree: tuple[Cgroups, str]) -> None:
    groups, path = tree
    groups.create(path)
    process = start(groups, path)
    with pytest.raises(KernelCallError, match=rf"rmdir\(.*{path}\): EBUSY.*processes in it: \[{process.pid}\]"):
        Cgroups(timeout_s=0.05).remove(path)
    process.kill()
    process.wait()


def test_removal_waits_for_a_process_that_is_ending(tree: tuple[Cgroups, str]) -> None:
    groups, path = tree
    groups.create(path)
    process = start(groups, path, "true")
    groups.remove(path)
    assert process.wait(10) == 0


def test_adding_what_does_not_exist(tree: tuple[Cgroups, str]) -> None:
    groups, path = tree
    with pytest.raises(KernelCallError, match=r"write\(.*cgroup.procs, '1'\): ENOENT"):
        groups.add(path, 1)
    groups.create(path)
    with pytest.raises(KernelCallError, match=r"write\(.*cgroup.procs, '99999999'\): E"):
        groups.add(path, 99999999)


def test_page_cache_of_what_ended_is_dropped(tree: tuple[Cgroups, str], tmp_path: Path) -> None:
    """But much of it is kept."""
    groups, path = tree
    groups.create(path)
    used = "memory.current" if groups.version == 2 else "memory.usage_in_bytes"
    file = tmp_path / "file"
    start(groups, path, f"head -c 4194304 /dev/zero > {file}; sync {file}").wait()
    before = int(groups.read(path, used) or 0)
    assert before > 4 << 20
    groups.empty(path, 2 << 20)
    assert int(groups.read(path, used) or 0) > 4 << 20
    groups.empty(path, 16 << 20)
    assert int(groups.read(path, used) or 0) < 2 << 20
    assert file.stat().st_size == 4 << 20
    groups.empty(f"{path}/missing", 16 << 20)


def test_this_machine_is_understood() -> None:
    layout = cgroups.detect()
    v1 = {item.device for item in mountinfo.read() if item.fs_type == "cgroup"}
    assert layout.version == (1 if v1 else 2)
    if v1:
        assert len(layout.hierarchies) == len(v1), "each version 1 hierarchy once, the version 2 tree left out"
        assert not any((path / "cgroup.controllers").exists() for path in layout.hierarchies)
        cpusets = [path for path in layout.hierarchies if path.name == "cpuset"]
        assert cpusets


def test_a_version_1_cpuset_can_be_entered_at_once(tree: tuple[Cgroups, str]) -> None:
    groups, path = tree
    groups.create(f"{path}/a/b")
    cpusets = [directory for directory in groups.directories(f"{path}/a/b") if (directory / "cpuset.cpus").exists()]
    assert all((directory / "cpuset.cpus").read_text().strip() for directory in cpusets)
    process = start(groups, f"{path}/a/b")
    assert groups.processes(f"{path}/a/b") == [process.pid]
    groups.kill(path)
    process.wait(10)


@in_new_namespaces()
def test_a_real_version_2_tree(tmp_path: Path) -> None:
    """Below a cgroup of our own as the root, so that the machine's root keeps its controllers."""
    cgroup2.mount(tmp_path)
    root = tmp_path / f"podkeep-test-{uuid.uuid4().hex[:8]}"
    root.mkdir()
    try:
        groups = Cgroups(root)
        assert groups.version == 2
        assert groups.directories("/a/b") == (root / "a" / "b",)
        groups.create("/a/b")
        process = start(groups, "/a/b", "sleep 300 & wait")
        assert process.pid in groups.processes("/a/b")
        assert groups.children("/") == ["/a"]
        groups.kill("/a")
        assert process.wait(10) == -signal.SIGKILL
        groups.remove("/a")
        assert groups.children("/") == []
    finally:
        root.rmdir()


def test_version_2_enables_what_is_there_on_the_way(tmp_path: Path) -> None:
    """Plain files stand for the root's interface files; the kernel makes them for each child."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    groups = Cgroups(tmp_path)
    assert groups.layout == CgroupLayout(version=2, hierarchies=(tmp_path,))
    groups.create("/podkeep")
    assert (tmp_path / "cgroup.subtree_control").read_text().startswith("+memory +pids")
    assert groups.exists("/podkeep")
    assert groups.children("/") == ["/podkeep"]


def test_half_a_creation_is_undone(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    (tmp_path / "cgroup.subtree_control").write_text("")
    groups = Cgroups(tmp_path, timeout_s=0.05)
    with pytest.raises(KernelCallError, match=r"read\(.*/a/cgroup.controllers\): ENOENT"):
        groups.create("/a/b")
    assert not (tmp_path / "a").exists()


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"no cgroup hierarchy is mounted at .*mount -t cgroup2"):
        Cgroups(tmp_path)


@pytest.mark.parametrize("path", ["", "a", "a/b", "/a//b", "/a/", "/../a", "/a/./b", "/a\0b", "//"])
def test_paths_must_be_absolute_and_normal(path: str, tmp_path: Path) -> None:
    groups = Cgroups(layout=CgroupLayout(version=2, hierarchies=(tmp_path,)))
    for operation in (groups.create, groups.remove, groups.processes, groups.children, groups.exists, groups.kill):
        with pytest.raises(InvalidArgument, match="absolute and normal"):
            operation(path)
    assert os.listdir(tmp_path) == []


def test_the_root_stays(tmp_path: Path) -> None:
    groups = Cgroups(layout=CgroupLayout(version=2, hierarchies=(tmp_path,)))
    with pytest.raises(InvalidArgument, match="root cgroup"):
        groups.remove("/")
    assert tmp_path.is_dir()


def test_a_file_is_looked_for_where_its_controller_is(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    for directory in (cpu / "pod", memory / "pod"):
        directory.mkdir(parents=True)
        (directory / "cgroup.procs").write_text("1\n")
    (memory / "pod" / "memory.high").write_text("5\n")
    groups = Cgroups(layout=CgroupLayout(version=1, hierarchies=(cpu, memory)))
    assert not groups.has("/pod", "memory.low")
    assert groups.read("/pod", "memory.low") is None
    with pytest.raises(KernelCallError, match=r"memory\.low"):
        groups.write("/pod", "memory.low", "1")
    assert groups.has("/pod", "memory.high")
    assert groups.read("/pod", "memory.high") == "5\n"
    groups.write("/pod", "memory.high", "6\n")
    assert (memory / "pod" / "memory.high").read_text() == "6\n"
    # A controller is in one hierarchy: what of it the other one seems to have is not asked.
    (cpu / "pod" / "memory.low").write_text("7\n")
    assert groups.read("/pod", "memory.low") is None
    # cgroup.* are in all of them.
    for directory in (memory, cpu):
        (directory / "pod" / "cgroup.procs").unlink()
        assert groups.has("/pod", "cgroup.procs") is (directory == memory)
    assert groups.read("/pod", "memory.high") == "6\n"


def test_something_is_noted_with_a_cgroup_as_long_as_it_is_there(tree: tuple[Cgroups, str]) -> None:
    groups, path = tree
    name = "trusted.podkeep.test"
    assert groups.attribute(path, name) is None
    groups.set_attribute(path, name, None)
    with pytest.raises(FailedPrecondition, match="gone"):
        groups.set_attribute(path, name, b"7")
    groups.create(path)
    assert groups.attribute(path, name) is None
    groups.set_attribute(path, name, None)
    groups.set_attribute(path, name, b"7")
    assert groups.attribute(path, name) == b"7"
    groups.set_attribute(path, name, None)
    assert groups.attribute(path, name) is None
    groups.set_attribute(path, name, b"8")
    groups.remove(path)
    groups.create(path)
    assert groups.attribute(path, name) is None
    with pytest.raises(KernelCallError, match="setxattr"):
        groups.set_attribute(path, "nonsense", b"7")


@pytest.mark.slow
def test_cgroups_may_be_deeper_than_the_stack(tmp_path: Path) -> None:
    groups = Cgroups(layout=CgroupLayout(version=2, hierarchies=(tmp_path,)))
    path = f"{tmp_path}/pod"
    for _ in range(1500):
        os.mkdir(path)
        path += "/d"
    (tmp_path / "pod/other").mkdir()
    assert groups.processes("/pod", recursive=True) == []
    groups.remove("/pod")
    assert os.listdir(tmp_path) == []
