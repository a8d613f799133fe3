"""Buffers that are used again."""

from __future__ import annotations

import subprocess
import sys

import pytest

_STREAM = """
import os, resource, threading
from podkeep.kernel import allocator
if {keep}: allocator.keep_buffers()
def stream():
    reading, writing = os.pipe()
    piece = bytes(1 << 16)
    for _ in range(1024):
        os.write(writing, piece)
        os.read(reading, 1 << 20)  # a large buffer, cut to what there was
thread = threading.Thread(target=stream)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread.start(); thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize(("keep", "least", "most"), [(False, 8192, 1 << 30), (True, 0, 2048)])
def test_a_stream_through_large_buffers_needs_no_new_pages(keep: bool, least: int, most: int) -> None:
    done = subprocess.run([sys.executable, "-c", _STREAM.format(keep=keep)], check=True, capture_output=True, text=True)

    assert least <= int(done.stdout) <= most  # 16 pages a piece otherwise
