"""Starts programs in sessions of their own without end, each start of which takes the kernel long.

Prints a line before the first one. A copy of this process has as many areas of memory as the kernel gives one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress

PAGE = mmap.PAGESIZE
AREAS = 50_000

libc = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, AREAS * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for number in range(0, AREAS, 2):
    assert libc.mprotect(ctypes.c_void_p(start + number * PAGE), PAGE, mmap.PROT_READ) == 0
print("ready", flush=True)
while True:
    with suppress(OSError):  # a signal came meanwhile
        if os.fork() == 0:
            os.setsid()
            os.execv("/bin/sleep", ["sleep", "300"])
