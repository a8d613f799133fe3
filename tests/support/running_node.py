"""A whole node for a test: ``podkeep runtime``, ``podkeep api`` and ``podkeep agent``, each a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from support import forked, resources
from support.api_client import ApiClient
from support.api_daemon import ApiDaemon
from support.cri import Pods
from support.daemon import Daemon
from support.node_client import NodeClient
from support.resources import Resources
from support.waiting import TIMEOUT_S

SERVES = "runs the pods of"


class RunningNode(NodeClient):
    """Start it as a context manager; ``daemon`` is a runtime that is not started yet.

    :param settings: ``KEY=VALUE`` for the agent; ``options``: of its verb.
    """

    def __init__(
        self,
        daemon: Daemon,
        *,
        name: str = "node-1",
        settings: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
    ) -> None:
        self.daemon, self.name, self.settings, self.options = daemon, name, settings, options
        self.api = ApiDaemon(daemon.base)
        self.agent: subprocess.Popen[str] | None = None
        self.environment: dict[str, str] = {}
        """Variables of the agent's own."""
        self.log: list[str] = []
        """What the agents wrote."""
        self._reader: threading.Thread | None = None

    def __enter__(self) -> RunningNode:
        try:
            self.daemon.start()
            self.api.start()
            self.start_agent()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # -- processes

    def start_agent(self, serves: str = SERVES) -> None:
        """Start the agent, and wait until it says that it follows the API, or something else."""
        own = (f"api.root={self.api.root}", "agent.port=0")
        settings = [part for setting in (*own, *self.settings) for part in ("--set", setting)]
        command = self.daemon.command(
            "agent", "--node-name", self.name, "--unix-socket", str(self.api.socket), *self.options
        )
        command[command.index("agent") : command.index("agent")] = settings
        environment = os.environ | self.environment
        self.agent = forked.start(command, env=environment)
        assert self.agent.stderr is not None
        for line in self.agent.stderr:
            self.log.append(line)
            if serves in line:
                break
        else:
            raise AssertionError(f"podkeep agent ended: {''.join(self.log)}")
        self._reader = threading.Thread(target=self.log.extend, args=[self.agent.stderr], daemon=True)
        self._reader.start()

    def end_agent(self, number: int = signal.SIGTERM) -> None:
        """End the agent; pods run on."""
        if self.agent is not None:
            self.agent.send_signal(number)
            self.agent.wait(TIMEOUT_S)
            if self._reader is not None:
                self._reader.join(TIMEOUT_S)
            self.agent = self._reader = None

    def connection(self) -> ApiClient:
        return ApiClient(self.api.socket)

    def said(self) -> str:
        return "".join(self.log[-50:])

    def kill(self, name: str) -> None:
        """Kill ``agent``, ``runtime``, ``api``, or all of them with ``node``, and start it again."""
        if name in {"agent", "node"}:
            self.end_agent(signal.SIGKILL)
        if name in {"runtime", "node"}:
            self.daemon.kill()
        if name in {"api", "node"}:
            self.api.stop(signal.SIGKILL)
        if name in {"runtime", "node"}:
            self.daemon.start()
        if name in {"api", "node"}:
            self.api.start()
        if name in {"agent", "node"}:
            self.start_agent()

    def end(self) -> None:
        """End everything; what runs in containers is killed."""
        self.end_agent()
        self.api.stop()
        self.daemon.end()

    # -- the machine

    def written(self, name: str) -> str:
        """Return what the container ``main`` of a pod wrote so far, without the end of the last line."""
        found = self.get(name)
        assert found is not None
        file = self.daemon.base / "logs" / f"default_{name}_{found['metadata']['uid']}" / "main" / "0.log"
        if not file.exists():
            return ""
        pieces = [line.split(" ", 3)[2:] for line in file.read_text().splitlines()]
        # A line that a program writes in pieces may be logged in pieces (P, partial).
        return "".join(text + ("" if tag == "P" else "\n") for tag, text in pieces).removesuffix("\n")

    def host_pid(self, name: str) -> int:
        """Return the machine's ID of the first process of a pod's container, once it runs."""
        container: str = self.running(name)["status"]["containerStatuses"][0]["containerID"]
        with Pods(self.daemon.socket, "") as client:
            return client.host_pid(container.rpartition("/")[2])

    def left_behind(self) -> list[str]:
        """Return what pods have on the node beside the runtime: directories, logs, mounts."""
        return resources.of_pods(self.daemon.base / "kubelet", self.daemon.base / "logs", self.daemon.pid)

    def pod_directories(self) -> set[str]:
        return {path.name for path in (self.daemon.base / "kubelet" / "pods").iterdir()}

    def pods_with_processes(self) -> frozenset[str]:
        cgroups = []
        for path in Path("/proc").glob("[0-9]*/cgroup"):
            with suppress(OSError):  # the process has ended
                cgroups.append(path.read_text())
        return resources.pods_with_processes("".join(cgroups), self.daemon.cgroup_parent)

    def require_nothing_left(self, before: Resources) -> None:
        """Delete all pods, and fail if something of them is left then.

        :param before: what the runtime held, as after a restart.
        """
        self.delete_all_pods()
        self.until(lambda: self.left_behind() == [], f"nothing left: {self.left_behind()}")
        after = self.daemon.resources().after_a_restart()
        assert after == before


def own_base(root: Path) -> Path:
    """Return a new directory for one node."""
    base = root / os.urandom(4).hex()
    base.mkdir()
    return base
