"""What podkeep starts is what is installed, whatever lies in the directory that it is called in, as ``/tmp``."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import podkeep
from podkeep.base import spawn
from podkeep.base.errors import NotFound
from podkeep.cli.core import background
from support.processes import write_script

SOURCE = Path(podkeep.__file__).parent
SAFE = ("-I", "-P")
"""Options with which Python does not import from the working directory (python(1))."""


def interpreters(tree: ast.AST) -> Iterator[ast.List | ast.Tuple]:
    """Yield the command lines that start this interpreter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
            yield node


@pytest.mark.slow
def test_python_is_started_without_the_working_directory_on_its_import_path() -> None:
    found = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for node in interpreters(ast.parse(text)) if "executable" in text else ():
            option = node.elts[1]
            found.append(path.name)
            assert isinstance(option, ast.Constant), f"{path}:{node.lineno}"
            assert option.value in SAFE, f"{path}:{node.lineno} starts Python without {' or '.join(SAFE)}"
    assert found, "the pattern is known"


@pytest.fixture
def neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which somebody has put modules and programs of every name that is looked for."""
    directory = tmp_path / "everybodys"
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    (directory / "podkeep").mkdir(parents=True)
    for name in ("podkeep/__init__.py", "podkeep/__main__.py", "click.py", "grpc.py", "logging.py"):
        (directory / name).write_text(trap)
    for name in ("nft", "no-such-program"):
        write_script(directory / name, f"#!/bin/sh\n: >{tmp_path / 'ran'}\n")
    monkeypatch.chdir(directory)
    return directory


@pytest.mark.slow
def test_an_idle_runtime_is_ended_by_this_podkeep(neighbours: Path, tmp_path: Path) -> None:
    held = background.Claim(tmp_path / "run")
    try:
        assert not background._replace_idle(held, ["--set", f"runtime.socket={tmp_path / 'none.sock'}"]), "none serves"
    finally:
        held.close()
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_the_command_of_this_installation_is_this_podkeep(neighbours: Path, tmp_path: Path) -> None:
    done = subprocess.run([*background.program(), "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert podkeep.__version__ in done.stdout
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("script", "own"), [("podkeep", False), ("./podkeep", True), ("/usr/bin/podkeep", True), ("/usr/bin/other", False)]
)
def test_a_name_without_a_directory_is_no_script_of_ours(
    neighbours: Path, monkeypatch: pytest.MonkeyPatch, script: str, own: bool
) -> None:
    monkeypatch.setattr("sys.argv", [script])
    assert (background.program() == [os.path.realpath(script)]) is own


@pytest.mark.parametrize("path", [".", "", ":/nowhere", "/nowhere:", "bin:.:/nowhere"])
def test_no_program_is_looked_for_in_the_working_directory(
    neighbours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("PATH", path)
    command = ["no-such-program"]
    with pytest.raises(NotFound, match="no-such-program"):
        spawn.run(command)
    with pytest.raises(NotFound, match="no-such-program"):
        spawn.run(command, env={"PATH": path}, cwd=str(neighbours))
    with pytest.raises(NotFound, match="no-such-program"):
        spawn.run_foreign(command, stdin=b"", timeout=60, env=os.environ, output_limit=1)
    with pytest.raises(NotFound, match="no-such-program"):
        spawn.start(command, cwd=str(neighbours))
    assert not (tmp_path / "ran").exists()


def test_a_program_that_is_named_by_its_path_is_run_as_it_is(neighbours: Path, tmp_path: Path) -> None:
    spawn.run(["./nft"]).check()
    assert (tmp_path / "ran").exists()
