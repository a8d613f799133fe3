"""Which file systems can be idmapped: the table of docs/user-namespaces.md, tried on Debian's kernel."""

from __future__ import annotations

import json

import pytest

from support import filesystems
from support.nested.build import REPOSITORY
from support.nested.machine import Machine

LONGEST_S = 600
"""Half a minute on a machine with nothing beside it."""


@pytest.mark.requirement("U74")
def test_the_table_of_file_systems_is_what_debians_kernel_does(machine: Machine) -> None:
    """All of them, NFS with a server as well; the words of a refusal are compared as well (``filesystems``)."""
    release = machine.run("uname -r", check=True).stdout
    mounted = machine.read("/proc/self/mountinfo")
    command = f"cd {REPOSITORY} && PYTHONPATH=tests:src .venv/bin/python -m support.filesystems"
    found = json.loads(machine.run(command, timeout=LONGEST_S, check=True).stdout)
    assert found == filesystems.documented(release)
    assert machine.read("/proc/self/mountinfo") == mounted
    assert machine.run("pgrep rpc.mountd").returncode == 1
    assert machine.run("losetup --noheadings").stdout == ""
