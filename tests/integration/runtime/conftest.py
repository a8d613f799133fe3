"""Fixtures of the runtime's black-box tests: a client of the shared daemon, and clients of a test's own daemons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from support.cri import Pods
from support.daemon import Daemon

Connect = Callable[[Daemon], Pods]


@pytest.fixture(scope="session")
def image_here(shared_daemon: Daemon, image: str) -> str:
    """The busybox image, pulled by the shared daemon."""
    with Pods(shared_daemon.socket, image) as client:
        client.pull()
    return image


@pytest.fixture
def pods(daemon: Daemon, image_here: str) -> Iterator[Pods]:
    """A client of the shared daemon; afterwards its pods are gone and the daemon holds what it held before."""
    with Pods(daemon.socket, image_here) as client:
        yield client


@pytest.fixture
def connect(own_daemon: Daemon, image: str) -> Iterator[Callable[[], Pods]]:
    """Open clients of the test's own daemon; they are closed at the end, without removing anything."""
    with ExitStack() as closing:

        def open_() -> Pods:
            client = Pods(own_daemon.socket, image)
            client.__enter__()
            closing.callback(client.close)
            return client

        yield open_
