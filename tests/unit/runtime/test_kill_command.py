"""Killing a command that an OCI runtime started: who goes with it, and who does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import podkeep

PROGRAMS = Path(__file__).with_name("programs")


def said(program: str) -> str:
    """Run a program in a PID namespace of its own, and return what it printed."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, PROGRAMS / program]
    environment = os.environ | {"PYTHONPATH": str(Path(podkeep.__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_session_whose_number_has_passed_to_another_is_left_alone() -> None:
    """Pods use up IDs of processes: that of a command that was killed may belong to anybody a moment later."""
    assert said("kill_command.py") == "command killed\nstranger lives\n"


@pytest.mark.slow
def test_a_group_whose_number_has_passed_to_another_is_left_alone() -> None:
    """So may that of an OCI runtime that has ended, when what it left behind cannot be killed in time."""
    assert said("kill_without_descriptors.py") == "runtime ended\nstranger lives\n"
