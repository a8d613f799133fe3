"""Nothing that is mounted on the machine while these tests run is theirs."""

from __future__ import annotations

import pytest

from support import scratch


@pytest.fixture(scope="session", autouse=True)
def own_mounts() -> None:
    """Leave the machine's mount namespace."""
    scratch.own_mounts()
