"""Names of block devices, from sysfs."""

from __future__ import annotations

import os


def device_name(major: int, minor: int) -> str:
    """Return ``/dev/NAME`` of a block device, or ``MAJOR:MINOR`` where the kernel shows none (overlay, btrfs)."""
    numbers = f"{major}:{minor}"
    try:
        target = os.readlink(f"/sys/dev/block/{numbers}")
    except OSError:
        return numbers
    # sysfs writes ! for the / in names such as cciss/c0d0.
    return "/dev/" + os.path.basename(target).replace("!", "/")
