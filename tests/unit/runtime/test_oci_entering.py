"""A program that is put somewhere before it runs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.process import keyring, procfs
from podkeep.runtime.oci import entering
from support import keys
from support.descriptors import open_descriptors
from support.escaped import PROGRAMS

PROGRAM = Path(__file__).with_name("programs") / "killed_while_entering.py"
TIMEOUT_S = 30


def test_enters_before_the_program_runs_and_stays_the_same_process(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    seen: list[tuple[int, bool]] = []
    argv = ["/bin/sh", "-c", 'echo $$ "$1" > "$0"; cat', str(mark), "a b"]
    process = entering.popen(
        argv,
        lambda pid: seen.append((pid, mark.exists())),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.communicate(b"through")[0] == b"through"
    assert process.returncode == 0
    assert seen == [(process.pid, False)]
    assert mark.read_text() == f"{process.pid} a b\n"


@pytest.mark.requirement("Q42")
def test_children_inherit_what_was_entered() -> None:
    process = entering.popen(
        ["/bin/sh", "-c", "cat /proc/self/oom_score_adj"],
        lambda pid: procfs.set_oom_score_adj(pid, 321),
        stdout=subprocess.PIPE,
    )
    assert process.communicate()[0] == b"321\n"


@pytest.mark.slow
@pytest.mark.parametrize("enter", [None, lambda _: None])
def test_has_an_empty_session_keyring(enter: entering.Enter | None) -> None:
    def start() -> subprocess.Popen[bytes]:
        keys.session_key(b"podkeep-test", b"secret")
        argv = [sys.executable, str(PROGRAMS / "finds_key.py"), "podkeep-test"]
        assert subprocess.check_output(argv) == b"found\n"
        return entering.popen(argv, enter, stdout=subprocess.PIPE)

    # On a thread with a keyring of its own, so that no key is left to this process.
    assert keyring.in_new_session(start).communicate()[0] == b"not found\n"


@pytest.mark.slow
def test_a_refusal_ends_it_before_it_ran(tmp_path: Path) -> None:
    mark, pids = tmp_path / "mark", []

    def refuse(pid: int) -> None:
        pids.append(pid)
        raise FailedPrecondition("no group")

    before = len(open_descriptors())
    with pytest.raises(FailedPrecondition):
        entering.popen(["/bin/touch", str(mark)], refuse, stdout=subprocess.PIPE, start_new_session=True)
    assert not mark.exists()
    assert not Path(f"/proc/{pids[0]}").exists()
    assert len(open_descriptors()) == before


@pytest.mark.parametrize("enter", [None, lambda _pid: None])
def test_a_program_that_is_not_there(enter: entering.Enter | None) -> None:
    with pytest.raises(FileNotFoundError):
        entering.popen(["/nonexistent/crun"], enter, env={"PATH": "/bin"})


def test_who_is_killed_while_a_program_waits_leaves_nothing_waiting(tmp_path: Path) -> None:
    mark, noted = tmp_path / "mark", tmp_path / "pid"
    command = [sys.executable, PROGRAM, mark, noted]
    assert subprocess.run(command, check=False).returncode == -9
    pid = int(noted.read_text())
    deadline = time.monotonic() + TIMEOUT_S
    while _runs(pid) and time.monotonic() < deadline:
        select.select([], [], [], 0.01)
    try:
        assert not _runs(pid)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not mark.exists()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
