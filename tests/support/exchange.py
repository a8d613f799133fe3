"""Two names that are exchanged for each other all the time, as a container does that attacks who walks its files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = Path(__file__).with_name("programs") / "exchanging.py"


@contextmanager
def exchanging(path: Path, link: Path) -> Iterator[None]:
    """Have another process exchange two names for each other (RENAME_EXCHANGE) as often as it can."""
    with subprocess.Popen([sys.executable, "-I", _PROGRAM, path, link], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.read(1)
            yield
        finally:
            process.kill()
