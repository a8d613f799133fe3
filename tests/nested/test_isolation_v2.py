"""The attacks of docs/isolation.md on Debian's kernel, which has modules, kexec, SysRq, I/O ports and /dev/mem."""

from __future__ import annotations

import json

import pytest

from support import isolation
from support.attacks import Who
from support.isolation import Place
from support.nested.build import REPOSITORY
from support.nested.machine import Machine

LONGEST_S = 900
"""A minute on a machine with nothing beside it."""


@pytest.mark.requirement("U87", "U88", "U89", "U90", "U119", "U123", "U125")
def test_attacks_on_debians_kernel(machine: Machine) -> None:
    """All of them, as root of the machine, with a block of IDs and with one mapping; how they ended is kept."""
    command = f"cd {REPOSITORY} && PYTHONPATH=tests:src .venv/bin/python -m support.attacked"
    found = json.loads(machine.run(command, timeout=LONGEST_S, check=True).stdout)
    ended = {who: found["ended"][who] for who in Who}
    isolation.keep(Place.NESTED, found["release"], ended)
    assert found["release"] == machine.run("uname -r", check=True).stdout.strip()
    assert found["wrong"] == []
    assert [line for who in Who for line in isolation.differences(who, ended[who])] == []
