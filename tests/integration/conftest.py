"""The scratch machine: every integration test runs in mount and network namespaces of the test run's own.

In them ``/`` is shared, as systemd makes it, and only loopback is up. What the tests mount or connect is invisible to
machine, and gone with the test run.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import container_mounts, forked, scratch
from support.container_mounts import ContainerMounts
from support.daemon import Daemon
from support.images import Layout as ImageLayout
from support.images import busybox_layout
from support.registry import Registry


@pytest.fixture(scope="session", autouse=True)
def scratch_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Leave the machine's mount and network namespaces; what is started from now on is in the new ones.

    And it has another home: kubectl keeps a cache there, and podkeep looks for a kubeconfig.
    """
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    scratch.enter()
    if container_mounts.of_run() is ContainerMounts.SHOWN:
        scratch.detach_unified()
    forked.begin()


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


SharedDaemons = Callable[[ContainerMounts], Daemon]


@pytest.fixture(scope="session")
def shared_daemons(open_directory: Path, registry: Registry) -> Iterator[SharedDaemons]:
    """Daemons for all tests that leave them as they found them: one that hides mounts, one that shows them."""
    with ExitStack() as running:

        @functools.cache
        def start(mounts: ContainerMounts) -> Daemon:
            base = open_directory / f"shared-{mounts}"
            base.mkdir()
            extra = f'[registries."{registry.host}"]\ninsecure = true\n'
            return running.enter_context(Daemon(base, extra=extra, mounts=mounts))

        yield start


@pytest.fixture(scope="session")
def shared_daemon(shared_daemons: SharedDaemons) -> Daemon:
    """The shared daemon of tests that do not say whether mounts are hidden."""
    return shared_daemons(container_mounts.of_run())


@pytest.fixture
def daemon(shared_daemons: SharedDaemons, mounts_of_containers: ContainerMounts) -> Iterator[Daemon]:
    """The shared daemon; fails a test that leaves something behind."""
    daemon = shared_daemons(mounts_of_containers)
    before = daemon.resources()
    yield daemon
    assert daemon.resources() == before


@pytest.fixture
def own_daemon(open_directory: Path, registry: Registry, mounts_of_containers: ContainerMounts) -> Iterator[Daemon]:
    """A daemon of the test's own, not started."""
    base = open_directory / os.urandom(4).hex()
    base.mkdir()
    daemon = Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n', mounts=mounts_of_containers)
    yield daemon
    daemon.end()
