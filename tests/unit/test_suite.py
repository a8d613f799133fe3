"""The runner of test suites: which failures run again, and which never do. It runs pytest on tests made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
FAILS_ONCE = """
from pathlib import Path
def test_fails_once():
    seen = Path(__file__).with_name("seen")
    again = seen.exists()
    seen.touch()
    assert again
"""
LEAVES_SOMETHING = """
import pytest
@pytest.fixture
def counted():
    yield
    assert False, "something is left"
def test_leaves_something(counted): pass
"""


def run(tmp_path: Path, source: str, *options: str) -> tuple[int, str, list[str]]:
    """Run the suite on a file of tests; return its status, what it printed and the tests of the second record."""
    (tmp_path / "conftest.py").write_text(
        "from support import results\nfrom pathlib import Path\n"
        "def pytest_addoption(parser): parser.addoption(results.OPTION)\n"
        "def pytest_configure(config):\n"
        "    worker, record = hasattr(config, 'workerinput'), Path(config.getoption(results.OPTION))\n"
        "    config.pluginmanager.register(results.Collector() if worker else results.Recorder(record))\n"
    )
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / 'tests'}\n")
    (tmp_path / "test_it.py").write_text(source)
    command = [sys.executable, str(ROOT / "tools/suite.py"), "--results=record.jsonl", "test_it.py", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    again = tmp_path / "record.again.jsonl"
    return done.returncode, done.stdout + done.stderr, [line["test"] for line in read(again) if line["when"] == "call"]


def read(record: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


@pytest.mark.parametrize(
    ("source", "status", "again"),
    [
        (PASSES, 0, []),
        (PASSES + FAILS_ONCE, 0, ["test_it.py::test_fails_once"]),
        (PASSES + FAILS, 1, ["test_it.py::test_fails"]),
        ("".join(FAILS.replace("fails", f"fails_{number}") for number in range(5)), 1, []),
        (LEAVES_SOMETHING, 1, []),
        (LEAVES_SOMETHING + FAILS_ONCE, 1, []),
    ],
    ids=["nothing fails", "one fails once", "one fails twice", "too many fail", "a leak", "a leak beside a failure"],
)
@pytest.mark.slow
def test_what_is_run_again(tmp_path: Path, source: str, status: int, again: list[str]) -> None:
    ended, said, tests = run(tmp_path, source)
    assert (ended, tests) == (status, again), said


@pytest.mark.slow
def test_what_passed_at_the_second_time_is_named(tmp_path: Path) -> None:
    _, said, _ = run(tmp_path, FAILS_ONCE)
    assert "failed once and passed alone, to be fixed:\n  test_it.py::test_fails_once" in said


@pytest.mark.slow
def test_a_test_that_left_something_is_named(tmp_path: Path) -> None:
    _, said, _ = run(tmp_path, LEAVES_SOMETHING)
    assert "failed after the test itself, not run again:\n  test_it.py::test_leaves_something" in said


@pytest.mark.slow
@pytest.mark.parametrize("spread", ["-p no:xdist", "--numprocesses=2"])
def test_what_is_left_out_is_recorded_as_found(tmp_path: Path, spread: str) -> None:
    source = "import pytest\n@pytest.mark.parametrize('x', [1, 2])\ndef test_it(x): pass\n"
    status, said, _ = run(tmp_path, source, "-k", "not 2", *spread.split())
    assert status == 0, said
    found = [(line["test"], line["when"], line["outcome"]) for line in read(tmp_path / "record.jsonl")]
    assert sorted(found) == [
        ("test_it.py::test_it[1]", "call", "passed"),
        ("test_it.py::test_it[1]", "collect", "collected"),
        ("test_it.py::test_it[2]", "collect", "collected"),
    ]
