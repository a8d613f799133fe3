"""A program that podkeep turns into finds everything as if podkeep had not been there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

CODE = "import sys; from podkeep.cli.mountns.command import become; become(sys.argv[1:])"


def run(*argv: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def test_status_and_outputs_are_the_programs() -> None:
    done = run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_no_process_is_in_between() -> None:
    with subprocess.Popen([sys.executable, "-c", CODE, "sh", "-c", "echo $$"], stdout=subprocess.PIPE) as process:
        assert int(process.communicate(timeout=60)[0]) == process.pid


@pytest.mark.slow
def test_signal_that_ends_it_is_seen() -> None:
    assert run("sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_no_signal_is_ignored_that_was_not_before() -> None:
    before = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True, check=True)
    assert run("grep", "SigIgn", "/proc/self/status").stdout == before.stdout


def test_environment_is_what_was_given() -> None:
    # In the C locale Python adds LC_CTYPE to its environment.
    given = {"PATH": "/usr/bin:/bin", "ODD": "\udcff"}
    done = subprocess.run([sys.executable, "-c", CODE, "env"], capture_output=True, env=given, timeout=60, check=True)
    assert sorted(done.stdout.splitlines()) == [b"ODD=\xff", b"PATH=/usr/bin:/bin"]


@pytest.mark.slow
def test_streams_that_were_closed_stay_closed() -> None:
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", CODE]
    script = "for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && exit 1; done; exit 3"
    assert subprocess.run([*command, "sh", "-c", script], timeout=60, check=False).returncode == 3


def test_locale_that_was_given_stays() -> None:
    done = run("sh", "-c", "echo $LC_CTYPE", environment={"LC_CTYPE": "C.UTF-8"})
    assert done.stdout == "C.UTF-8\n"


@pytest.mark.slow
def test_program_that_is_not_there() -> None:
    done = run("no-such-program", "--option")
    assert done.returncode == 127
    assert done.stderr == "podkeep: no-such-program: no such program, or what runs it is missing\n"


@pytest.mark.slow
@pytest.mark.parametrize("content", ["#!/bin/sh\n", "no program at all"], ids=["not executable", "not a program"])
def test_program_that_cannot_be_run(tmp_path: Path, content: str) -> None:
    program = tmp_path / "program"
    program.write_text(content)
    program.chmod(0o644 if content.startswith("#!") else 0o755)
    done = run(str(program))
    assert done.returncode == 126
    assert done.stderr.startswith(f"podkeep: {program}: cannot be run: ")
