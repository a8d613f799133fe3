"""Programs that do something to files beside a test, as a container does that attacks who walks its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAMS = Path(__file__).with_name("programs")


@contextmanager
def beside(program: Path, *arguments: Path) -> Iterator[None]:
    """Run a program from when it says ``!`` on, which tells that it is about to begin."""
    command = [sys.executable, "-I", program, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"!"
            yield
        finally:
            process.kill()


@contextmanager
def exchanging(path: Path, link: Path) -> Iterator[None]:
    """Have another process exchange two names for each other (RENAME_EXCHANGE) as often as it can."""
    with beside(_PROGRAMS / "exchanging.py", path, link):
        yield


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """Have another process take a lease on a file, and not give it back when it is asked to.

    Who opens the file waits for that one (fcntl(2), F_SETLEASE).
    """
    with beside(_PROGRAMS / "leasing.py", path):
        yield
