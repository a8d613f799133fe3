"""What a process can still do that lets itself work on files only."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.kernel.process import seccomp

PROGRAM = Path(__file__).with_name("programs") / "files_only.py"


def test_files_can_be_worked_on_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, PROGRAM, tmp_path], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    tried = json.loads(done.stdout)
    assert tried.pop("enforced") is True
    assert tried.pop("files") == "['f', 's']"
    assert tried.pop("thread") == "[1]"
    assert tried.pop("fork") in (errno.EPERM, errno.ENOSYS)
    assert set(tried.values()) == {errno.ENOSYS}, tried


@pytest.mark.parametrize("name", seccomp._MACHINES)
def test_the_filter_of_every_machine_says_what_its_table_says(name: str) -> None:
    """Run as the kernel runs it (Documentation/networking/filter.rst)."""
    machine = seccomp._MACHINES[name]
    raw = seccomp._instructions(machine)
    code = [seccomp._INSTRUCTION.unpack_from(raw, start) for start in range(0, len(raw), 8)]

    def verdict(number: int, architecture: int = machine.audit, flags: int = 0) -> int:
        position, value = 0, 0
        data = {0: number, 4: architecture, 16: flags}
        while True:
            operation, if_true, if_false, constant = code[position]
            position += 1
            if operation == 0x20:
                value = data[constant]
            elif operation == 0x06:
                return int(constant)
            else:
                holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[operation]
                position += if_true if holds else if_false

    allow, absent, refuse, kill = 0x7FFF0000, 0x50000 | errno.ENOSYS, 0x50000 | errno.EPERM, 0x80000000
    for number in (*range(600), 0x40000000, 0xFFFFFFFF):
        if number != machine.clone:
            assert verdict(number) == (allow if number in machine.allowed else absent)
    assert verdict(machine.clone) == refuse
    assert verdict(machine.clone, flags=0x3D0F00) == allow
    assert verdict(machine.allowed[0], architecture=0x40000003) == kill
