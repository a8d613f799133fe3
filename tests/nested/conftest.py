"""The nested machine: a real systemd, cgroup v2 alone, AppArmor and Debian's kernel; see support/nested/machine.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.nested.machine import Machine


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """One machine for all tests that leave it as they found it; it powers off as an administrator would have it."""
    with Machine() as machine:
        yield machine
        pid = machine.pid
    assert "reboot: Power down" in machine.console
    assert not Path(f"/proc/{pid}").exists()


@pytest.fixture
def boot() -> Iterator[Callable[..., Machine]]:
    """Boots machines of the test's own: ``boot(memory_mib=…, cpus=…, append=…)``."""
    with ExitStack() as machines:

        def booted(**options: Any) -> Machine:
            return machines.enter_context(Machine(**options))

        yield booted
