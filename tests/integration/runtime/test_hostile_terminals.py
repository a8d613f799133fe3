"""Containers that put something else in the place of their terminals (``support/fusefile.py``)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from podkeep.cri.v1 import api_pb2 as api
from support import fusefile, streams
from support.cri import BLOCK, Pods, namespaces, pod, wait_for
from support.daemon import Daemon


@pytest.fixture
def fuse(open_directory: Path) -> Path:
    """A device node that the root of a pod in a user namespace may open."""
    path = open_directory / "fuse"
    os.mknod(path, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
    path.chmod(0o666)
    return path


def ended(pid: int, word: str) -> bool:
    """Return whether no child of a process has a word in its command line."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    numbers = {number for path in children for number in path.read_text().split()}
    return not any(word.encode() in Path(f"/proc/{number}/cmdline").read_bytes() for number in numbers)


def test_a_terminal_that_a_container_made_up_blocks_nobody_else(daemon: Daemon, pods: Pods, fuse: Path) -> None:
    """What closes a file of FUSE waits for its server, whatever signal comes: fuse_flush sets ``force``."""
    assert daemon.process is not None
    pid = daemon.process.pid
    container = pods.launch(
        pods.run(pod(options=namespaces(user=BLOCK))),
        devices=[api.Device(host_path=str(fuse), container_path="/dev/fuse", permissions="rw")],
        security={"capabilities": api.Capability(add_capabilities=["ALL"])},
    )
    request = api.ExecRequest(container_id=container, cmd=["sh"], stdin=True, stdout=True, tty=True)
    with fusefile.instead_of_terminals(pods.host_pid(container)) as said:
        client = pods.wait(streams.connect("websocket", pods.call("Exec", request).url, tty=True, stdin=True))
        assert said.readline() == f"{fusefile.HELD}\n", "nobody was deceived"
        for _ in range(3):
            assert pods.call("Version", api.VersionRequest()).runtime_name == "podkeep"
        streams.abort(client)
        assert pods.exec(container, "echo", "here").stdout == b"here\n"
    wait_for(lambda: ended(pid, container), "the end of what waited for the file")
    # Popen waits for what it left when it starts something else.
    assert pods.exec(container, "echo", "here").stdout == b"here\n"
