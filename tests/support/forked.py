"""Daemons and verbs of podkeep as copies of a process that has imported them: a start takes most of its time for that.

Owns: the fork server of this test run (``programs/forking.py``), and when one is started as a program instead: if its
command is another, or something that a process inherits is not what it was when the fork server began.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

_PROGRAM = Path(__file__).with_name("programs") / "forking.py"
_COMMAND_LINE_BYTES = 4096
_GIVEN = frozenset(
    {
        "PODKEEP_CONFIG",
        "PODKEEP_FAILPOINTS",
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


class Forked:
    """A daemon that the fork server started; what tests use of :class:`subprocess.Popen`."""

    def __init__(self, pid: int, pidfd: int, status: int, stderr: IO[str] | None) -> None:
        """Take its exit status from the pipe ``status``."""
        self.pid, self.stderr = pid, stderr
        self.returncode: int | None = None
        self._pidfd, self._status = pidfd, status

    def poll(self) -> int | None:
        """Return its exit status (negative: the signal that ended it); None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended.

        :param timeout: seconds; None: without a limit.
        :raises TimeoutExpired: if it still runs then.
        """
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
            os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


def start(
    command: Sequence[str], *, stderr: IO[bytes] | None = None, env: Mapping[str, str]
) -> Forked | subprocess.Popen[str]:
    """Start a daemon of podkeep, whose standard output nobody reads.

    :param command: ``python -m podkeep`` with arguments; any other is executed, as whoever runs podkeep in turn.
    :param stderr: where its standard error goes; None: into a pipe, ``stderr`` of what is returned.
    """
    server = _server()
    if not server.may_run(command, env):
        sink = stderr if stderr is not None else subprocess.PIPE
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sink, text=True, env=env)
    if stderr is not None:
        return server.start(command, stderr.fileno(), env, None)
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        return server.start(command, write, env, os.fdopen(read))
    finally:
        os.close(write)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a verb of podkeep to its end, as :func:`subprocess.run` does with ``capture_output`` and ``text``.

    It is a copy where there is a fork server already: tests without daemons count the processes that they leave.
    """
    environment = os.environ if env is None else env
    server = _server() if _server.cache_info().currsize else None
    if server is None or not server.may_run(command, environment):
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, timeout=timeout, check=check)
    with ExitStack() as files:
        # Files, and not pipes, which somebody would have to read meanwhile.
        out, error = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        null = files.enter_context(Path(os.devnull).open("rb"))
        verb = server.verb(command, [error.fileno(), out.fileno(), null.fileno()], environment, cwd or Path.cwd())
        try:
            status = verb.wait(timeout)
        except subprocess.TimeoutExpired:
            verb.send_signal(signal.SIGKILL)
            verb.wait()
            raise
        said = []
        for file in (out, error):
            file.seek(0)
            said.append(file.read().decode())
    done = subprocess.CompletedProcess(list(command), status, *said)
    if check:
        done.check_returncode()
    return done


def begin() -> None:
    """Start the fork server now, for tests that count what they leave and run verbs."""
    _server()


class _Server:
    def __init__(self) -> None:
        self.inherited = _inherited(os.environ)
        self._lock = threading.Lock()
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            number = other.fileno()
            command = [sys.executable, str(_PROGRAM), str(number), " " * _COMMAND_LINE_BYTES]
            self._process = subprocess.Popen(command, pass_fds=[number], start_new_session=True)
        atexit.register(self._end)

    def may_run(self, command: Sequence[str], env: Mapping[str, str]) -> bool:
        """Return whether a copy is what the command would be."""
        return list(command[:3]) == [sys.executable, "-m", "podkeep"] and _inherited(env) == self.inherited

    def start(self, command: Sequence[str], stderr: int, env: Mapping[str, str], pipe: IO[str] | None) -> Forked:
        return self._ask({"argv": list(command), "env": dict(env), "cwd": ""}, [stderr], pipe)

    def verb(self, command: Sequence[str], files: Sequence[int], env: Mapping[str, str], cwd: Path) -> Forked:
        return self._ask({"argv": list(command), "env": dict(env), "cwd": str(cwd)}, files, None)

    def _end(self) -> None:
        self._channel.close()
        self._process.wait()

    def _ask(self, asked: Mapping[str, object], files: Sequence[int], pipe: IO[str] | None) -> Forked:
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            with self._lock:
                socket.send_fds(self._channel, [json.dumps(asked).encode()], [write, *files])
                pid, (pidfd,), _, _ = socket.recv_fds(self._channel, 16, 1)
        finally:
            os.close(write)
        return Forked(int(pid), pidfd, read, pipe)


@functools.cache
def _server() -> _Server:
    return _Server()


def _inherited(env: Mapping[str, str]) -> object:
    variables = {key: value for key, value in env.items() if key not in _GIVEN and not key.startswith("PYTEST_")}
    namespaces = tuple(os.stat(f"/proc/self/ns/{name}").st_ino for name in _NAMESPACES)
    limits = tuple(resource.getrlimit(number) for number in range(_LIMITS))
    return variables, namespaces, limits
