"""Ctrl-C while podkeep is still being imported, which takes a while on a busy machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED = """
import signal, sys
class Interrupting:
    def find_spec(self, name, *rest):
        if name == {name!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from podkeep.__main__ import run
run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["podkeep.cli.core.garbage", "podkeep.cli.main", "click"])
def test_a_verb_that_is_interrupted_while_it_is_imported_says_nothing(name: str) -> None:
    argv = [sys.executable, "-c", INTERRUPTED.format(name=name), "ps"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
