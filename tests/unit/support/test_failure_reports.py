"""Reports of failed tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FINALISED = Path(__file__).with_name("programs") / "finalised.py"


@pytest.mark.slow
def test_a_failure_is_reported_whatever_the_garbage_collector_finalises() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(FINALISED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "1 failed" in done.stdout
