"""Has a thread read a stream through large buffers, and prints how many new pages that took.

stream.py [keep]
"""

from __future__ import annotations

import os
import resource
import sys
import threading

from podkeep.kernel.process import allocator

if sys.argv[1:] == ["keep"]:
    allocator.keep_buffers()


def stream() -> None:
    reading, writing = os.pipe()
    piece = bytes(1 << 16)
    for _ in range(1024):
        os.write(writing, piece)
        os.read(reading, 1 << 20)  # a large buffer, cut to what there was


thread = threading.Thread(target=stream)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
