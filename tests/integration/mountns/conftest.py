"""Two daemons for all tests of this directory: one that hides its mounts from the host, and one that does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.kernel.files.removal import remove_tree
from support.cri import Pods
from support.daemon import Daemon
from support.propagation import MODES, Mode, Node, mode_daemon, table


@pytest.fixture(scope="session", params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Whether the runtime's mounts are hidden from the host."""
    chosen: Mode = request.param
    return chosen


@pytest.fixture(scope="session")
def mode_runtime(mode: Mode, open_directory: Path, image: str) -> Iterator[Daemon]:
    """A daemon for all tests of one mode; a worker that gets tests of the other in between starts it once more."""
    with mode_daemon(mode, open_directory / os.urandom(4).hex(), image) as daemon:
        with Pods(daemon.socket, image) as pods:
            pods.pull()
        yield daemon


@pytest.fixture
def node(mode: Mode, mode_runtime: Daemon, image: str) -> Iterator[Node]:
    """The daemon of one mode; afterwards its pods are gone, and it and the host hold what they held before."""
    volume = mode_runtime.base / os.urandom(4).hex()
    volume.mkdir()
    before = (mode_runtime.resources(), table())
    with Pods(mode_runtime.socket, image) as pods:
        yield Node(mode=mode, daemon=mode_runtime, pods=pods, volume=volume)
    for path in (mode_runtime.base / "cdi").iterdir():
        path.unlink()
    assert (mode_runtime.resources(), table()) == before
    remove_tree(volume)
