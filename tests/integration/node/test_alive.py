"""The daemons of a node tell their manager that they are alive, which ends one that is not any more."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from support.running_node import RunningNode
from support.timeout import TIMEOUT_S


def hear(manager: socket.socket, alive: threading.Event) -> None:
    """Take what a daemon says until nobody may hear it any more; note when it said twice that it is alive."""
    count = 0
    with suppress(OSError):
        while True:
            count += manager.recv(4096) == b"WATCHDOG=1"
            if count == 2:
                alive.set()


@pytest.mark.parametrize("name", ["api", "agent"])
def test_a_daemon_says_again_and_again_that_it_is_alive(own_node: RunningNode, tmp_path: Path, name: str) -> None:
    """That of the runtime is tested with its reload."""
    with ExitStack() as stack:
        manager = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.bind(str(tmp_path / "notify"))
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        (own_node if name == "agent" else own_node.api).environment.update(told)
        # Read from the beginning: a daemon whose messages nobody takes waits.
        alive = threading.Event()
        threading.Thread(target=hear, args=[manager, alive], daemon=True).start()
        stack.enter_context(own_node)
        assert alive.wait(TIMEOUT_S)
