"""A whole node for a test: ``podkeep runtime``, ``podkeep api`` and ``podkeep agent``, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from podkeep.kernel.mount import mountinfo
from support import forked
from support.api_client import ApiClient
from support.api_daemon import ApiDaemon
from support.cri import Pods
from support.daemon import Daemon, Resources
from support.forked import Forked
from support.timeout import TIMEOUT_S

SERVES = "runs the pods of"


class RunningNode:
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
        self.agent: Forked | subprocess.Popen[str] | None = None
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

    def kill(self, name: str) -> None:
        """Kill ``agent``, ``runtime``, ``api``, or all of them with ``node``, and have it started again."""
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

    # -- the API

    def ask(self, method: str, path: str, body: Any = None, *, media: str = "application/json") -> Any:
        """Return the JSON that the API answers.

        :raises AssertionError: if it refuses.
        """
        client = ApiClient(self.api.socket)
        try:
            answer = client.ask(method, path, body, media=media)
        finally:
            client.close()
        assert answer.status < 300, answer.said
        return answer.value

    def apply(self, *documents: dict[str, Any], namespace: str = "default") -> None:
        """Create objects; a pod is bound to the node and gets no token, if it says nothing of that."""
        for document in documents:
            plural = f"{document['kind'].lower()}s"
            if document["kind"] == "Pod":
                document["spec"] = {"automountServiceAccountToken": False, "nodeName": self.name} | document["spec"]
            self.ask("POST", f"/api/v1/namespaces/{namespace}/{plural}", document)

    def get(self, name: str, namespace: str = "default", resource: str = "pods") -> dict[str, Any] | None:
        """Return an object; ``None`` if there is none of that name."""
        client = ApiClient(self.api.socket)
        try:
            answer = client.ask("GET", f"/api/v1/namespaces/{namespace}/{resource}/{name}")
        finally:
            client.close()
        if answer.status == 404:
            return None
        assert answer.status == 200, answer.said
        value: dict[str, Any] = answer.value
        return value

    def patch(self, name: str, change: dict[str, Any], namespace: str = "default", subresource: str = "") -> None:
        """Change a pod by a strategic merge patch."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}{subresource and '/'}{subresource}"
        self.ask("PATCH", path, change, media="application/strategic-merge-patch+json")

    def delete(self, name: str, namespace: str = "default", **options: Any) -> None:
        """Ask for a pod's deletion.

        :param options: fields of DeleteOptions.
        """
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        self.ask("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body)

    def events(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """Return the events of a pod, oldest first."""
        items: list[dict[str, Any]] = self.ask("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return [item for item in items if item["involvedObject"]["name"] == name]

    # -- waiting

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Return the first true value of ``condition``."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (value := condition()):
            assert time.monotonic() < deadline, f"never came: {what}\n{''.join(self.log[-50:])}"
            time.sleep(0.02)
        return value

    def pod(self, name: str, condition: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """Return the pod once ``condition`` holds for it."""

        def look() -> dict[str, Any] | None:
            found = self.get(name)
            return found if found is not None and condition(found) else None

        value: dict[str, Any] = self.until(look, f"pod {name}: {what}: {json.dumps(self.get(name))}")
        return value

    def running(self, name: str) -> dict[str, Any]:
        """Return the pod once it is Running and all its containers are ready."""
        return self.pod(name, is_ready, "ready")

    def phase(self, name: str, phase: str) -> dict[str, Any]:
        """Return the pod once it is in that phase."""
        return self.pod(name, lambda pod: pod["status"].get("phase") == phase, phase)

    def gone(self, name: str) -> None:
        """Return once the pod is gone from the API."""
        self.until(lambda: self.get(name) is None, f"pod {name} gone: {json.dumps(self.get(name))}")

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
        kubelet, logs = self.daemon.base / "kubelet", self.daemon.base / "logs"
        found = [str(path) for root in (kubelet / "pods", logs) if root.exists() for path in root.iterdir()]
        return sorted([*found, *(item.mount_point for item in mountinfo.under(kubelet, self.daemon.pid))])

    def require_nothing_left(self, before: Resources) -> None:
        """Delete all pods, and fail if something of them is left then.

        :param before: what the runtime held, as after a restart.
        """
        for item in self.ask("GET", "/api/v1/pods")["items"]:
            self.delete(item["metadata"]["name"], item["metadata"]["namespace"])
        self.until(lambda: not self.ask("GET", "/api/v1/pods")["items"], "all pods gone")
        self.until(lambda: self.left_behind() == [], f"nothing left: {self.left_behind()}")
        after = self.daemon.resources().after_a_restart()
        assert after == before


def is_ready(pod: dict[str, Any]) -> bool:
    """Return whether a pod is Running and ready."""
    status = pod["status"]
    ready = [item for item in status.get("conditions", ()) if item["type"] == "Ready"]
    return status.get("phase") == "Running" and bool(ready) and ready[0]["status"] == "True"


def own_base(root: Path) -> Path:
    """Return a new directory for one node."""
    base = root / os.urandom(4).hex()
    base.mkdir()
    return base
