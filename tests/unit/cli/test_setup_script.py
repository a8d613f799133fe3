from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[3] / "tools" / "setup"


def test_unknown_purpose_is_refused_with_the_usage() -> None:
    done = subprocess.run([SETUP, "party"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert (
        done.stderr
        == "setup: unknown purpose 'party'\nhint: usage: tools/setup [demo|test|reference|bench|nested] [--list]\n"
    )


@pytest.mark.slow
def test_an_environment_behind_a_link_is_left_alone(tmp_path: Path) -> None:
    """Making one empties what was there, which may be that of another checkout."""
    checkout, theirs = tmp_path / "checkout", tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "kept").touch()
    (checkout / "tools").mkdir(parents=True)
    (checkout / ".venv").symlink_to(theirs)
    shutil.copy(SETUP, checkout / "tools")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(SETUP.parents[1] / name, checkout)
    command = [checkout / "tools" / "setup", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"setup: .venv is a link to {theirs}, and what is there is not for this directory\n")
    assert [path.name for path in theirs.iterdir()] == ["kept"]


def test_scripts_are_valid_bash() -> None:
    for script in (SETUP, SETUP.parents[1] / ".ci" / "run"):
        done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "set -euo pipefail" in script.read_text()
