"""Taking protection off the mounts of a container, as a process in it with every capability of its user namespace can.

A container's own programs are too few for it: the process is one of ours that enters the container's namespaces.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("programs") / "remounting.py"


def attack(pid: int, paths: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Try to take each protective flag off each of ``paths`` in the container of process ``pid``, one by one.

    :returns: by path the ``flags`` that are left, what came of each of the ``attempts`` (``done``, ``no effect``, or an
        error's name), and whether something can be written then (``write``).
    """
    argv = [sys.executable, "-I", str(_PROGRAM), str(pid), json.dumps(list(paths))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return result
