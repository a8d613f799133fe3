"""Buffers that are used again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).with_name("programs") / "stream.py"


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "least", "most"), [(False, 8192, 1 << 30), (True, 0, 2048)])
def test_a_stream_through_large_buffers_needs_no_new_pages(keep: bool, least: int, most: int) -> None:
    done = subprocess.run(
        [sys.executable, _PROGRAM, *(["keep"] if keep else [])], check=True, capture_output=True, text=True
    )

    assert least <= int(done.stdout) <= most  # 16 pages a piece otherwise


@pytest.mark.slow
def test_large_buffers_are_given_back_when_they_are_freed() -> None:
    program = Path(__file__).with_name("programs") / "buffers.py"
    done = subprocess.run([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    before, held, after, pages = map(int, done.stdout.split())
    assert held - before >= 80
    assert after - before < 10
    assert pages < 10_000, "smaller ones are used again"  # 96 each time otherwise
