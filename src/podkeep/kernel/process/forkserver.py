"""A fork server: a process that has imported what others need, and starts programs as copies of itself.

A worker that lives for a few milliseconds takes ten times as long to start its interpreter and to import. The server is
a program of its own with one thread, which reads nothing but requests, of its owner and of copies that may ask: what it
copies has no secrets, no locks that somebody holds, and no descriptors but those that the request came with.

A copy is known by its *control*, one end of a socket pair whose other end the server has. The owner has it killed by
shutting its end down for sending, or by closing it. The server writes the exit status there. Who asked for copies takes
them along when it ends; so does the server, however it ends.

Descriptors of a copy: 0, 1 and 2 as requested, at 3 what it asks the server on for copies of its own (if it may), and
from 4 on the others of the request.
"""

from __future__ import annotations

import errno
import fcntl
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NoReturn

from podkeep.base import spawn
from podkeep.base.errors import Internal, KernelCallError
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel import libc
from podkeep.kernel.process import confine

CHANNEL = 3
FIRST = 4
"""The first of the further descriptors of a copy."""
_MOST_FILES = 16
_MESSAGE_BYTES = 256
STATUS_BYTES = 256
"""Of what is told on a control, at most."""
_KILLED = -signal.SIGKILL


class Program(FrozenStruct, kw_only=True):
    """What a copy runs.

    ``asks``: it may have the server start copies of its own. ``pid_namespace``: it is the first process of a PID
    namespace, and can neither see nor signal another.
    """

    main: Callable[[], None]
    asks: bool = False
    pid_namespace: bool = False


class Copy:
    """A copy that runs, of which nobody but its owner has the control."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control

    def wait(self) -> int:
        """Wait for its end and return its status as ``subprocess`` does."""
        return status_of(self.control.recv(STATUS_BYTES))

    def kill(self) -> None:
        # No message: what the server did not read when it closes its end would take the status along.
        with suppress(OSError):  # it has ended
            self.control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of it: it is killed if it still runs."""
        self.control.close()


def status_of(told: bytes) -> int:
    """Return the status that is told on a control; no message means that the server was killed, with all copies.

    :raises Internal: if the copy could not be started.
    """
    text = os.fsdecode(told)
    if text.startswith("!"):
        raise Internal(f"cannot start a process: {text[1:]}")
    return int(text) if text else _KILLED


def start(channel: socket.socket, program: str, files: Sequence[int]) -> Copy:
    """Ask the server at the other end of ``channel`` for a copy that runs ``program`` with this environment.

    Any thread may do so. The descriptors ``files`` become 0, 1, 2, and those from :data:`FIRST` on.

    :raises OSError: if there is no server any more.
    """
    # Not in the message, which has a limit: an environment may have any length.
    environment = os.memfd_create("environment", os.MFD_CLOEXEC)
    try:
        pairs = [b"%s=%s" % pair for pair in os.environb.items()]
        with os.fdopen(environment, "wb", closefd=False) as file:
            file.write(b"\0".join(pairs))
        control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            try:
                socket.send_fds(channel, [program.encode()], [other.fileno(), environment, *files])
            except BaseException:
                control.close()
                raise
        return Copy(control)
    finally:
        os.close(environment)


class ForkServer:
    """The owner's side of a fork server, which is started when it is first needed; any thread may use it.

    :param module: its ``main`` calls :func:`serve`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def start(self, program: str, files: Sequence[int]) -> Copy:
        """Start a copy, as :func:`start` does.

        :raises OSError: if the server cannot be started.
        :raises NotFound: if there is no interpreter any more.
        """
        with self._lock:
            if self._channel is not None:
                try:
                    return start(self._channel, program, files)
                except ConnectionError:  # it was killed: that is no reason to fail
                    self._channel.close()
                    self._channel = None
            return start(self._begin(), program, files)

    def begin(self) -> None:
        """Start the server now."""
        with self._lock:
            if self._channel is None:
                self._begin()

    def let_go(self) -> Callable[[], object]:
        """Have the server and all copies end; return what waits for that. It can be used again."""
        with self._lock:
            process, self._process = self._process, None
            if self._channel is not None:
                self._channel.close()
                self._channel = None
        return process.wait if process is not None else lambda: None

    def _begin(self) -> socket.socket:
        if self._process is not None:
            self._process.wait()
        channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            try:
                self._process = spawn.start(spawn.own_command(self._module), stdin=other.fileno(), cwd=".")
            except BaseException:
                channel.close()
                raise
        self._channel = channel
        return channel


class _Channel:
    """A socket that copies are asked for on, and those of them that run."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.copies: set[_Running] = set()
        self.is_open = True


class _Running:
    def __init__(self, pid: int, pidfd: int, control: socket.socket, owner: _Channel) -> None:
        self.pid, self.pidfd, self.control, self.owner = pid, pidfd, control, owner
        self.own: _Channel | None = None
        self.is_wanted = True

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)  # it is not reaped, so the number is its own


def serve(programs: Mapping[str, Program]) -> NoReturn:
    """Be the server, until the owner, at the other end of standard input, ends."""
    _Server(programs).run()


class _Server:
    def __init__(self, programs: Mapping[str, Program]) -> None:
        self._programs = programs
        self._selector = selectors.DefaultSelector()
        self._main = _Channel(socket.socket(fileno=os.dup(0)))
        self._running = 0
        self._listen(self._main)

    def run(self) -> NoReturn:
        while True:
            self._serve_one()

    def _serve_one(self) -> None:
        # One event at a time: what it does may be the end of what else is ready.
        for key, _ in self._selector.select()[:1]:
            key.data()

    def _listen(self, channel: _Channel) -> None:
        self._selector.register(channel.connection, selectors.EVENT_READ, lambda: self._asked(channel))

    def _asked(self, channel: _Channel) -> None:
        try:
            program, files, flags, _ = socket.recv_fds(channel.connection, _MESSAGE_BYTES, _MOST_FILES)
        except ConnectionResetError:
            program, files, flags = b"", [], 0
        if flags & socket.MSG_CTRUNC:  # this process has no number left for a descriptor
            for number, file in enumerate(files):
                if number:
                    os.close(file)
                else:
                    _tell(socket.socket(fileno=file), f"!{os.strerror(errno.EMFILE)}")
        elif program:
            self._start(channel, self._programs[os.fsdecode(program)], files)
        elif channel is self._main:
            self._end()
        else:
            self._close(channel)

    def _end(self) -> NoReturn:
        self._close(self._main)
        while self._running:
            self._serve_one()
        os._exit(0)

    def _close(self, channel: _Channel) -> None:
        """Close a channel on which nobody will ask any more, and kill what was asked for on it."""
        if channel.is_open:
            channel.is_open = False
            self._selector.unregister(channel.connection)
            channel.connection.close()
        for running in channel.copies:
            running.kill()

    def _start(self, channel: _Channel, program: Program, files: Sequence[int]) -> None:
        control = socket.socket(fileno=files[0])
        with ExitStack() as theirs:
            for file in files[1:]:
                theirs.callback(os.close, file)
            try:
                ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                theirs.callback(other.close)
                running = _Running(*self._fork(program, other.fileno(), files[1:]), control, channel)
            except OSError as error:
                _tell(control, f"!{error.strerror}")
                return
        channel.copies.add(running)
        self._running += 1
        if program.asks:
            running.own = _Channel(ours)
            self._listen(running.own)
        else:
            ours.close()
        self._selector.register(control, selectors.EVENT_READ, lambda: self._unwanted(running))
        self._selector.register(running.pidfd, selectors.EVENT_READ, lambda: self._ended(running))

    def _fork(self, program: Program, channel: int, files: Sequence[int]) -> tuple[int, int]:
        """Return the number of a new process, and a descriptor of it."""
        server = os.getpid()
        own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if program.pid_namespace:
                _unshare_pids()
            try:
                pid = os.fork()  # noqa: TID251 - this process has one thread
                if pid == 0:
                    try:
                        _become(program, server, channel, files)
                    finally:
                        os._exit(1)
            finally:
                if program.pid_namespace:
                    # There can be no other one while there is one for the next child that is not this process's.
                    libc.setns(own_pids, libc.CloneFlag.NEWPID)
        finally:
            os.close(own_pids)
        try:
            return pid, os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def _unwanted(self, running: _Running) -> None:
        self._selector.unregister(running.control)
        running.is_wanted = False
        running.kill()

    def _ended(self, running: _Running) -> None:
        self._selector.unregister(running.pidfd)
        os.close(running.pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(running.pid, 0)[1])
        if running.own is not None:
            self._close(running.own)  # not waited for: the kernel takes long to tear namespaces down
        if running.is_wanted:
            self._selector.unregister(running.control)
        _tell(running.control, str(status))
        running.owner.copies.discard(running)
        self._running -= 1


def _unshare_pids() -> None:
    """Have the next child be the first process of a PID namespace."""
    try:
        libc.unshare(libc.CloneFlag.NEWPID)
    except KernelCallError as error:
        raise OSError(error.errno, os.strerror(error.errno)) from error


def _tell(control: socket.socket, text: str) -> None:
    with control, suppress(OSError):  # the owner wants to know no more
        control.send(text.encode())


def _become(program: Program, server: int, channel: int, files: Sequence[int]) -> None:
    """Be a copy: the first and only thing in a new process."""
    confine.die_with_parent()
    if not program.pid_namespace and os.getppid() != server:
        return  # the server ended before that
    os.setsid()
    environment, *given = files
    wanted = [*given[:CHANNEL], channel, *given[CHANNEL:]]
    # Away from the numbers that they get: each may have one that another is to have.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, len(wanted)) for fd in (*wanted, environment)]
    with os.fdopen(moved.pop(), "rb") as file:
        file.seek(0)
        pairs = [pair.partition(b"=") for pair in file.read().split(b"\0") if pair]
    for number, fd in enumerate(moved):
        os.dup2(fd, number)
    if not program.asks:
        os.close(CHANNEL)
    os.closerange(len(moved), os.sysconf("SC_OPEN_MAX"))
    os.environb.clear()
    os.environb.update({name: value for name, _, value in pairs})
    try:
        program.main()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the end of this process, and what went wrong is said
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
