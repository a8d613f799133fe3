"""Acknowledged writes and what watchers saw, while the server is killed again and again."""

from __future__ import annotations

import http.client
import itertools
import os
import random
import selectors
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.api_client import ApiClient
from support.api_daemon import ApiDaemon
from support.waiting import TIMEOUT_S

_TESTS = Path(__file__).parents[2]
_PATH = "/api/v1/namespaces/default/configmaps"
WRITERS = 6


class Writers:
    """Processes that write, each over a connection of its own."""

    def __init__(self, socket: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(_TESTS)}
        command = [sys.executable, "-m", "support.api_writer", str(socket)]
        self._processes = [
            subprocess.Popen([*command, f"w{number}"], stdout=subprocess.PIPE, env=environment)
            for number in range(WRITERS)
        ]
        self._selector = selectors.DefaultSelector()
        for process in self._processes:
            self._selector.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        self.acknowledged = 0
        self.lost: list[str] = []

    def await_writes(self, count: int) -> None:
        """Return when so many more were acknowledged."""
        wanted = self.acknowledged + count
        while self.acknowledged < wanted:
            ready = self._selector.select(TIMEOUT_S)
            assert ready, "nothing is written"
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                assert data, (self.lost, "a writer has ended")
                lines = data.decode().splitlines()
                self.lost += [line for line in lines if line.startswith("LOST")]
                self.acknowledged += len(lines)

    def stop(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._selector.close()


class Watcher(threading.Thread):
    """Sees the writers' objects: lists once, and from then on goes on where its last event was."""

    def __init__(self, socket: Path) -> None:
        super().__init__(daemon=True)
        self._socket = socket
        self.revision = 0
        self.there: dict[str, str] = {}
        self.seen = self.streams = 0
        self.wrong: list[str] = []
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            client = ApiClient(self._socket, timeout=1.0)
            with suppress(OSError, http.client.HTTPException):
                self._list(client)
                self.streams += 1
                for event in client.watch(f"{_PATH}?watch=1&resourceVersion={self.revision}"):
                    self._take(event)
                    if self._stopped.is_set():
                        break
            client.close()
            self._stopped.wait(0.05)  # the server is down: it needs the processor to start

    def stop(self) -> None:
        """End it."""
        self._stopped.set()
        self.join(TIMEOUT_S)

    def _list(self, client: ApiClient) -> None:
        if not self.revision:
            found = client.ask("GET", _PATH).value
            self.there = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in found["items"]}
            self.revision = int(found["metadata"]["resourceVersion"])

    def _take(self, event: dict[str, Any]) -> None:
        kind, metadata = event["type"], event["object"]["metadata"]
        if kind == "ERROR":
            self.wrong.append(f"{event}")
            return
        name, revision = metadata["name"], int(metadata["resourceVersion"])
        if revision <= self.revision:
            self.wrong.append(f"{kind} {name} {revision} after {self.revision}")
        if (kind == "ADDED") == (name in self.there):
            self.wrong.append(f"{kind} {name} {revision}, which was {'there' if name in self.there else 'not there'}")
        self.there[name] = metadata["resourceVersion"]
        if kind == "DELETED":
            del self.there[name]
        self.revision = revision
        self.seen += 1


@pytest.mark.kills
def test_kills_lose_no_acknowledged_write_and_repeat_no_event(
    tmp_path: Path, request: pytest.FixtureRequest, scratch_machine: None
) -> None:
    kills = int(request.config.getoption("--kills"))
    chance = random.Random(kills)
    with ApiDaemon(tmp_path) as api:
        writers, watchers = Writers(api.socket), [Watcher(api.socket) for _ in range(3)]
        try:
            for watcher in watchers:
                watcher.start()
            writers.await_writes(20)
            for _ in range(kills):
                writers.await_writes(chance.randrange(1, 60))
                api.stop(signal.SIGKILL)
                api.start()
                assert writers.lost == []
            writers.await_writes(20 * WRITERS)
        finally:
            writers.stop()
        client = ApiClient(api.socket)
        # Until each has seen the last write. What killed writers have sent may still be written after that.
        for watcher in itertools.islice(itertools.cycle(watchers), 1000):
            found = client.ask("GET", _PATH).value
            there = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in found["items"]}
            seen = [dict(item.there) for item in watchers]
            if seen == [there, there, there]:
                break
            watcher.join(0.02)
        for watcher in watchers:
            watcher.stop()
        assert writers.lost == []
        assert [watcher.wrong for watcher in watchers] == [[], [], []]
        assert seen == [there, there, there]
        assert all(watcher.streams >= min(kills, 10) for watcher in watchers)
        print(f"{kills} kills, {writers.acknowledged} writes, {[watcher.seen for watcher in watchers]} events")
