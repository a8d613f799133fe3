"""Fixtures of the runtime's black-box tests: a client of the shared daemon, and a daemon to be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cri import Pods
from support.daemon import Daemon
from support.mortal import Mortal


@pytest.fixture(scope="session")
def image_here(shared_daemon: Daemon, image: str) -> str:
    """The busybox image, pulled by the shared daemon."""
    with Pods(shared_daemon.socket, image) as client:
        client.pull()
    return image


@pytest.fixture
def pods(daemon: Daemon, shared_daemon: Daemon, image_here: str) -> Iterator[Pods]:
    """A client of the shared daemon; afterwards its pods are gone and the daemon holds what it held before."""
    with Pods(daemon.socket, image_here) as client:
        if daemon is not shared_daemon:
            client.pull()
        yield client


@pytest.fixture
def mortal(own_daemon: Daemon, image: str) -> Iterator[Mortal]:
    """A daemon of the test's own, not started; afterwards its sandboxes are removed and it is stopped."""
    mortal = Mortal(own_daemon, image)
    yield mortal
    mortal.close()
