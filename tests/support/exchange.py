"""Two names that are exchanged for each other all the time, as a container does that attacks who walks its files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_EXCHANGE = """
import ctypes, os, sys
exchange, (name, link) = ctypes.CDLL(None).renameat2, map(os.fsencode, sys.argv[1:])
parent = os.getppid()
os.write(1, b"!")
while os.getppid() == parent:
    exchange(-100, name, -100, link, 2)
"""


@contextmanager
def exchanging(path: Path, link: Path) -> Iterator[None]:
    """Have another process exchange two names for each other (RENAME_EXCHANGE) as often as it can."""
    with subprocess.Popen([sys.executable, "-c", _EXCHANGE, path, link], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.read(1)
            yield
        finally:
            process.kill()
