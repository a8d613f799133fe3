"""Daemons as copies of their supervisor: what it imports for them, and what of it they have."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).with_name("programs")


def run(program: str) -> Any:
    """Return what a program beside this prints, decoded."""
    done = subprocess.run([sys.executable, "-P", PROGRAMS / program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_what_a_supervisor_imports_starts_no_thread_and_opens_nothing() -> None:
    before, after = run("preloading.py")
    assert before[0] == 1
    assert after == before


def test_a_daemon_has_of_its_supervisor_only_what_was_imported() -> None:
    told = run("forking_supervisor.py")
    assert told["argv"] == ["podkeep", "agent"]
    assert told["environment"] == {"A": "b"}
    assert told["directory"] == "/"
    assert told["leads"]
    assert told["descriptors"] == []
    assert told["terminates"]
    assert told["blocked"] == []
    assert told["blocked here"] == []


def test_the_end_of_a_daemon_is_told_as_that_of_a_program() -> None:
    told = run("forking_supervisor.py")
    assert told["status"] == 7
    assert told["killed"] == -signal.SIGKILL


@pytest.mark.slow
def test_a_daemon_that_crashes_tells_where_each_of_its_threads_was() -> None:
    told = run("crashing_daemon.py")
    assert told["reason"] == "killed by SIGSEGV"
    assert told["relayed"][0] == "agent: Fatal Python error: Segmentation fault"
    frames = [line.rpartition(" in ")[2] for line in told["relayed"] if line.startswith("agent:   File ")]
    assert "crash" in frames
    assert "work" in frames


@pytest.mark.slow
def test_a_daemon_is_not_killed_because_its_supervisor_was_held_up() -> None:
    """A terminal that was stopped for a minute (Ctrl-S) cost all daemons of a node."""
    assert run("held_up_supervisor.py") == {"begun": 1}


@pytest.mark.slow
def test_after_an_update_a_daemon_is_not_a_copy() -> None:
    assert run("updated_installation.py") == [True, False, False]
