"""Classes of messages are known before threads decode them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("programs") / "decoding_at_once.py"


@pytest.mark.slow
def test_threads_may_decode_the_same_class_for_the_first_time_at_once() -> None:
    done = subprocess.run([sys.executable, "-P", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Outer(inner=Inner(number=1))\n"), done.stderr
