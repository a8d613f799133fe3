"""The fixture ``resctrl``, and the option that lets it be the machine's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import scratch
from support.resctrl.hardware import INTEL, Hardware
from support.resctrl.mount import Resctrl, real, stand_in

OPTION = "--resctrl"
REAL = "real"
STAND_IN = "stand-in"

Mount = Callable[..., Resctrl]
"""Takes the hardware; without, it is a common one, or with ``--resctrl=real`` the machine's own."""


@pytest.fixture
def resctrl(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """Mounts of resctrl, in a mount namespace of the test run's own."""
    scratch.anywhere_own()
    use_real = request.config.getoption(OPTION) == REAL
    with ExitStack() as mounted:

        def mount(hardware: Hardware | None = None) -> Resctrl:
            if hardware is None and use_real:
                return mounted.enter_context(real())
            directory: Path = tmp_path_factory.mktemp("resctrl")
            return mounted.enter_context(stand_in(hardware or INTEL, directory))

        yield mount
