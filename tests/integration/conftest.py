"""The scratch machine: every integration test runs in mount and network namespaces of the test run's own.

In them ``/`` is shared, as systemd makes it, and only loopback is up. What the tests mount or connect is invisible to
machine, and gone with the test run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import scratch
from support.daemon import Daemon
from support.images import Layout as ImageLayout
from support.images import busybox_layout
from support.registry import Registry


@pytest.fixture(scope="session", autouse=True)
def scratch_machine() -> None:
    """Leave the machine's mount and network namespaces; what is started from now on is in the new ones."""
    scratch.enter()


@pytest.fixture(scope="session")
def open_directory(scratch_machine: None) -> Iterator[Path]:
    """A directory that pods, whose root is not root outside, can reach into; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="podkeep-test-", dir="/var/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> ImageLayout:
    """An image of busybox-static."""
    return busybox_layout(tmp_path_factory.mktemp("busybox"))


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory, scratch_machine: None) -> Iterator[Registry]:
    """A docker-registry inside the scratch machine."""
    with Registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="session")
def image(registry: Registry, busybox: ImageLayout) -> str:
    """Reference of the busybox image in the registry."""
    return registry.push(busybox, "busybox:1")


@pytest.fixture(scope="session")
def shared_daemon(open_directory: Path, registry: Registry) -> Iterator[Daemon]:
    """A daemon for all tests that leave it as they found it."""
    extra = f'[registries."{registry.host}"]\ninsecure = true\n'
    base = open_directory / "shared"
    base.mkdir()
    with Daemon(base, extra=extra) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """The shared daemon; fails a test that leaves something behind."""
    before = shared_daemon.resources()
    yield shared_daemon
    assert shared_daemon.resources() == before


@pytest.fixture
def own_daemon(open_directory: Path, registry: Registry) -> Iterator[Daemon]:
    """A daemon of the test's own, not started."""
    base = open_directory / os.urandom(4).hex()
    base.mkdir()
    daemon = Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n')
    yield daemon
    daemon.end()
