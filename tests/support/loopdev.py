"""Loop devices of a test's own, detached and with their scheduler put back when it is over."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LoopDevice:
    """A block device over a file."""

    path: str
    """``/dev/loop3``."""

    @property
    def name(self) -> str:
        """``loop3``."""
        return self.path.removeprefix("/dev/")

    @property
    def sys(self) -> Path:
        """Its directory in sysfs."""
        return Path("/sys/block") / self.name

    @property
    def number(self) -> str:
        """``7:3``."""
        return (self.sys / "dev").read_text().strip()

    @property
    def scheduler(self) -> str:
        """The scheduler in force."""
        return (self.sys / "queue" / "scheduler").read_text().partition("[")[2].partition("]")[0]

    def schedule(self, scheduler: str) -> None:
        """Choose a scheduler."""
        (self.sys / "queue" / "scheduler").write_text(scheduler)


def attached() -> list[str]:
    """Return the loop devices that have a file, of all processes of the machine."""
    listed = subprocess.run(["losetup", "--noheadings", "--output", "NAME"], check=True, capture_output=True, text=True)
    return sorted(listed.stdout.split())


@contextmanager
def loop_device(directory: Path, *, size: int = 64 * MIB, partitions: bool = False) -> Iterator[LoopDevice]:
    """Attach a device of ``size`` bytes over a new file in ``directory``; ``partitions``: with one."""
    file = directory / "disk.img"
    with file.open("wb") as image:
        image.truncate(size)
    command = ["losetup", "--find", "--show", *(["--partscan"] if partitions else []), file]
    path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    device = LoopDevice(path=path)
    scheduler = device.scheduler
    try:
        if partitions:  # as a program tells the kernel that can read no table of partitions
            subprocess.run(["addpart", path, "1", "2048", "8192"], check=True)
        yield device
    finally:
        device.schedule(scheduler)
        subprocess.run(["losetup", "--detach", path], check=True)
        file.unlink()
