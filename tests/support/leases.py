"""A file on which another process has a lease: who opens it waits for that one (fcntl(2), F_SETLEASE)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = Path(__file__).with_name("programs") / "leasing.py"


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """Have another process take a lease on a file, and not give it back when it is asked to."""
    with subprocess.Popen(
        [sys.executable, "-I", _PROGRAM, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"!"
            yield
        finally:
            process.kill()
