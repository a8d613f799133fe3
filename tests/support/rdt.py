"""A daemon on a machine with resctrl: the file of its classes, and what of it is seen where.

Owns: configuration and looking. Does not own: the machine (``support/resctrl``), starting and killing the daemon
(``support/mortal.py``).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from podkeep.base.ids import ContainerID, SandboxID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.model.layout import container_cgroup
from support.class_types import container_classes
from support.cri import Pods
from support.daemon import Daemon
from support.resctrl.mount import Resctrl
from support.resources import Resources
from support.waiting import wait_for

CLASSES = """
partitions:
  dedicated:
    l3Allocation: "60%"
    mbAllocation: ["100%", "100000MBps"]
    classes:
      gold: {}
  common:
    l3Allocation: "40%"
    mbAllocation: ["100%", "100000MBps"]
    classes:
      system/default: {}
      silver: {}
      bronze:
        l3Allocation: "50%"
        mbAllocation: ["20%", "1000MBps"]
"""
"""Story 1: gold has its caches for itself, also against all that has no class. Story 4: bronze is slowed down."""
ONLY_GOLD = CLASSES.partition("      silver")[0]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What must be the same before and after: what the daemon holds, and the groups with those in them."""

    daemon: Resources
    groups: frozenset[str]
    monitors: frozenset[str]
    members: frozenset[tuple[str, int]]
    schemata: tuple[tuple[str, str], ...]


class RdtNode:
    """A daemon with classes of RDT."""

    def __init__(self, daemon: Daemon, resctrl: Resctrl, classes: str = CLASSES) -> None:
        self.daemon, self.resctrl = daemon, resctrl
        self.file = daemon.base / "rdt.yaml"
        self._plain = daemon.extra
        self.write(classes)

    def write(self, classes: str, more: str = "") -> None:
        """Write the file of classes, or with an empty one take RDT out of the configuration.

        :param more: TOML of ``[class_resources]``.
        """
        self.file.write_text(classes)
        setting = f'rdt_config = "{self.file}"\n' if classes else ""
        path = f'resctrl = "{self.resctrl.path}"\n'
        self.daemon.extra = f"{self._plain}\n[class_resources]\n{setting}{path}{more}"
        self.daemon.write()

    def reload(self, outcome: str) -> str:
        """Send SIGHUP and return what the daemon logs from then until a line contains ``outcome``."""
        before = len(self.daemon.log.read_text())
        assert self.daemon.process is not None
        self.daemon.process.send_signal(signal.SIGHUP)

        def logged() -> str:
            text = self.daemon.log.read_text()[before:]
            return text if outcome in text and text.endswith("\n") else ""

        return wait_for(logged, f"a line about the reload with {outcome!r}", timeout=60)

    def members(self, pods: Pods, container: str) -> set[int]:
        """Return the threads of a container."""
        (listed,) = pods.containers(id=container)
        cgroup = container_cgroup(self.daemon.cgroup_parent, SandboxID(listed.pod_sandbox_id), ContainerID(container))
        found = set()
        for pid in Cgroups().processes(cgroup, recursive=True):
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended
                found |= {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()}
        return found

    def oci(self, container: str) -> dict[str, Any]:
        """Return the OCI configuration of a container."""
        text = (self.daemon.layout.bundle(ContainerID(container)) / "config.json").read_text()
        config: dict[str, Any] = json.loads(text)
        return config

    def machine(self) -> Machine:
        """Return what the daemon holds, in resctrl, too."""
        names = ["", *sorted(self.resctrl.groups())]
        path = self.resctrl.path
        found = [item for name in names if (item := path / name / "mon_groups").is_dir()]
        return Machine(
            daemon=self.daemon.resources().after_a_restart(),
            groups=frozenset(names),
            monitors=frozenset(str(item.relative_to(path)) for directory in found for item in directory.iterdir()),
            members=frozenset((name, task) for name in names if name for task in self._running(name)),
            schemata=tuple((name, (path / name / "schemata").read_text()) for name in names),
        )

    def _running(self, group: str) -> set[int]:
        """Return the tasks in a group that have not ended; who was not waited for is in its group until then."""
        return {task for task in self.resctrl.tasks(group) if _runs(task)}

    def masks(self, group: str, resource: str = "L3") -> dict[int, int]:
        """Return the masks of a group by domain."""
        return {domain: int(mask, 16) for domain, mask in self.resctrl.schemata(group)[resource].items()}


def create(pods: Pods, sandbox: str, *command: str, rdt: str, **fields: Any) -> str:
    """Create a container in a class."""
    return pods.create(sandbox, *command, class_resources=container_classes(rdt=rdt), **fields)


def launch(pods: Pods, sandbox: str, *command: str, rdt: str, **fields: Any) -> str:
    """Create and start a container in a class."""
    return pods.start(create(pods, sandbox, *command, rdt=rdt, **fields))


def update(pods: Pods, container: str, rdt: str) -> None:
    """Give a container another class."""
    request = api.UpdateContainerResourcesRequest(container_id=container, class_resources=container_classes(rdt=rdt))
    pods.call("UpdateContainerResources", request)


def offered(pods: Pods) -> dict[str, api.ClassResourceInfo]:
    """Return what Status reports for containers, by type."""
    answer = pods.call("Status", api.StatusRequest())
    return {item.Name: item for item in answer.status.resources.container_class_resources}


def _runs(task: int) -> bool:
    try:
        return Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


@contextmanager
def unchanged(node: RdtNode) -> Iterator[Machine]:
    """Check that at the end everything is as it was."""
    before = node.machine()
    yield before
    assert node.machine() == before


def without_daemon(machine: Machine) -> Machine:
    """Return the part of it that is in resctrl."""
    empty = Resources(**dict.fromkeys(Resources.__dataclass_fields__, ()))
    return replace(machine, daemon=empty)
