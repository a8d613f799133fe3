"""A file on which another process has a lease: who opens it waits for that one (fcntl(2), F_SETLEASE)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.write(1, b"!")
sys.stdin.read()
"""


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """Have another process take a lease on a file, and not give it back when it is asked to."""
    with subprocess.Popen(
        [sys.executable, "-c", _LEASE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"!"
            yield
        finally:
            process.kill()
