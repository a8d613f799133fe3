"""Daemons and verbs of podkeep as copies of a process that has imported them: a start takes most of its time for that.

Owns: the fork server of this test run (``programs/forking.py``), and when one is started as a program instead: if its
command is another, or something that a process inherits is not what it was when the fork server began.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, AnyStr

_PROGRAM = Path(__file__).with_name("programs") / "forking.py"
_COMMAND_LINE_BYTES = 4096
_GIVEN = frozenset(
    {
        "PODKEEP_CONFIG",
        "PODKEEP_FAILPOINTS",
        "KUBECONFIG",
        "_PODKEEP_COMPLETE",
        "COMP_WORDS",
        "COMP_CWORD",
        "HOME",
        "XDG_RUNTIME_DIR",
        "DOCKER_CONFIG",
        "REGISTRY_AUTH_FILE",
    }
)
"""Variables that podkeep looks at when it runs, not when it is imported."""
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid_for_children", "user", "uts")

_LIMITS = 16
"""Resource limits of the kernel (RLIM_NLIMITS)."""
_EXECUTE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class Popen(subprocess.Popen[AnyStr]):
    """Starts a daemon or verb, ``python -m podkeep`` with arguments, as a copy where that is the same as the program.

    It is a copy where there is a fork server already: tests without daemons count the processes that they leave. Its
    parent is the fork server; else it has what a child of this process would have, such as the process group. This
    overrides what starts a process and waits for it; pipes, and what reads and writes them, are the base class's.
    """

    _copy: _Copy | None = None

    def _execute_child(self, *args: Any) -> None:
        """Start the process, with one end of each pipe, and close those ends here."""
        given = _EXECUTE.bind(self, *args).arguments
        environment = os.environ if given["env"] is None else given["env"]
        server = _server() if _server.cache_info().currsize else None
        if server is None or not _is_plain(given) or not server.may_run(given["args"], environment):
            super()._execute_child(*args)  # type: ignore[misc]
            return
        streams = (given[end] for end in ("p2cread", "c2pwrite", "errwrite"))
        files = [number if end == -1 else end for number, end in enumerate(streams)]
        try:
            self._copy = server.start(given["args"], files, environment, given["cwd"], given["start_new_session"])
        finally:
            self._close_pipe_fds(*(given[end] for end in _ENDS))  # type: ignore[attr-defined]
        self.pid = self._copy.pid
        self._child_created = True

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:
        if self._copy is None:
            return super()._internal_poll(*args, **options)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            self.returncode = self._copy.ended(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._copy is None:
            return super()._wait(timeout=timeout)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            self.returncode = self._copy.ended(timeout)
            if self.returncode is None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._copy is None:
            super().send_signal(sig)
        elif self.poll() is None:
            self._copy.send_signal(sig)


def start(command: Sequence[str], *, stderr: IO[bytes] | None = None, env: Mapping[str, str]) -> Popen[str]:
    """Start a daemon of podkeep, whose standard output nobody reads.

    :param command: ``python -m podkeep`` with arguments; any other is executed, as whoever runs podkeep in turn.
    :param stderr: where its standard error goes; None: into a pipe, ``stderr`` of what is returned.
    """
    begin()
    return Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE if stderr is None else stderr,
        text=True,
        env=env,
        cwd="/",
        start_new_session=True,
    )


if TYPE_CHECKING:
    from subprocess import run as run
else:

    def run(command, *, input=None, capture_output=False, timeout=None, check=False, **options):  # noqa: A002
        """Run a verb of podkeep to its end: :func:`subprocess.run` with :class:`Popen`."""
        if input is not None:
            options["stdin"] = subprocess.PIPE
        if capture_output:
            options["stdout"] = options["stderr"] = subprocess.PIPE
        with Popen(command, **options) as process:
            try:
                out, error = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(command, process.returncode, out, error)
        if check:
            done.check_returncode()
        return done


def begin() -> None:
    """Start the fork server now, for tests that count what they leave and run verbs."""
    _server()


class _Copy:
    """A process that the fork server started; several threads may wait for it."""

    def __init__(self, pid: int, pidfd: int, status: int) -> None:
        """Take its exit status from the pipe ``status``."""
        self.pid = pid
        self._pidfd, self._status = pidfd, status
        self._code: int | None = None
        self._lock = threading.Lock()

    def ended(self, timeout: float | None) -> int | None:
        """Return its exit status (negative: the signal that ended it); None if it still runs after ``timeout``."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            return None  # another thread waits
        try:
            if self._code is None:
                poll = select.poll()
                poll.register(self._status, select.POLLIN)
                if poll.poll(None if timeout is None else timeout * 1000):
                    self._code = int(os.read(self._status, 16))
                    os.close(self._status)
                    os.close(self._pidfd)
            return self._code
        finally:
            self._lock.release()

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)


class _Server:
    def __init__(self) -> None:
        self.inherited = _inherited(os.environ)
        self._lock = threading.Lock()
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            number = other.fileno()
            command = [sys.executable, str(_PROGRAM), str(number), " " * _COMMAND_LINE_BYTES]
            # In this process group, as copies are. Were their parent in another one of this session, the kernel would
            # send SIGHUP to all of this one when a copy ends while another is stopped (exit(3), orphaned groups).
            self._process = subprocess.Popen(command, pass_fds=[number])
        atexit.register(self._end)

    def may_run(self, command: Sequence[str], env: Mapping[str, str]) -> bool:
        """Return whether a copy is what the command would be."""
        return list(command[:3]) == [sys.executable, "-m", "podkeep"] and _inherited(env) == self.inherited

    def start(
        self, command: Sequence[str], files: Iterable[int], env: Mapping[str, str], cwd: Path | None, new_session: bool
    ) -> _Copy:
        """Start a copy with ``files`` as its standard streams."""
        asked = {
            "argv": list(command),
            "env": dict(env),
            "cwd": str(cwd or Path.cwd()),
            "group": 0 if new_session else os.getpgrp(),
        }
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            with self._lock:
                socket.send_fds(self._channel, [json.dumps(asked).encode()], [write, *files])
                pid, (pidfd,), _, _ = socket.recv_fds(self._channel, 16, 1)
        finally:
            os.close(write)
        return _Copy(int(pid), pidfd, read)

    def _end(self) -> None:
        self._channel.close()
        self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


def _is_plain(given: Mapping[str, Any]) -> bool:
    """Return whether no option was given that a copy does not have."""
    others = ("executable", "preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")
    chosen = any(given[name] is not None and given[name] not in (False, ()) for name in others)
    return not chosen and given["close_fds"] and given["umask"] == given["process_group"] == -1


def _inherited(env: Mapping[str, str]) -> object:
    variables = {key: value for key, value in env.items() if key not in _GIVEN and not key.startswith("PYTEST_")}
    namespaces = tuple(os.stat(f"/proc/self/ns/{name}").st_ino for name in _NAMESPACES)
    limits = tuple(resource.getrlimit(number) for number in range(_LIMITS))
    return variables, namespaces, limits
