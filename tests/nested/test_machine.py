"""The nested machine itself: what runs in it, how commands and files go in and out, and that nothing of it stays."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import processes
from support.nested.build import REPOSITORY, NestedError, image
from support.nested.machine import Machine
from support.waiting import wait_for

TIMEOUT_S = 300


def test_systemd_is_process_1(machine: Machine) -> None:
    assert machine.run("readlink /proc/1/exe").stdout == "/usr/lib/systemd/systemd\n"
    state = machine.run("systemctl is-system-running --wait; systemctl --failed --no-legend")
    assert state.stdout == "running\n"


def test_cgroups_are_version_2_alone(machine: Machine) -> None:
    assert machine.run("stat -f -c %T /sys/fs/cgroup").stdout == "cgroup2fs\n"
    assert " cgroup " not in machine.read("/proc/self/mountinfo")
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(machine.read("/sys/fs/cgroup/cgroup.controllers").split())


def test_the_kernel_is_of_debian_12(machine: Machine) -> None:
    assert machine.run(["uname", "-r"]).stdout.startswith("6.1.0-")
    assert "VERSION_CODENAME=bookworm\n" in machine.read("/etc/os-release")
    assert "apparmor" in machine.read("/sys/kernel/security/lsm").split(",")


def test_status_and_streams_come_back_apart(machine: Machine) -> None:
    done = machine.run("echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert machine.run("exit 255").returncode == 255


def test_words_are_not_read_by_a_shell(machine: Machine) -> None:
    words = ["a b", "$HOME", "'", '"', "*", "new\nline", "ü"]
    assert machine.run(["printf", r"%s\0", *words]).stdout.split("\0") == [*words, ""]


@pytest.mark.parametrize("data", [b"", b"\0\xff\r\n", bytes(range(256)) * 8192], ids=["nothing", "bytes", "2 MiB"])
def test_standard_input_and_output_carry_any_bytes(machine: Machine, data: bytes) -> None:
    assert machine.run(["cat"], stdin=data, check=True).stdout.encode(errors="surrogateescape") == data


def test_a_failure_tells_both_streams_and_the_console(machine: Machine) -> None:
    machine.run("echo console-$((6*7)) >/dev/ttyS0")
    with pytest.raises(AssertionError) as failure:
        machine.run("echo this; echo that >&2; false", check=True)
    for part in ("ended with 1", "this\n", "that\n", "console-42"):
        assert part in str(failure.value)


def test_a_command_that_takes_too_long_is_killed_with_its_children(machine: Machine) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as expired:
        machine.run("echo begun; sleep 54321 & sleep 54321", timeout=5)
    assert (expired.value.stdout, expired.value.stderr) == (b"begun\n", b"")
    deadline = time.monotonic() + 30
    while (left := machine.run(["pgrep", "-f", "^sleep 54321"]).stdout) and time.monotonic() < deadline:
        pass
    assert left == ""


def test_files_and_directories_are_copied_with_their_modes(machine: Machine, tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    (source / "below").mkdir(parents=True)
    (source / "below/program").write_bytes(b"\0\xff")
    (source / "below/program").chmod(0o4751)
    (source / "below").chmod(0o700)
    (source / "link").symlink_to("below/program")
    machine.put(source, "/root/copied/tree")
    machine.put(source / "below/program", "/root/copied/file")
    assert machine.run("stat -c %a /root/copied/tree/below /root/copied/file").stdout.split() == ["700", "4751"]
    machine.get("/root/copied/tree", copy)
    machine.get("/root/copied/file", copy / "file")
    assert os.readlink(copy / "link") == "below/program"
    assert (copy / "below").stat().st_mode & 0o7777 == 0o700
    for name in ("below/program", "file"):
        assert (copy / name).stat().st_mode & 0o7777 == 0o4751
        assert (copy / name).read_bytes() == b"\0\xff"
    machine.run(["rm", "-r", "/root/copied"], check=True)
    with pytest.raises(AssertionError, match="No such file"):
        machine.get("/root/copied", copy)


def test_text_is_written_and_read(machine: Machine) -> None:
    machine.write("/root/new/dir/a file", "line ü\n", mode=0o600)
    assert machine.read("/root/new/dir/a file") == "line ü\n"
    assert machine.run("stat -c %a '/root/new/dir/a file'").stdout == "600\n"
    machine.run(["rm", "-r", "/root/new"], check=True)


def test_the_checkout_is_where_it_is_here(machine: Machine) -> None:
    script = "import podkeep, sys; print(podkeep.__file__, sys.executable)"
    where = machine.run([f"{REPOSITORY}/.venv/bin/python", "-c", script], check=True).stdout.split()
    assert where == [f"{REPOSITORY}/src/podkeep/__init__.py", f"{REPOSITORY}/.venv/bin/python"]
    assert machine.podkeep("--version").stdout.startswith("podkeep ")


def test_disks_outlive_a_loss_of_power_and_a_crash_is_told_from_a_command_that_fails(
    boot: Callable[..., Machine], machine: Machine
) -> None:
    own = boot(memory_mib=1024, append=("nested.test=yes",))
    first = own.read("/proc/sys/kernel/random/boot_id")
    own.write("/root/synced", "yes")
    own.write("/run/lost", "")
    own.run("sync")
    own.write("/root/not-synced", "yes")
    own.cut_power()
    assert own.read("/proc/sys/kernel/random/boot_id") != first
    assert own.run("cat /root/synced; ls /run/lost").stdout == "yes"
    assert own.run("test -s /root/not-synced").returncode == 1
    assert "nested.test=yes" in own.read("/proc/cmdline").split()
    assert machine.run("ls /root/synced").returncode != 0
    with pytest.raises(NestedError, match=r"lost the nested machine(.|\n)*(sysrq: Trigger a crash|panic)"):
        own.run("echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 1000", timeout=1000)


def test_a_socket_in_the_machine_is_reached_from_here(machine: Machine) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(machine.forward("/run/dbus/system_bus_socket")))
        connection.sendall(b"\0AUTH\r\n")
        assert connection.recv(100).startswith(b"REJECTED ")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets, whose names have a limit."""
    with tempfile.TemporaryDirectory(prefix="pk-") as name:
        yield Path(name)


def test_a_killed_test_run_leaves_no_process(short_path: Path) -> None:
    """Here while the machine boots."""
    script = "from support.nested.machine import Machine\nwith Machine(memory_mib=512): input()\n"

    def machines() -> list[int]:
        # Not yet ``setpriv``, which may not have asked for its death yet.
        found = [item.pid for item in processes.find_by_argument(f"{short_path}/")]
        return [pid for pid in found if Path(f"/proc/{pid}/exe").resolve().name.startswith("qemu")]

    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "tests:src", "TMPDIR": str(short_path)},
        cwd=REPOSITORY,
    ) as run:
        wait_for(machines, "a machine that boots", timeout=TIMEOUT_S)
        run.kill()
    wait_for(lambda: not processes.find_by_argument(f"{short_path}/"), "the end of the machine", timeout=TIMEOUT_S)


def test_the_image_is_made_once() -> None:
    image()
    begun = time.monotonic()
    assert image() == image()
    assert time.monotonic() - begun < 1
