"""The fixture ``resctrl``, and the option that lets it be the machine's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import pytest

from support import scratch
from support.resctrl.hardware import INTEL, Hardware
from support.resctrl.mount import Resctrl, real, stand_in

OPTION = "--resctrl"
REAL = "real"
STAND_IN = "stand-in"

Mount = Callable[..., Resctrl]
"""Takes the hardware; without, it is a common one, or with ``--resctrl=real`` the machine's own."""


def sharing(*, fixture_name: str, config: pytest.Config) -> Literal["function", "module"]:
    """Return the scope of what the tests of a module can share: nothing, if there is only the machine's own resctrl."""
    return "function" if config.getoption(OPTION) == REAL else "module"


@pytest.fixture
def resctrl(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """Mounts of resctrl, in a mount namespace of the test run's own."""
    with _mounting(request.config, tmp_path_factory) as mount:
        yield mount


@pytest.fixture(scope=sharing)
def shared_resctrl(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """The same for the tests of a module that leave everything as they found it."""
    with _mounting(request.config, tmp_path_factory) as mount:
        yield mount


@contextmanager
def _mounting(config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    scratch.anywhere_own()
    use_real = config.getoption(OPTION) == REAL
    with ExitStack() as mounted:

        def mount(hardware: Hardware | None = None) -> Resctrl:
            if hardware is None and use_real:
                return mounted.enter_context(real())
            directory: Path = tmp_path_factory.mktemp("resctrl")
            return mounted.enter_context(stand_in(hardware or INTEL, directory))

        yield mount
