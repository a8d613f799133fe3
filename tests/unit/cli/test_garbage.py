"""How often Python looks for garbage in a program that starts, and in one that goes on."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_daemon_looks_as_any_program_of_python_does() -> None:
    before, rarely, after = run(
        "import gc; print(gc.get_threshold()); from podkeep.cli.core import garbage;"
        "garbage.rarely(); print(gc.get_threshold()); garbage.as_usual(); print(gc.get_threshold())"
    )
    assert before == after != rarely


def test_nothing_is_looked_through_at_the_end() -> None:
    code = (
        "import atexit, gc; from podkeep.cli.core import garbage;"
        # Called last: these are called in the opposite order.
        "atexit.register(lambda: print(gc.get_freeze_count() > 0)); garbage.rarely(); print(gc.get_freeze_count())"
    )
    assert run(code) == ["0", "True"]


def test_the_command_line_begins_with_it() -> None:
    code = (
        "import atexit, gc, runpy, sys; sys.argv[1:] = ['--version']; usual = gc.get_threshold();"
        "atexit.register(lambda: print(gc.get_threshold()[0] > usual[0], gc.get_freeze_count() > 0));"
        "runpy.run_module('podkeep', run_name='__main__', alter_sys=True)"
    )
    assert run(code)[-1] == "True True"
