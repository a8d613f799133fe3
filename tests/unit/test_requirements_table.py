"""docs/requirements.md and the markers of the tests are in step, and the tool that keeps them so is right."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("requirements_tool", ROOT / "tools" / "requirements.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


tool = _load_tool()


def test_every_id_is_in_the_table_exactly_once() -> None:
    rows = tool.parse_table(tool.TABLE.read_text())
    expected = [f"{prefix}{number}" for prefix, (_, count) in tool.GROUPS.items() for number in range(1, count + 1)]
    assert len(expected) == 127 + 42 + 94 + 119
    assert Counter(row.id for row in rows) == Counter(expected)
    assert [row.id for row in rows] == expected


def test_every_requirement_is_a_sentence_of_its_own() -> None:
    rows = tool.parse_table(tool.TABLE.read_text())
    assert [row.id for row in rows if not 20 <= len(row.text) <= 180] == []
    assert [text for text, count in Counter(row.text for row in rows).items() if count > 1] == []


@pytest.mark.slow
def test_table_and_markers_are_in_step() -> None:
    text = tool.TABLE.read_text()
    rows = tool.parse_table(text)
    shown = {row.id: row.tests for row in rows if row.tests}
    assert shown == tool.collect(tool.TESTS, tool.ROOT), "run: python tools/requirements.py --write"
    assert tool.rewrite(text, shown) == text
    assert [row.id for row in rows if row.missing and not row.tests] == []


def test_the_tests_of_one_letter_are_named_once() -> None:
    rows = [
        tool.Row(id="U1", text="one", tests=("tests/b.py::test_1", "tests/a.py::test_2")),
        tool.Row(id="U2", text="two", tests=("tests/b.py::test_1",)),
        tool.Row(id="M1", text="three", tests=("tests/c.py::test_3",)),
    ]
    assert tool.tests_of(rows, "U") == ["tests/a.py::test_2", "tests/b.py::test_1"]


def _collect(tmp_path: Path, source: str) -> dict[str, tuple[str, ...]]:
    tests = tmp_path / "tests" / "unit"
    tests.mkdir(parents=True)
    (tests / "test_it.py").write_text("import pytest\nfrom pytest import mark\n" + source)
    found: dict[str, tuple[str, ...]] = tool.collect(tmp_path / "tests", tmp_path)
    return found


NODE = "tests/unit/test_it.py"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            '@pytest.mark.requirement("U1", "U2")\ndef test_a(): pass\n',
            {"U1": (f"{NODE}::test_a",), "U2": (f"{NODE}::test_a",)},
            id="function",
        ),
        pytest.param(
            '@pytest.mark.requirement("M1")\nasync def test_a(): pass\n@mark.requirement("M1")\ndef test_b(): pass\n',
            {"M1": (f"{NODE}::test_a", f"{NODE}::test_b")},
            id="async and the short spelling",
        ),
        pytest.param(
            '@pytest.mark.requirement("Q1")\n@pytest.mark.parametrize("x", [1, 2])\ndef test_a(x): pass\n',
            {"Q1": (f"{NODE}::test_a",)},
            id="a parametrised test is one entry",
        ),
        pytest.param(
            '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.requirement("Q2"))])\n'
            "def test_a(x): pass\n",
            {"Q2": (f"{NODE}::test_a",)},
            id="marks of a parameter",
        ),
        pytest.param(
            'pytestmark = [pytest.mark.requirement("V1")]\nclass TestIt:\n'
            '    pytestmark = pytest.mark.requirement("V2")\n'
            '    @pytest.mark.requirement("V3")\n    def test_a(self): pass\n    def helper(self): pass\n',
            {f"V{number}": (f"{NODE}::TestIt::test_a",) for number in (1, 2, 3)},
            id="module, class and method",
        ),
        pytest.param(
            '@pytest.mark.requirement("V4")\nclass TestIt:\n    class TestInner:\n        def test_a(self): pass\n',
            {"V4": (f"{NODE}::TestIt::TestInner::test_a",)},
            id="nested classes",
        ),
        pytest.param("def test_a(): pass\n", {}, id="no marker"),
    ],
)
def test_markers_are_found_wherever_pytest_honours_them(
    tmp_path: Path, source: str, expected: dict[str, tuple[str, ...]]
) -> None:
    assert _collect(tmp_path, source) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('IDS = "U1"\n@pytest.mark.requirement(IDS)\ndef test_a(): pass\n', "string literals"),
        ("@pytest.mark.requirement(1)\ndef test_a(): pass\n", "string literals"),
        ("@pytest.mark.requirement()\ndef test_a(): pass\n", "string literals"),
        ('@pytest.mark.requirement("U1")\ndef helper(): pass\n', "reaches no test"),
        ('MARK = pytest.mark.requirement("U1")\n@MARK\ndef test_a(): pass\n', "reaches no test"),
    ],
)
def test_a_marker_that_cannot_count_is_refused_with_its_line(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(tool.TableError, match=rf"tests/unit/test_it\.py:\d+: .*{message}"):
        _collect(tmp_path, source)


def test_rewrite_replaces_the_last_column_only() -> None:
    text = (
        "# T\n\n| ID | Requirement | Shown by |\n|---|---|---|\n| U1 | first | open |\n| U2 | second | `a::b` |\nend\n"
    )
    written = tool.rewrite(text, {"U1": ["a::b", "c::d"]})
    assert written == text.replace("first | open", "first | `a::b`<br>`c::d`").replace(
        "second | `a::b`", "second | open"
    )
    assert tool.rewrite(written, {"U1": ["a::b", "c::d"]}) == written


@pytest.mark.parametrize(
    ("text", "shown", "message"),
    [
        ("| U1 | first | open |\n", {"U9": ["a::b"]}, r"no row for the markers U9 \(a::b\)"),
        ("| U1 | first |\n", {}, "requirements.md:1: not a row"),
        ("| X1 | first | open |\n", {}, "requirements.md:1: not a row"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(text: str, shown: dict[str, list[str]], message: str) -> None:
    with pytest.raises(tool.TableError, match=message):
        tool.rewrite(text, shown)


def test_what_is_missing_is_written_by_hand_and_kept() -> None:
    text = "| U1 | first | partly: the second half<br>`a::b` |\n"
    (row,) = tool.parse_table(text)
    assert (row.missing, row.tests, row.state) == ("the second half", ("a::b",), "partly")
    assert tool.rewrite(text, {"U1": ["a::b"]}) == text
    assert tool.rewrite(text, {"U1": ["c::d"]}) == text.replace("a::b", "c::d")


def test_the_report_counts_each_group() -> None:
    rows = tool.parse_table(
        "| U1 | first | `a::b` |\n| U2 | second | open |\n| M1 | third | partly: half<br>`a::b` |\n"
    )
    lines = tool.report(rows).splitlines()
    assert "U1    1 test    first" in lines
    assert f"{'':<15} partly: half" in lines
    assert f"{'U  user namespaces':<28}   1 shown    0 partly    1 open  of 2" in lines
    assert f"{'all':<28}   1 shown    1 partly    1 open  of 3" in lines
    assert "U1 " not in tool.report(rows, only_open=True)


def _record(directory: Path, name: str, *lines: tuple[str, str, str]) -> None:
    text = "".join(json.dumps({"test": test, "when": when, "outcome": ended}) + "\n" for test, when, ended in lines)
    (directory / name).write_text(text)


def _unbacked(directory: Path, table: str = "| U1 | first | `a::b` |\n| U2 | second | open |\n") -> list[str]:
    found: list[str] = tool.unbacked(tool.parse_table(table), tool.read_results(directory).outcomes)
    return found


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([("a::b", "call", "passed")], []),
        ([("a::b[1]", "call", "passed"), ("a::b[2]", "call", "passed")], []),
        ([], ["U1: a::b did not run"]),
        ([("a::c", "call", "passed")], ["U1: a::b did not run"]),
        ([("a::b", "setup", "skipped")], ["U1: a::b skipped"]),
        ([("a::b[1]", "call", "passed"), ("a::b[2]", "setup", "skipped")], ["U1: a::b[2] skipped"]),
        ([("a::b", "call", "xfailed")], ["U1: a::b xfailed"]),
        ([("a::b", "call", "failed")], ["U1: a::b failed"]),
        ([("a::b", "setup", "failed")], ["U1: a::b failed"]),
        ([("a::b", "call", "xpassed")], ["U1: a::b xpassed"]),
        ([("a::b", "call", "passed"), ("a::b", "teardown", "failed")], ["U1: a::b failed"]),
        ([("a::b", "collect", "collected")], ["U1: a::b did not run"]),
        ([("a::b", "collect", "collected"), ("a::b", "call", "passed")], []),
        (
            [(f"a::b[{name}]", "collect", "collected") for name in "12"] + [("a::b[1]", "call", "passed")],
            ["U1: a::b[2] did not run"],
        ),
    ],
)
def test_a_claim_is_backed_by_a_test_that_ran_and_passed(
    tmp_path: Path, lines: list[tuple[str, str, str]], said: list[str]
) -> None:
    _record(tmp_path, "unit.jsonl", *lines)
    assert _unbacked(tmp_path) == said
    assert tool.read_results(tmp_path).again == ()


def test_a_test_that_is_skipped_in_one_run_may_pass_in_another(tmp_path: Path) -> None:
    _record(tmp_path, "unit.jsonl", ("a::b", "call", "skipped"))
    _record(tmp_path, "nested.jsonl", ("a::b", "collect", "collected"), ("a::b", "call", "passed"))
    assert _unbacked(tmp_path) == []


def test_a_test_that_failed_in_one_run_is_no_proof_whatever_others_say(tmp_path: Path) -> None:
    _record(tmp_path, "unit.jsonl", ("a::b", "call", "failed"))
    _record(tmp_path, "nested.jsonl", ("a::b", "call", "passed"))
    assert _unbacked(tmp_path) == ["U1: a::b failed and passed"]


def test_tests_that_were_run_again_are_named(tmp_path: Path) -> None:
    _record(tmp_path, "unit.jsonl", ("a::b", "call", "failed"), ("a::c", "call", "passed"))
    _record(tmp_path, "unit.again.jsonl", ("a::b", "collect", "collected"), ("a::b", "call", "passed"))
    assert tool.read_results(tmp_path).again == ("a::b",)
    assert _unbacked(tmp_path) == []


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([("call", "failed")], [("call", "failed")], ["U1: a::b failed"]),
        ([("call", "failed")], [("setup", "skipped")], ["U1: a::b skipped"]),
        ([("call", "failed")], [("collect", "collected")], ["U1: a::b failed"]),
        ([("setup", "failed")], [("call", "passed"), ("teardown", "failed")], ["U1: a::b failed"]),
        # What was left behind is not undone by another run, which tools/suite.py does not try.
        ([("call", "passed"), ("teardown", "failed")], [("call", "passed")], ["U1: a::b failed"]),
    ],
)
def test_a_second_run_counts_as_the_first_does(
    tmp_path: Path, first: list[tuple[str, str]], second: list[tuple[str, str]], said: list[str]
) -> None:
    _record(tmp_path, "unit.jsonl", *(("a::b", *line) for line in first))
    _record(tmp_path, "unit.again.jsonl", *(("a::b", *line) for line in second))
    assert _unbacked(tmp_path) == said


def test_a_record_of_second_runs_alone_backs_nothing(tmp_path: Path) -> None:
    _record(tmp_path, "unit.again.jsonl", ("a::b", "call", "passed"))
    assert _unbacked(tmp_path) == ["U1: a::b did not run"]
