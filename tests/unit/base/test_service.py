"""The service manager is told, on a real datagram socket, and its absence is no error."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base import service


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@podkeep-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0") if name.startswith("@") else name)
        listening.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listening


def test_each_word_arrives(manager: socket.socket) -> None:
    service.ready("serving\n/run/a.sock")
    assert manager.recv(4096) == b"READY=1\nSTATUS=serving /run/a.sock"
    service.status("serving", problem="one file\nis wrong")
    assert manager.recv(4096) == b"X_PODKEEP_PROBLEM=one file is wrong\nSTATUS=serving"
    service.reloading()
    kind, _, when = manager.recv(4096).partition(b"\nMONOTONIC_USEC=")
    assert kind == b"RELOADING=1"
    assert when.isdigit()
    service.alive()
    assert manager.recv(4096) == b"WATCHDOG=1"
    service.stopping()
    assert manager.recv(4096) == b"STOPPING=1"


def test_a_manager_that_takes_nothing_keeps_nobody_waiting(
    manager: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    while not caplog.records:
        service.alive()
    service.status("busy")
    service.stopping()
    assert "the service manager was not told 'WATCHDOG=1'" in caplog.text
    assert manager.recv(4096) == b"WATCHDOG=1"


@pytest.mark.parametrize("address", [None, "", "relative", "/nowhere/at/all"])
def test_without_a_manager_nothing_happens(
    address: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    service.ready("serving")
    assert bool(caplog.records) == (address == "/nowhere/at/all")


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_in_its_time(
    environment: dict[str, str], seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert service.watchdog_seconds() == seconds
