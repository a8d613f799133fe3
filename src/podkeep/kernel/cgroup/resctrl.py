"""The resctrl file system: control groups of caches and memory bandwidth, and monitoring groups in them.

Owns: its paths, the form of its files, and errors with what the kernel says in ``info/last_cmd_status``. Does not own:
what a class means or which groups are whose (``runtime/class_resources/rdt``). Synchronous; keeps no state.

    <root>/info/<resource>/...        what the hardware can do
    <root>/{schemata,tasks,mode}      the default group, in which every task starts
    <root>/<group>/...                a control group: one CLOSID of the hardware
    <root>/<group>/mon_groups/<name>  a monitoring group: one RMID, for some of the tasks of the control group

The rules are those of the kernel's Documentation/filesystems/resctrl.rst. A task, which is a thread, is in one control
group; whom it starts later is in the same one, what it has started before is not moved along.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from podkeep.base import lockfile
from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.process import procfs
from podkeep.kernel.tables import GONE, lines, read_text

log = logging.getLogger(__name__)

DEFAULT_ROOT = Path("/sys/fs/resctrl")
TIMEOUT_S = 10.0
"""How long :meth:`Resctrl.locked` waits for another program."""
_LOOK_S = 0.1
"""After how long without the lock it is looked who holds it."""
_LOOKS = 3
"""How often root's processes are looked through: they may give it to each other meanwhile."""
_RESERVED = frozenset({"info", "mon_groups", "mon_data"})
_OK = "ok"
_BANDWIDTH = re.compile(r"^\s*MB:\s*(?P<domain>\d+)=\s*(?P<value>\d+)", re.MULTILINE)
_RANGE = re.compile(r"out of range \[\d+,(?P<maximum>\d+)\]")
_UNLIMITED = (1 << 32) - 1
"""The largest number that the kernel reads, and where values are MBps what it takes for no limit."""


class Group(FrozenStruct, kw_only=True):
    """A control group (``name``; empty: the default one), or with ``monitor`` one of its monitoring groups."""

    name: str = ""
    monitor: str = ""

    def __str__(self) -> str:
        control = self.name or "/"
        return f"{control} (monitoring group {self.monitor})" if self.monitor else control


DEFAULT_GROUP = Group()


class ResctrlError(KernelCallError):
    """A call on the file system failed; ``status`` is the kernel's explanation, empty if it gave none."""

    def __init__(self, call: str, number: int, status: str = "", *, hint: str = "") -> None:
        super().__init__(call, number, hint=hint)
        self.status = status
        if status:
            self.message += f" ({status})"


class Resctrl:
    """One mounted resctrl file system. Any thread may use it."""

    def __init__(self, root: Path = DEFAULT_ROOT) -> None:
        """Use what is mounted at ``root``; :meth:`check` tells whether something is."""
        self.root = root
        # What the kernel says of a failure is there until the next command of anybody.
        self._commands = threading.Lock()

    def check(self) -> None:
        """Check that a resctrl file system is there.

        :raises FailedPrecondition: if not.
        """
        if self.is_mounted():
            return
        hint = (
            f"`mount -t resctrl resctrl {self.root}`; it takes a processor with cache or memory bandwidth allocation,"
            " and a kernel with CONFIG_X86_CPU_RESCTRL"
        )
        raise FailedPrecondition(f"resctrl is not mounted at {self.root}", hint=hint)

    def is_mounted(self) -> bool:
        """Say whether a resctrl file system is there; what behaves like one is good enough."""
        return (self.root / "info").is_dir() and (self.root / "tasks").exists()

    def allocates(self) -> bool:
        """Say whether the hardware can allocate anything; what can only monitor has no control groups."""
        return (self.root / "schemata").exists()

    def info(self) -> dict[str, str]:
        """Return the text of the files below ``info/`` by their relative paths, such as ``L3/cbm_mask``.

        :raises ResctrlError: if the kernel refuses.
        """
        found: dict[str, str] = {}
        top = self.root / "info"
        for directory in filter(os.DirEntry.is_dir, _entries(top)):
            for file in _entries(Path(directory.path)):
                # Some can be written only, others answer in some modes only, and debugging adds directories.
                with suppress(ResctrlError):
                    found[f"{directory.name}/{file.name}"] = _read(Path(file.path))
        return found

    def options(self) -> frozenset[str]:
        """Return the options that the file system was mounted with, such as ``cdp`` or ``mba_MBps``."""
        found = set(mountinfo.holding(self.root).super_options)
        if (self.root / "mba_MBps_event").exists():  # Linux 6.14
            found.add("mba_MBps")
        return frozenset(found)

    def identity(self, group: Group = DEFAULT_GROUP) -> str:
        """Return what tells this group from one of the same name after it was removed, or mounted anew.

        :raises ResctrlError: if it is missing.
        """
        try:
            status = self._path(group).stat()
        except OSError as error:
            raise ResctrlError(f"stat({self._path(group)})", error.errno or 0) from error
        return f"{status.st_dev}:{status.st_ino}"

    def groups(self) -> set[str]:
        """Return the names of the control groups, without the default one.

        :raises ResctrlError: if the kernel refuses.
        """
        return {entry.name for entry in _entries(self.root) if entry.is_dir() and entry.name not in _RESERVED}

    def monitors(self, name: str = "") -> set[str]:
        """Return the names of a control group's monitoring groups; none where nothing can be monitored.

        :raises ResctrlError: if the kernel refuses.
        """
        try:
            return {entry.name for entry in _entries(self._path(Group(name=name)) / "mon_groups")}
        except ResctrlError as error:
            if error.errno in GONE:
                return set()
            raise

    def exists(self, group: Group) -> bool:
        return self._path(group).is_dir()

    def create(self, group: Group) -> None:
        """Make a group. A control group starts with everything that is shareable or unused.

        :raises ResctrlError: with EEXIST if it is there; with ENOSPC if there is no CLOSID or RMID, or no part of a
            cache that is not exclusively another group's; with EBUSY if every free RMID still has lines in the cache.
        """
        path = self._path(group)
        with self._command(f"mkdir({path})"):
            path.mkdir()

    def remove(self, group: Group) -> bool:
        """Remove a group and return whether it was there; tasks go to the default group, or a monitor's to its group.

        :raises ResctrlError: if the kernel refuses.
        """
        path = self._path(group)
        if group == DEFAULT_GROUP:
            raise InvalidArgument("the default group of resctrl cannot be removed")
        try:
            with self._command(f"rmdir({path})"):
                path.rmdir()
        except ResctrlError as error:
            if error.errno in GONE:
                return False
            raise
        return True

    def move_monitor(self, group: Group, name: str) -> Group | None:
        """Move a monitoring group, its tasks and its counts into control group ``name``, all at once.

        :returns: the group where it is then; None: this kernel cannot do it (before Linux 6.5).
        :raises ResctrlError: if the kernel refuses for another reason.
        """
        moved = Group(name=name, monitor=group.monitor)
        source, target = self._path(group), self._path(moved)
        try:
            with self._command(f"rename({source}, {target})"):
                source.rename(target)
        except ResctrlError as error:
            # Linux before 6.5 refuses renames in resctrl: the caller has to do without the counts there were.
            if error.errno in {errno.EPERM, errno.ENOSYS, errno.EXDEV, errno.EACCES}:
                return None
            raise
        return moved

    def schemata(self, name: str = "") -> str:
        """Return what a control group may use, as the kernel writes it: a line such as ``    L3:0=ff;1=ff`` each.

        :raises ResctrlError: if it is missing.
        """
        return _read(self._path(Group(name=name)) / "schemata")

    def write_schemata(self, name: str, lines: Sequence[str]) -> None:
        """Change what a control group may use; resources and caches that ``lines`` do not name stay as they are.

        One command. If it fails nothing has changed, but with ``mba_MBps`` bandwidths before the fault.

        :raises ResctrlError: with the kernel's explanation.
        """
        if lines:
            self._write(self._path(Group(name=name)) / "schemata", "".join(f"{line.strip()}\n" for line in lines))

    def bandwidth_maximum(self) -> int | None:
        """Return the largest value of memory bandwidth that the hardware takes; None: it does not tell, or has none.

        No file has it: the kernel names it when it refuses a larger one, and that changes nothing.
        """
        if "mba_MBps" in self.options():
            return None  # there any value is taken
        found = _BANDWIDTH.search(self.schemata())
        if found is None or int(found["value"]) == _UNLIMITED:
            return None
        try:
            self.write_schemata("", [f"MB:{found['domain']}={_UNLIMITED}"])
        except ResctrlError as error:
            told = _RANGE.search(error.status)
            return int(told["maximum"]) if told else None
        # Values were MBps, although nothing said so.
        self.write_schemata("", [f"MB:{found['domain']}={found['value']}"])
        return None

    def mode(self, name: str = "") -> str:
        """Return ``shareable``, ``exclusive``, ``pseudo-locksetup`` or ``pseudo-locked``; empty if that cannot be read.

        The group is missing then, or the kernel has no modes.
        """
        try:
            return _read(self._path(Group(name=name)) / "mode").strip()
        except ResctrlError:
            return ""

    def tasks(self, group: Group = DEFAULT_GROUP) -> frozenset[int]:
        """Return the IDs of the threads in the group, as far as they have one in this process's PID namespace.

        Those in a monitoring group are in its control group, too.

        :raises ResctrlError: if the group is missing.
        """
        return frozenset(map(int, _read(self._path(group) / "tasks").split()))

    def add_task(self, group: Group, task: int) -> bool:
        """Move one thread into the group and return whether it still lived.

        Into a control group: out of any monitoring group. A monitoring group takes tasks of its control group only.

        :raises ResctrlError: if the group is missing or the kernel refuses.
        """
        if task <= 0:
            raise InvalidArgument(f"{task} is no task; to resctrl 0 is the writer itself")
        try:
            self._write(self._path(group) / "tasks", f"{task}\n")
        except ResctrlError as error:
            if error.errno == errno.ESRCH:
                return False
            raise
        return True

    def counts(self, group: Group) -> dict[str, dict[int, dict[str, int | None]]]:
        """Return what was counted: for each resource and domain the events, such as ``llc_occupancy``, in bytes.

        None: the hardware has no count now. Empty where nothing is monitored, or the group is gone.
        """
        found: dict[str, dict[int, dict[str, int | None]]] = {}
        try:
            domains = _entries(self._path(group) / "mon_data")
        except ResctrlError:
            return found
        for domain in domains:
            # mon_L3_00; a resource may have an underscore.
            resource, _, number = domain.name.removeprefix("mon_").rpartition("_")
            if not resource or not number.isdecimal():
                continue
            with_events = _counts(Path(domain.path))
            if with_events:
                found.setdefault(resource, {})[int(number)] = with_events
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other programs that respect the lock from changing groups (resctrl.rst, Locking).

        Any user can hold it, and change nothing: it is respected if a process of root's holds it.

        :raises FailedPrecondition: if one has it for :data:`TIMEOUT_S` seconds.
        """
        try:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ResctrlError(f"open({self.root})", error.errno or 0) from error
        try:
            self._lock(fd)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        others = 0
        while not lockfile.take(fd, _LOOK_S):
            # flock needs no permission but to read: any user could keep the runtime from starting.
            others = 0 if procfs.is_locked_by_root(fd) else others + 1
            if others == _LOOKS:
                log.warning("%s is locked by a process that is not root's; going on without its lock", self.root)
                return
            if time.monotonic() > deadline:
                raise FailedPrecondition(
                    f"another program holds the lock of {self.root}", hint=f"`fuser {self.root}` names it"
                )

    def _path(self, group: Group) -> Path:
        path = self.root
        if group.name:
            path = path / _component(group.name)
        return path / "mon_groups" / _component(group.monitor) if group.monitor else path

    def _write(self, file: Path, text: str) -> None:
        with self._command(f"write({file}, {text.rstrip()!r})"):
            fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                # One write is one command: the kernel does not take it in parts.
                os.write(fd, text.encode())
            finally:
                os.close(fd)

    @contextmanager
    def _command(self, call: str) -> Iterator[None]:
        """Name the call and add what the kernel says of it, if it fails."""
        with self._commands:
            try:
                yield
            except OSError as error:
                raise ResctrlError(call, error.errno or 0, self._status()) from error

    def _status(self) -> str:
        try:
            said = _read(self.root / "info" / "last_cmd_status").strip()
        except ResctrlError:
            return ""
        return "" if said == _OK else "; ".join(lines(said))


def _component(name: str) -> str:
    # A newline would end a line of what is written to the kernel; the reserved names are the kernel's own directories.
    if name in {"", ".", "..", *_RESERVED} or "/" in name or "\n" in name or "\0" in name:
        raise InvalidArgument(f"{name!r} cannot be the name of a group of resctrl")
    return name


def _counts(domain: Path) -> dict[str, int | None]:
    """Return the events of one domain; directories in it are parts of it (sub-NUMA clustering)."""
    found: dict[str, int | None] = {}
    try:
        files = [entry for entry in _entries(domain) if not entry.is_dir()]
    except ResctrlError:
        return found
    for file in files:
        try:
            text = _read(Path(file.path)).strip()
        except ResctrlError:
            text = ""
        # Else "Unavailable", "Error" or "Unassigned".
        found[file.name] = int(text) if text.isdecimal() else None
    return found


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    """Return what is in a directory, sorted by name."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise ResctrlError(f"readdir({directory})", error.errno or 0) from error


def _read(file: Path) -> str:
    try:
        return read_text(file)
    except OSError as error:
        raise ResctrlError(f"read({file})", error.errno or 0) from error
