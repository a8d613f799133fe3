"""The block devices of this node: which of them a pattern means, and what there is to know about one.

Owns: from a pattern to whole disks, by way of symbolic links and partitions, and sysfs. Does not own: what is set for
them (``limits.py``). What a pattern matches is kept as long as the directories it looked at do not change, so that a
container that is created pays for a few system calls only; that a device is there is asked every time.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from podkeep.kernel.mount.blockdev import device_name
from podkeep.runtime.class_resources.blockio import patterns

_RACY_NS = 2_000_000_000
"""A directory that changed so shortly before it was read may change again without a new time stamp."""
# A bound, because disks that come and go leave their numbers behind.
_MOST_KEPT = 4096
_MOST_LINKS = 40
"""As many as the kernel follows (path_resolution(7))."""
_SYS_BLOCK = Path("/sys/dev/block")


@dataclass(frozen=True, kw_only=True)
class Device:
    """A whole disk."""

    number: str
    """``MAJOR:MINOR``."""
    name: str
    """``/dev/vda``."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """A path that a pattern matched, and the disk that it leads to."""

    path: str
    device: Device
    partition: bool
    """The path is a partition; the kernel limits whole disks alone (blk-cgroup.c, blkg_conf_prep)."""


Matches = dict[str, tuple[Match, ...]]
"""By pattern; a pattern without a match has an empty entry."""


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What was there when a pattern was looked up."""

    numbers: tuple[tuple[str, str], ...]
    """Path and ``MAJOR:MINOR``."""
    stamps: tuple[tuple[str, tuple[int, int, int] | None], ...]
    """Directories, and by what a change of each can be seen."""
    durable: bool


class Devices:
    """The block devices of the machine; may be used on several threads at once."""

    def __init__(self) -> None:
        self._found: dict[str, _Found] = {}
        self._disks: dict[tuple[str, str], Device] = {}
        """By number and where sysfs has it."""
        self._lock = threading.Lock()

    def match(self, asked: Iterable[str]) -> Matches:
        """Return the disks that checked patterns mean now."""
        return {pattern: self._match(pattern) for pattern in dict.fromkeys(asked)}

    def _match(self, pattern: str) -> tuple[Match, ...]:
        with self._lock:
            found = self._found.get(pattern)
        if found is None or not found.durable or any(_stamp(path) != seen for path, seen in found.stamps):
            found = _look_up(pattern)
            with self._lock:
                self._found[pattern] = found
        matches: list[Match] = []
        for path, number in found.numbers:
            device = self._disk(number)
            if device is not None:
                matches.append(Match(path=path, device=device, partition=device.number != number))
        return tuple(matches)

    def _disk(self, number: str) -> Device | None:
        """Return the disk behind a number, the whole one for a partition; None if nothing is there."""
        try:
            target = os.readlink(f"{_SYS_BLOCK}/{number}")
        except OSError:
            return None
        # A number that another disk got since leads elsewhere in sysfs, so both are the key.
        device = self._disks.get((number, target))
        if device is None:
            disk = _disk_of(number)
            if disk is None:
                return None
            if len(self._disks) >= _MOST_KEPT:
                self._disks.clear()
            device = Device(number=disk, name=device_name(*map(int, disk.split(":"))))
            self._disks[number, target] = device
        return device

    def facts(self, number: str) -> dict[str, str]:
        """Return what people know a disk by (model, serial) and its scheduler, as far as sysfs has it."""
        found = {
            "model": _first(number, "device/model", "dm/name", "loop/backing_file"),
            "serial": _first(number, "serial", "device/serial", "wwid", "device/wwid", "dm/uuid"),
            "scheduler": self.scheduler(number),
        }
        return {name: text for name, text in found.items() if text}

    def scheduler(self, number: str) -> str:
        """Return the scheduler in force, ``bfq``; empty if the disk has none to choose or is gone."""
        text = _first(number, "queue/scheduler")
        chosen = text.partition("[")[2].partition("]")[0]
        return chosen or (text if " " not in text else "")

    def exists(self, number: str) -> bool:
        """Say whether there is a device ``MAJOR:MINOR``."""
        return os.path.lexists(f"{_SYS_BLOCK}/{number}")

    def numbers(self) -> list[str]:
        """Return the numbers of all block devices, partitions as well."""
        return _listed(_SYS_BLOCK)

    def schedulers(self) -> frozenset[str]:
        """Return the schedulers that the kernel offers for any of its disks now."""
        offered: set[str] = set()
        for number in self.numbers():
            offered.update(_first(number, "queue/scheduler").replace("[", "").replace("]", "").split())
        return frozenset(offered)


def _look_up(pattern: str) -> _Found:
    directories: dict[str, None] = {}
    numbers: dict[str, str] = {}
    started = time.time_ns()
    stamps: dict[str, tuple[int, int, int] | None] = {}

    def visit(directory: str) -> None:
        if directory not in directories:
            directories[directory] = None
            stamps[directory] = _stamp(directory)  # before it is read: a change in between is seen the next time

    for path in patterns.expand(pattern, visit):
        try:
            for link in _links(path):
                visit(os.path.dirname(link))
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISBLK(status.st_mode):
            numbers[path] = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    durable = all(stamp is None or started - stamp[2] > _RACY_NS for stamp in stamps.values())
    return _Found(numbers=tuple(numbers.items()), stamps=tuple(stamps.items()), durable=durable)


def _links(path: str) -> Iterator[str]:
    """Yield the paths that a path leads to, link by link.

    :raises OSError: if they lead nowhere.
    """
    for _ in range(_MOST_LINKS):
        if not os.path.islink(path):
            return
        path = os.path.join(os.path.dirname(path), os.readlink(path))
        yield path


def _stamp(directory: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _disk_of(number: str) -> str | None:
    directory = _SYS_BLOCK / number
    if not (directory / "partition").exists():
        return number
    # A partition's directory lies in its disk's.
    return _read(Path(os.path.realpath(directory)).parent / "dev") or None


def _first(number: str, *names: str) -> str:
    return next((text for name in names if (text := _read(_SYS_BLOCK / number / name))), "")


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _listed(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
