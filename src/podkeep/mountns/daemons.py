"""Which daemons that mount things for containers run on this machine, and in which mount namespace each one is.

Owns: finding them in /proc, and telling what the mounts of one namespace reach. Does not own: whether that is right
(``sync``). Called on threads; reads only.

A daemon of this machine is root's (``procfs.is_machines``), in our PID, network and user namespace, and has the same
root directory: a kubelet in a container, or in another machine that is played by namespaces, is none, and neither is
what a user starts under that name. That is also asked before anything is read that a process can make slow or wrong:
names are the kernel's (comm), and any program may take one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from msgspec import structs

from podkeep.base.errors import KernelCallError, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel import libc
from podkeep.kernel.files import openat
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.process import procfs
from podkeep.kernel.tables import lines, read_text

PROC = Path("/proc")
KUBELET = "kubelet"
RUNTIME = "podkeep runtime"
AGENT = "podkeep run"

_OTHERS = frozenset({KUBELET, "crio", "containerd"})
_VALUE_OPTIONS = frozenset({"--config", "--set"})
"""Options of podkeep before the verb that are followed by a value."""
_SAME_MACHINE = ("pid", "net", "user")
_MOST_BYTES = 64 << 10
_MOST_FILES = 100
"""Files of a kubelet's ``--config-dir`` that are looked at."""
_ENDPOINT, _POD_LOGS = "containerRuntimeEndpoint", "podLogsDir"
_LINES = {
    key: re.compile(rf"^[ \t]*[\"']?{key}[\"']?[ \t]*:[ \t]*[\"']?([^\"'\s#]+)", re.MULTILINE)
    for key in (_ENDPOINT, _POD_LOGS)
}
"""Lines of a KubeletConfiguration, which is YAML, or JSON as it is usually written in lines. Each is looked at once."""


class Daemon(FrozenStruct, kw_only=True):
    """A process and the inode of its mount namespace; ``unit`` is its systemd service, empty if it is in none.

    ``endpoint`` is the CRI socket that a kubelet was told to use, without ``unix://``; empty if that cannot be seen.
    ``root`` and ``pod_logs`` are the directories that a kubelet was told to use, empty for its defaults.
    """

    name: str
    pid: int
    inode: int
    unit: str = ""
    endpoint: str = ""
    root: str = ""
    pod_logs: str = ""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def find(proc: Path = PROC) -> list[Daemon]:
    """Return the daemons of this machine, lowest process ID first. One that ends while it is looked at is left out."""
    here = _root_of(proc / "self")
    pids = sorted(int(entry) for entry in os.listdir(proc) if entry.isdecimal())
    found = []
    for pid in pids:
        directory = proc / str(pid)
        try:
            comm = procfs.name(directory)
            if comm not in _OTHERS and comm != "podkeep" and not comm.startswith("python"):
                continue
            # Before anything else is read of it: what a process of a pod or of a user shows in /proc can be slow or
            # wrong.
            if not procfs.is_machines(directory, _SAME_MACHINE) or _root_of(directory) != here:
                continue
            name = comm if comm in _OTHERS else podkeep_daemon(_arguments(directory))
            if name:
                found.append(_daemon(directory, name, pid))
        except (OSError, KernelCallError):
            continue  # it ended while we looked
    return found


def itself(name: str, proc: Path = PROC) -> Daemon:
    """Return the calling process as a daemon of this ``name``."""
    return _daemon(proc / "self", name, os.getpid())


def is_there(daemon: Daemon, proc: Path = PROC) -> bool:
    """Say whether a process with the ID of this daemon is in the same mount namespace now."""
    try:
        return _mount_namespace(proc / str(daemon.pid)) == daemon.inode
    except OSError:
        return False


def reaches(theirs: int, ours: int | None = None) -> bool:
    """Say whether what process ``theirs`` mounts appears in the mount namespace of ``ours`` (default: this process).

    Judged by the mount at ``/``: theirs is shared, and ours is its peer or its slave (mount_namespaces(7)).
    """
    try:
        above, below = _root(theirs), _root(ours)
    except NotFound:
        return False
    groups = {field.partition(":")[2] for field in above if field.startswith("shared:")}
    return any(field.partition(":")[2] in groups for field in below if field.startswith(("shared:", "master:")))


def _root(pid: int | None) -> tuple[str, ...]:
    # The last one is what is seen where several are stacked.
    roots = [entry.propagation for entry in mountinfo.read(pid) if entry.mount_point == "/"]
    return roots[-1] if roots else ()


def _daemon(directory: Path, name: str, pid: int) -> Daemon:
    """Return a daemon; a kubelet with what its options say, and its configuration file as its own root has it."""
    unit = unit_of(read_text(directory / "cgroup"))
    daemon = Daemon(name=name, pid=pid, inode=_mount_namespace(directory), unit=unit)
    if name != KUBELET:
        return daemon
    argv = _arguments(directory)
    works_in = os.readlink(directory / "cwd")

    def path(name: str) -> str:
        """Return the path that an option names, from the root; a relative one begins where the process works."""
        value = option(argv, name)
        return os.path.join(works_in, value) if value else ""

    configuration = [
        _text(directory / "root", file) for file in _files(directory / "root", path("config"), path("config-dir"))
    ]
    endpoint = option(argv, "container-runtime-endpoint") or _last(_ENDPOINT, configuration)
    return structs.replace(
        daemon,
        endpoint=endpoint.removeprefix("unix://").removeprefix("unix:"),
        root=path("root-dir"),
        pod_logs=_last(_POD_LOGS, configuration),
    )


def _files(root: Path, file: str, directory: str) -> list[str]:
    """Return a kubelet's configuration files: one, then those of a directory, each of which goes before the last."""
    found = []
    if directory:
        above = root / directory.lstrip("/")
        for place, _, names in os.walk(above):
            found += [
                os.path.join(directory, os.path.relpath(place, above), name) for name in names if name.endswith(".conf")
            ]
            if len(found) >= _MOST_FILES:
                break
    # The order of a kubelet, which walks a directory by name and goes into each that it meets.
    found.sort(key=lambda name: Path(name).parts)
    return [*([file] if file else ()), *found[:_MOST_FILES]]


def _mount_namespace(directory: Path) -> int:
    return (directory / "ns/mnt").stat().st_ino


def _root_of(directory: Path) -> tuple[int, int]:
    """Return what the root directory of a process is, in whichever mount namespace."""
    # Of what the kernel knows: a container may have its root on a FUSE, whose server need not answer.
    root = libc.look(libc.AT_FDCWD, os.fsencode(directory / "root"), follow=True).status
    return root.st_dev, root.st_ino


def _arguments(directory: Path) -> list[str]:
    return os.fsdecode(procfs.command_line(directory)).split("\0")[:-1]


def podkeep_daemon(argv: Sequence[str]) -> str:
    """Return which daemon of podkeep's a command line starts: :data:`RUNTIME`, :data:`AGENT`, or an empty text."""
    verb, following = _verb(argv)
    if verb == "runtime" and not {"stop", "unit"} & set(following):
        return RUNTIME
    return AGENT if verb == "run" else ""


def takes_mount_namespace(argv: Sequence[str]) -> bool:
    """Return whether a command line is one of podkeep's daemons that have the option ``--mount-namespace``."""
    return bool(podkeep_daemon(argv)) or _verb(argv)[0] == "agent"


def _verb(argv: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return podkeep's verb in a command line, and what follows it; empty texts if it is no command of podkeep's."""
    words = [PurePath(word).name for word in argv[:4]]  # python -P -m podkeep
    if "podkeep" not in words or (words[0] != "podkeep" and not words[0].startswith("python")):
        return "", ()
    rest = list(argv[words.index("podkeep") + 1 :])
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in _VALUE_OPTIONS else rest[1:]
    return (rest[0], rest[1:]) if rest else ("", ())


def unit_of(cgroup: str) -> str:
    """Return the systemd service that a process is in by its ``/proc/<pid>/cgroup``, or an empty text."""
    for line in lines(cgroup):
        number, controllers, path = line.split(":", 2)
        # Version 1 has systemd's own named hierarchy, version 2 the one with number 0 (cgroups(7)).
        if (controllers == "name=systemd" or number == "0") and path.startswith("/system.slice/"):
            # Below the service there may be what it delegates.
            unit = path.split("/")[2]
            if unit.endswith(".service"):
                return unit
    return ""


def _last(key: str, texts: Sequence[str]) -> str:
    """Return the value that the last text has for a key which has any, or an empty text."""
    found = [match[1] for text in texts if (match := _LINES[key].search(text))]
    return found[-1] if found else ""


def _text(root: Path, file: str) -> str:
    """Return the beginning of a regular file below a root directory, or an empty text."""
    try:
        with openat.closing(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            content = openat.read_regular(fd, file.lstrip("/"), _MOST_BYTES, rules=openat.INSIDE)
    except (OSError, KernelCallError):
        return ""
    return os.fsdecode(content or b"")


def option(argv: Sequence[str], name: str) -> str:
    """Return the value of an option as Go's programs take it (``--name=value``, ``--name value``), or an empty text."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        key, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and key == name:
            return value if equals else following
    return ""
