"""A command in a running container whose streams stay open: started by the OCI runtime, with pipes or a terminal.

Owns: the OCI runtime's ``exec``, the terminal's way to us, and killing a command with everything it started. Does not
own: who reads and writes the streams (``runtime/streaming/``) or ExecSync (``driver.py``). Every function blocks.

The OCI runtime is the command's parent and waits for it: its exit status is the command's.

A command's terminal is opened in the container, where /dev/ptmx may be a file of FUSE: what closes that waits for its
server, whatever signal comes (fs/fuse/file.c, fuse_flush). So a process of its own takes what the OCI runtime sends,
and gives the daemon nothing but a terminal of the kernel; and no wait for such a process is without an end.

A terminal of the kernel can be locked as well: a process that reads or writes it, or asks for its size, with memory of
a file of FUSE holds a lock of it until that file's server answers. The last close of the master (tty_ldisc_hangup) and
a new size (tiocswinsz) wait for these locks, whatever signal comes. So another process holds each terminal until the
daemon has closed it, and each size is set by a process of its own.

The first size is the OCI runtime's to set. crun does so beside the command that it has started already (its
``libcrun_container_exec``, up to 1.29 at least), and every third command was there before its size. So the command is
stopped before its first instruction until the terminal has come, which crun sends after it has set the size.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from msgspec import structs

from podkeep.base import spawn
from podkeep.base.backoff import doubling
from podkeep.base.errors import DeadlineExceeded, FailedPrecondition, Internal, KernelCallError, NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.process import holder, process_tree, procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.oci import entering, working_directory
from podkeep.runtime.oci.entering import Enter
from podkeep.runtime.oci.null_device import open_null

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""How long an OCI runtime may take until a command has its terminal."""
KILL_TIMEOUT_S = 2.0
"""How long a killed command may take to be gone, and after it the OCI runtime."""
LONGEST_KILL_S = 10.0
"""How long a command is followed that starts more while it is killed."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_RECEIVER = """\
import _socket, posix, sys
def take(channel):
    for _, _, data in channel.recvmsg(4096, _socket.CMSG_SPACE(4))[1]:
        return int.from_bytes(data, sys.byteorder)
    posix._exit(1)
channel = _socket.socket(fileno=0)
terminal = take(_socket.socket(fileno=take(channel)))
found = posix.fstat(terminal)
if (found.st_mode & 0o170000, found.st_rdev) == (0o020000, 0x502):
    rights = _socket.SOL_SOCKET, _socket.SCM_RIGHTS, terminal.to_bytes(4, sys.byteorder)
    channel.sendmsg([b"t"], [rights])
    channel.recv(1)
posix._exit(0)
"""
"""Takes a descriptor from the socket that it is given, and passes it on if it is the kernel's device 5:2, ptmx: of a
file of FUSE the kernel believes no other type than the one that was opened. It holds it as long as the socket is open.
It imports only what is built in.
"""
_KEEPER = "read told || exec sleep 10"
"""Holds a terminal until it is told that the daemon has closed it, or for so long after the daemon's end that the
kernel has closed what that had open.
"""
_RESIZER = """\
import fcntl, struct, sys, termios
try:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", int(sys.argv[2]), int(sys.argv[1]), 0, 0))
except OSError:
    pass
"""
"""Sets the size of the terminal that is its input; one whose other side is gone is no error (ioctl_tty(2))."""


class ExecStdio(FrozenStruct, kw_only=True):
    """Which streams a command gets; the others are /dev/null. With ``tty`` all three are one terminal."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


class ExecCommand(FrozenStruct, kw_only=True):
    """How to start a command.

    :param runtime: the OCI runtime's command line up to its options.
    :param process: the OCI process, without ``terminal``.
    :param files: directory for the files that the OCI runtime wants.
    :param sockets: directory with a short path, for the socket over which a terminal comes: ``sun_path`` is short.
    :param said: makes an error's text of the OCI runtime's messages.
    :param enter: puts the OCI runtime, and so the command, where the cgroup does not bring it.
    :param checked: the command is ended before its program is executed if it would start outside of its container.
    """

    runtime: Sequence[str]
    container: str
    process: Mapping[str, Any]
    files: Path
    sockets: Path
    environment: Mapping[str, str]
    said: Callable[[bytes], str]
    enter: Enter | None = None
    checked: bool = False


@dataclass(kw_only=True)
class ExecProcess:
    """A running command. The descriptors are the caller's, -1 if there is none; ``terminal`` is the master's side."""

    runtime: subprocess.Popen[bytes]
    command: ExecCommand
    token: str
    stdin: int = -1
    stdout: int = -1
    stderr: int = -1
    terminal: int = -1
    keeper: subprocess.Popen[bytes] | None = None
    """Holds the terminal, so that the daemon's descriptor is not the last one when it is closed."""
    relayed: bool = False
    """The terminal is one in front of the command's, and the OCI runtime passes on what comes."""
    _is_locked: bool = field(default=False, init=False)
    """Whether the terminal's size could not be set in time: it is not tried again."""

    def keep_terminal(self) -> None:
        """Have a process hold the terminal until :meth:`finish`."""
        argv = ["/bin/sh", "-c", _KEEPER]
        self.keeper = spawn.start(argv, stdin=subprocess.PIPE, pass_fds=(self.terminal,))

    def kill(self) -> None:
        """Kill the command, its session and its descendants, and wait until they are gone or time is up."""
        kill_command(self.runtime, self._path("pid"))

    def finish(self) -> int:
        """Wait for an OCI runtime that ended or was killed, remove its files, and return the command's exit code.

        The caller has closed the descriptors.

        :raises Internal: with the OCI runtime's words, if the command never ran.
        :raises DeadlineExceeded: if it does not end.
        """
        try:
            self._release_terminal()
            code = wait(self.runtime)
        except BaseException:
            self._remove_files()
            raise
        try:
            # The OCI runtime writes that file when the command is there; without it the exit status is that of a
            # refusal.
            started = self._path("pid").exists()
            words = b"" if started else self._path("log").read_bytes()
        except OSError:
            words = b""
        self._remove_files()
        if not started and code != 0:
            raise Internal(f"OCI runtime exec failed: {self.command.said(words)}")
        return code if code >= 0 else 128 - code

    def discard(self) -> None:
        """Close the descriptors and end the command, whose caller has gone."""
        for fd in (self.stdin, self.stdout, self.stderr, self.terminal):
            if fd >= 0:
                os.close(fd)
        self.kill()
        with suppress(PodkeepError):  # that it never ran: its caller has gone
            self.finish()

    def resize(self, width: int, height: int) -> None:
        """Tell the terminal its size, in characters. A size that cannot be set is no error, but logged."""
        if self._is_locked:
            return
        try:
            process = spawn.start(
                [sys.executable, "-I", "-S", "-c", _RESIZER, str(width), str(height)], stdin=self.terminal
            )
            process.wait(KILL_TIMEOUT_S)
        except (OSError, PodkeepError) as error:
            log.warning("a terminal in container %s keeps its size: %s", self.command.container, error)
            return
        except subprocess.TimeoutExpired:
            self._is_locked = True
            process.kill()
            log.warning("a terminal in container %s keeps its size: something there holds it", self.command.container)
            return
        if self.relayed:
            # It is not this terminal's session leader, so the kernel does not tell it.
            self.runtime.send_signal(signal.SIGWINCH)

    def _path(self, kind: str) -> Path:
        return self.command.files / f"exec-{self.token}.{kind}"

    def _release_terminal(self) -> None:
        if self.keeper is None:
            return
        assert self.keeper.stdin is not None
        with self.keeper.stdin as told, suppress(BrokenPipeError):
            told.write(b"\n")
            told.flush()
        with suppress(DeadlineExceeded):  # it waits for the terminal, in the daemon's place
            wait(self.keeper)

    def _remove_files(self) -> None:
        for kind in ("json", "pid", "log"):
            self._path(kind).unlink(missing_ok=True)


class _NoConsoleSocket(Exception):
    """The OCI runtime ended before it sent a terminal."""


def set_terminal_size(terminal: int, width: int, height: int) -> None:
    """Set the size of a terminal that no container has yet (ioctl_tty(2), TIOCSWINSZ)."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


def write_process(path: Path, process: Mapping[str, Any]) -> None:
    """Write an OCI process into a new file that only root may read, from its beginning: it has the environment.

    :raises NotFound: if the container's directory, where it belongs, was removed.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise NotFound("the container was removed meanwhile") from error
    with os.fdopen(fd, "w") as file:
        json.dump(process, file)


def start(command: ExecCommand, stdio: ExecStdio) -> ExecProcess:
    """Start a command.

    :raises Internal: with the OCI runtime's words, if it refuses before a terminal is there.
    :raises NotFound: if the OCI runtime is not there.
    :raises DeadlineExceeded: if no terminal comes.
    """
    token = os.urandom(8).hex()
    spec, log, pid_file = (command.files / f"exec-{token}.{kind}" for kind in ("json", "log", "pid"))
    argv = [*command.runtime, f"--log={log}", "exec", "--process", str(spec), "--pid-file", str(pid_file)]
    with ExitStack() as undo:
        undo.callback(spec.unlink, missing_ok=True)
        write_process(spec, {**command.process, "terminal": stdio.tty})
        if stdio.tty:
            process = _start_with_terminal(command, argv, token)
        else:
            process = _start_with_pipes(command, argv, token, stdio)
        # From here on the files are the running command's, whose finish() removes them.
        undo.pop_all()
    return process


def _start_with_pipes(command: ExecCommand, argv: list[str], token: str, stdio: ExecStdio) -> ExecProcess:
    with _held(command, holds=False) as (entered, await_check):
        popen = _popen(entered, [*argv, command.container], stdio)
        streams = {"stdin": popen.stdin, "stdout": popen.stdout, "stderr": popen.stderr}
        process = ExecProcess(runtime=popen, command=command, token=token)
        try:
            # Taken out of Popen's hands: it would close them when it is collected.
            for name, stream in streams.items():
                if stream is not None:
                    setattr(process, name, os.dup(stream.fileno()))
            await_check(popen)
        except BaseException:
            process.discard()
            raise
        finally:
            for stream in filter(None, streams.values()):
                stream.close()
    return process


def _start_with_terminal(command: ExecCommand, argv: list[str], token: str) -> ExecProcess:
    path = command.sockets / token
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener,
        _Receiver() as receiver,
        # Without a size there is nothing to wait for.
        _held(command, holds="consoleSize" in command.process) as (entered, await_check),
    ):
        listener.bind(str(path))
        try:
            listener.listen(1)
            console = ["--tty", "--console-socket", str(path), command.container]
            popen = _popen(entered, [*argv, *console], ExecStdio())
            process = ExecProcess(runtime=popen, command=command, token=token)
            try:
                process.terminal = _receive_terminal(listener, receiver, process.runtime)
                await_check(popen)
                process.keep_terminal()
            except _NoConsoleSocket:
                wait(process.runtime)
                return _start_with_relay(command, [*argv, "--tty", command.container], token)
            except BaseException:
                process.discard()
                raise
        finally:
            path.unlink(missing_ok=True)
    return process


def _start_with_relay(command: ExecCommand, argv: list[str], token: str) -> ExecProcess:
    """Start a command under an OCI runtime that sends a terminal only if it may leave the command alone (runc).

    Nobody would learn the exit code then. Instead it gets a terminal of ours, makes the command's, and passes on.
    """
    master, slave = os.openpty()
    with _held(command, holds=False) as (entered, await_check):
        try:
            if size := command.process.get("consoleSize"):
                # By the daemon itself, unlike resize(): no container has this terminal open yet, so nobody can hold its
                # lock.
                set_terminal_size(master, size["width"], size["height"])
            popen = entering.popen(
                argv,
                entered.enter,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=dict(command.environment),
                # A group of its own, which kill_command ends as a whole.
                start_new_session=True,
            )
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        process = ExecProcess(runtime=popen, command=command, token=token, terminal=master, relayed=True)
        try:
            await_check(popen)
            process.keep_terminal()
        except BaseException:
            process.discard()
            raise
    return process


def _popen(command: ExecCommand, argv: list[str], stdio: ExecStdio) -> subprocess.Popen[bytes]:
    null = open_null()

    def end(wanted: bool) -> int:
        return subprocess.PIPE if wanted else null

    try:
        return entering.popen(
            argv,
            command.enter,
            stdin=end(stdio.stdin),
            stdout=end(stdio.stdout),
            stderr=end(stdio.stderr),
            bufsize=0,
            env=dict(command.environment),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NotFound(f"cannot run {argv[0]}: {error}", hint="`podkeep doctor` lists what podkeep needs") from error
    finally:
        os.close(null)


class _Helper:
    """A process of ours with a channel to it, which is its standard input; it is killed at the end."""

    def __init__(self, *program: str) -> None:
        self.channel, theirs = socket.socketpair()
        with theirs:
            try:
                # With -I and -S nothing is imported from the working directory, the environment or site-packages.
                self._process = spawn.start([sys.executable, "-I", "-S", *program], stdin=theirs.fileno())
            except BaseException:
                self.channel.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self._process.kill()
        with suppress(DeadlineExceeded):  # it has what is no terminal
            wait(self._process)


class Holder(_Helper):
    """A process that keeps a command from its first instruction.

    :param holds: its end lets a command with a terminal go on.
    :param checks: it ends a command that starts outside of its container (``working_directory.py``).
    """

    def __init__(self, *, holds: bool = False, checks: bool = False) -> None:
        super().__init__(holder.__file__)
        self._checks = checks
        self._wanted = " ".join(["hold"] * holds + ["check"] * checks)

    def entered_by(self, enter: Enter | None) -> Enter:
        """Return what the OCI runtime is to enter, beside what it enters anyway, so that its command is held."""

        def enter_and_hold(pid: int) -> None:
            if enter is not None:
                enter(pid)
            self.channel.settimeout(START_TIMEOUT_S)
            traced = b""
            # It ends without an answer where it may not trace: the command may then see its terminal without a size.
            with suppress(OSError):
                self.channel.sendall(f"{pid} {self._wanted}".encode())
                traced = self.channel.recv(1)
            if self._checks and not traced:
                raise FailedPrecondition(
                    "where a command starts cannot be checked: the runtime may not trace processes here",
                    hint="give the container / as its working directory, or a process namespace of its own",
                )

        return enter_and_hold

    def await_check(self, runtime: subprocess.Popen[bytes]) -> None:
        """Wait until the command was checked, if it is to be, or the OCI runtime has ended without it.

        :raises FailedPrecondition: if it started outside of its container, and was ended.
        :raises DeadlineExceeded: if it does not start.
        :raises Internal: if nothing is known of it.
        """
        if not self._checks:
            return
        try:
            said = self.channel.recv(1)
        except TimeoutError as error:
            raise DeadlineExceeded("the command does not start") from error
        if not said:
            with suppress(subprocess.TimeoutExpired):
                runtime.wait(KILL_TIMEOUT_S)
        _require_passed(said, started=runtime.returncode is None)

    def require_passed(self, *, started: bool) -> None:
        """Say what became of the check when the OCI runtime has ended, which had ``started`` the command or not.

        :raises FailedPrecondition: if it started outside of its container, and was ended.
        :raises Internal: if nothing is known of it.
        """
        self.channel.settimeout(0)
        said = b""
        with suppress(BlockingIOError):
            said = self.channel.recv(1)
        _require_passed(said, started=started)


def _require_passed(said: bytes, *, started: bool) -> None:
    if said == b"x":
        raise working_directory.outside("the command's")
    if not said and started:
        raise Internal("the process that checks where a command starts ended", hint="look for an OOM kill")


@contextmanager
def _held(
    command: ExecCommand, *, holds: bool
) -> Iterator[tuple[ExecCommand, Callable[[subprocess.Popen[bytes]], None]]]:
    """Yield the command as it is to be started, and what to wait with for its check: see :class:`Holder`."""
    if not (holds or command.checked):
        yield command, lambda _: None
        return
    with Holder(holds=holds, checks=command.checked) as held:
        yield structs.replace(command, enter=held.entered_by(command.enter)), held.await_check


class _Receiver(_Helper):
    """A process that takes a descriptor which the daemon must not have before it is known to be a terminal."""

    def __init__(self) -> None:
        super().__init__("-c", _RECEIVER)

    def take_from(self, connection: socket.socket) -> None:
        """Have the next descriptor that comes through a connection received; the answer comes through the channel."""
        try:
            socket.send_fds(self.channel, [b"c"], [connection.fileno()])
        except OSError as error:
            raise _receiver_ended(error) from error

    def answer(self) -> int:
        """Return the terminal that it received.

        :raises Internal: if it was none, or the process ended.
        """
        try:
            _, fds, _, _ = socket.recv_fds(self.channel, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise _receiver_ended(error) from error
        if not fds:
            raise Internal(
                "OCI runtime exec failed: it sent no terminal", hint="look at what the container has at /dev/ptmx"
            )
        return fds[0]


def _receiver_ended(error: OSError) -> Internal:
    return Internal(f"the process that takes the terminal of a command ended: {error}", hint="look for an OOM kill")


def wait(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a process that ended or was killed (negative: the signal).

    :raises DeadlineExceeded: if it has not ended in :data:`KILL_TIMEOUT_S`: it has a file of a container open. It is
        reaped when it has, by a later start of a program (``subprocess._cleanup``).
    """
    try:
        return process.wait(KILL_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(
            f"process {process.pid} was killed and did not end within {KILL_TIMEOUT_S:g} s",
            hint="it waits for a file of a container; remove the pod",
        ) from error


def _receive_terminal(listener: socket.socket, receiver: _Receiver, popen: subprocess.Popen[bytes]) -> int:
    """Return the master's side of the terminal that the OCI runtime sends (OCI runtime-spec, --console-socket)."""
    pidfd = os.pidfd_open(popen.pid)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        came = False
        while True:
            poll = select.poll()
            poll.register(receiver.channel if came else listener, select.POLLIN)
            # An OCI runtime may end as soon as it has sent the terminal; from then on the receiver's answer decides.
            if not came:
                poll.register(pidfd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(max(deadline - time.monotonic(), 0) * 1000)}
            if receiver.channel.fileno() in ready:
                return receiver.answer()
            if listener.fileno() in ready:
                with listener.accept()[0] as connection:
                    receiver.take_from(connection)
                came = True
            elif pidfd in ready:
                raise _NoConsoleSocket
            elif not ready:
                raise DeadlineExceeded(f"OCI runtime exec: no terminal came within {START_TIMEOUT_S:g} s")
    finally:
        os.close(pidfd)


def kill_command(runtime: subprocess.Popen[bytes], pid_file: Path) -> None:
    """Kill a command that an OCI runtime started and waits for; that ends by itself then, and is killed if it does not.

    What goes with it are its session, so also the jobs of an interactive shell, and its descendants. A process that
    left both (a daemon) stays, as after the end of a login, and so does the command of an OCI runtime that has ended
    before: its number may be somebody else's.
    """
    begun = grown = time.monotonic()
    killed: set[ProcessId] = set()
    command: set[int] = set()
    # Kept from look to look: its leader may be gone at the next one, and its jobs not.
    sessions: set[int] = set()
    known: set[ProcessId] = set()
    pauses = doubling(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while time.monotonic() - begun < LONGEST_KILL_S and time.monotonic() - grown < KILL_TIMEOUT_S:
        # Until the PID file is there, the command is found among the descendants of the OCI runtime.
        roots = {runtime.pid} if runtime.poll() is None else set()
        with suppress(OSError, ValueError, NotFound):
            if roots and not command:
                process = procfs.identify(int(pid_file.read_text()))
                # The OCI runtime waits for it, and the ID may be somebody else's then.
                known.add(process)
                command.add(process.pid)
                sessions.add(os.getsid(process.pid))
                known.update(procfs.identify(leader) for leader in sessions)
        found = True
        # If no descriptor is left they are looked for again, as long as there is time.
        with suppress(OSError, KernelCallError):
            tree = process_tree.kill(roots | command, sessions, known, spare=runtime.pid)
            found = bool(tree)
            if not tree <= killed:
                grown = time.monotonic()
                killed |= tree
        if not found and runtime.poll() is not None:
            return
        time.sleep(pauses.next())
    # Only now: while the OCI runtime lives, the command is reaped at once. The number of one that was waited for may be
    # another's.
    if runtime.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(runtime.pid, signal.SIGKILL)
