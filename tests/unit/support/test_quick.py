"""``make quick``: what it leaves out exists, and what it runs needs no root."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile

import pytest

from support import quick
from support.documents import ROOT
from support.waiting import TIMEOUT_S

UNIT = ROOT / "tests/unit"


def test_what_is_left_out_exists() -> None:
    assert [name for name in quick.NEEDS_ROOT | quick.TAKES_LONG if not (UNIT / name).exists()] == []


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("base", False),
        ("base/test_config.py", False),
        ("runtime/test_staging.py", True),
        ("kernel", True),
        ("conftest.py", False),
        ("test_bench.py", True),
    ],
)
def test_what_is_left_out(name: str, left_out: bool) -> None:
    assert quick.is_left_out(UNIT / name, UNIT) is left_out


@pytest.mark.slow
def test_it_passes_for_a_user_who_is_not_root() -> None:
    # In a user namespace without a mapping the process is nobody, but may read what this one may.
    with tempfile.TemporaryDirectory() as directory:  # short: sockets are below it
        command = ["unshare", "--user", sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--basetemp={directory}/base", quick.OPTION, "-m", "not slow", "tests/unit"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert done.returncode == 0, done.stdout[-4000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 3000
