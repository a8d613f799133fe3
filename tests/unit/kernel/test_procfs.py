"""Processes, told apart by start time."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import NotFound
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId
from support import processes, setuid
from support.waiting import TIMEOUT_S, wait_for

PROGRAMS = Path(__file__).with_name("programs")
_PTRACE_SEIZE, _WALL = 0x4206, 0x40000000


@pytest.fixture
def sleeper(nothing_leaks: None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for a signal."""
    process = subprocess.Popen(["/bin/sleep", "300"])
    yield process
    process.kill()
    process.wait()


def test_a_process_has_ended_though_somebody_traces_a_thread_of_it() -> None:
    """The thread stays, as a zombie, until its tracer has looked."""
    script = "import threading; threading.Thread(target=threading.Event().wait).start(); print(flush=True); input()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = procfs.identify(process.pid)
        thread = max(map(int, os.listdir(f"/proc/{process.pid}/task")))
        ptrace = ctypes.CDLL(None, use_errno=True)["ptrace"]
        assert ptrace(_PTRACE_SEIZE, thread, None, None) == 0, os.strerror(ctypes.get_errno())
        process.kill()
        wait_for(lambda: not procfs.alive(identity), "its end")
        assert process.poll() is None, "it would be no zombie any more"
        os.waitpid(thread, _WALL)
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL


def test_a_process_is_alive_until_it_is_dead_not_until_it_is_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    process = procfs.identify(sleeper.pid)
    assert process.pid == sleeper.pid
    assert procfs.alive(process)
    fd = procfs.pidfd_open(process)
    assert procfs.kill(process, signal.SIGKILL)
    assert select.select([fd], [], [], 10)[0] == [fd]
    os.close(fd)
    assert not procfs.alive(process), "a zombie is not alive"
    sleeper.wait()
    assert not procfs.alive(process)
    assert not procfs.kill(process, signal.SIGKILL)
    with pytest.raises(NotFound, match=f"process {process.pid} is gone"):
        procfs.pidfd_open(process)
    with pytest.raises(NotFound, match=f"process {process.pid} is gone"):
        procfs.identify(process.pid)


def test_another_process_with_the_same_id_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    current = procfs.identify(sleeper.pid)
    earlier = ProcessId(pid=current.pid, start_time=current.start_time - 1)
    assert not procfs.alive(earlier)
    assert not procfs.kill(earlier, signal.SIGKILL)
    with pytest.raises(NotFound, match="belongs to another process"):
        procfs.pidfd_open(earlier)
    assert sleeper.poll() is None
    assert procfs.alive(current)


def test_a_command_name_with_spaces_and_parentheses() -> None:
    program = "import os; open('/proc/self/comm', 'w').write('a) R 1 (b'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert procfs.alive(procfs.identify(process.pid))
        process.communicate(b"\n")


def test_find_by_whole_arguments() -> None:
    mark = uuid.uuid4().hex
    argv = ["sh", "-c", "echo; read _", "sh", mark, f"--id={mark}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        me = [procfs.identify(process.pid)]
        assert procfs.find_by_arguments(mark) == procfs.find_by_arguments(f"--id={mark}", mark) == me
        assert procfs.find_by_arguments(mark, "other") == procfs.find_by_arguments(mark[1:]) == []
        process.kill()
        assert procfs.wait(me[0], 10)
        # It is a zombie now.
        assert procfs.find_by_arguments(mark) == []
        process.communicate()


LOOKING = """import subprocess
from podkeep.kernel.process import procfs
again = 'exec sh -c "$0" "$0" "$1"'
me = procfs.identify(subprocess.Popen(["sh", "-c", again, again, "mark"]).pid)
print(sum(procfs.find_by_arguments("mark") != [me] for _ in range(1000)))
"""
"""Says how often it does not find a process that executes a program again and again; with few other processes."""


@pytest.mark.slow
def test_a_process_is_found_also_while_it_executes_another_program() -> None:
    """For a moment it has no arguments yet."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [*alone, sys.executable, "-c", LOOKING], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=True
    )
    assert done.stdout == b"0\n"


@pytest.mark.slow
@pytest.mark.parametrize("changes_user", [False, True])
def test_arguments_of_a_set_user_id_program_are_its_users(changes_user: bool) -> None:
    mark = uuid.uuid4().hex
    with setuid.started("su", mark, changes_user=changes_user) as pid:
        assert [process.pid for process in processes.find_by_argument(mark)] == [pid]
        assert procfs.find_by_arguments(mark) == []


def test_capabilities_are_the_kernels() -> None:
    names = procfs.capability_bounding_set()
    assert "CAP_SYS_ADMIN" in names, "these tests run as root"
    assert len(set(procfs.CAPABILITIES)) == len(procfs.CAPABILITIES) == 41
    assert procfs.CAPABILITIES[21] == "CAP_SYS_ADMIN"
    assert procfs.CAPABILITIES[40] == "CAP_CHECKPOINT_RESTORE"


def test_boot_id_is_a_uuid() -> None:
    assert str(uuid.UUID(procfs.boot_id())) == procfs.boot_id()


def test_a_command_line_of_any_size_is_read_in_part() -> None:
    """A daemon that looked for what a killed one had left read all of it, and had ten times as much in memory."""
    with subprocess.Popen(
        [sys.executable, PROGRAMS / "long_command_line.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", process.communicate()[1]
        assert len(procfs.command_line(Path(f"/proc/{process.pid}"))) == 64 << 10
        process.communicate()


def test_descriptors_are_looked_at_up_to_a_number() -> None:
    script = "import os, sys; [os.dup(0) for _ in range(500)]; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert procfs.descriptors(process.pid).count == 503
        assert procfs.descriptors(process.pid, most=10).count in {10, 503}  # Linux 6.2 tells their number
        process.communicate()
