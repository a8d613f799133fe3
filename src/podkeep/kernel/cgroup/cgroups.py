"""Cgroup directories on version 1, version 2 and hybrid machines, under one set of paths.

Owns: creating, removing and listing cgroups, the processes in them, reading and writing their files. Does not own:
what limits mean (``runtime/lifecycle/resource_plan.py``; those a container starts with are the OCI runtime's). A path
such as ``/podkeep/pod1/ctr`` names the same cgroup in every version 1 hierarchy, or in the one version 2 tree. On a
hybrid machine the version 2 tree beside the version 1 hierarchies is left out: the controllers are with version 1
(cgroups(7)), and crun refuses to work with both.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.process import procfs
from podkeep.kernel.tables import GONE, read_text

DEFAULT_ROOT = Path("/sys/fs/cgroup")
SECOND = "unified"
"""Name of the directory at which a hybrid machine has version 2."""
TIMEOUT_S = 2.0
"""How long removing and killing wait for the kernel to let go of processes that are ending."""
_PAUSE_S = 0.002
_FILE_BYTES = 4096
"""More than a file with a number in it has."""


class CgroupLayout(FrozenStruct, kw_only=True):
    """Where this machine's hierarchies are; version 2 has exactly one. A hybrid machine counts as version 1."""

    version: int
    hierarchies: tuple[Path, ...]


def detect(root: Path = DEFAULT_ROOT) -> CgroupLayout:
    """Find out how cgroups are mounted at ``root``.

    :raises FailedPrecondition: if nothing is.
    """
    # Every cgroup of version 2 has this file; on a hybrid machine that hierarchy is not mounted right at the root.
    if (root / "cgroup.controllers").exists():
        return CgroupLayout(version=2, hierarchies=(root,))
    by_hierarchy: dict[str, Path] = {}
    for entry in mountinfo.read():
        path = Path(entry.mount_point)
        if entry.fs_type == "cgroup" and path.parent == root:
            found = by_hierarchy.get(entry.device)
            # One at the place of a hybrid machine's second hierarchy covers that (``podkeep.mountns.unified``).
            if found is None or path.name != SECOND:
                by_hierarchy[entry.device] = path
    if not by_hierarchy:
        raise FailedPrecondition(
            f"no cgroup hierarchy is mounted at {root}", hint=f"mount one: `mount -t cgroup2 none {root}`"
        )
    return CgroupLayout(version=1, hierarchies=tuple(sorted(by_hierarchy.values())))


class Cgroups:
    """The cgroup directories of one machine. Holds no state but where hierarchies are, so any thread may use it.

    Files are reached by texts, not by :class:`pathlib.Path`: there are dozens for each container.
    """

    def __init__(
        self, root: Path = DEFAULT_ROOT, *, layout: CgroupLayout | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Use ``layout``, or what :func:`detect` finds at ``root``.

        :raises FailedPrecondition: if no cgroup hierarchy is mounted there.
        """
        self.layout = layout or detect(root)
        self._timeout_s = timeout_s
        self._roots = [str(hierarchy) for hierarchy in self.layout.hierarchies]
        self._controllers: dict[str, str] = {}
        """The hierarchy of a controller, once a file of it was found."""

    @property
    def version(self) -> int:
        """1 (also hybrid) or 2."""
        return self.layout.version

    def directories(self, path: str) -> tuple[Path, ...]:
        """Return the directory of cgroup ``path`` in every hierarchy.

        :raises InvalidArgument: if ``path`` is not absolute, or has an empty or ``..`` component.
        """
        relative = _relative(path)
        return tuple(hierarchy / relative for hierarchy in self.layout.hierarchies)

    def exists(self, path: str) -> bool:
        """Say whether the cgroup exists in at least one hierarchy."""
        below = _below(path)
        return any(os.path.isdir(root + below) for root in self._roots)

    def has(self, path: str, name: str) -> bool:
        return self._find(path, name) is not None

    def _find(self, path: str, name: str) -> str | None:
        """Return the hierarchy that has a file; None if none has."""
        below = _below(path)
        for root in self._places(name):
            if os.path.exists(f"{root}{below}/{name}"):
                self._note_place(name, root)
                return root
        return None

    def _places(self, name: str) -> list[str]:
        """Return the hierarchies that may have a file; a controller, whose name its files begin with, is in one."""
        # Version 1 has a dozen hierarchies, and dozens of files are looked for with each container.
        known = self._controllers.get(name.partition(".")[0])
        return self._roots if known is None else [known]

    def _note_place(self, name: str, root: str) -> None:
        controller, dot, _ = name.partition(".")
        if dot and controller != "cgroup":
            self._controllers[controller] = root

    def create(self, path: str) -> None:
        """Create the cgroup and its parents, ready for processes; an existing one is left as it is.

        Version 2: every controller the machine has is enabled on the way. Version 1: a new cpuset takes over the CPUs
        and memory nodes of its parent, without which no process could enter.

        :raises InvalidArgument: if ``path`` is malformed.
        :raises KernelCallError: if the kernel refuses; directories made until then are removed again.
        """
        relative = _relative(path)
        made: list[Path] = []
        try:
            for hierarchy in self.layout.hierarchies:
                self._create_surely(hierarchy, relative, made)
        except BaseException:
            for directory in reversed(made):
                # Somebody else may use it by now.
                with suppress(OSError):
                    directory.rmdir()
            raise

    def _create_surely(self, hierarchy: Path, relative: Path, made: list[Path]) -> None:
        """Create the cgroup in one hierarchy; again as long as somebody removes an empty parent before we are in it."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self._create_in(hierarchy, relative, made)
            except (KernelCallError, OSError) as error:
                # Bounded by time and not by attempts: a busy neighbour outlasts a hundred attempts, which take
                # milliseconds.
                if error.errno not in GONE or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
            else:
                return

    def _create_in(self, hierarchy: Path, relative: Path, made: list[Path]) -> None:
        directory, passed = hierarchy, []
        for part in relative.parts:
            if self.version == 2:
                _enable_controllers(directory)
            directory = directory / part
            passed.append(directory)
            try:
                directory.mkdir(mode=0o755)
            except FileExistsError:
                continue
            except OSError as error:
                raise KernelCallError(f"mkdir({directory})", error.errno or 0, hint=_MKDIR_HINT) from error
            made.append(directory)
        if self.version == 1:
            # Only now, from the top: a parent with a child in it is not removed by anybody. Those that were there may
            # have been made a moment ago by somebody who did not come to this yet.
            for directory in passed:
                if not _inherit_cpuset(directory):
                    break

    def remove(self, path: str) -> None:
        """Remove the cgroup and those below it, children first; a missing one is no error.

        :raises InvalidArgument: if ``path`` is malformed or the root.
        :raises KernelCallError: if processes are still in it after ``timeout_s`` seconds.
        """
        if not _relative(path).parts:
            raise InvalidArgument("the root cgroup cannot be removed")
        deadline = time.monotonic() + self._timeout_s
        for directory in self.directories(path):
            for below in _bottom_up(directory):
                _remove_directory(below, deadline)

    def remove_empty(self, path: str) -> bool:
        """Remove the cgroup itself, in every hierarchy where nothing is in it; a missing one is no error.

        :returns: whether it is gone everywhere.
        :raises InvalidArgument: if ``path`` is malformed or the root.
        :raises KernelCallError: if the kernel refuses for another reason.
        """
        if not _relative(path).parts:
            raise InvalidArgument("the root cgroup cannot be removed")
        # rmdir without a look before it: a check and then a recursive removal could hit what somebody made in between.
        gone = True
        for directory in self.directories(path):
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in {errno.EBUSY, errno.ENOTEMPTY}:
                    raise KernelCallError(f"rmdir({directory})", error.errno or 0) from error
                gone = False
        return gone

    def children(self, path: str) -> list[str]:
        """Return the paths of the cgroups directly below ``path`` in any hierarchy, sorted; none if it is missing."""
        names: set[str] = set()
        for directory in self.directories(path):
            try:
                names.update(entry.name for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False))
            except FileNotFoundError:
                continue
        base = "/" + str(_relative(path)) if _relative(path).parts else ""
        return sorted(f"{base}/{name}" for name in names)

    def read_children(self, path: str, name: str) -> list[str]:
        """Return what the file ``name`` of each cgroup directly below ``path`` holds, without those that are gone.

        :raises KernelCallError: if the kernel refuses.
        """
        root = self._find(path, name)
        if root is None:
            return []
        try:
            with os.scandir(root + _below(path)) as entries:
                children = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        found = []
        for child in children:
            file = f"{root}{_below(path)}/{child}/{name}"
            try:
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    found.append(os.fsdecode(os.read(fd, _FILE_BYTES)))
                finally:
                    os.close(fd)
            except OSError as error:
                if error.errno not in GONE:
                    raise KernelCallError(f"read({file})", error.errno or 0) from error
        return found

    def processes(self, path: str, *, recursive: bool = False) -> list[int]:
        """Return the IDs of the processes in the cgroup (in any hierarchy), sorted; none if it is missing."""
        found: set[int] = set()
        for directory in self.directories(path):
            for cgroup in _bottom_up(directory) if recursive else [_Found(None, str(directory))]:
                found.update(_read_processes(cgroup))
        return sorted(found)

    def members(self, path: str) -> list[int]:
        """Return the IDs of the processes in the cgroup and below it, sorted; none if it is missing.

        Asks one hierarchy, where :meth:`processes` asks all (a dozen on version 1) and finds also what somebody moved
        out of some of them.
        """
        below = _below(path)
        for root in self._roots:
            if os.path.isdir(root + below):
                return sorted({pid for cgroup in _bottom_up(root + below) for pid in _read_processes(cgroup)})
        return []

    def threads(self, path: str) -> list[int]:
        """Return the IDs of all threads in the cgroup and below it, sorted; none if it is missing.

        Asks one hierarchy. Unlike ``/proc/PID/task`` this leaves none out because another one ends meanwhile.
        """
        below, name = _below(path), "tasks" if self.version == 1 else "cgroup.threads"
        for root in self._roots:
            if os.path.isdir(root + below):
                return sorted({thread for cgroup in _bottom_up(root + below) for thread in _read_ids(cgroup, name)})
        return []

    def add(self, path: str, pid: int) -> None:
        """Move the process ``pid`` (0: the calling one) with all its threads into the cgroup, in every hierarchy.

        :raises KernelCallError: if the cgroup or the process does not exist, or the kernel refuses.
        """
        for directory in self.directories(path):
            _write(directory / "cgroup.procs", str(pid))

    def read(self, path: str, name: str) -> str | None:
        """Return the content of the cgroup's file ``name`` (``cpu.shares``), or None if no hierarchy has it.

        :raises KernelCallError: if the kernel refuses.
        """
        below = _below(path)
        for root in self._places(name):
            file = f"{root}{below}/{name}"
            try:
                text = read_text(file)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.ENODEV:  # the cgroup was removed while we read
                    raise KernelCallError(f"read({file})", error.errno or 0) from error
            else:
                self._note_place(name, root)
                return text
        return None

    def write(self, path: str, name: str, text: str) -> None:
        """Write the cgroup's file ``name`` in the hierarchy that has it.

        :raises KernelCallError: if none has it, or the kernel refuses the value.
        """
        root = self._find(path, name) or self._places(name)[0]
        _write(f"{root}{_below(path)}/{name}", text)

    def empty(self, path: str, most: int) -> None:
        """Have the kernel drop the page cache that is charged to a cgroup whose processes ended, if it is not much.

        A removed cgroup stays in the kernel for as long as a page is charged to it, and each of them makes the work for
        others longer. More than ``most`` bytes are left, because reading them again would take longer than they cost.
        Whatever the kernel does not drop is left, too: nothing depends on it.
        """
        used, reclaim = ("memory.usage_in_bytes", "memory.force_empty")
        if self.version == 2:
            used, reclaim = ("memory.current", "memory.reclaim")
        with suppress(KernelCallError):  # EAGAIN: not all of it; ENOENT: the cgroup is gone, or the kernel is too old
            charged = int(self.read(path, used) or 0)
            if 0 < charged <= most:
                self.write(path, reclaim, str(charged) if self.version == 2 else "0")

    def attribute(self, path: str, name: str) -> bytes | None:
        """Return what :meth:`set_attribute` noted; None: nothing, or the cgroup is missing.

        :raises KernelCallError: if the kernel refuses.
        """
        below = _below(path)
        for root in self._roots:
            try:
                return os.getxattr(root + below, name)
            except OSError as error:
                if error.errno == errno.ENODATA:
                    return None
                if error.errno not in GONE:
                    raise KernelCallError(f"getxattr({root + below}, {name})", error.errno or 0) from error
        return None

    def set_attribute(self, path: str, name: str, value: bytes | None) -> None:
        """Note something with the cgroup, for as long as it is there (xattr(7)); None: forget it.

        It is noted in the first hierarchy that has the cgroup: a cgroup is in all, or is ending.

        :param name: ``trusted.``: nobody without CAP_SYS_ADMIN outside of a user namespace reads or writes it.
        :raises FailedPrecondition: if there is no cgroup to note something with.
        :raises KernelCallError: if the kernel refuses.
        """
        below = _below(path)
        for root in self._roots:
            try:
                if value is None:
                    os.removexattr(root + below, name)
                else:
                    os.setxattr(root + below, name, value)
            except OSError as error:
                if error.errno in GONE:
                    continue
                if value is None and error.errno == errno.ENODATA:
                    return
                raise KernelCallError(f"setxattr({root + below}, {name})", error.errno or 0) from error
            return
        if value is not None:
            raise FailedPrecondition(f"cgroup {path} is gone")

    def kill(self, path: str) -> None:
        """Kill every process in the cgroup and below it, and return when none is left; a missing one is no error.

        Version 1: frozen cgroups are thawed, because a frozen process does not die there.

        :raises KernelCallError: if processes survive ``timeout_s`` seconds (uninterruptible I/O).
        """
        deadline = time.monotonic() + self._timeout_s
        if self.version == 2:
            for directory in self.directories(path):
                if (directory / "cgroup.kill").exists():  # Linux 5.14
                    with suppress(KernelCallError):  # not of a threaded cgroup; processes are killed below as well
                        _write(directory / "cgroup.kill", "1")
        else:
            self._thaw(path)
        # Listed anew each time: a process may fork between the list and its SIGKILL, and then end before it is looked
        # at. A zombie needs its parent to go away.
        seen: set[int] = set()
        while listed := self.processes(path, recursive=True):
            pids = [pid for pid in listed if not procfs.has_ended(pid)]
            if not pids and seen.issuperset(listed):
                return
            if time.monotonic() > deadline:
                raise KernelCallError(
                    f"kill({listed}, SIGKILL)", errno.EBUSY, hint=f"processes in cgroup {path} wait for the kernel"
                )
            seen.update(listed)
            self._kill(path, pids)
            # Or there could be another process each time, which the last one has started before it ended. Not before:
            # a program may end with an error of its own when it cannot start another one.
            with suppress(KernelCallError):  # without that controller they are killed as fast as they can be
                self.write(path, "pids.max", "0")
            time.sleep(_PAUSE_S)

    def _kill(self, path: str, pids: Iterable[int]) -> None:
        """Kill exactly those of the processes that are in the cgroup: an ID may be somebody else's meanwhile."""
        known = []
        for pid in pids:
            with suppress(NotFound):
                known.append(procfs.identify(pid))
        # Who is the same after this list as before it was there when it was made.
        inside = frozenset(self.processes(path, recursive=True))
        for process in known:
            if process.pid in inside:
                procfs.kill(process, signal.SIGKILL)

    def _thaw(self, path: str) -> None:
        for directory in self.directories(path):
            # In any order: one below a frozen cgroup goes on when that is thawed, too.
            for cgroup in _bottom_up(directory):
                _ignoring_missing(partial(_write, f"{cgroup.name}/freezer.state", "THAWED", dir_fd=cgroup.directory))


_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MKDIR_HINT = "the cgroup tree may be read-only here, or cgroup.max.descendants reached"


def _relative(path: str) -> Path:
    return Path(_below(path)[1:])


def _below(path: str) -> str:
    """Return what comes after the directory of a hierarchy; empty for the root cgroup."""
    # Cgroup parents come from requests: a `..` would lead out of the hierarchy.
    if path == "/":
        return ""
    if not path.startswith("/") or "\0" in path or not {"", ".", ".."}.isdisjoint(path[1:].split("/")):
        raise InvalidArgument(f"cgroup path {path!r} is not absolute and normal", hint="write it like /podkeep/pod1")
    return path


def _enable_controllers(directory: Path) -> None:
    try:
        available = read_text(directory / "cgroup.controllers").split()
        enabled = read_text(directory / "cgroup.subtree_control").split()
    except OSError as error:
        raise KernelCallError(f"read({directory}/cgroup.controllers)", error.errno or 0) from error
    missing = [name for name in available if name not in enabled]
    if not missing:
        return
    file, text = directory / "cgroup.subtree_control", " ".join(f"+{name}" for name in missing)
    try:
        _write(file, text)
    except KernelCallError as error:
        hint = "the cgroup has processes of its own, and so no children with controllers (cgroup-v2.rst)"
        raise KernelCallError(error.call, error.errno, hint=hint if error.errno == errno.EBUSY else "") from error


def _inherit_cpuset(directory: Path) -> bool:
    """Give a new cpuset what its parent has; return whether this is the hierarchy of cpusets."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = directory / name
        try:
            # Not empty: somebody set it, or it was inherited; a cpuset that is there keeps what it has.
            if read_text(file).strip():
                continue
            inherited = read_text(directory.parent / name).strip()
        except FileNotFoundError:
            return False
        _write(file, inherited)
    return True


class _Found(FrozenStruct):
    """A cgroup, by a descriptor of the directory that it is in; None: ``name`` is its path. It holds until the next."""

    directory: int | None
    name: str
    above: Sequence[str] = ()

    @property
    def path(self) -> str:
        return "/".join((*self.above, self.name))


def _bottom_up(top: str | Path) -> Iterator[_Found]:
    """Yield the cgroup at the path ``top`` and those below it, children first; nothing if it is missing.

    Who may make cgroups makes them deeper than paths are long (4096 bytes), Python calls itself, or a process has
    descriptors: it is gone down and up again with one, and with the names of what is still to be looked at.

    :raises KernelCallError: if the kernel refuses.
    """
    base, name = os.path.split(top)
    above, waiting = [base], [[name]]
    try:
        fd = os.open(base, _LIST)
    except FileNotFoundError:
        return
    try:
        while waiting:
            if waiting[-1]:
                name = waiting[-1].pop()
                try:
                    # Counts the directories below; most cgroups have none, and many files.
                    if os.stat(name, dir_fd=fd, follow_symlinks=False).st_nlink != 2:
                        inner, names = _opened(fd, name)
                        os.close(fd)
                        fd = inner
                        above.append(name)
                        waiting.append(names)
                        continue
                except OSError as error:
                    if error.errno in GONE:
                        continue
                    raise
            else:
                waiting.pop()
                if not waiting:
                    return
                outer = os.open("..", _LIST, dir_fd=fd)
                os.close(fd)
                fd = outer
                name = above.pop()
            yield _Found(fd, name, above)
    except OSError as error:
        raise KernelCallError(f"open({'/'.join(above)})", error.errno or 0) from error
    finally:
        os.close(fd)


def _opened(directory: int, name: str) -> tuple[int, list[str]]:
    """Return a descriptor of a cgroup, which the caller closes, and the names of those directly below it."""
    fd = os.open(name, _LIST | os.O_NOFOLLOW, dir_fd=directory)
    try:
        with os.scandir(fd) as entries:
            return fd, [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except BaseException:
        os.close(fd)
        raise


def _remove_directory(cgroup: _Found, deadline: float) -> None:
    while True:
        try:
            os.rmdir(cgroup.name, dir_fd=cgroup.directory)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                hint = f"processes in it: {_read_processes(cgroup)}" if error.errno == errno.EBUSY else ""
                raise KernelCallError(f"rmdir({cgroup.path})", error.errno or 0, hint=hint) from error
            time.sleep(_PAUSE_S)
        else:
            return


def _read_processes(cgroup: _Found) -> list[int]:
    try:
        return _read_ids(cgroup, "cgroup.procs")
    except KernelCallError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    # Version 2: in a threaded cgroup there are threads, of processes that may have others elsewhere.
    return sorted({pid for thread in _read_ids(cgroup, "cgroup.threads") if (pid := procfs.process_of(thread))})


def _read_ids(cgroup: _Found, name: str) -> list[int]:
    try:
        fd = os.open(f"{cgroup.name}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=cgroup.directory)
        with open(fd, "rb", buffering=0) as file:  # noqa: PTH123 - see Cgroups
            return [int(line) for line in file.read().split()]
    except OSError as error:
        if error.errno in GONE:
            return []
        raise KernelCallError(f"read({cgroup.path}/{name})", error.errno or 0) from error


def _write(file: str | Path, text: str, *, dir_fd: int | None = None) -> None:
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelCallError(f"write({file}, {text!r})", error.errno or 0) from error


def _ignoring_missing(action: Callable[[], object]) -> None:
    try:
        action()
    except (FileNotFoundError, ProcessLookupError):
        pass
    except KernelCallError as error:
        if error.errno not in GONE | {errno.ESRCH}:
            raise
