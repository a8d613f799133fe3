"""The container mount namespace, for real: a scratch machine with shared mounts, and processes that enter and leave."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make mount namespaces")

PRELUDE = """
import json, os, subprocess, sys, threading
from pathlib import Path
from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.kernel import mountinfo, mounts
from podkeep.mountns import container_mounts

run, spare = Path(sys.argv[1]), Path(sys.argv[2])
pin = container_mounts.pin_path(run)

def own():
    return os.stat("/proc/self/ns/mnt").st_ino

def mounted(path):
    return [entry for entry in mountinfo.read() if entry.mount_point == str(path)]

def process(body):
    "Run a body in a process of its own on this scratch machine, and return what it printed."
    done = subprocess.run([sys.executable, "-c", sys.argv[3] + body, *sys.argv[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()

def at_pin(*command):
    entered = ["nsenter", f"--mount={pin}", "--", *command]
    return subprocess.run(entered, capture_output=True, text=True, check=True).stdout
"""


def on_a_scratch_machine(tmp_path: Path, body: str) -> None:
    """Run a body in a new mount namespace whose mounts are all shared, as systemd makes them."""
    run, spare = tmp_path / "run", tmp_path / "spare"
    run.mkdir()
    spare.mkdir()
    shared = ["unshare", "--mount", "--", "sh", "-c", 'mount --make-rshared / && exec "$@"', "sh"]
    command = [*shared, sys.executable, "-c", PRELUDE + textwrap.dedent(body), str(run), str(spare), PRELUDE]
    machine = Path("/proc/self/mountinfo").read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path("/proc/self/mountinfo").read_bytes() == machine


@pytest.mark.requirement("M7")
def test_the_pin_outlives_the_process_that_made_it(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        inside = int(process("container_mounts.enter(run); print(own())"))
        assert inside != own()
        assert container_mounts.is_pinned(run)
        assert pin.stat().st_ino == inside
        assert [entry.fs_type for entry in mounted(pin)] == ["nsfs"]
        holders = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.stat(entry / "ns/mnt").st_ino == inside:
                    holders.append(entry.name)
            except OSError:
                pass
        assert holders == []
        assert int(process("container_mounts.join(run); print(own())")) == inside
        """,
    )


def test_entering_twice_is_entering_the_same(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        first = process("container_mounts.enter(run); print(own())")
        before = len(mountinfo.read())
        assert process("container_mounts.enter(run); print(own())") == first
        assert len(mountinfo.read()) == before
        (itself,) = mounted(pin.parent)
        assert "unbindable" in itself.propagation, itself
        """,
    )


@pytest.mark.requirement("M5")
def test_the_root_inside_is_shared_and_a_slave(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        container_mounts.enter(run)
        (root,) = mounted("/")
        kinds = {field.partition(":")[0] for field in root.propagation}
        assert kinds == {"shared", "master"}, root
        """,
    )


def test_the_machine_sees_nothing_and_is_seen(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        made = "mounts.tmpfs(spare / 'inside', 'size=1m'); print(len(mounted(spare / 'inside')))"
        for name in ("inside", "outside"):
            (spare / name).mkdir()
        assert process("container_mounts.enter(run); " + made) == "1"
        assert mounted(spare / "inside") == []
        mounts.tmpfs(spare / "outside", "size=1m")
        assert str(spare / "outside") in at_pin("cat", "/proc/self/mountinfo")
        assert str(spare / "inside") in at_pin("cat", "/proc/self/mountinfo")
        assert process("container_mounts.join(run); print(len(mounted(spare / 'inside')))") == "1"
        """,
    )


def test_a_namespace_below_gets_what_is_mounted_inside(tmp_path: Path) -> None:
    """What HostToContainer mounts rely on: inside is a machine of its own for the namespaces made there."""
    on_a_scratch_machine(
        tmp_path,
        """
        (spare / "late").mkdir()
        container_mounts.enter(run)
        below = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo up; read go; cat /proc/self/mountinfo"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        assert below.stdout.readline().strip() == "up"
        mounts.tmpfs(spare / "late", "size=1m")
        seen, _ = below.communicate("go" + chr(10))
        assert str(spare / "late") in seen
        """,
    )


def test_the_working_directory_stays(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        os.chdir(spare)
        assert process("container_mounts.enter(run); print(os.getcwd())") == str(spare)
        assert process("container_mounts.enter(run); print(os.getcwd())") == str(spare)
        assert process("container_mounts.join(run); print(os.getcwd())") == str(spare)
        """,
    )


def test_a_run_directory_behind_a_link(tmp_path: Path) -> None:
    """/var/run is a link to /run; the kernel knows mount points without links."""
    on_a_scratch_machine(
        tmp_path,
        """
        real = run
        link = spare / "link"
        link.symlink_to(real)
        first = process("container_mounts.enter(Path(sys.argv[2]) / 'link'); print(own())")
        assert process("container_mounts.enter(Path(sys.argv[2]) / 'link'); print(own())") == first
        assert process("container_mounts.join(Path(sys.argv[2]) / 'link'); print(own())") == first
        assert process("container_mounts.join(run); print(own())") == first
        assert len(mounted(pin.parent)) == 1
        """,
    )


def test_a_process_with_threads_stays_out(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        process("container_mounts.enter(spare)")
        go = threading.Event()
        thread = threading.Thread(target=go.wait, daemon=True)
        thread.start()
        before, descriptors, here = len(mountinfo.read()), os.listdir("/proc/self/fd"), own()
        for attempt in (container_mounts.enter, container_mounts.join):
            for where in (run, spare):
                try:
                    attempt(where)
                except FailedPrecondition as error:
                    assert "threads" in str(error) or "no mount namespace" in str(error), error
                else:
                    raise AssertionError("it went in")
        assert (len(mountinfo.read()), os.listdir("/proc/self/fd"), own()) == (before, descriptors, here)
        assert list(run.iterdir()) == []
        go.set()
        thread.join()
        """,
    )


def test_joining_what_is_not_there(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        pin.parent.mkdir(parents=True)
        pin.touch()
        for where in (run, run / "missing"):
            try:
                container_mounts.join(where)
            except FailedPrecondition as error:
                assert str(container_mounts.pin_path(where)) in str(error)
                assert error.hint
            else:
                raise AssertionError("it went in")
        """,
    )


def test_removing_it_leaves_nothing(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        before = mountinfo.read()
        body = '''
        origin = container_mounts.enter(run)
        go = threading.Event()
        thread = threading.Thread(target=go.wait, daemon=True)
        thread.start()
        container_mounts.remove(run, origin)
        go.set()
        thread.join()
        os.close(origin)
        print(own())
        '''
        inside = process("\\n" + "\\n".join(line.strip() for line in body.splitlines()))
        assert inside != str(own())
        assert mountinfo.read() == before
        assert not container_mounts.is_pinned(run)
        assert list(run.iterdir()) == []
        # And it can be made again.
        process("container_mounts.enter(run)")
        assert container_mounts.is_pinned(run)
        """,
    )


def test_one_that_was_made_half_is_not_entered_half(tmp_path: Path) -> None:
    """A runtime killed the moment its namespace is pinned: who comes next must not share mounts with the machine."""
    on_a_scratch_machine(
        tmp_path,
        """
        environment = {**os.environ, "PODKEEP_FAILPOINTS": "mountns.pinned=kill"}
        command = [sys.executable, "-c", sys.argv[3] + "container_mounts.enter(run)", *sys.argv[1:]]
        killed = subprocess.run(command, env=environment, capture_output=True)
        assert killed.returncode == -9, killed
        assert container_mounts.is_pinned(run)
        (spare / "inside").mkdir()
        made = "mounts.tmpfs(spare / 'inside', 'size=1m'); print(sorted(mounted('/')[0].propagation))"
        propagation = process("container_mounts.enter(run); " + made)
        assert "shared:" in propagation, propagation
        assert "master:" in propagation, propagation
        assert mounted(spare / "inside") == []
        unified = str(container_mounts.UNIFIED)
        assert unified not in at_pin("cat", "/proc/self/mountinfo")
        """,
    )


def test_a_second_hierarchy_of_cgroups_is_out_of_sight_inside_only(tmp_path: Path) -> None:
    if not Path("/sys/fs/cgroup/unified").is_mount():
        pytest.skip("this machine's cgroups are not hybrid")
    on_a_scratch_machine(
        tmp_path,
        """
        process("container_mounts.enter(run)")
        assert mounted(container_mounts.UNIFIED)
        assert str(container_mounts.UNIFIED) not in at_pin("cat", "/proc/self/mountinfo")
        """,
    )


def test_a_machine_with_private_mounts(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        mounts.set_propagation("/", mounts.Propagation.PRIVATE, recursive=True)
        (spare / "inside").mkdir()
        process("container_mounts.enter(run); mounts.tmpfs(spare / 'inside', 'size=1m')")
        assert mounted(spare / "inside") == []
        assert str(spare / "inside") in at_pin("cat", "/proc/self/mountinfo")
        """,
    )


def test_only_one_descriptor_stays_open(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        for _ in range(2):
            counts = process('''
        before = len(os.listdir("/proc/self/fd"))
        container_mounts.enter(run)
        print(len(os.listdir("/proc/self/fd")) - before)
        '''.replace("        ", ""))
            assert counts == "1", counts
        """,
    )
