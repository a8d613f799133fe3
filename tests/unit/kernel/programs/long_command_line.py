"""Gives itself a command line of 64 MiB (PR_SET_MM_MAP), says so, and waits."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
start = libc.mmap(None, ctypes.c_size_t(64 << 20), 1, 0x4022, -1, 0)
fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()


def value(number: int) -> int:
    """Return a field by its number in proc(5)."""
    return int(fields[number - 3])


brk = libc.sbrk
brk.restype = ctypes.c_void_p
code, data, stack, environment = (value(26), value(27)), (value(45), value(46)), value(28), (value(50), value(51))
numbers = [*code, *data, value(47), brk(0), stack, start, start + (64 << 20), *environment, 0]


class Map(ctypes.Structure):
    _fields_ = [(f"n{n}", ctypes.c_uint64) for n in range(12)] + [("size", ctypes.c_uint32), ("fd", ctypes.c_uint32)]


given = Map(*numbers, 0, 0xFFFFFFFF)
if libc.prctl(35, 14, ctypes.byref(given), ctypes.c_ulong(ctypes.sizeof(given)), 0):
    raise SystemExit(os.strerror(ctypes.get_errno()))
print("ready", flush=True)
sys.stdin.read()
