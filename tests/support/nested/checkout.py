"""A disk with this checkout and its .venv, for the nested machine to mount where they are here.

Made anew for each machine, in a second, from hard links: what is tested is what the working tree holds. Called by
support/nested/machine.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.nested.build import REPOSITORY, NestedError

PYTHON = (3, 11)
"""Of Debian 12: compiled modules in .venv must be for it."""
PARTS = ("src", "tests", "tools", "examples", "docs", "pyproject.toml", "constraints.txt")
NOT_NEEDED = shutil.ignore_patterns("mypy", "*mypyc*", "ruff", "pip", "setuptools", "*-stubs", ".ruff_cache")
"""In .venv: large, and nothing that a test runs."""
SIZE = "2G"
"""Of the file system, so that tests may write; the file has holes."""


def make_disk(target: Path) -> None:
    """Write a raw ext4 disk with the working tree as it is now.

    :raises NestedError: if .venv is of a Python that the machine does not have.
    """
    if sys.version_info[:2] != PYTHON or sys.platform != "linux":
        have = ".".join(map(str, sys.version_info[:2]))
        raise NestedError(
            f"the nested machine is Debian 12 with Python 3.11, and .venv has compiled modules for Python {have}: "
            "remove .venv, and run tools/setup nested where python3 is Python 3.11"
        )
    if any(character.isspace() for character in str(REPOSITORY)):
        raise NestedError(f"the nested machine cannot mount a checkout at a path with spaces: {REPOSITORY}")
    stage = target.with_suffix(".tree")
    stage.mkdir()
    try:
        for part in PARTS:
            _link(REPOSITORY / part, stage / part)
        _link(REPOSITORY / ".venv", stage / ".venv")
        _set_interpreter(stage / ".venv")
        # Compiling takes the guest ten times as long.
        command = [
            sys.executable,
            "-m",
            "compileall",
            "-q",
            "-s",
            str(stage),
            "-p",
            str(REPOSITORY),
            str(stage / "src"),
        ]
        subprocess.run(command, check=True, capture_output=True)
        options = "lazy_itable_init=0,lazy_journal_init=0"
        subprocess.run(
            ["mkfs.ext4", "-q", "-L", "checkout", "-m", "0", "-E", options, "-d", str(stage), str(target), SIZE],
            check=True,
            capture_output=True,
            env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
        )
    finally:
        shutil.rmtree(stage)


def _link(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=NOT_NEEDED, copy_function=_link_file)
    else:
        _link_file(str(source), str(target))


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # on another file system, or one without hard links
        shutil.copy2(source, target, follow_symlinks=False)


def _set_interpreter(venv: Path) -> None:
    """Let the copy of .venv be one of the guest's Python, whatever made the one here."""
    for path in (venv / "bin").glob("python*"):
        path.unlink()
    for name in ("python", "python3", "python3.11"):
        (venv / "bin" / name).symlink_to("/usr/bin/python3.11")
    settings = venv / "pyvenv.cfg"
    settings.unlink()
    settings.write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
