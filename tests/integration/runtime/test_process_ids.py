"""A daemon is killed while conmon is about to have a container created, and a process of a pod gets its process ID."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import write_script

PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.parametrize("terminal", ["terminal", "pipes"])
@pytest.mark.parametrize("runtime", ["/usr/bin/crun", "/usr/sbin/runc"])
def test_conmon_executes_and_opens_nothing_of_who_got_the_process_id_of_a_killed_daemon(
    tmp_path: Path, runtime: str, terminal: str
) -> None:
    """conmon is kept waiting by a pipe in the place of its log; it is told to go on by the end of the daemon."""
    taken, file = tmp_path / "taken", tmp_path / "file"
    text = f"#!/bin/sh\ntouch {taken}\n"
    write_script(file, text)
    subprocess.run(["mkfifo", tmp_path / "0.log"], check=True)
    machine = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable]
    daemon = [sys.executable, PROGRAMS / "launching.py", tmp_path, runtime, terminal]
    subprocess.run([*machine, PROGRAMS / "attacker_of_conmon.py", file, tmp_path, *daemon], check=True, timeout=60)
    assert not taken.exists()
    assert file.read_text() == text
