"""The block devices of this node: which of them a pattern means, and what there is to know about one.

Owns: from a pattern to whole disks, by way of symbolic links and partitions, and sysfs. Does not own: what is set for
them (``limits.py``). Patterns are looked up each time that they are asked for: links and disks come and go.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.mount.blockdev import device_name, disk_of
from podkeep.runtime.class_resources.blockio import patterns

_SYS_BLOCK = Path("/sys/dev/block")


class Device(FrozenStruct, kw_only=True):
    """A whole disk."""

    number: str
    """``MAJOR:MINOR``."""
    name: str
    """``/dev/vda``."""


class Match(FrozenStruct, kw_only=True):
    """A path that a pattern matched, and the disk that it leads to."""

    path: str
    device: Device
    partition: bool
    """The path is a partition; the kernel limits whole disks alone (blk-cgroup.c, blkg_conf_prep)."""


Matches = dict[str, tuple[Match, ...]]
"""By pattern; a pattern without a match has an empty entry."""


class Devices:
    """The block devices of the machine; may be used on several threads at once."""

    def match(self, asked: Iterable[str]) -> Matches:
        """Return the disks that checked patterns mean now."""
        return {pattern: self._match(pattern) for pattern in dict.fromkeys(asked)}

    def _match(self, pattern: str) -> tuple[Match, ...]:
        matches: list[Match] = []
        for path in patterns.expand(pattern):
            number = _number(path)
            if number and self.exists(number):
                disk = disk_of(*map(int, number.split(":")))
                device = Device(number=f"{disk[0]}:{disk[1]}", name=device_name(*disk))
                matches.append(Match(path=path, device=device, partition=device.number != number))
        return tuple(matches)

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


def _number(path: str) -> str:
    """Return ``MAJOR:MINOR`` of the block device that a path leads to; empty if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if stat.S_ISBLK(status.st_mode) else ""


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
