"""Has large buffers, and frees them: prints the MiB that it has before, meanwhile and afterwards."""

from __future__ import annotations

from pathlib import Path

from podkeep.kernel.process import allocator


def resident() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10


def main() -> None:
    allocator.return_buffers()
    # From the first of this size that is freed, glibc would by default take others from the heap.
    bytearray(16 << 20)
    before = resident()
    buffers, between = [], []
    for _ in range(20):
        buffers.append(bytearray(b"x") * (4 << 20))
        between.append(bytearray(2000))
    held = resident()
    buffers.clear()
    print(before, held, resident())


main()
