"""Command lines of podkeep's own helper processes for images."""

from __future__ import annotations

import sys
from pathlib import Path

import podkeep


def command(module: str) -> list[str]:
    """Return the command line that runs ``module`` in a fresh interpreter with this one's import path.

    ``-I -S`` leaves out the site directories' start-up work, which costs more than most of what a worker imports.
    """
    root = str(Path(podkeep.__file__).resolve().parents[1])
    paths = [root, *(path for path in sys.path if path and path != root)]
    # Nothing that is imported becomes garbage: looking for it takes as long as a few imports.
    boot = (
        f"import gc, sys; gc.disable(); sys.path[:] = {paths!r}; from {module} import main; gc.freeze(); gc.enable();"
        " main()"
    )
    return [sys.executable, "-I", "-S", "-c", boot]
