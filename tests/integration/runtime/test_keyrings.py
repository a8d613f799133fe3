"""What containers and commands in them find in their session keyrings (keyrings(7))."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from podkeep.cri.v1 import api_pb2 as api
from support.cri import BLOCK, Pods, namespaces, pod
from support.daemon import Daemon
from support.escaped import PROGRAMS
from support.keyed import KEY


def mounts(*paths: str) -> Sequence[api.Mount]:
    """Return read-only mounts of directories, each where it is on the machine."""
    return [api.Mount(host_path=path, container_path=path, readonly=True) for path in paths]


@pytest.mark.parametrize("user", [None, BLOCK])
def test_no_command_has_the_daemons_session_keyring_nor_anothers(
    own_daemon: Daemon, image: str, user: tuple[int, int, int] | None
) -> None:
    """crun gives a command none, so that it would have the one of a login, or of the service manager."""
    own_daemon.module = "support.keyed"
    own_daemon.environment = {KEY: "podkeep-test", "PYTHONPATH": str(PROGRAMS.parents[1])}
    own_daemon.start()
    find = ("/usr/bin/python3", str(PROGRAMS / "finds_key.py"), "podkeep-test")
    with Pods(own_daemon.socket, image) as pods:
        pods.pull()
        config = pod(options=namespaces(user=user))
        container = pods.launch(pods.run(config), mounts=mounts("/usr", "/lib", "/lib64", str(PROGRAMS)))
        found = [pods.exec(container, *find) for _ in range(2)]
    assert [(answer.stdout, answer.stderr) for answer in found] == [(b"not found\n", b"")] * 2
