"""How the C library's allocator deals with large buffers (mallopt(3)): used again where gibibytes are streamed, given
back in daemons.

By default glibc maps a buffer of some hundred KiB anew each time and gives it back when it is freed, so the kernel
zeroes a page for every page that is streamed; and each thread gets an arena of its own.
"""

from __future__ import annotations

from enum import IntEnum

from podkeep.kernel import libc

_LARGEST = 4 << 20
"""Bytes of a buffer that is mapped on its own."""
_RETURNED = 1 << 20
"""Bytes of one that is given back at once."""
_KEPT = 16 << 20
"""Bytes of freed memory that stay with the process."""


class _Option(IntEnum):
    """malloc.h, "mallopt options"."""

    TRIM_THRESHOLD = -1
    MMAP_THRESHOLD = -3
    ARENA_MAX = -8


def keep_buffers() -> None:
    """Have freed buffers used again, whichever thread asks. Other C libraries are left as they are."""
    for option, value in (
        # One arena: a buffer that one thread freed is used again by another.
        (_Option.ARENA_MAX, 1),
        (_Option.MMAP_THRESHOLD, _LARGEST),
        (_Option.TRIM_THRESHOLD, _KEPT),
    ):
        libc.mallopt(option, value)


def return_buffers() -> None:
    """Have each large buffer mapped on its own, so that it is the system's again when it is freed.

    By default glibc does so until one was freed, and keeps buffers of that size from then on, up to 32 MiB.
    """
    libc.mallopt(_Option.MMAP_THRESHOLD, _RETURNED)
    # As glibc has it beside a threshold that it chose. Once one is set it would stay 128 KiB, and smaller buffers would
    # be the system's again each time.
    libc.mallopt(_Option.TRIM_THRESHOLD, 2 * _RETURNED)


def give_back() -> None:
    """Give freed memory back to the system. Blocks for some milliseconds, in which other threads wait for memory."""
    libc.malloc_trim()
