"""The comparison of two test runs: what it calls the same, and what it does not let pass."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "compare_runs.py"
PASSED = ""
FAILED = '<failure message="m">text</failure>'
BROKEN = '<error message="failed on teardown">text</error>'
SKIPPED = '<skipped type="pytest.skip" message="{}">where</skipped>'
EXPECTED = '<skipped type="pytest.xfail" message="M41"/>'


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_runs_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


tool = load()


def run(path: Path, **cases: str) -> Path:
    """Write a JUnit file of tests by name."""
    tests = "".join(f'<testcase classname="tests.a" name="{name}">{inner}</testcase>' for name, inner in cases.items())
    path.write_text(f"<testsuites><testsuite>{tests}</testsuite></testsuites>")
    return path


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (PASSED, PASSED, ""),
        (SKIPPED.format("no EROFS"), SKIPPED.format("no EROFS"), ""),
        (EXPECTED, PASSED, "declared: tests.a::it: failed as expected (M41) | passed"),
        (PASSED, FAILED, "DIFFERENT: tests.a::it: passed | failed"),
        (FAILED, FAILED, "DIFFERENT: tests.a::it: failed | failed"),
        (PASSED, BROKEN, "DIFFERENT: tests.a::it: passed | failed"),
        (PASSED, SKIPPED.format("why"), "DIFFERENT: tests.a::it: passed | skipped (why)"),
        (SKIPPED.format("a"), SKIPPED.format("b"), "DIFFERENT: tests.a::it: skipped (a) | skipped (b)"),
        (EXPECTED, FAILED, "DIFFERENT: tests.a::it: failed as expected (M41) | failed"),
    ],
)
def test_results(tmp_path: Path, capsys: pytest.CaptureFixture[str], one: str, other: str, said: str) -> None:
    paths = [run(tmp_path / "1.xml", it=one, more=PASSED), run(tmp_path / "2.xml", it=other, more=PASSED)]
    status = tool.main([str(path) for path in paths])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:-1] == ([said] if said else [])
    assert status == (1 if said.startswith("DIFFERENT") else 0)
    same, declared = (1 if said else 2), int(said.startswith("declared"))
    assert lines[-1] == f"{same} tests ended in the same way, {declared} differ as declared"


def test_a_test_that_one_run_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [run(tmp_path / "1.xml", it=PASSED, more=PASSED), run(tmp_path / "2.xml", more=PASSED)]
    assert tool.main([str(path) for path in paths]) == 1
    assert "DIFFERENT: tests.a::it: passed | not run" in capsys.readouterr().out


def test_two_runs_of_nothing_are_not_the_same(tmp_path: Path) -> None:
    assert tool.main([str(run(tmp_path / "1.xml")), str(run(tmp_path / "2.xml"))]) == 1


def test_a_test_that_passes_and_leaves_something_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "1.xml"
    case = '<testcase classname="c" name="n">{}</testcase>'
    path.write_text(f"<testsuites><testsuite>{case.format('')}{case.format(BROKEN)}</testsuite></testsuites>")
    assert {test: result.outcome for test, result in tool.read(path).items()} == {"c::n": "failed"}
