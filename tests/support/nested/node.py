"""``podkeep node`` as the service of a nested machine, over which the machine is booted again.

Owns: installing it, its daemons as systemd and the supervisor tell of them, and what is on the machine of its pods. The
API is reached over its unix socket, which the machine's connection forwards.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import resources
from support.api_client import ApiClient
from support.images import Layout
from support.nested.build import REPOSITORY
from support.nested.machine import Machine
from support.node_client import NodeClient
from support.resources import Resources

UNIT = "podkeep-node.service"
SETTINGS = f"/etc/systemd/system/{UNIT}.d/slow.conf"
SLOW = "[Service]\nTimeoutStartSec=infinity\nTimeoutStopSec=infinity\nWatchdogSec=0\n"
"""The machine is emulated."""
REPORT = "/run/podkeep-node/node.json"
SOCKET = "/run/podkeep-api.sock"
PODS = "/var/lib/podkeep/agent/pods"
CGROUP_PARENT = "/podkeep"
KEPT = ("*/api/*", "*/services.json", "*/images/images.db*", "*/images/parents/*", "*/graceful_node_shutdown_state")
"""What the node keeps without pods, and what belongs to images that were used."""
FILES = " ".join(
    ["find /var/lib/podkeep /var/log/podkeep -mindepth 1 -maxdepth 4", *(f"! -path '{path}'" for path in KEPT)]
)
LOG_LINES = 100


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What is on the machine of its pods, and of the runtime; two equal values mean that nothing leaked between."""

    runtime: Resources
    pods: tuple[str, ...]
    files: tuple[str, ...]
    units: tuple[str, ...]
    """Of systemd, that have failed, or that the runtime made."""


class NestedNode(NodeClient):
    """The node of a machine, from :meth:`start` on."""

    timeout_s = 900.0
    """For what takes half a minute on an idle machine."""
    poll_s = 1.0
    """A look is a tenth of a second's work of the emulated machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.name = machine, "nested"
        self._socket: Path | None = None

    def start(self, image: Layout) -> None:
        """Install and start it, as a user does, and give it an image."""
        self.machine.put(image.path, "/root/image")
        self.machine.podkeep("node", "install", "--no-start", timeout=self.timeout_s)
        self.machine.write(SETTINGS, SLOW)
        self._systemctl("daemon-reload")
        self._systemctl("start", UNIT)
        self._wait_for_daemons()
        self._socket = self.machine.forward(SOCKET)
        self.machine.podkeep("image", "load", "--quiet", "/root/image", timeout=self.timeout_s)

    def connection(self) -> ApiClient:
        assert self._socket is not None, "the node is not started"
        return ApiClient(self._socket, self.timeout_s)

    def said(self) -> str:
        return self.machine.run(f"journalctl --unit {UNIT} --no-pager --output cat --lines {LOG_LINES}").stdout

    def kill(self, name: str) -> None:
        if name == "node":
            before = self._told()["pid"]
            self._systemctl("kill", "--kill-whom=main", "--signal=KILL", UNIT)
            self.until(lambda: self._told().get("pid") not in (None, before), "systemd starts it again")
            self._wait_for_daemons()
            return
        pid = self._daemon(name)["pid"]
        if pid:  # it may have just been killed
            self.machine.run(["kill", "-KILL", str(pid)])
        if name == "api":
            self.until(lambda: self._serves_again(name, pid), "the API serves again")

    def _serves_again(self, name: str, before: int) -> bool:
        told = self._daemon(name)
        return bool(told["state"] == "ready" and told["pid"] != before)

    def reboot(self) -> None:
        """Reboot the machine, and return when all daemons serve again."""
        self.machine.reboot()
        self._wait_for_daemons()

    def cut_power(self) -> None:
        """Cut the power of the machine, let it boot, and return when all daemons serve again."""
        self.machine.cut_power()
        self._wait_for_daemons()

    def pod_directories(self) -> list[str]:
        return self.machine.run(["ls", PODS]).stdout.split()  # it comes with the first pod

    def pods_with_processes(self) -> frozenset[str]:
        cgroups = self.machine.run("cat /proc/[0-9]*/cgroup 2>/dev/null").stdout
        return resources.pods_with_processes(cgroups, CGROUP_PARENT)

    def emptied(self) -> Holding:
        """Delete all pods, and return what is on the machine once none has a directory."""
        self.delete_all_pods()
        self.until(lambda: not self.pod_directories(), "no pod on the node")
        return self.holding()

    def holding(self) -> Holding:
        """Return what is on the machine now."""
        program = "PYTHONPATH=tests:src .venv/bin/python -m support.resources"
        found = json.loads(self.machine.run(f"cd {REPOSITORY} && {program}", timeout=self.timeout_s, check=True).stdout)
        runtime = Resources(**{kind: tuple(names) for kind, names in found["runtime"].items()})
        units = "systemctl list-units --plain --no-legend --all 'podkeep*.scope' 'podkeep-*.slice'; systemctl --failed"
        return Holding(
            runtime=runtime.after_a_boot(),
            pods=tuple(found["pods"]),
            files=tuple(sorted(self.machine.run(FILES, check=True).stdout.splitlines())),
            units=tuple(self.machine.run(f"{units} --plain --no-legend").stdout.splitlines()),
        )

    def _wait_for_daemons(self) -> None:
        def serve() -> bool:
            daemons = self._told().get("daemons", ())
            return bool(daemons) and all(item["state"] == "ready" for item in daemons)

        self.until(serve, "all daemons serve")

    def _told(self) -> dict[str, Any]:
        """Return what the supervisor tells; nothing if it has not begun to."""
        text = self.machine.run(["cat", REPORT]).stdout
        told: dict[str, Any] = json.loads(text) if text else {}
        return told

    def _daemon(self, name: str) -> dict[str, Any]:
        """Return what it tells of one daemon, which has begun to."""
        (told,) = (item for item in self._told()["daemons"] if item["name"] == name)
        return dict(told)

    def _systemctl(self, *arguments: str) -> None:
        self.machine.run(["systemctl", *arguments], timeout=self.timeout_s, check=True)
