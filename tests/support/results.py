"""The record of a test run: one line of JSON for each phase of each test, for tools/suite.py and tools/requirements.py.

A line is ``{"test": node ID, "when": "setup" | "call" | "teardown", "outcome": …, "seconds": …}``; the outcomes are
``passed``, ``failed``, ``skipped``, ``xfailed`` (failed as it must) and ``xpassed``. Phases that passed are recorded
for ``call`` alone; those that failed have the whole failure as ``"why"``. A line is on disk before the next test ends:
a run that is cut off leaves what it had.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import pytest

OPTION = "--results"


class Recorder:
    """Writes the record of one run. With pytest-xdist it belongs to the process that collects the reports."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("w", encoding="utf-8", buffering=1)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = outcome_of(report)
        if outcome != "passed" or report.when == "call":
            line: dict[str, object] = {"test": report.nodeid, "when": report.when, "outcome": outcome}
            line["seconds"] = round(report.duration, 3)
            if report.failed:
                line["why"] = report.longreprtext
            self._file.write(json.dumps(line) + "\n")

    def pytest_unconfigure(self) -> None:
        self._file.close()


def outcome_of(report: pytest.TestReport) -> str:
    """Return how a phase ended; what was expected to fail is neither a failure nor a skip nor a pass."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome
