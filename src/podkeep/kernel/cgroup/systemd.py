"""Slices of a systemd machine: what they are called, where their cgroups are, starting and stopping them.

Owns: the calls of systemctl(1) and busctl(1), and saying why they cannot work. Does not own: which slice a pod has
(``agent/resources/cgroup_names.py``, ``runtime/cgroup_driver/slices.py``) or scopes, which the OCI runtime asks systemd
for.
systemd owns the cgroup tree below a slice, so nobody else makes a directory there (systemd's
CGROUP_DELEGATION.md). Starting and stopping block.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from podkeep.base import spawn
from podkeep.base.errors import CommandFailed, FailedPrecondition, Internal

RUNNING = Path("/run/systemd/system")
"""There if and only if systemd is the machine's init (sd_booted(3))."""
BUS = Path("/run/dbus/system_bus_socket")
TIMEOUT_S = 30.0
SUFFIX = ".slice"
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
# LC_ALL: what systemd's programs say is compared with English words below.
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def is_slice(parent: str) -> bool:
    """Return whether the parent of a cgroup is the name of a slice, and not a path."""
    return parent.endswith(SUFFIX)


def slice_of_path(path: str) -> str:
    """Return the slice that stands for a path: ``/a/b`` is ``a-b.slice``; a slice stays as it is."""
    # A dash separates the levels of a slice's name (systemd.slice(5)), so a part may have none.
    return path if is_slice(path) else "-".join(part.replace("-", "_") for part in path.strip("/").split("/")) + SUFFIX


def expand(name: str) -> str:
    """Return the path of a slice: ``/a.slice/a-b.slice`` for ``a-b.slice``."""
    parts = name.removesuffix(SUFFIX).split("-")
    return "".join(f"/{'-'.join(parts[: number + 1])}{SUFFIX}" for number in range(len(parts)))


def require(running: Path = RUNNING, bus: Path = BUS) -> None:
    """Check that systemd can be asked.

    :raises FailedPrecondition: if it is not the machine's init, or its bus is not there.
    """
    hint = 'use runtime.cgroup_driver = "cgroupfs"'
    if not running.is_dir():
        raise FailedPrecondition(
            f"runtime.cgroup_driver: systemd is not the init of this machine ({running} is missing)", hint=hint
        )
    if not bus.is_socket():
        raise FailedPrecondition(
            f"runtime.cgroup_driver: systemd's bus, which OCI runtimes use, is not at {bus}",
            hint=f"start dbus.service, or {hint}",
        )


def start_slice(name: str) -> None:
    """Start a slice, and those it is in; one that runs is no error.

    :raises Internal: with systemd's words, if it refuses.
    """
    _systemctl("start", name)


def start_accounted_slice(name: str) -> None:
    """Start a slice of our own making whose cgroup has the files of block I/O: systemd leaves them out unless told.

    One that runs is no error, and stays as it is.

    :raises Internal: with systemd's words, if it refuses.
    """
    # A transient unit is gone when it is stopped, without the files that `systemctl set-property` leaves.
    arguments = ["StartTransientUnit", "ssa(sv)a(sa(sv))", name, "replace", "1", "IOAccounting", "b", "true", "0"]
    try:
        spawn.run(["busctl", "--quiet", "call", *_MANAGER, *arguments], env=_ENVIRONMENT, timeout=TIMEOUT_S).check()
    except CommandFailed as error:
        if "already loaded" not in error.stderr:
            raise Internal(f"systemd did not make {name}: {error.stderr.strip()}") from error
    start_slice(name)  # and wait until it has


def set_properties(name: str, properties: Sequence[str]) -> None:
    """Give a slice that runs properties (``MemoryMax=64M``), until it is stopped.

    :raises Internal: with systemd's words, if it refuses.
    """
    if properties:
        _systemctl("set-property", name, *properties, options=("--runtime",))


def stop_slice(name: str) -> None:
    """Stop a slice and whatever is in it; one that does not run is no error.

    :raises Internal: with systemd's words, if it refuses.
    """
    _systemctl("stop", name)


def _systemctl(verb: str, unit: str, *arguments: str, options: Sequence[str] = ()) -> None:
    command = ["systemctl", "--no-ask-password", "--quiet", *options, verb, unit, *arguments]
    try:
        spawn.run(command, env=_ENVIRONMENT, timeout=TIMEOUT_S).check()
    except CommandFailed as error:
        raise Internal(f"systemd did not {verb} {unit}: {error.stderr.strip()}") from error
