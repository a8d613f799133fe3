"""A command that is stopped before its first instruction, by the program that a runtime of containers has for that."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from podkeep.kernel.process import holder
from podkeep.runtime.oci.exec import set_terminal_size
from support import processes
from support.waiting import wait_for


@contextmanager
def held(
    pid: int, answer: bytes = b"s", *, start: Sequence[str] = (), wanted: str = "hold", also: bytes = b""
) -> Iterator[subprocess.Popen[bytes]]:
    """Have the holder trace a process; ``start`` is what starts the holder, if not this process."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            argv = [*start, sys.executable, "-I", "-S", holder.__file__]
            process = subprocess.Popen(argv, stdin=theirs.fileno())
        try:
            ours.sendall(f"{pid} {wanted}".encode())
            assert ours.recv(1) == answer
            yield process
            assert not also or ours.recv(1) == also
        finally:
            process.kill()
            process.wait()


@contextmanager
def waiting(script: str, *arguments: str, start: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a shell that does what a script says once it has read a line; it has no terminal."""
    argv = [*start, "/bin/sh", "-c", f"read go; {script}", "sh", *arguments]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    os.write(process.stdin.fileno(), b"\n")  # nothing stays in a buffer of what it has not read when it is killed


def is_stopped(pid: int, name: str) -> bool:
    """Return whether a grandchild of a process is stopped, as the program of this name (proc_pid_stat(5))."""
    found = [item for child in processes.children(pid) for item in processes.children(child)]
    return any(f" ({name}) t " in Path(f"/proc/{item}/stat").read_text() for item in found)


def test_what_has_a_terminal_is_stopped_before_its_first_instruction() -> None:
    master, slave = os.openpty()
    try:
        # In a subshell: the shell itself leads a session, and would be given the terminal for opening it.
        script = '(setsid --fork --ctty --wait stty size <"$1" >"$1"); exit $?'
        with waiting(script, os.ttyname(slave)) as process:
            with held(process.pid):
                go_on(process)
                wait_for(lambda: is_stopped(process.pid, "stty"), "the command to be stopped")
                set_terminal_size(master, 132, 43)
            assert process.wait(20) == 0
        assert os.read(master, 100) == b"43 132\r\n"
    finally:
        os.close(master)
        os.close(slave)


def test_what_has_none_runs_to_its_end_with_its_signals_and_its_status() -> None:
    script = "trap 'echo told' USR1; kill -USR1 $$; /bin/echo out; (exit 3)"
    with waiting(script) as process, held(process.pid) as tracer:
        go_on(process)
        assert process.stdout is not None
        assert process.stdout.read() == b"told\nout\n"
        assert process.wait() == 3
        assert tracer.wait() == 0


ELSEWHERE = """import ctypes, os
outside = os.open("/", os.O_PATH)
ctypes.CDLL(None).unshare(0x20000)
os.fchdir(outside)
try:
    os.execv("%s", ["echo", "out"])
except OSError:
    print("tried")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "said", "output"),
    [
        (("unshare", "--mount", "/bin/echo", "out"), b"o", b"out\n"),
        ((sys.executable, "-c", ELSEWHERE % "/bin/echo"), b"x", b""),
        # It does not come to it: what others may do with its working directory they may do once the program is there.
        ((sys.executable, "-c", ELSEWHERE % "/nonexistent"), b"x", b""),
    ],
)
def test_a_program_of_another_mount_namespace_starts_in_a_directory_of_that(
    program: tuple[str, ...], said: bytes, output: bytes
) -> None:
    with waiting('"$@"; exit $?', *program) as process, held(process.pid, wanted="check", also=said) as tracer:
        go_on(process)
        assert process.stdout is not None
        assert process.stdout.read() == output
        # What has a command started outside of its container is ended with it.
        assert process.wait() == (0 if output else -signal.SIGKILL)
        assert tracer.wait() == 0


ENTERING = """import ctypes, os, sys
outside = os.open("/", os.O_PATH)
ctypes.CDLL(None).unshare(0x20000)
os.fchdir(outside)
print("entered", flush=True)
sys.stdin.readline()
os.execv("/bin/echo", ["echo", "out"])
"""


def test_whoever_ends_it_before_it_has_looked_ends_what_it_looks_at() -> None:
    """As systemd, for a service of which all processes are killed, or the kernel, where memory is short."""
    with (
        waiting('"$@"', sys.executable, "-c", ENTERING) as process,
        held(process.pid, wanted="check") as tracer,
    ):
        go_on(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"entered\n"
        tracer.kill()
        tracer.wait()
        with suppress(BrokenPipeError):
            go_on(process)
        assert process.stdout.read() == b""
        assert process.wait() == -signal.SIGKILL


def test_what_it_has_looked_at_outlives_it() -> None:
    with (
        waiting('unshare --mount "$@"; exit $?', "/bin/sh", "-c", "echo in; read go; exit 3") as process,
        held(process.pid, wanted="check", also=b"o") as tracer,
    ):
        go_on(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        assert tracer.wait() == 0
        go_on(process)
        assert process.wait() == 3


IN_A_THREAD = """import ctypes, os, threading
def execute():
    ctypes.CDLL(None).unshare(0x20000)
    os.execv("/bin/echo", ["echo", "out"])
threading.Thread(target=execute).start()
threading.Event().wait()
"""


def test_a_program_that_a_thread_executes_outlives_it() -> None:
    """That takes the ID of the first thread then, and its own is gone without a word (ptrace(2))."""
    with waiting('"$@"; exit $?', sys.executable, "-c", IN_A_THREAD) as process:
        with held(process.pid, wanted="check", also=b"o") as tracer:
            go_on(process)
            assert process.stdout is not None
            assert process.stdout.read() == b"out\n"
            assert tracer.wait() == 0
        assert process.wait() == 0


def test_who_is_traced_already_is_not_held() -> None:
    with waiting("/bin/echo out") as process, held(process.pid), held(process.pid, b"") as second:
        assert second.wait() == 0
        go_on(process)
        assert process.stdout is not None
        assert process.stdout.read() == b"out\n"


def test_without_the_capability_nobody_is_traced_who_then_would_not_get_the_rights_of_a_file() -> None:
    """Two processes with the same rights may trace each other without it, but set-user-ID programs get none then."""
    without = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    with waiting("/bin/echo out", start=without) as process:
        # The shell that waits has taken the place of setpriv.
        wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sh\n", "the shell to be there")
        with held(process.pid, b"", start=without) as tracer:
            assert tracer.wait() == 0
            go_on(process)
            assert process.stdout is not None
            assert process.stdout.read() == b"out\n"


@pytest.mark.slow
def test_what_is_stopped_goes_on_though_the_alarm_was_ignored() -> None:
    master, slave = os.openpty()
    try:
        script = '(setsid --fork --ctty --wait stty size <"$1" >"$1"); exit $?'
        ignoring = ("env", "--ignore-signal=ALRM")
        with waiting(script, os.ttyname(slave)) as process, held(process.pid, start=ignoring) as tracer:
            go_on(process)
            assert process.wait(20) == 0
            assert tracer.wait(20) == -signal.SIGALRM
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize("pid", ["0", ""])
def test_without_a_process_it_ends(pid: str) -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", holder.__file__], stdin=subprocess.PIPE) as process:
        process.communicate(pid.encode())
    assert process.returncode == 0
