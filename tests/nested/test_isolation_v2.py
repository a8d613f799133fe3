"""The attacks of docs/isolation.md with Debian's kernel, which has modules, kexec and /dev/mem."""

from __future__ import annotations

import json
from pathlib import Path

from support.attacks import Who
from support.isolation import KEPT, OLDER, kept
from support.nested.build import REPOSITORY
from support.nested.machine import Machine

MODULE = f"{REPOSITORY}/tests/integration/node/test_isolation.py::test_attacks"
LONGEST_S = 1500
"""What is emulated is some twenty times slower."""


def test_attacks_on_debians_kernel(machine: Machine, tmp_path: Path) -> None:
    """The test of this machine, in the nested one, whose Python runs it; how attacks ended is kept beside."""
    python, configuration = f"{REPOSITORY}/.venv/bin/python", f"--config-file={REPOSITORY}/pyproject.toml"
    options = ["-q", "-p", "no:cacheprovider", f"--rootdir={REPOSITORY}", configuration]
    done = machine.run([python, "-m", "pytest", *options, MODULE], timeout=LONGEST_S)
    assert done.returncode == 0, done.stdout + done.stderr
    machine.get(str(KEPT), tmp_path)
    KEPT.mkdir(parents=True, exist_ok=True)
    for path in tmp_path.rglob(f"{OLDER}-*.json"):
        json.loads(path.read_text())
        (KEPT / path.name).write_bytes(path.read_bytes())
    assert kept(older=True).keys() >= {Who.ROOT, Who.BLOCK}
