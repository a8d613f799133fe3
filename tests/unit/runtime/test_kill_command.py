"""Killing a command that an OCI runtime started: who goes with it, and who does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import podkeep

PROGRAM = Path(__file__).with_name("programs") / "kill_command.py"


@pytest.mark.slow
def test_a_session_whose_number_has_passed_to_another_is_left_alone() -> None:
    """Pods use up IDs of processes: that of a command that was killed may belong to anybody a moment later."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, PROGRAM]
    environment = os.environ | {"PYTHONPATH": str(Path(podkeep.__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("command killed\nstranger lives\n", 0), done.stderr
