"""SIGHUP, and what a service manager hears of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemon import Daemon
from support.waiting import wait_for


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(20)
        yield listening


def hear(manager: socket.socket, word: bytes) -> bytes:
    """Return the next message that is not the watchdog's; it begins with ``word``."""
    while (message := manager.recv(4096)) == b"WATCHDOG=1":
        pass
    assert message.startswith(word), message
    return message


def test_service_manager_hears_of_start_reload_and_end(
    own_daemon: Daemon, manager: socket.socket, tmp_path: Path
) -> None:
    own_daemon.environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    own_daemon.start()
    assert own_daemon.socket.encode() in hear(manager, b"READY=1\n")
    assert manager.recv(4096) == b"WATCHDOG=1"
    assert manager.recv(4096) == b"WATCHDOG=1"
    own_daemon.hang_up()
    hear(manager, b"RELOADING=1\n")
    hear(manager, b"READY=1\n")
    own_daemon.config.write_text("nonsense = 1\n")
    own_daemon.hang_up()
    hear(manager, b"RELOADING=1\n")
    assert b"refused" in hear(manager, b"READY=1\n")
    assert own_daemon.stop() == 0
    hear(manager, b"STOPPING=1")


def test_a_reload_asked_for_while_the_runtime_starts_waits_until_it_serves(
    own_daemon: Daemon, manager: socket.socket, tmp_path: Path
) -> None:
    own_daemon.environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    starting = threading.Thread(target=own_daemon.start)
    starting.start()
    wait_for(own_daemon.layout.exits.is_dir, "the runtime to begin its work")
    own_daemon.hang_up()
    starting.join()
    for word in (b"READY=1\n", b"RELOADING=1\n", b"READY=1\n"):
        hear(manager, word)
    assert own_daemon.stop() == 0


def test_reload_applies_what_can_change_and_names_what_cannot(own_daemon: Daemon, image: str) -> None:
    reference = image.rpartition(":")[0] + ":absent"
    written = own_daemon.config.read_text()
    own_daemon.config.write_text(written.replace("insecure = true", ""))
    own_daemon.start()
    # Without leave to speak plain HTTP, the registry cannot be reached at all.
    assert "RegistryUnavailable" in own_daemon.run("image", "pull", reference).stderr
    moved = written.replace('cgroup_parent = "/', 'cgroup_parent = "/other-')
    own_daemon.config.write_text(f'[log]\nformat = "json"\n{moved}')
    own_daemon.hang_up()
    wait_for(lambda: "not in force before a restart: " in own_daemon.log.read_text(), "a line about the reload")
    assert "RegistryUnavailable" not in own_daemon.run("image", "pull", reference).stderr
    entries = [json.loads(line) for line in own_daemon.log.read_text().splitlines() if line.startswith("{")]
    told = next(entry["message"] for entry in entries if "not in force" in entry["message"])
    assert told.endswith(": runtime.cgroup_parent")
    failed = next(entry for entry in entries if "PullImage failed" in entry["message"])
    assert (failed["level"], len(failed["request_id"])) == ("info", 8)


def test_wrong_file_changes_nothing(own_daemon: Daemon) -> None:
    good = own_daemon.config.read_text()
    own_daemon.start()
    own_daemon.config.write_text(good + "[images]\nparallel_layer = 1\n")
    own_daemon.hang_up()
    wait_for(lambda: "the configuration stays as it was" in own_daemon.log.read_text(), "a line about the reload")
    assert "parallel_layer" in own_daemon.log.read_text()
    own_daemon.config.write_text(good)
    assert own_daemon.run("ps").returncode == 0
