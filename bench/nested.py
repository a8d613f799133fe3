"""The nested machine as a place to measure in: ``python -m bench --part nested``.

Boots the machine that tests/nested tests in, takes this package there, runs bench.systemd and returns its table. It is
emulated in software: its times are ten times what they would be, and the columns of one table compare.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.pods import Unmeasurable

if TYPE_CHECKING:
    from support.nested.machine import Machine

_ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT_S = 3600.0
_MEMORY_MIB = 3072


def measure(*, rounds: int, pods: int, concurrency: int) -> str:
    """The table.

    :raises Unmeasurable: if the machine does not come up, or the measurement in it fails; it has said why.
    """
    sys.path.append(str(_ROOT / "tests"))  # the machine belongs to the tests
    from support.nested.build import NestedError
    from support.nested.machine import Machine

    try:
        return _measure(
            Machine(memory_mib=_MEMORY_MIB, cpus=2), [str(number) for number in (rounds, pods, concurrency)]
        )
    except NestedError as error:
        raise Unmeasurable(str(error)) from error


def _measure(machine: Machine, arguments: Sequence[str]) -> str:
    with machine:
        machine.put(_ROOT / "bench", _ROOT / "bench")
        program = [str(_ROOT / ".venv/bin/python"), "-m", "bench.systemd", "/var/tmp/bench"]
        command = ["env", f"PYTHONPATH={_ROOT}", *program, *arguments]
        done = subprocess.run(
            machine.command(command), stdout=subprocess.PIPE, text=True, check=False, timeout=_TIMEOUT_S
        )
        if done.returncode != 0:
            raise Unmeasurable(f"bench.systemd in the nested machine ended with {done.returncode}")
        return done.stdout.strip()
