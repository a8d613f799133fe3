"""Has large buffers, and frees them: prints the MiB that it has before, meanwhile and afterwards; and how many new
pages a thousand smaller ones took then, each with another beside it.
"""

from __future__ import annotations

import resource
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
    after = resident()
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(1000):
        smaller = bytearray(b"x") * (1 << 18)
        smaller = bytes(smaller)
        del smaller
    print(before, held, after, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages)


main()
