"""Containers that put something else in the place of their terminals, or lock them (``support/fusefile.py``)."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from podkeep.cri.v1 import api_pb2 as api
from support import fusefile, processes, streams
from support.cri import BLOCK, Pods, namespaces, pod
from support.daemon import Daemon
from support.waiting import wait_for


@pytest.fixture
def fuse(open_directory: Path) -> Path:
    """A device node that the root of a pod in a user namespace may open."""
    path = open_directory / "fuse"
    path.unlink(missing_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
    path.chmod(0o666)
    return path


def launched(pods: Pods, fuse: Path) -> str:
    """Return a container that may mount FUSE."""
    return pods.launch(
        pods.run(pod(options=namespaces(user=BLOCK))),
        devices=[api.Device(host_path=str(fuse), container_path="/dev/fuse", permissions="rw")],
        security={"capabilities": api.Capability(add_capabilities=["ALL"])},
    )


def answers(pods: Pods) -> bool:
    """Return True, or fail if the runtime is blocked."""
    return str(pods.call("Version", api.VersionRequest()).runtime_name) == "podkeep"


def terminals(pid: int) -> list[str]:
    """Return the masters of terminals that a process has open."""
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(path))
    return [link for link in links if link.endswith("ptmx")]


def shells(pid: int) -> list[str]:
    """Return the states of the shells that a process has started (proc_pid_stat(5)); one that ends has no arguments."""
    found = []
    for child in processes.children(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = Path(f"/proc/{child}/stat").read_text().rpartition(") ")
            found += [rest[0]] if name.endswith("(sh") else []
    return found


def ended(pid: int, word: str) -> bool:
    """Return whether no child of a process has a word in its command line."""
    return not any(word.encode() in processes.command_line(child) for child in processes.children(pid))


def test_a_terminal_that_a_container_made_up_blocks_nobody_else(daemon: Daemon, pods: Pods, fuse: Path) -> None:
    """What closes a file of FUSE waits for its server, whatever signal comes: fuse_flush sets ``force``."""
    pid, container = daemon.pid, launched(pods, fuse)
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


def test_a_terminal_that_a_container_locked_blocks_nobody_when_it_is_closed(
    daemon: Daemon, pods: Pods, fuse: Path
) -> None:
    """The last close of a master waits for who writes to the terminal: tty_ldisc_hangup."""
    container = launched(pods, fuse)
    request = api.ExecRequest(container_id=container, cmd=["sh"], stdin=True, stdout=True, tty=True)
    client = pods.wait(streams.connect("websocket", pods.call("Exec", request).url, tty=True, stdin=True))
    wait_for(lambda: terminals(daemon.pid), "the terminal")
    with fusefile.holding_a_terminal(pods.host_pid(container), "write"):
        streams.abort(client)
        wait_for(lambda: answers(pods) and not terminals(daemon.pid), "the end of the session")
        assert answers(pods)
        assert pods.exec(container, "echo", "here").stdout == b"here\n"
        wait_for(lambda: "D" in shells(daemon.pid), "who waits for the terminal in the daemon's place")
    wait_for(lambda: set(shells(daemon.pid)) <= {"Z"}, "the end of what waited for the terminal")
    assert pods.exec(container, "echo", "here").stdout == b"here\n"


def test_a_terminal_that_a_container_locked_blocks_nobody_when_it_is_resized(
    daemon: Daemon, pods: Pods, fuse: Path
) -> None:
    """A new size waits for who asks for the present one: tiocgwinsz."""
    container = launched(pods, fuse)
    request = api.ExecRequest(container_id=container, cmd=["sh"], stdin=True, stdout=True, tty=True)
    client = pods.wait(streams.connect("websocket", pods.call("Exec", request).url, tty=True, stdin=True))
    wait_for(lambda: terminals(daemon.pid), "the terminal")
    with fusefile.holding_a_terminal(pods.host_pid(container), "size"):
        pods.wait(client.resize(111, 44))
        wait_for(lambda: answers(pods) and "keeps its size" in daemon.log.read_text(), "the new size to be given up")
        assert answers(pods)
        streams.abort(client)
        wait_for(lambda: answers(pods) and not terminals(daemon.pid), "the end of the session")
    assert pods.exec(container, "echo", "here").stdout == b"here\n"
