"""Processes as /proc shows them, identified so that a reused process ID is not mistaken for the old process.

Owns: process identity (ID and start time), signals through pidfds, searches in /proc, the capabilities that this
process may hand out, and the boot ID. Does not own: cgroups.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import Internal, KernelCallError, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import printable
from podkeep.kernel import libc
from podkeep.kernel.tables import lines, read_text

_PROC = Path("/proc")
_COMMAND_LINE_BYTES = 64 << 10
"""Of a command line that are looked at; those of conmon and an OCI runtime have less than 4 KiB."""
_OWN_NAMESPACES = ("pid", "user", "mnt")
MAX_DESCRIPTORS = 1024
_EXECUTING_S = 1.0
"""How long a program that is executed may take to have its arguments."""
_EXECUTING_PAUSE_S = 0.001
_MOST_EXECUTED = 5
"""How often a process without arguments is looked at again that has executed its program: it may execute the next one
by then. One that has none at all (prctl(2), PR_SET_MM_MAP) is known by that.
"""
_STATE, _PARENT, _SESSION, _THREADS, _START_TIME, _ENVIRONMENT_END = 0, 1, 3, 17, 19, 48
"""Positions in /proc/<pid>/stat after the command name: fields 3, 4, 6, 20, 22 and 51 of proc_pid_stat(5)."""

_ENDED = frozenset({"Z", "X"})
"""States of what does not run any more: zombies, and what is just being removed."""
_STOPPED = _ENDED | {"T", "t"}

CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN"),
    *("CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT"),
    *("CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE"),
    *("CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL"),
    *("CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND"),
    *("CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE"),
)
"""Names by number (linux/capability.h, Linux 5.9 and newer)."""


class ProcessId(FrozenStruct, kw_only=True):
    """A process; ``start_time`` is in clock ticks since boot (proc_pid_stat(5), field 22)."""

    pid: int
    start_time: int


class Descriptors(FrozenStruct, kw_only=True):
    """How many file descriptors a process has open, and how many of them are sockets."""

    count: int = 0
    sockets: int = 0


def identify(pid: int) -> ProcessId:
    """Return the identity of the process that has ``pid`` now.

    :raises NotFound: if there is none.
    """
    return ProcessId(pid=pid, start_time=int(_stat(pid)[_START_TIME]))


def alive(process: ProcessId) -> bool:
    """Say whether exactly this process still runs; a zombie does not."""
    try:
        fields = _stat(process.pid)
    except NotFound:
        return False
    return int(fields[_START_TIME]) == process.start_time and not _has_ended(process.pid, fields)


def has_ended(pid: int) -> bool:
    """Say whether nothing of the process that has ``pid`` runs any more: there is none, or it is a zombie."""
    try:
        return _has_ended(pid, _stat(pid))
    except NotFound:
        return True


def _has_ended(pid: int, fields: Sequence[str]) -> bool:
    if fields[_STATE] not in _ENDED:
        return False
    # A process whose first thread has ended is shown as a zombie, and goes on for as long as it has another thread.
    return int(fields[_THREADS]) <= 1 or all(map(thread_has_ended, threads(pid)))


def threads(pid: int) -> frozenset[int]:
    """Return the IDs of the threads of a process; none if it has ended."""
    try:
        return frozenset(map(int, os.listdir(_PROC / str(pid) / "task")))
    except OSError:
        return frozenset()


def thread_has_ended(thread: int) -> bool:
    """Say whether a thread has ended; one that is traced stays, as a zombie, until its tracer has looked."""
    return _is_thread_in(_ENDED, thread)


def _is_thread_in(states: Collection[str], thread: int) -> bool:
    """Say whether a thread is in one of these states, or gone."""
    try:
        return _stat(thread)[_STATE] in states
    except NotFound:
        return True


def pidfd_open(process: ProcessId) -> int:
    """Return a pidfd of exactly this process (readable when it ends); the caller closes it.

    :raises NotFound: if the process is gone, also if its ID belongs to another one now.
    :raises KernelCallError: if the kernel refuses.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError as error:
        raise NotFound(f"process {process.pid} is gone") from error
    except OSError as error:
        raise KernelCallError(f"pidfd_open({process.pid})", error.errno or 0) from error
    # The descriptor is held now: what /proc says of the ID from here on is about the process behind it, or it is gone.
    try:
        current = identify(process.pid)
    except BaseException:
        os.close(fd)
        raise
    if current != process:
        os.close(fd)
        raise NotFound(f"process {process.pid} is gone; its ID belongs to another process")
    return fd


def kill(process: ProcessId, number: int) -> bool:
    """Send a signal to exactly this process; return False if it is gone.

    :raises KernelCallError: if the kernel refuses.
    """
    try:
        fd = pidfd_open(process)
    except NotFound:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    except OSError as error:
        raise KernelCallError(
            f"pidfd_send_signal(pid={process.pid}, {signal_name(number)})", error.errno or 0
        ) from error
    finally:
        os.close(fd)
    return True


def find_by_arguments(*texts: str) -> list[ProcessId]:
    """Return the living processes of the machine, except this one, that have each of ``texts`` as a whole argument.

    Unlike ``/proc/<pid>/exe``, arguments survive a program that executes a copy of itself in memory, as crun does.
    Processes of pods and of users are not among them, which may have any arguments: see :func:`is_machines`.
    """
    wanted = {os.fsencode(text) for text in texts}
    found = []
    for entry in os.listdir(_PROC):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        directory = _PROC / entry
        try:
            if is_machines(directory, _OWN_NAMESPACES) and wanted <= set(_arguments(directory)):
                found.append(identify(int(entry)))
        except (OSError, NotFound):
            continue  # it ended while we looked
    # The ID may have been used again between reading the arguments and the start time.
    return [process for process in found if alive(process)]


def _arguments(directory: Path) -> list[bytes]:
    """Return the arguments of a process, also of one that is executing another program and has none yet (execve(2)).

    :raises OSError: if it is gone.
    :raises NotFound: if it is gone.
    """
    deadline, executed = time.monotonic() + _EXECUTING_S, 0
    while not (line := command_line(directory)) and time.monotonic() < deadline:
        fields = _stat(int(directory.name))
        # One that has ended has no environment either.
        if _has_ended(int(directory.name), fields) or executed == _MOST_EXECUTED:
            break
        if fields[_ENVIRONMENT_END] != "0":
            executed += 1
        else:
            time.sleep(_EXECUTING_PAUSE_S)
    return line.split(b"\0")


def name(directory: Path) -> str:
    """Return the name of the process at ``directory`` of /proc, which it chose itself, in letters that can be shown.

    :raises OSError: if it is gone.
    """
    return printable(read_text(directory / "comm").removesuffix("\n"))


def command_line(directory: Path) -> bytes:
    """Return the arguments of the process at ``directory`` of /proc, each with a NUL at its end: the first bytes.

    A process may have them in memory of any size (prctl(2), PR_SET_MM_MAP).

    :raises OSError: if it is gone.
    """
    with (directory / "cmdline").open("rb", buffering=0) as file:
        data = b""
        while len(data) < _COMMAND_LINE_BYTES and (part := file.read(_COMMAND_LINE_BYTES - len(data))):
            data += part
        return data


def is_machines(directory: Path, namespaces: Iterable[str]) -> bool:
    """Return whether the process at ``directory`` of /proc is root's, and in these namespaces of this one.

    What has root's rights because its program has a set-user-ID bit is not: any user starts it, under any name and with
    any arguments (``su`` waits for a password with those of its caller, ``sudo`` also has its real user ID changed).

    :param namespaces: names in /proc/PID/ns.
    :raises OSError: if it is gone, or has no program.
    """
    if directory.stat().st_uid != 0:  # its effective user
        return False
    own = _PROC / "self" / "ns"
    if not all(os.path.samestat((directory / "ns" / kind).stat(), (own / kind).stat()) for kind in namespaces):
        return False
    if set(_status(directory, "Uid").split()) != {"0"}:
        return False
    try:
        # Of what the kernel knows: the program may be on a FUSE of a container, whose server need not answer.
        program = libc.look(libc.AT_FDCWD, os.fsencode(directory / "exe"), follow=True).status
    except KernelCallError as error:
        raise OSError(error.errno, os.strerror(error.errno), str(directory / "exe")) from error
    return not program.st_mode & stat.S_ISUID


def _status(directory: Path, wanted: str) -> str:
    """Return a field of /proc/PID/status, where a newline of the name is escaped."""
    for line in lines(read_text(directory / "status")):
        key, _, value = line.partition(":")
        if key == wanted:
            return value
    raise Internal(f"{directory}/status has no {wanted} line")


def is_locked_by_root(fd: int) -> bool:
    """Say whether a process of root's, also this one, holds a lock of flock(2) on the file behind ``fd``.

    A process may have it by a descriptor that it inherited: what /proc/locks names is who asked for it.
    """
    status = os.fstat(fd)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for entry in os.listdir(_PROC):
        if not entry.isdecimal():
            continue
        try:
            if is_machines(_PROC / entry, ("user",)) and any(file in lock for lock in _locks(_PROC / entry)):
                return True
        except OSError:
            continue  # it ended while we looked
    return False


def _locks(directory: Path) -> Iterator[list[str]]:
    """Yield the locks of flock(2) that the process at ``directory`` has, in words.

    :raises OSError: if it is gone.
    """
    with os.scandir(directory / "fdinfo") as entries:
        for entry in entries:
            with suppress(OSError):  # closed meanwhile
                for line in lines(read_text(entry.path)):
                    words = line.split()
                    if words[:1] == ["lock:"] and "FLOCK" in words:
                        yield words


def executable(process: ProcessId) -> str:
    """Return the path of the program that exactly this process runs, as seen inside its root; empty if it is gone."""
    try:
        path = os.readlink(_PROC / str(process.pid) / "exe")
    except OSError:
        return ""
    # Asked afterwards: the ID may have passed to another process before the link was read.
    return path if alive(process) else ""


def share_namespace(one: ProcessId, other: ProcessId, kind: str) -> bool:
    """Say whether two processes are in the same namespace; not if one of them is gone.

    :param kind: its name in /proc/PID/ns.
    """
    try:
        found = [(_PROC / str(process.pid) / "ns" / kind).stat() for process in (one, other)]
    except OSError:
        return False
    return os.path.samestat(*found) and alive(one) and alive(other)


class Snapshot(FrozenStruct):
    """All processes, each as it was when it was looked at, one after the other."""

    living: Mapping[int, ProcessId]
    sessions: Mapping[int, int]
    """Of what lives."""
    parents: Mapping[int, int]
    """Of what has ended and is not waited for yet, too."""


def snapshot() -> Snapshot:
    """Look at all processes: some 20 µs each."""
    living: dict[int, ProcessId] = {}
    sessions: dict[int, int] = {}
    parents: dict[int, int] = {}
    for entry in os.listdir(_PROC):
        if not entry.isdecimal():
            continue
        try:
            fields = _stat(int(entry))
        except NotFound:
            continue  # it ended while we looked
        pid = int(entry)
        parents[pid] = int(fields[_PARENT])
        if _has_ended(pid, fields):
            continue
        living[pid] = ProcessId(pid=pid, start_time=int(fields[_START_TIME]))
        sessions[pid] = int(fields[_SESSION])
    return Snapshot(living, sessions, parents)


def has_stopped(process: ProcessId) -> bool:
    """Tell whether no thread of a process runs: it was stopped (SIGSTOP, a tracer), or has ended."""
    try:
        fields = _stat(process.pid)
        if int(fields[_START_TIME]) != process.start_time:
            return True
        found = threads(process.pid) if int(fields[_THREADS]) > 1 else {process.pid}
    except NotFound:
        return True
    return all(_is_thread_in(_STOPPED, thread) for thread in found)


def wait(process: ProcessId, timeout: float) -> bool:
    """Wait until exactly this process has ended; return whether it did.

    :param timeout: seconds.
    :raises KernelCallError: if the kernel refuses.
    """
    try:
        fd = pidfd_open(process)
    except NotFound:
        return True
    try:
        # Not select(2): it takes no descriptor above 1023, and a busy daemon has these.
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(fd)


def descriptors(pid: int, *, most: int = MAX_DESCRIPTORS) -> Descriptors:
    """Return what a process has open; nothing if it is gone.

    :param most: descriptors that are looked at; of others only their number is known (Linux 6.2), or nothing.
    """
    count = sockets = 0
    try:
        fd = os.open(_PROC / str(pid) / "fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return Descriptors()
    try:
        with os.scandir(fd) as entries:
            for entry in itertools.islice(entries, most):
                count += 1
                try:
                    sockets += os.readlink(entry.name, dir_fd=fd).startswith("socket:")
                except OSError:
                    continue  # closed meanwhile
        # Since Linux 6.2 the directory's size is the number of descriptors, without a list of them all.
        count = max(count, os.fstat(fd).st_size)
    except OSError:
        return Descriptors()  # it ended meanwhile
    finally:
        os.close(fd)
    return Descriptors(count=count, sockets=sockets)


def open_files_limit(pid: int) -> int | None:
    """Return the soft limit of open files of a process; None if it is gone or has none (proc_pid_limits(5))."""
    # Not prlimit(2): on another user's process it needs a capability that this process may lack.
    try:
        text = read_text(_PROC / str(pid) / "limits")
    except OSError:
        return None
    for line in lines(text):
        name = "Max open files"
        if line.startswith(name):
            soft = line.removeprefix(name).split()[0]
            return int(soft) if soft.isdecimal() else None
    return None


def oom_score_adj(pid: int) -> int:
    """Return a process's oom_score_adj (proc_pid_oom_score_adj(5)).

    :raises NotFound: if there is no such process.
    """
    try:
        return int(read_text(_PROC / str(pid) / "oom_score_adj"))
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NotFound(f"process {pid} is gone") from error


def set_oom_score_adj(pid: int, score: int) -> None:
    """Set a process's oom_score_adj, -1000 to 1000.

    :raises NotFound: if there is no such process.
    :raises KernelCallError: if the kernel refuses: less than before needs CAP_SYS_RESOURCE.
    """
    path = _PROC / str(pid) / "oom_score_adj"
    try:
        path.write_text(str(score))
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NotFound(f"process {pid} is gone") from error
    except OSError as error:
        raise KernelCallError(f"write({path}, {score})", error.errno or 0) from error


def process_of(thread: int) -> int | None:
    """Return the ID of the process that a thread is of; None if it is gone."""
    try:
        return int(_status(_PROC / str(thread), "Tgid"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def capability_bounding_set() -> frozenset[str]:
    """Return the names of the capabilities that this process, and so anything it starts, can ever have."""
    mask = int(_status(_PROC / "self", "CapBnd"), 16)
    return frozenset(name for number, name in enumerate(CAPABILITIES) if mask >> number & 1)


def boot_id() -> str:
    """Return the identity of this boot of the machine; pids and start times compare only within one."""
    return read_text(_PROC / "sys/kernel/random/boot_id").strip()


def signal_name(number: int) -> str:
    """Return the name of a signal; Python has none for most real-time ones."""
    return signal.Signals(number).name if number in {*signal.Signals} else str(number)


def _stat(pid: int) -> list[str]:
    try:
        text = read_text(_PROC / str(pid) / "stat")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NotFound(f"process {pid} is gone") from error
    # The command name stands in parentheses and may hold anything, also spaces and parentheses.
    return text.rpartition(")")[2].split()
