"""``podkeep node`` for a test: one supervisor that has runtime, API and agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from support import forked
from support.container_mounts import ContainerMounts
from support.daemon import Daemon
from support.running_node import RunningNode
from support.waiting import TIMEOUT_S

TOLD = "ready after "
"""What is said once: that all daemons serve, or on a busy machine after a while which do not yet."""


class SupervisedDaemon(Daemon):
    """The runtime below a supervisor: its directories, and its process as the supervisor tells of it."""

    @classmethod
    def of(cls, base: Path, registry: str, mounts: ContainerMounts) -> SupervisedDaemon:
        """Return one with everything in ``base``, for a node with images of ``registry``."""
        extra = f"""
node_name = "node-1"
port = 0
[api]
root = "{base / "api"}"
unix_socket = "{base / "api.sock"}"
address = "127.0.0.1:{20000 + os.getpid() % 10000}"
[registries."{registry}"]
insecure = true
"""
        return cls(base, extra=extra, mounts=mounts)

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self.told()["runtime"]["pid"])

    def told(self) -> dict[str, dict[str, Any]]:
        """Return what the supervisor tells of its daemons, by name."""
        report = json.loads((self.base / "node" / "node.json").read_bytes())
        return {item["name"]: item for item in report["daemons"]}


class SupervisedNode(RunningNode):
    """Start it as a context manager."""

    daemon: SupervisedDaemon

    def __init__(self, daemon: SupervisedDaemon) -> None:
        super().__init__(daemon)
        self.supervisor: subprocess.Popen[str] | None = None

    def __enter__(self) -> SupervisedNode:
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def _start(self) -> None:
        self.supervisor = forked.Popen(self.daemon.command("node"), stderr=subprocess.PIPE, text=True)
        stream = self.supervisor.stderr
        assert stream is not None
        for line in stream:
            self.log.append(line)
            if TOLD in line:
                break
        else:
            raise AssertionError(f"podkeep node ended: {''.join(self.log)}")
        self._reader = threading.Thread(target=self.log.extend, args=[stream], daemon=True)
        self._reader.start()
        self.until(lambda: all(item["state"] == "ready" for item in self.daemon.told().values()), "all daemons serve")

    def kill(self, name: str) -> None:
        """Kill a daemon, or all with ``node``; return once the API serves again, whatever the others do."""
        if name == "node":
            self._stop(signal.SIGKILL)
            self._start()
            return
        before = self.daemon.told()[name]
        with suppress(ProcessLookupError):  # it has just been killed, and the supervisor has not told that yet
            if before["pid"]:
                os.kill(before["pid"], signal.SIGKILL)
        if name == "api":
            self.until(lambda: self._serves_again("api", before["pid"]), "the API serves again")

    def _serves_again(self, name: str, before: int) -> bool:
        told = self.daemon.told()[name]
        return told["state"] == "ready" and told["pid"] != before

    def _stop(self, number: int) -> None:
        if self.supervisor is not None:
            self.supervisor.send_signal(number)
            self.supervisor.wait(TIMEOUT_S)
            # Its daemons have the pipe, too, and end with it.
            self._reader.join(TIMEOUT_S)
            self.supervisor = None

    def end(self) -> None:
        """End everything; what runs in containers is killed."""
        self._stop(signal.SIGTERM)
        self.daemon.end()
