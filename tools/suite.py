"""Run pytest with the given arguments; the few tests that fail run once more, alone, and are named.

Tests of a node start real processes on machines that are shared and noisy. A test that fails twice fails the run,
and so do more than ``MOST_AGAIN`` that fail once; what passes alone is listed, so that it can be mended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MOST_AGAIN = 4
TESTS_FAILED = 1  # pytest's exit status; others are interrupts, errors of usage and of pytest itself


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="podkeep-suite-") as cache:
        pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}"]
        status = subprocess.call([*pytest, *arguments])
        failed = _failed(Path(cache))
        if status != TESTS_FAILED or not 0 < len(failed) <= MOST_AGAIN:
            return status
        print(f"\n{len(failed)} failed: once more, alone", flush=True)
        options = [argument for argument in arguments if argument.startswith("-")]
        status = subprocess.call([*pytest, *options, "--numprocesses=0", *failed])
    if status == 0:
        print("\nfailed once and passed alone, to be mended:", *failed, sep="\n  ")
    return status


def _failed(cache: Path) -> list[str]:
    record = cache / "v/cache/lastfailed"
    return sorted(json.loads(record.read_text())) if record.exists() else []


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
