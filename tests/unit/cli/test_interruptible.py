"""Ctrl-C, once and more often."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.cli.core.output import EXIT_INTERRUPTED

PROGRAM = Path(__file__).with_name("programs") / "interrupted.py"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["collected", "threads", "blocked"])
def test_whoever_interrupts_twice_sees_no_traceback_and_waits_for_nothing(where: str) -> None:
    done = subprocess.run([sys.executable, PROGRAM, where], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INTERRUPTED, "", "")
