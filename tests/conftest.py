"""What holds for all tests: none of them fails because the machine is busy."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("podkeep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("podkeep")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector out while pytest rewrites the modules of the tests.

    Until CPython 3.11.8 (Debian 12 has 3.11.2) a finaliser that runs while a syntax tree is made may spoil it:
    "SystemError: AST constructor recursion depth mismatch" (gh-106905).
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
