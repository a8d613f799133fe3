"""Driving the OCI runtime and conmon, the programs that make and watch containers.

Owns: command lines, conmon's protocol, ExecSync's pipes. Does not own: bundles (``container_executor.py``) or what a
container's state means. Every function blocks; the server calls them on threads.

    conmon ──▶ crun create ──▶ the container's first process, stopped before its program
       │            (exits)
       └── forks, and stays as a child of PID 1: stdout and stderr to the log file, exit code to <run>/exits/<id>
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from podkeep.base import spawn
from podkeep.base.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PodkeepError,
    of_words,
)
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID, HandlerName
from podkeep.cri import transport
from podkeep.kernel.files import openat
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.oci import entering, sealed, working_directory
from podkeep.runtime.oci import exec as exec_
from podkeep.runtime.oci.entering import Enter
from podkeep.runtime.oci.exec import ExecCommand, ExecProcess, ExecStdio
from podkeep.runtime.oci.null_device import open_null

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 120.0
"""How long a call of an OCI runtime may take: as long as a kubelet waits for a request (``runtimeRequestTimeout``)."""
_START_AFTER_END_S = 2.0
"""How long it may take to notice that the first process has ended."""
_LOOK_S = 0.2
"""How often who waits for a container to be created looks whether it is still wanted."""
END_TIMEOUT_S = 5.0
"""How long a conmon may take to end after it has said that there is no container."""
EXEC_OUTPUT_LIMIT = transport.MAX_MESSAGE_BYTES - 64
"""Bytes of both output streams together that ExecSync returns: what one message holds; the rest is dropped."""
EXEC_START_S = 1.0
"""How long the start of a command counts as work: what takes longer waits for something, and keeps no CPU busy. For
so long it is looked whether the command is there."""
_START_LOOK_S = 0.005
"""How often it is looked whether a command is there."""
OWN_OUTPUT_BYTES = 16 * 1024
"""Of them what each output may keep in any case."""
_RUNC_LINE = re.compile(r'time="[^"]*" level=\w+ msg="(.*)"')
_TIME_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z: ")
_REQUESTS_FAULT = re.compile(
    r"executable file .*(not found|not executable|no such file|name too long)"
    r"|exec:? .*: (no such file|permission denied|is a directory)|error closing exec fds: .*/proc/self/fd"
    r"|setgroups.*invalid argument|(open|find) executable|stat .*: no such file or directory: unknown"
    r"|writ(e|ing) .*invalid argument|memory limit (could be )?too low"
    r"|unable to set memory limit|cpuset\.\w+.*(out of range|invalid argument)"
    r"|(mkdir `?|/rootfs)/(proc|sys|dev/mqueue)/.*(operation not permitted|permission denied|no such file)"
    r"|open\w* .*invalid cross-device link"
    r"|chdir .*(permission denied|too many .*symbolic links|no such file or directory)"
    r"|invalid seccomp (action|index|syscall)|seccomp unknown architecture|unknown seccomp (option|flag)"
    r"|get_seccomp_operator|seccomp get operator|seccomp_rule_add"
    r"|string .* is not a valid (action|arch|operator) for seccomp|seccomp flag .* not known",
    re.IGNORECASE,
)
"""What crun and runc say when a container cannot be made as the request wants it.

That is about its program, its limits, its mounts and paths, its working directory or its seccomp profile.
"""
_ENDED = re.compile(r"container .* is not running|stopped container")
"""The same of a command whose container has ended."""
_NO_MOUNT_POINT = re.compile(
    r"(open|mkdir|mknod)\w* .*: read-only file system|open\w* `?\S*/rootfs/.*: no such file or directory", re.IGNORECASE
)
"""What they say when there is nothing to mount on and it cannot be made, as in an image or in files of others."""
_NO_SOURCE = re.compile(
    r"mount `[^`]*` to `[^`]*`: no such file|error mounting .*: mount .*: no such file", re.IGNORECASE
)
"""What they say when what is mounted was removed meanwhile, as a container of the pod may do with a volume's files."""
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class Handler(FrozenStruct, kw_only=True):
    """A runtime handler: the OCI runtime at ``path`` with its state below ``root``, and how it is used."""

    name: HandlerName
    path: str
    root: Path
    options: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    privileged_without_host_devices: bool = False
    is_virtual_machine: bool = False
    """Whether pods are virtual machines; those are given no user namespace (KEP-127, non-goals of the CRI changes)."""

    def passed_annotations(self, *sources: Mapping[str, str]) -> dict[str, str]:
        """Return the annotations that the OCI runtime gets to see; of two with one name that of the later source."""
        return {
            name: value
            for source in sources
            for name, value in source.items()
            if any(fnmatchcase(name, pattern) for pattern in self.annotations)
        }


class Created(FrozenStruct, kw_only=True):
    """A container that was created: its first process and its conmon."""

    process: ProcessId
    monitor: ProcessId


class Stdio(FrozenStruct, kw_only=True):
    """How a container's standard streams are set up.

    ``log``: where output is written, and by which path conmon opens it anew; None: output is dropped.
    """

    log: Path | None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False


class ExecResult(FrozenStruct, kw_only=True):
    """What a command run in a container left."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Allowance:
    """Bytes that several commands may keep together. Used by their threads.

    :param of: what they have in common with others: they are counted there as well.
    """

    def __init__(self, limit: int, of: Allowance | None = None) -> None:
        self._left, self._of = limit, of
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Return how many of ``wanted`` bytes may be kept; they are counted until :meth:`give_back`."""
        with self._lock:
            taken = min(wanted, self._left)
            if self._of is not None:
                taken = self._of.take(taken)
            self._left -= taken
            return taken

    def give_back(self, count: int) -> None:
        with self._lock:
            self._left += count
            if self._of is not None:
                self._of.give_back(count)


class ExecLimits(FrozenStruct, kw_only=True):
    """When a command is killed: ``timeout`` seconds (None: never) after ``since``, or when a ``stops`` is readable.

    ``output`` is what it may keep of its output, with others; what is above it is dropped. ``started`` is called when
    the command is there, unless that takes longer than :data:`EXEC_START_S`.
    """

    timeout: float | None = None
    since: float | None = None
    """On the monotonic clock; None: when it is started."""
    stops: tuple[int, ...] = ()
    started: Callable[[], object] | None = None
    output: Allowance = msgspec.field(default_factory=lambda: Allowance(2 * EXEC_OUTPUT_LIMIT))


class Driver(FrozenStruct, kw_only=True):
    """Makes and ends containers of one runtime handler."""

    handler: Handler
    conmon: str
    systemd_cgroup: bool = False
    """Whether the OCI runtime has systemd make cgroups; ``linux.cgroupsPath`` is ``slice:prefix:name`` then."""

    def launch(self, container: ContainerID, bundle: Path, exits: Path, stdio: Stdio) -> Launch:
        """Start a conmon that will have a container created from its bundle, once it is told to.

        Starting and creating take as long as each other, and what goes into the bundle can be made meanwhile.

        :param bundle: the directory; the configuration may come later.
        """
        # conmon's protocol: by _OCI_SYNCPIPE it says the process ID of the container, or why there is none; it reads
        # _OCI_STARTPIPE before it calls the OCI runtime.
        read_end, write_end = os.pipe()
        told, tell = os.pipe()
        nowhere = os.pipe() if stdio.tty else ()
        held = (read_end, tell, *nowhere)
        copy = sealed.copy(self.handler.path)
        try:
            command = self._command(self.handler.path if copy is None else _inherited(copy))
            if nowhere:
                command = _redirected(command, nowhere[0])
            argv = self._conmon_command(container, bundle, exits, stdio, command)
            inherited = [write_end, told, *nowhere[:1], *([] if copy is None else [copy])]
            # Otherwise conmon takes no path that is not ASCII.
            env = {**_ENVIRONMENT, "LC_ALL": "C.UTF-8", "_OCI_SYNCPIPE": str(write_end), "_OCI_STARTPIPE": str(told)}
            if nowhere:
                # There conmon makes the terminal's socket; in /tmp, a pod that was given /tmp could put its own there.
                env["TMPDIR"] = "."
            # conmon notes that memory ran out in its working directory too, whichever that is.
            # What conmon inherits the OCI runtime inherits: no directory, which a working directory may lead to.
            process = spawn.begin(argv, env=env, cwd=str(bundle), pass_fds=inherited)
        except BaseException:
            for fd in held:
                os.close(fd)
            raise
        finally:
            # The daemon's own would keep the pipe open: its end says that conmon has ended (_read_pid, _await_end).
            os.close(write_end)
            os.close(told)
        return Launch(container=container, bundle=bundle, stdio=stdio, process=process, answer=read_end, held=held)

    def start(self, container: ContainerID, process: ProcessId) -> None:
        """Let a created container run its program.

        An OCI runtime waits for the first process to take its word, also if that was killed meanwhile.

        :param process: the container's first one.
        :raises Internal: with the OCI runtime's words, if it refuses (the program does not exist, for example).
        :raises DeadlineExceeded: if it does not end, or not soon after ``process`` did.
        """
        deadline = time.monotonic() + CALL_TIMEOUT_S
        # A file and no pipe: nobody reads it before the end, and what writes more than a pipe holds would wait.
        outputs = os.memfd_create("start", os.MFD_CLOEXEC)
        try:
            begun = spawn.begin([*self._command(), "start", container], env=_ENVIRONMENT, output=outputs)
            try:
                self._wait_for_start(container, process, begun, deadline)
            except BaseException:
                spawn.kill(begun)
                raise
            done = spawn.finish(begun, timeout=max(deadline - time.monotonic(), 0))
            said = os.pread(outputs, OWN_OUTPUT_BYTES, 0)
        finally:
            os.close(outputs)
        _require_success(done.returncode, "start", said)

    def _wait_for_start(
        self, container: ContainerID, process: ProcessId, begun: subprocess.Popen[bytes], deadline: float
    ) -> None:
        """Wait for the end of ``start``, as long as it can come to one.

        Once the first process has ended, only one that was told to go on has had a program; its OCI runtime may have
        hooks to run yet (OCI runtime-spec: poststart).

        :raises DeadlineExceeded: if the OCI runtime still waits for a process that is gone.
        """
        with ExitStack() as closing:
            end = closing.enter_context(openat.closing(os.pidfd_open(begun.pid)))
            try:
                first = procfs.pidfd_open(process)
            except NotFound:
                ended = True
            else:
                closing.callback(os.close, first)
                ended = first in _ready({first, end}, deadline - time.monotonic())
            fifo = self.handler.root / container / "exec.fifo"
            if ended and not _ready({end}, _START_AFTER_END_S) and fifo.exists():
                raise DeadlineExceeded(f"OCI runtime start of {container} waits for a process that is gone")

    def has_started(self, process: ProcessId) -> bool:
        """Return whether a created container's first process runs its program by now.

        Until then it executes the OCI runtime, of which the kernel shows a copy in memory, the root (for what lies
        outside of the container) or the path. The OCI runtime's own word is not asked for: crun takes a container for
        running as soon as a file in its state is gone.
        """
        program = procfs.executable(process)
        return program not in {"", "/", str(Path(self.handler.path).resolve())} and not program.startswith("/memfd:")

    def delete(self, container: ContainerID) -> None:
        """Remove what the OCI runtime keeps of a container, killing what still runs; a missing one is no error."""
        # A call of the OCI runtime costs a process, and clients stop and remove again and again what is gone.
        if not (self.handler.root / container).exists():
            return
        self._run("delete", "--force", container)

    def create_detached(self, container: ContainerID, bundle: Path) -> ProcessId:
        """Create a container without a conmon; its output is dropped and nobody notes its exit code.

        :raises Internal: with the OCI runtime's words, if it refuses.
        """
        pid_file, log = bundle / "pid", bundle / "create.log"
        argv = [*self._command(), f"--log={log}", "create"]
        argv += ["--bundle", str(bundle), "--pid-file", str(pid_file), container]
        # The container's process keeps the outputs it is given, so the runtime's words are taken from a file.
        null = open_null()
        try:
            done = spawn.run(argv, env=_ENVIRONMENT, timeout=CALL_TIMEOUT_S, output=null)
        finally:
            os.close(null)
        if done.returncode != 0:
            raise create_error(_said(log.read_bytes() if log.exists() else b""))
        return procfs.identify(int(pid_file.read_text()))

    def exec_sync(
        self,
        container: ContainerID,
        bundle: Path,
        process: Mapping[str, Any],
        limits: ExecLimits,
        *,
        checked: Callable[[], bool] = lambda: False,
        enter: Enter | None = None,
    ) -> ExecResult:
        """Run a process in a running container and return its exit code and output.

        :param process: the OCI process.
        :param checked: asked on any thread whether processes outside of the container are in sight there
            (``working_directory.py``).
        :param enter: see :class:`podkeep.runtime.oci.exec.ExecCommand`.
        :raises DeadlineExceeded: if it was killed for taking too long.
        :raises Cancelled: if it was killed because it is not wanted any more.
        :raises FailedPrecondition: if the container has ended meanwhile.
        :raises ResourceExhausted: if it could not be started for want of room on the node.
        :raises Internal: if it could not be started for another reason that is not the request's.
        """
        # Several commands may run in a container at a time.
        token = os.urandom(8).hex()
        spec, pid_file = bundle / f"exec-{token}.json", bundle / f"exec-{token}.pid"
        try:
            exec_.write_process(spec, process)
            argv = [*self._command(), "exec", "--process", str(spec), "--pid-file", str(pid_file), container]
            is_checked, enter = self._check(container, process, checked, enter)
            if not is_checked:
                return _of_command(_run_limited(argv, pid_file, limits, enter), started=pid_file.exists())
            with exec_.Holder(checks=True) as held:
                result = _run_limited(argv, pid_file, limits, held.entered_by(enter))
                started = pid_file.exists()
                held.require_passed(started=started)
                return _of_command(result, started=started)
        finally:
            spec.unlink(missing_ok=True)
            pid_file.unlink(missing_ok=True)

    def exec(
        self,
        container: ContainerID,
        bundle: Path,
        process: Mapping[str, Any],
        *,
        stdio: ExecStdio,
        sockets: Path,
        checked: Callable[[], bool] = lambda: False,
        enter: Enter | None = None,
    ) -> ExecProcess:
        """Start a process in a running container, with streams of its own that the caller reads and writes.

        :param process: the OCI process.
        :param sockets: directory for the socket over which a terminal comes; its path must be short.
        :param checked: asked on any thread whether processes outside of the container are in sight there
            (``working_directory.py``).
        :param enter: see :class:`podkeep.runtime.oci.exec.ExecCommand`.
        :raises Internal: with the OCI runtime's words, if it refuses before a terminal is there.
        :raises DeadlineExceeded: if no terminal comes.
        """
        is_checked, enter = self._check(container, process, checked, enter)
        command = ExecCommand(
            runtime=self._command(),
            container=container,
            process=process,
            files=bundle,
            sockets=sockets,
            environment=_ENVIRONMENT,
            said=_said,
            enter=enter,
            checked=is_checked,
        )
        return exec_.start(command, stdio)

    def _check(
        self, container: ContainerID, process: Mapping[str, Any], checked: Callable[[], bool], enter: Enter | None
    ) -> tuple[bool, Enter | None]:
        """Return whether it is looked at where a command starts, and what its OCI runtime is to enter."""
        if not self._needs_check(process):
            return False, enter
        if checked():
            return True, enter

        def enter_alone(pid: int) -> None:
            # Asked again now that the OCI runtime can be found: who sets up another container there waits for it
            # (strays.await_commands), or has noted that before.
            if checked():
                raise FailedPrecondition(
                    f"another container is made beside {container}, whose processes it sees",
                    hint="run the command again",
                )
            if enter is not None:
                enter(pid)

        return False, enter_alone

    @property
    def looks_at_commands(self) -> bool:
        """Whether it is for podkeep to look where commands start."""
        # In a virtual machine there are no processes of others, and none of it is seen from here.
        return not (
            self.handler.is_virtual_machine or working_directory.looks_itself(sealed.program(self.handler.path))
        )

    @property
    def makes_directories_anywhere(self) -> bool:
        """Whether a working directory that is missing may be made outside of the container."""
        return not self.handler.is_virtual_machine and working_directory.makes_it_anywhere(
            sealed.program(self.handler.path)
        )

    def _needs_check(self, process: Mapping[str, Any]) -> bool:
        return self.looks_at_commands and (process.get("cwd") or "/") != "/"

    def checkpoint_command(self, container: ContainerID, *, images: Path, work: Path) -> list[str]:
        """Return what writes a running container's processes to ``images``, and CRIU's log to ``work``."""
        options = ["--leave-running", "--file-locks", "--image-path", str(images), "--work-path", str(work)]
        return [*self._command(), "checkpoint", *options, container]

    def _command(self, program: str = "") -> list[str]:
        program = program or sealed.command(self.handler.path)
        command = [program, f"--root={self.handler.root}", *self.handler.options]
        return [*command, "--systemd-cgroup"] if self.systemd_cgroup else command

    def _run(self, *arguments: str) -> None:
        done = spawn.run([*self._command(), *arguments], env=_ENVIRONMENT, timeout=CALL_TIMEOUT_S)
        _require_success(done.returncode, arguments[0], done.stderr)

    def _conmon_command(
        self, container: ContainerID, bundle: Path, exits: Path, stdio: Stdio, command: Sequence[str]
    ) -> list[str]:
        runtime, *arguments = command
        argv = [
            self.conmon,
            *("--cid", container, "--cuuid", container, "--name", container[:12]),
            *("--bundle", str(bundle), "--runtime", runtime),
            *(part for argument in arguments for part in ("--runtime-arg", argument)),
            *("--container-pidfile", str(bundle / "pid"), "--conmon-pidfile", str(bundle / "conmon.pid")),
            *("--exit-dir", str(exits), "--persist-dir", str(bundle), "--socket-dir-path", str(bundle)),
            *("--log-path", "none" if stdio.log is None else str(stdio.log)),
            # --full-attach: the socket is <bundle>/attach, not a name that is cut short. --no-sync-log: no sync of the
            # log at the container's end.
            *("--log-level", "warning", "--full-attach", "--no-sync-log"),
        ]
        if stdio.stdin or _has_closed_stdin(stdio):
            argv.append("--stdin")
        if stdio.stdin and not stdio.stdin_once:
            argv.append("--leave-stdin-open")
        if stdio.tty:
            argv.append("--terminal")
        return argv


def _require_success(returncode: int, command: str, stderr: bytes) -> None:
    if returncode != 0:
        said = _said(stderr)
        raise (of_words(said) or Internal)(f"OCI runtime {command} failed: {said}")


class Launch:
    """A conmon that waits to be told to have its container created. It is told, or ended, by whoever launched it."""

    def __init__(
        self,
        *,
        container: ContainerID,
        bundle: Path,
        stdio: Stdio,
        process: subprocess.Popen[bytes],
        answer: int,
        held: tuple[int, ...],
    ) -> None:
        """Use a running conmon.

        :param process: the conmon that was executed. It ends when it has forked the conmon that stays.
        :param answer: where conmon writes the process ID.
        :param held: descriptors to be closed with this: ``answer``, the one by which conmon is told to begin, others.
        """
        self._container = container
        self._bundle = bundle
        self._stdio = stdio
        self._launcher = process
        self._answer = answer
        self._held = list(held)

    def create(self, given_up: threading.Event) -> Created:
        """Have the container created, once.

        Whatever is raised, conmon and what it has started may still be at work: the caller ends them.

        :param given_up: set by another thread when the container is not wanted any more.
        :raises Internal: with the OCI runtime's own words, if it refuses.
        :raises DeadlineExceeded: if it does not answer.
        :raises Cancelled: if it was given up before there was an answer.
        """
        try:
            with suppress(BrokenPipeError):  # it ended, and said why
                os.write(self._held[1], b"\n")
            # The process that was started forks the conmon that stays, and ends: it is reaped here.
            spawn.finish(self._launcher, timeout=CALL_TIMEOUT_S).check()
            pid = self._read_pid(given_up)
        finally:
            self.close()
        if _has_closed_stdin(self._stdio):
            _close_stdin(self._bundle)
        monitor = int((self._bundle / "conmon.pid").read_text())
        return Created(process=procfs.identify(pid), monitor=procfs.identify(monitor))

    def close(self) -> None:
        """End a conmon that was not told; safe to repeat."""
        # First of all: to one that reads it, the end of the pipe is the same as being told.
        with self._launcher as process:
            if process.poll() is None:
                process.kill()
        while self._held:
            os.close(self._held.pop())

    def _read_pid(self, given_up: threading.Event) -> int:
        """Read conmon's answer: a JSON line with the process ID, or -1 and a message.

        It need not come: in a pod with ``shareProcessNamespace`` other containers may stop (SIGSTOP) the process that
        sets this one up.
        """
        deadline, data = time.monotonic() + CALL_TIMEOUT_S, b""
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            # Again and again, for a thread cannot wait for a descriptor and for given_up at once.
            if not _readable(self._answer, min(left, _LOOK_S)):
                if given_up.is_set():
                    raise Cancelled(f"the creation of container {self._container} was given up")
                if left <= 0:
                    raise DeadlineExceeded(
                        f"OCI runtime create of {self._container} took longer than {CALL_TIMEOUT_S:g} s"
                    )
                continue
            chunk = os.read(self._answer, 65536)
            if not chunk:
                break
            data += chunk
        try:
            # An OCI runtime cuts its words after so many bytes, also in the middle of a letter.
            answer = json.loads(data.decode(errors="replace"))
        except ValueError as error:
            raise Internal(
                f"OCI runtime create failed: conmon ended without an answer (it said {data!r})",
                hint="conmon says nothing of it; the kernel's log tells if memory ran out",
            ) from error
        pid = int(answer.get("pid", answer.get("data", -1)))
        if pid <= 0:
            # conmon answers before it ends, and is no child of this process: without the wait one would be left after
            # the answer.
            self._await_end()
            raise create_error(_said(str(answer.get("message", "")).encode()))
        return pid

    def _await_end(self) -> None:
        """Wait until a conmon that has nothing to watch has ended, which is no child of this process."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while (left := deadline - time.monotonic()) > 0 and _readable(self._answer, left):
            if not os.read(self._answer, 65536):
                return
        log.warning("conmon of container %s did not end within %g s of its answer", self._container, END_TIMEOUT_S)


def create_error(said: str) -> PodkeepError:
    """Return the error for a container that the OCI runtime could not create, from its message on one line."""
    message = f"OCI runtime create failed: {said}"
    if _NO_MOUNT_POINT.search(said):
        hint = "a mount in a volume that its pod cannot write to needs a file or directory there to be mounted on"
        return FailedPrecondition(message, hint=hint)
    if _NO_SOURCE.search(said):
        hint = "what is mounted there was removed meanwhile, as a container of the pod may do in its volumes"
        return FailedPrecondition(message, hint=hint)
    kind = _kind_of(said)
    return kind(message)


def _redirected(command: list[str], pipe: int) -> list[str]:
    """Return a command that runs ``command`` with a pipe as standard input and output; errors stay conmon's pipe.

    For a container with a terminal conmon gives the OCI runtime the machine's /dev/null. See ``null_device.py``. A null
    device of our own would not do, for crun exchanges it for what is at /dev/null in the container, and gives that to
    the container's user: where the machine's /dev is mounted, the machine's. TMPDIR is conmon's alone.
    """
    path = _inherited(pipe)
    return ["/bin/sh", "-c", f'unset TMPDIR; exec "$0" "$@" <{path} >{path}', *command]


def _inherited(fd: int) -> str:
    """Return the path by which a process finds what it inherited; why not by the daemon's ID: see ``sealed.py``."""
    return f"/proc/self/fd/{fd}"


def _has_closed_stdin(stdio: Stdio) -> bool:
    """Return whether a container reads nothing: it gets a pipe that is closed, and not conmon's /dev/null.

    See ``null_device.py`` for why.
    """
    return not stdio.stdin and not stdio.tty


def _close_stdin(bundle: Path) -> None:
    """Have conmon close its end of a container's standard input, as it does when a client that attached goes.

    :raises Internal: if conmon does not listen.
    """
    directory = os.open(bundle, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as client:
            # The path of a socket has at most 107 bytes.
            client.connect(f"/proc/self/fd/{directory}/attach")
    except OSError as error:
        raise Internal(f"conmon does not listen at {bundle}/attach: {error}") from error
    finally:
        os.close(directory)


def _said(stderr: bytes) -> str:
    """Return an OCI runtime's message on one line, without what some put around it: time stamps, runc's log fields."""
    lines = []
    for line in stderr.decode(errors="replace").splitlines():
        fields = _RUNC_LINE.fullmatch(line)
        lines.append(fields[1].replace('\\"', '"') if fields else _TIME_STAMP.sub("", line).strip())
    return "; ".join(dict.fromkeys(filter(None, lines))) or "it said nothing"


def _run_limited(argv: list[str], pid_file: Path, limits: ExecLimits, enter: Enter | None) -> ExecResult:
    """Run ``argv`` with bounded memory; the command inside is killed with all that it started when time is up."""
    if any(_readable(stop, 0) for stop in limits.stops):
        raise _stopped()  # it waited for a thread
    null = open_null()
    try:
        process = entering.popen(
            argv,
            enter,
            stdin=null,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            # A group of its own, which kill_command ends as a whole.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NotFound(f"cannot run {argv[0]}: {error}", hint="`podkeep doctor` lists what podkeep needs") from error
    finally:
        os.close(null)
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = {stream.fileno(): Output(limits.output) for stream in (process.stdout, process.stderr)}
    stdout, stderr = outputs.values()
    pidfd = -1
    try:
        try:
            pidfd = os.pidfd_open(process.pid)
            _pump(outputs, pidfd, limits, pid_file)
        finally:
            # Whatever happened here, as that there is no descriptor: what was started is not left.
            if not (ended := pidfd >= 0 and _readable(pidfd, 0)):
                exec_.kill_command(process, pid_file)
        if not ended:
            if any(_readable(stop, 0) for stop in limits.stops):
                raise _stopped()
            raise DeadlineExceeded(f"the command did not finish within {limits.timeout:g} s and was killed")
    finally:
        if pidfd >= 0:
            os.close(pidfd)
        process.stdout.close()
        process.stderr.close()
        with suppress(DeadlineExceeded):  # one that does not end was killed, and its caller is told so
            exec_.wait(process)
        for output in outputs.values():
            output.give_back()
    # As a shell has it: 128 and the number of the signal.
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    room, errors_room = share(len(stdout.kept), len(stderr.kept))
    return ExecResult(exit_code=code, stdout=bytes(stdout.kept[:room]), stderr=bytes(stderr.kept[:errors_room]))


def _kind_of(said: str) -> type[PodkeepError]:
    """Return the error that the OCI runtime's words are: whose fault it is that something was not started."""
    return InvalidArgument if _REQUESTS_FAULT.search(said) else of_words(said) or Internal


def _of_command(result: ExecResult, *, started: bool) -> ExecResult:
    """Return what a command came to, which the OCI runtime had ``started`` or not.

    Without it the exit status is that of a refusal. If that is for what was asked for, as a program that is not there,
    it is the command's. If it is for what the node lacks, nothing is known of the container, which a liveness probe
    must not end for it.

    :raises FailedPrecondition: if the container has ended meanwhile.
    :raises ResourceExhausted: if there is no room on the node.
    :raises Internal: if the OCI runtime failed for another reason that is not the request's.
    """
    if started or result.exit_code == 0:
        return result
    said = _said(result.stderr)
    kind = _kind_of(said)
    if kind is InvalidArgument:
        return result
    if _ENDED.search(said):
        kind = FailedPrecondition
    raise kind(f"OCI runtime exec failed: {said}")


def _stopped() -> Cancelled:
    return Cancelled("the command was killed: its caller gave up, or the runtime stops", hint="run it again")


def share(first: int, second: int, limit: int = EXEC_OUTPUT_LIMIT) -> tuple[int, int]:
    """Return how many bytes of two outputs are kept: all, or of the longer one what the shorter one leaves of a limit.

    Each has a right to half of it, so that a flood on one does not drown a message on the other.
    """
    if first + second <= limit:
        return first, second
    half = limit // 2
    if first <= second:
        return min(first, half), limit - min(first, half)
    return limit - min(second, half), min(second, half)


class Output:
    """What is kept of one output: always a little, more as far as it is allowed."""

    def __init__(self, allowance: Allowance) -> None:
        self.kept = bytearray()
        self._allowance, self._taken = allowance, 0

    def add(self, data: bytes) -> None:
        """Keep what fits, and drop the rest."""
        data = data[: EXEC_OUTPUT_LIMIT - len(self.kept)]
        missing = len(self.kept) + len(data) - OWN_OUTPUT_BYTES - self._taken
        if missing > 0:
            taken = self._allowance.take(missing)
            self._taken += taken
            data = data[: len(data) - (missing - taken)]
        self.kept += data

    def give_back(self) -> None:
        """Give back what was taken of the allowance."""
        self._allowance.give_back(self._taken)
        self._taken = 0


def _pump(outputs: dict[int, Output], pidfd: int, limits: ExecLimits, pid_file: Path | None = None) -> None:
    """Read both outputs until the program ended, time is up or it shall stop; tell when ``pid_file`` is there.

    What a process left behind in the container writes later is not waited for. Nor is what was there a moment ago: who
    has one end of a pipe can open the other (/proc/self/fd/1), and read what was written.
    """
    for fd in outputs:
        os.set_blocking(fd, False)
    poll = select.poll()
    for fd in (*outputs, pidfd, *limits.stops):
        poll.register(fd, select.POLLIN)
    since = time.monotonic() if limits.since is None else limits.since
    deadline = None if limits.timeout is None else since + limits.timeout
    open_fds, ended = set(outputs), False
    starts_until = None if limits.started is None or pid_file is None else time.monotonic() + EXEC_START_S
    while not ended and (deadline is None or time.monotonic() < deadline):
        remaining = None if deadline is None else deadline - time.monotonic()
        if starts_until is not None:
            assert limits.started is not None
            assert pid_file is not None
            if pid_file.exists():
                limits.started()
                starts_until = None
            elif time.monotonic() >= starts_until:
                starts_until = None
            else:
                remaining = _START_LOOK_S if remaining is None else min(remaining, _START_LOOK_S)
        ready = {fd for fd, _ in poll.poll(spawn.poll_timeout(remaining))}
        ended = pidfd in ready or not ready.isdisjoint(limits.stops)
        for fd in open_fds & ready:
            if _take(fd, outputs[fd]) == 0:
                poll.unregister(fd)
                open_fds.discard(fd)
    for fd in open_fds:
        # What the program wrote last is in the pipe. What others go on writing is not: hence no more than a pipe holds.
        left = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
        while left > 0 and (taken := _take(fd, outputs[fd])):
            left -= taken


def _take(fd: int, output: Output) -> int | None:
    """Read once, keep what fits, and return how many bytes came; 0 at the end, None if there is nothing yet."""
    try:
        chunk = os.read(fd, 65536)
    except BlockingIOError:
        return None
    output.add(chunk)
    return len(chunk)


def _readable(fd: int, seconds: float) -> bool:
    return bool(_ready({fd}, seconds))


def _ready(fds: set[int], seconds: float) -> set[int]:
    """Wait until one of the descriptors is readable, and return those that are; empty when the time is over.

    Unlike select(2), poll(2) takes descriptors above 1023, and a busy daemon has these.
    """
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(spawn.poll_timeout(max(seconds, 0)))}
