"""Names of block devices and the disks that they are on, from sysfs."""

from __future__ import annotations

import os

from podkeep.kernel.tables import read_text

_SYSFS = "/sys/dev/block"


def device_name(major: int, minor: int) -> str:
    """Return ``/dev/NAME`` of a block device, or ``MAJOR:MINOR`` where the kernel shows none (overlay, btrfs)."""
    numbers = f"{major}:{minor}"
    try:
        target = os.readlink(f"{_SYSFS}/{numbers}")
    except OSError:
        return numbers
    # sysfs writes ! for the / in names such as cciss/c0d0.
    return "/dev/" + os.path.basename(target).replace("!", "/")


def disk_of(major: int, minor: int, *, sysfs: str = _SYSFS) -> tuple[int, int]:
    """Return the numbers of the disk that a partition is on, whose input and output cgroups count; else the same."""
    place = f"{sysfs}/{major}:{minor}"
    try:
        if os.path.exists(f"{place}/partition"):
            # The entry is a link into the disk's directory.
            found_major, found_minor = read_text(f"{place}/../dev").split(":")
            return int(found_major), int(found_minor)
    except (OSError, ValueError):
        pass  # taken away meanwhile
    return major, minor
