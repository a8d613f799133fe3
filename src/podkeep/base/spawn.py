"""Starting programs: the only place that does.

Programs are started with exec and nothing between fork and exec (no ``preexec_fn``: the server has threads),
every descriptor closed except those passed, and the command line kept in a form that can be pasted into a shell.
A program is never looked for in the working directory, whatever ``PATH`` says: anybody may have put one there.
"""

from __future__ import annotations

import errno
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import podkeep
from podkeep.base.errors import CommandFailed, DeadlineExceeded, NotFound, ResourceExhausted
from podkeep.base.frozen import FrozenStruct

MAX_POLL_S = 86_400.0
KILL_TIMEOUT_S = 2.0
"""How long a killed program may take to be gone."""


def poll_timeout(seconds: float | None) -> float | None:
    """Return seconds as poll(2) takes them, in milliseconds; at most a day of a time of any length.

    It takes 24 days, and more is an error: who waits for longer asks again when the day is over.
    """
    return None if seconds is None else min(max(seconds, 0.0), MAX_POLL_S) * 1000


class Completed(FrozenStruct, kw_only=True):
    """What a finished program left: exit status (negative: the signal that ended it) and both outputs."""

    command: str
    returncode: int
    stdout: bytes
    stderr: bytes

    def check(self) -> Completed:
        """Return self.

        :raises CommandFailed: if the exit status is not 0.
        """
        if self.returncode != 0:
            raise CommandFailed(self.command, self.returncode, self.stderr.decode(errors="replace"))
        return self


def command_line(argv: Sequence[str]) -> str:
    """Return ``argv`` quoted so that it can be pasted into a shell."""
    return shlex.join(argv)


def own_command(module: str) -> list[str]:
    """Return the command line that runs ``main`` of a module in a fresh interpreter with this one's import path.

    ``-I -S`` leaves out the site directories' start-up work, which costs more than most of what a worker imports.
    """
    root = str(Path(podkeep.__file__).resolve().parents[1])
    paths = [root, *(path for path in sys.path if path and path != root)]
    # Nothing that is imported becomes garbage: looking for it takes as long as a few imports. msgspec takes what newer
    # versions of typing have from typing_extensions if that is installed, with a seventh of all that is imported.
    boot = (
        f"import gc, sys; gc.disable(); sys.path[:] = {paths!r}; sys.modules['typing_extensions'] = None;"
        f" from {module} import main; gc.freeze(); gc.enable(); main()"
    )
    return [sys.executable, "-I", "-S", "-c", boot]


def find(name: str, path: str | None) -> str | None:
    """Return where program ``name`` is, or None; what is no bare name is looked for as it is.

    :param path: directories as in ``PATH``; those that are not absolute are passed over (as Go's ``exec.ErrDot``).
    """
    import shutil  # with three kinds of compression: workers, which are started often, look for no program

    directories = (os.defpath if path is None else path).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, directories)))


def _executable(argv: Sequence[str], env: Mapping[str, str] | None) -> str:
    """Return the file to execute for a command line.

    :raises FileNotFoundError: if its program is a bare name that is in no directory of ``PATH``.
    """
    if os.sep in argv[0]:
        return argv[0]
    # Popen would look in directories of PATH that are not absolute, the working directory among them.
    found = find(argv[0], (os.environ if env is None else env).get("PATH"))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return found


def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
    output: int | None = None,
) -> Completed:
    """Run a program to its end and return what it left; blocks the calling thread.

    :param timeout: seconds after which the program is killed.
    :param output: a descriptor for both outputs, which are not captured then: for a program that leaves a process
        behind which keeps them open.
    :raises NotFound: if the program does not exist.
    :raises DeadlineExceeded: if it did not finish in time.
    """
    return finish(begin(argv, env=env, cwd=cwd, pass_fds=pass_fds, output=output), stdin=stdin, timeout=timeout)


def begin(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program as :func:`run` does; the caller has :func:`finish` wait for its end.

    :raises NotFound: if the program does not exist.
    """
    outputs = subprocess.PIPE if output is None else output
    try:
        return subprocess.Popen(
            list(argv),
            executable=_executable(argv, env),
            stdin=subprocess.PIPE,
            stdout=outputs,
            stderr=outputs,
            env=env,
            cwd=cwd,
            pass_fds=pass_fds,
        )
    except FileNotFoundError as error:
        raise NotFound(
            f"cannot run `{command_line(argv)}`: {error}", hint="`podkeep doctor` lists the programs podkeep needs"
        ) from error


def finish(process: subprocess.Popen[bytes], *, stdin: bytes = b"", timeout: float) -> Completed:
    """Wait for the end of a program that :func:`begin` started, and return what it left; blocks the calling thread.

    :raises DeadlineExceeded: if it did not finish in time; it is killed then.
    """
    assert isinstance(process.args, list)
    command = command_line(process.args)
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except BaseException as error:
        # Also if the waiting itself is broken off: nobody else knows of the program.
        kill(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise DeadlineExceeded(f"`{command}` did not finish within {timeout:g} s and was killed") from error
        raise
    return Completed(command=command, returncode=process.returncode, stdout=stdout or b"", stderr=stderr or b"")


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and wait for its end, a while only: one that has a container's file open may not come to it.

    It is reaped then when it has, by a later start of a program (``subprocess._cleanup``).
    """
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def run_foreign(
    argv: Sequence[str],
    *,
    stdin: bytes,
    timeout: float,
    env: Mapping[str, str],
    output_limit: int,
    kill_others: Callable[[int], None] = lambda _: None,
) -> Completed:
    """Run a program of somebody else's, which may do anything, to its end; blocks the calling thread.

    What it leaves in the background is not waited for, even if that keeps its outputs open.

    :param timeout: seconds after which it is killed, with its process group.
    :param output_limit: bytes of both outputs together, beyond which it is killed likewise.
    :param kill_others: called before with its process ID: kills what it started and is no longer in that group.
    :raises NotFound: if the program, or what interprets it, does not exist.
    :raises DeadlineExceeded: if it did not finish in time.
    :raises ResourceExhausted: if it printed too much.
    :raises OSError: if it cannot be run for another reason.
    """
    command, deadline = command_line(argv), time.monotonic() + timeout
    # A file takes input of any size at once, whether it is read or not.
    source = os.memfd_create("stdin", os.MFD_CLOEXEC)
    try:
        os.pwrite(source, stdin, 0)
        process = subprocess.Popen(
            list(argv),
            executable=_executable(argv, env),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NotFound(f"cannot run `{command}`: {error}") from error
    finally:
        os.close(source)
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        try:
            collected = _collect(
                process.pid, (process.stdout.fileno(), process.stderr.fileno()), deadline, output_limit
            )
        except BaseException:
            # It is not waited for yet, so the number is still its own.
            try:
                kill_others(process.pid)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return Completed(command=command, returncode=process.returncode, stdout=collected[0], stderr=collected[1])


def _collect(pid: int, outputs: tuple[int, int], deadline: float, limit: int) -> tuple[bytes, bytes]:
    """Return what a process prints until it ends."""
    found = {fd: bytearray() for fd in outputs}
    # The end of the program, not of its outputs, which processes that it left may keep open.
    end = os.pidfd_open(pid)
    try:
        poll, waiting = select.poll(), set(outputs)
        for fd in (*outputs, end):
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        ended = False
        while not ended:
            remaining = deadline - time.monotonic()
            ready = {fd for fd, _ in poll.poll(poll_timeout(remaining))} if remaining > 0 else set()
            if not ready:
                raise DeadlineExceeded("the program did not finish in time and was killed")
            ended = end in ready
            # Once it has ended, what is in the pipes is read, and no more is waited for: a process it left may hold
            # them open.
            for fd in [fd for fd in waiting if ended or fd in ready]:
                if not _drain(fd, found[fd], limit):
                    poll.unregister(fd)
                    waiting.discard(fd)
            if sum(map(len, found.values())) > limit:
                raise ResourceExhausted(f"the program printed more than {limit} bytes and was killed")
    finally:
        os.close(end)
    return bytes(found[outputs[0]]), bytes(found[outputs[1]])


def _drain(fd: int, into: bytearray, limit: int) -> bool:
    """Read what is there now, little more than ``limit``; return whether more may come."""
    while len(into) <= limit:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        into += data
    return True


def start(
    argv: Sequence[str],
    *,
    pass_fds: Sequence[int] = (),
    cwd: str = "/",
    stdin: int = subprocess.DEVNULL,
    stderr: int | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program of our own that serves until its owner goes; the caller waits for it.

    It is in a session of its own (Ctrl-C at a terminal does not reach it).

    :param stderr: a descriptor for its errors; None: ours.
    :raises NotFound: if the program does not exist.
    """
    try:
        return subprocess.Popen(
            list(argv),
            executable=_executable(argv, env),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=env,
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NotFound(f"cannot run `{command_line(argv)}`: {error}") from error
