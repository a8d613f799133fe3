"""Fixtures of the kernel layer's tests: nothing may leak, and real namespaces to work with."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.isolation import resources
from podkeep.kernel.namespace.idmap import block
from podkeep.kernel.namespace.namespaces import NamespaceHelper


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a descriptor, child process, thread or mount behind."""
    before = resources()
    yield
    assert resources() == before


@pytest.fixture
def helper(nothing_leaks: None) -> Iterator[NamespaceHelper]:
    """A running namespace helper."""
    with NamespaceHelper() as running:
        yield running


@pytest.fixture
def userns(helper: NamespaceHelper) -> Iterator[int]:
    """A user namespace: container IDs 0-65535 are host IDs 65536-131071 (the block of KEP-127's example)."""
    fd = helper.user_namespace(block(65536, 65536))
    yield fd
    os.close(fd)


@pytest.fixture
def open_dir(nothing_leaks: None) -> Iterator[Path]:
    """A directory that users without privileges can enter, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(prefix="pk-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
