"""Run pytest and record how each test ended; the few tests that fail run once more, alone, and are named.

    tools/suite.py --results=FILE PYTEST-ARGUMENT...

Tests of a node start real processes on machines that are shared and noisy. A test that fails twice fails the run, and
so do more than ``MOST_AGAIN`` that fail once, and a failure after a test: a fixture found that something was left
behind, and a second run would not find it. What passes alone is listed, and its second record is kept beside the first
(``FILE`` with ``.again`` before its suffix): tools/requirements.py counts it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MOST_AGAIN = 4
TESTS_FAILED = 1  # pytest's exit status; others are interrupts, errors of usage and of pytest itself


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--results", type=Path, required=True, metavar="FILE")
    known, rest = parser.parse_known_args(arguments)
    record: Path = known.results
    again = record.with_suffix(f".again{record.suffix}")
    again.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest"]
    status = subprocess.call([*pytest, f"--results={record}", *rest])
    failed, left_behind = failures(record)
    if left_behind:
        print("\nfailed after the test itself, not run again:", *left_behind, sep="\n  ")
    if status != TESTS_FAILED or left_behind or not 0 < len(failed) <= MOST_AGAIN:
        return status
    print(f"\n{len(failed)} failed: once more, alone", flush=True)
    options = [argument for argument in rest if argument.startswith("-")]
    status = subprocess.call([*pytest, f"--results={again}", *options, "--numprocesses=0", *failed])
    if status == 0:
        print("\nfailed once and passed alone, to be fixed:", *failed, sep="\n  ")
    return status


def failures(record: Path) -> tuple[list[str], list[str]]:
    """Return the node IDs of the tests that failed, and of those whose fixtures failed after the test."""
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()] if record.exists() else []
    failed = [line for line in lines if line["outcome"] in ("failed", "xpassed")]
    left_behind = {line["test"] for line in failed if line["when"] == "teardown"}
    return sorted({line["test"] for line in failed}), sorted(left_behind)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
