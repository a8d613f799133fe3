"""Compare two runs of the tests, result by result.

    pytest tests/integration --container-mounts=hidden --junit-xml=hidden.xml
    pytest tests/integration --container-mounts=shown --junit-xml=shown.xml
    tools/compare_runs.py hidden.xml shown.xml

Prints how many tests ended how in each, and names every test that did not end in the same way: passed, failed, skipped
for the same reason. A test that one run was told to expect a failure of, and that passes in the other, is a declared
difference. The exit status is 1 if there are others, or if nothing was compared. Called by ``make parity``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

MISSING = "not run"
EXPECTED_FAILURE = "failed as expected"


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a test ended, and what it said of it: the reason of a skip or of an expected failure."""

    outcome: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.outcome} ({self.reason})" if self.reason else self.outcome


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A test that ended in two ways."""

    test: str
    results: tuple[Result, Result]

    @property
    def is_declared(self) -> bool:
        """Whether one run expected the failure, with a reason, and the test passed in the other."""
        return {result.outcome for result in self.results} == {"passed", EXPECTED_FAILURE}

    def __str__(self) -> str:
        return f"{self.test}: {self.results[0]} | {self.results[1]}"


def read(path: Path) -> dict[str, Result]:
    """Return the results in a JUnit file that pytest wrote, by test."""
    found: dict[str, Result] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        test = f"{case.get('classname')}::{case.get('name')}"
        result = _result(case)
        # A test that fails and whose fixture then fails, too, is there twice.
        if test not in found or found[test].outcome in ("passed", EXPECTED_FAILURE):
            found[test] = result
    return found


def _result(case: ElementTree.Element) -> Result:
    if case.find("failure") is not None or case.find("error") is not None:
        return Result(outcome="failed")
    skipped = case.find("skipped")
    if skipped is None:
        return Result(outcome="passed")
    outcome = EXPECTED_FAILURE if skipped.get("type") == "pytest.xfail" else "skipped"
    return Result(outcome=outcome, reason=skipped.get("message", ""))


def compare(one: Mapping[str, Result], other: Mapping[str, Result]) -> list[Difference]:
    """Return the tests that did not end in the same way, or failed in both."""
    missing = Result(outcome=MISSING)
    pairs = ((test, (one.get(test, missing), other.get(test, missing))) for test in sorted({*one, *other}))
    return [
        Difference(test=test, results=pair) for test, pair in pairs if pair[0] != pair[1] or pair[0].outcome == "failed"
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("runs", nargs=2, type=Path, metavar="JUNIT.XML")
    paths: list[Path] = parser.parse_args(argv).runs
    one, other = runs = [read(path) for path in paths]
    for path, results in zip(paths, runs, strict=True):
        counts = Counter(result.outcome for result in results.values())
        print(f"{path}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))}")
    differences = compare(one, other)
    for difference in sorted(differences, key=lambda item: item.is_declared):
        print(f"{'declared' if difference.is_declared else 'DIFFERENT'}: {difference}")
    undeclared = [item for item in differences if not item.is_declared]
    same = len({*one, *other}) - len(differences)
    print(f"{same} tests ended in the same way, {len(differences) - len(undeclared)} differ as declared")
    return 1 if undeclared or not same else 0


if __name__ == "__main__":
    raise SystemExit(main())
