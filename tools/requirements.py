"""The requirements table: print it, count it, bring it in step with the tests, and hold it against their results.

Owns the tests named in the last column of docs/requirements.md; IDs, texts and what is missing of a requirement that is
shown in part (``partly: …``) are written by hand. Reads the tests as syntax trees, so no test module is imported and no
dependency needed. With ``--results`` it reads the records of test runs (tests/support/results.py), and fails if the
table names a test that did not run and pass, with each set of parameters that was collected. Called by
``make requirements``, ``.ci/run`` and the unit test of the table.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "requirements.md"
TESTS = ROOT / "tests"
GROUPS: Mapping[str, tuple[str, int]] = {
    "U": ("user namespaces", 127),
    "M": ("hidden container mounts", 42),
    "Q": ("QoS-class resources", 94),
    "V": ("OCI image volumes", 119),
}
OPEN = "open"
PARTLY = "partly: "
_AGAIN = ".again.jsonl"
_FROM_GOOD_TO_BAD = ("passed", "skipped", "xfailed", "xpassed", "failed")
_FAILURES = frozenset({"xpassed", "failed"})

_ROW = re.compile(r"\| (?P<id>[UMQV]\d+) \| (?P<text>[^|]+) \| (?P<shown>[^|]+) \|")


class TableError(Exception):
    """The table or a marker cannot be understood; the message names file and line."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One requirement: its ID, its text, the node IDs of the tests that show it (none: open), what they do not show."""

    id: str
    text: str
    tests: tuple[str, ...]
    missing: str = ""

    @property
    def state(self) -> str:
        """``shown``, ``partly`` or ``open``."""
        return "open" if not self.tests else "partly" if self.missing else "shown"

    def markdown(self) -> str:
        missing = [PARTLY + self.missing] if self.missing else []
        return f"| {self.id} | {self.text} | {'<br>'.join([*missing, *(f'`{test}`' for test in self.tests)]) or OPEN} |"


def parse_table(text: str) -> list[Row]:
    """The rows of the table, in their order; every line that starts like a row has to be one.

    :raises TableError: for a malformed row, naming its line.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not re.match(r"\|\s*[A-Z]\d", line):
            continue
        match = _ROW.fullmatch(line)
        if match is None:
            raise TableError(f"{TABLE.name}:{number}: not a row `| ID | requirement | shown by |`: {line}")
        cells = [cell.strip() for cell in match["shown"].split("<br>")]
        missing = cells.pop(0).removeprefix(PARTLY) if cells[0].startswith(PARTLY) else ""
        tests = tuple(cell.strip("`") for cell in cells if cell != OPEN)
        rows.append(Row(id=match["id"], text=match["text"].strip(), tests=tests, missing=missing))
    return rows


def rewrite(text: str, shown: Mapping[str, Sequence[str]]) -> str:
    """The table with the tests of its last column replaced by ``shown`` (ID to node IDs); all else stays as it is.

    :raises TableError: if ``shown`` has an ID without a row, or a row is malformed.
    """
    rows = {row.id: row for row in parse_table(text)}
    unknown = sorted(set(shown) - set(rows))
    if unknown:
        where = ", ".join(f"{id_} ({shown[id_][0]})" for id_ in unknown)
        raise TableError(f"{TABLE.name} has no row for the markers {where}")
    lines = []
    for line in text.splitlines(keepends=True):
        match = _ROW.match(line)
        if match is not None:
            row = rows[match["id"]]
            tests = tuple(shown.get(row.id, ()))
            line = Row(id=row.id, text=row.text, tests=tests, missing=row.missing).markdown() + "\n"
        lines.append(line)
    return "".join(lines)


def collect(tests: Path, root: Path) -> dict[str, tuple[str, ...]]:
    """ID to the node IDs (relative to ``root``, sorted) of the tests that carry its marker.

    Markers count on functions, classes, ``pytestmark`` of a module or class, and in ``pytest.param(marks=…)``; a
    parametrised test is one entry. A marker anywhere else reaches no test and is an error.

    :raises TableError: for a marker with something else than string literals, or one that reaches no test.
    """
    found: dict[str, set[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        name = path.relative_to(root).as_posix()
        reached: set[int] = set()
        for node_id, markers in _tests(tree.body, name, _pytestmark(tree.body)):
            for marker in markers:
                reached.add(id(marker))
                for requirement in _ids(marker, name):
                    found.setdefault(requirement, set()).add(node_id)
        for marker in _markers(tree):
            if id(marker) not in reached:
                raise TableError(f"{name}:{marker.lineno}: this requirement marker reaches no test")
    return {requirement: tuple(sorted(node_ids)) for requirement, node_ids in found.items()}


def _tests(body: Sequence[ast.stmt], prefix: str, inherited: list[ast.Call]) -> Iterator[tuple[str, list[ast.Call]]]:
    """Every test below ``body`` as pytest names it, with all markers that apply to it."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"{prefix}::{node.name}", inherited + _on(node)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            markers = inherited + _on(node) + _pytestmark(node.body)
            yield from _tests(node.body, f"{prefix}::{node.name}", markers)
        elif isinstance(node, ast.If):
            yield from _tests([*node.body, *node.orelse], prefix, inherited)


def _on(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[ast.Call]:
    return [marker for decorator in node.decorator_list for marker in _markers(decorator)]


def _pytestmark(body: Sequence[ast.stmt]) -> list[ast.Call]:
    markers: list[ast.Call] = []
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in targets):
                markers += _markers(node.value)
    return markers


def _markers(tree: ast.AST) -> list[ast.Call]:
    """Every ``pytest.mark.requirement(…)`` (or ``mark.requirement(…)``) in ``tree``."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "requirement"
        and ast.unparse(node.func.value) in ("pytest.mark", "mark")
    ]


def _ids(marker: ast.Call, name: str) -> list[str]:
    ids = [argument.value for argument in marker.args if isinstance(argument, ast.Constant)]
    texts = [value for value in ids if isinstance(value, str)]
    if not texts or len(texts) != len(marker.args) or marker.keywords:
        raise TableError(f"{name}:{marker.lineno}: a requirement marker takes IDs as string literals")
    return texts


@dataclass(frozen=True, kw_only=True)
class Results:
    """What test runs left: node IDs, with their parameters, to how each run of them ended (none: collected alone).

    ``again`` are the tests that were run a second time, because they failed the first.
    """

    outcomes: Mapping[str, frozenset[str]]
    again: tuple[str, ...]


def read_results(directory: Path) -> Results:
    """Read the records ``*.jsonl`` of test runs.

    Each run counts by the worst of a test's phases: a test whose fixture found something left behind did not pass. The
    second run of a test takes the place of its first, but for a failure after the test, which no second run undoes.
    """
    outcomes: dict[str, set[str]] = {}
    again: set[str] = set()
    for path in sorted(directory.glob("*.jsonl")):
        if path.name.endswith(_AGAIN):
            continue
        first, second = _phases(path), _phases(path.with_name(path.name.removesuffix(".jsonl") + _AGAIN))
        again.update(test for test, phases in second.items() if phases)
        for test in first.keys() | second.keys():
            phases = first.get(test, {})
            if second.get(test):
                left_behind = {when: ended for when, ended in phases.items() if when == "teardown"}
                phases = second[test] | left_behind
            ends = outcomes.setdefault(test, set())
            if phases:
                ends.add(max(phases.values(), key=_FROM_GOOD_TO_BAD.index))
    return Results(outcomes={test: frozenset(ended) for test, ended in outcomes.items()}, again=tuple(sorted(again)))


def _phases(record: Path) -> dict[str, dict[str, str]]:
    """Return how each phase of each test ended; a test that was collected and not run has none."""
    found: dict[str, dict[str, str]] = {}
    for text in record.read_text(encoding="utf-8").splitlines() if record.exists() else []:
        line = json.loads(text)
        phases = found.setdefault(line["test"], {})
        if line["when"] != "collect":
            phases[line["when"]] = line["outcome"]
    return found


def unbacked(rows: Sequence[Row], outcomes: Mapping[str, Collection[str]]) -> list[str]:
    """Return a line for each test of the table that did not run and pass, or that one of whose parameter sets did not.

    A test may be skipped in one run, if it passes in another; where it failed, no other run makes up for it.
    """
    by_test: dict[str, dict[str, Collection[str]]] = {}
    for node_id, ended in outcomes.items():
        by_test.setdefault(node_id.split("[", 1)[0], {})[node_id] = ended
    lines = []
    for row in rows:
        for test in row.tests:
            for node_id, ended in by_test.get(test, {test: ()}).items():
                if not ended:
                    lines.append(f"{row.id}: {node_id} did not run")
                elif "passed" not in ended or not _FAILURES.isdisjoint(ended):
                    lines.append(f"{row.id}: {node_id} {' and '.join(sorted(ended))}")
    return lines


def tests_of(rows: Sequence[Row], letter: str) -> list[str]:
    """Return the tests that show a requirement with this letter, each once, in the order of their names."""
    return sorted({test for row in rows if row.id.startswith(letter) for test in row.tests})


def report(rows: Sequence[Row], *, only_open: bool = False) -> str:
    """The table as text, then shown, partly shown and open per group."""
    lines = []
    for row in rows:
        if only_open and row.state == "shown":
            continue
        count = len(row.tests)
        state = OPEN if row.state == "open" else f"{count} test{'s' if count != 1 else ''}"
        lines.append(f"{row.id:<5} {state:<9} {row.text}")
        if row.missing:
            lines.append(f"{'':<15} {PARTLY}{row.missing}")
        lines += [f"{'':<15} {test}" for test in row.tests]
    lines.append("")
    return "\n".join([*lines, *counts(rows)])


def counts(rows: Sequence[Row]) -> list[str]:
    """A line per group and one for all."""
    groups = [(f"{prefix}  {title}", prefix) for prefix, (title, _) in GROUPS.items()]
    return [
        _count(title, [row for row in rows if row.id.startswith(prefix)]) for title, prefix in [*groups, ("all", "")]
    ]


def _count(title: str, rows: Sequence[Row]) -> str:
    states = Counter(row.state for row in rows)
    each = "  ".join(f"{states[state]:>3} {state}" for state in ("shown", "partly", "open"))
    return f"{title:<28} {each}  of {len(rows)}"


def _check(rows: Sequence[Row], directory: Path) -> int:
    results = read_results(directory)
    wrong = unbacked(rows, results.outcomes)
    ran = sum(1 for ended in results.outcomes.values() if ended)
    print(f"{ran} tests ran", *counts(rows), sep="\n")
    shows = {test: ", ".join(row.id for row in rows if test.split("[", 1)[0] in row.tests) for test in results.again}
    named = [f"{test} ({ids})" if ids else test for test, ids in shows.items()]
    print("tests that failed once and were run again:", *(named or ["none"]), sep="\n  ")
    if wrong:
        print("requirements: these tests of docs/requirements.md did not run and pass:", *wrong, sep="\n  ")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Print the requirements and the tests that show them.")
    parser.add_argument("--write", action="store_true", help="bring the table in step with the markers of the tests")
    parser.add_argument("--tests", metavar="LETTER", help="print only the tests of these requirements, one on a line")
    parser.add_argument("--open", action="store_true", help="print only what is not shown, or in part")
    parser.add_argument("--results", type=Path, metavar="DIRECTORY", help="hold the table against records of test runs")
    arguments = parser.parse_args()
    try:
        text = TABLE.read_text(encoding="utf-8")
        if arguments.write:
            text = rewrite(text, collect(TESTS, ROOT))
            TABLE.write_text(text, encoding="utf-8")
        rows = parse_table(text)
        if arguments.results is not None:
            return _check(rows, arguments.results)
        if arguments.tests is not None:
            print(*tests_of(rows, arguments.tests), sep="\n")
            return 0
        print(report(rows, only_open=arguments.open))
    except TableError as error:
        print(f"requirements: {error}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
