"""The daemons of a node tell their manager that they are alive, which ends one that is not any more."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from podkeep.base import service
from support.running_node import RunningNode
from support.waiting import TIMEOUT_S


@pytest.mark.parametrize("name", ["api", "agent"])
def test_a_daemon_says_again_and_again_that_it_is_alive(own_node: RunningNode, tmp_path: Path, name: str) -> None:
    """That of the runtime is tested with its reload."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_S)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        (own_node if name == "agent" else own_node.api).environment.update(told)
        with own_node:
            # More than wait for the manager at once (net.unix.max_dgram_qlen), which it did not take until now.
            said = [manager.recv(4096) for _ in range(30)]
    assert said.count(b"WATCHDOG=1") >= 20


def test_the_daemons_may_have_as_many_descriptors_as_they_are_allowed(own_node: RunningNode) -> None:
    """Each takes connections of strangers, more than the 1024 descriptors that a usual shell allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        with own_node as node:
            assert node.agent is not None
            for process in (node.daemon.pid, node.api.pid, node.agent.pid):
                assert resource.prlimit(process, resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_agent_that_cannot_register_its_node_says_why(own_node: RunningNode, tmp_path: Path) -> None:
    """It is not ready for as long as that, which `podkeep status` shows with the reason."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_S)
        own_node.environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        try:
            own_node.daemon.start()
            own_node.start_agent("cannot be registered")
            told = service.parse(manager.recv(4096))
            assert told.keys() == {"STATUS", service.PROBLEM}
            assert told["STATUS"] == "starting"
            assert told[service.PROBLEM].startswith("the node cannot be registered: ")
            own_node.api.start()
            while "READY" not in told:
                told = service.parse(manager.recv(4096))
            assert (told["STATUS"].startswith("node node-1 runs"), told.get(service.PROBLEM)) == (True, None)
        finally:
            own_node.end()
