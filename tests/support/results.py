"""The record of a test run: lines of JSON about each test, for tools/suite.py and tools/requirements.py.

A line is ``{"test": node ID, "when": "setup" | "call" | "teardown", "outcome": …, "seconds": …}``; the outcomes are
``passed``, ``failed``, ``skipped``, ``xfailed`` (failed as it must) and ``xpassed``. Phases that passed are recorded
for ``call`` alone; those that failed have the whole failure as ``"why"``. A line is on disk before the next test ends:
a run that is cut off leaves what it had.

Each test that was found has a line ``{"test": node ID, "when": "collect", "outcome": "collected"}`` besides, also if
``-m`` or ``-k`` left it out: what no run ran is known by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import pytest

OPTION = "--results"
_COLLECTED = "collected"


class Recorder:
    """Writes the record of one run. With pytest-xdist it belongs to the process that collects the reports."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("w", encoding="utf-8", buffering=1)
        self._collected: set[str] = set()

    @pytest.hookimpl(tryfirst=True)  # before tests are left out
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._found(item.nodeid for item in items)

    @pytest.hookimpl(optionalhook=True)  # of pytest-xdist
    def pytest_testnodedown(self, node: Any) -> None:
        self._found(getattr(node, "workeroutput", {}).get(_COLLECTED, ()))

    def _found(self, tests: Iterable[str]) -> None:
        for test in tests:
            if test not in self._collected:
                self._collected.add(test)
                self._write({"test": test, "when": "collect", "outcome": _COLLECTED})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = outcome_of(report)
        if outcome != "passed" or report.when == "call":
            line: dict[str, object] = {"test": report.nodeid, "when": report.when, "outcome": outcome}
            line["seconds"] = round(report.duration, 3)
            if report.failed:
                line["why"] = report.longreprtext
            self._write(line)

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")

    def pytest_unconfigure(self) -> None:
        self._file.close()


class Collector:
    """Tells the recorder, from a worker of pytest-xdist, which tests were found: only workers collect."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.workeroutput[_COLLECTED] = [item.nodeid for item in items]  # type: ignore[attr-defined]  # pytest-xdist's


def outcome_of(report: pytest.TestReport) -> str:
    """Return how a phase ended; what was expected to fail is neither a failure nor a skip nor a pass."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome
