"""Mounts of the version 2 hierarchy of cgroups, which leave it as it is.

It has one set of options, however often it is mounted. A mount with others, from the machine's cgroup namespace, sets
them for all (cgroup-v2.rst, Mounting): one without any takes ``nsdelegate`` and ``memory_recursiveprot``, which systemd
sets, off the machine.
"""

from __future__ import annotations

from pathlib import Path

from podkeep.kernel.mount import mountinfo, mounts


def options() -> tuple[str, ...]:
    """Return the options that the hierarchy has, if it is mounted anywhere here."""
    mounted = [entry.super_options for entry in mountinfo.read() if entry.fs_type == "cgroup2"]
    return tuple(option for option in mounted[0] if option not in ("rw", "ro")) if mounted else ()


def mount(target: Path | str) -> None:
    """Mount the hierarchy."""
    mounts.mount("none", target, fstype="cgroup2", data=",".join(options()))
