"""Command lines of podkeep's own helper processes for images."""

from __future__ import annotations

import sys
from pathlib import Path


def command(module: str) -> list[str]:
    """Return the command line that runs ``module`` in a fresh interpreter with this one's import path.

    ``-I -S`` leaves out the site directories' start-up work, which costs more than most of what a worker imports.
    """
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *(path for path in sys.path if path and path != root)]
    boot = f"import sys; sys.path[:] = {paths!r}; from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", boot]
