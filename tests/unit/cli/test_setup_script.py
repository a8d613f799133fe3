from __future__ import annotations

import subprocess
from pathlib import Path

SETUP = Path(__file__).parents[3] / "tools" / "setup"


def test_unknown_purpose_is_refused_with_the_usage() -> None:
    done = subprocess.run([SETUP, "party"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert (
        done.stderr
        == "setup: unknown purpose 'party'\nhint: usage: tools/setup [demo|test|reference|bench|nested] [--list]\n"
    )


def test_scripts_are_valid_bash() -> None:
    for script in (SETUP, SETUP.parents[1] / ".ci" / "run"):
        done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "set -euo pipefail" in script.read_text()
