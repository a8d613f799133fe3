"""Types of class resources for tests, made by configuration: files of cgroups, and a hook that writes down its calls.

======= ==================== ================================================================
type    classes              what it does
======= ==================== ================================================================
oom     low, high            oom_score_adj 100 and 900
share   big, small           the shares of processors, of containers and of pods
bolted  iron, steel          immutable; the hook notes it
watched good, bad, fine,     the hook notes it, and refuses ``bad``; of ``weak`` it says later that it is not in
        weak                 force
======= ==================== ================================================================

They are applied in the order of their names: ``watched`` refuses when all others were changed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podkeep.base.ids import ContainerID, SandboxID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.model.layout import container_cgroup, sandbox_cgroup
from support.cri import Pods
from support.daemon import Daemon
from support.processes import write_script

SHARE_FILE = "cpu.shares" if Cgroups().version == 1 else "cpu.weight"
BIG, SMALL = "4096", "64"

_HOOK = """#!/bin/sh
told=$(cat)
printf '%s %s\\n' "$1" "$told" >>"{calls}"
case "$1 $told" in
*'"class": "bad"'*) [ "$1" = apply ] && {{ echo "nobody is let in" >&2; exit 3; }} ;;
*'"class": "weak"'*) [ "$1" = verify ] && {{ echo "it did not hold" >&2; exit 4; }} ;;
esac
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class ClassTypes:
    """The hook of these types and what it wrote down."""

    hook: Path
    calls: Path

    @classmethod
    def make(cls, directory: Path) -> ClassTypes:
        """Write the hook into ``directory``."""
        types = cls(hook=directory / "hook", calls=directory / "calls")
        write_script(types.hook, _HOOK.format(calls=types.calls))
        types.calls.touch()
        return types

    def toml(self, *, more: str = "") -> str:
        """Return the configuration; ``more``: lines of its first table."""
        return f"""
[class_resources]
container_defaults = {{ share = "small" }}
pod_defaults = {{ qos = "BestEffort" }}
{more}
[class_resources.oom]
low = 100
high = 900
[class_resources.types.share]
levels = ["container", "pod"]
[class_resources.types.share.classes.big.cgroup]
"{SHARE_FILE}" = "{BIG}"
[class_resources.types.share.classes.small.cgroup]
"{SHARE_FILE}" = "{SMALL}"
[class_resources.types.bolted]
levels = ["container", "pod"]
immutable = true
hook = "{self.hook}"
[class_resources.types.bolted.classes.iron]
[class_resources.types.bolted.classes.steel]
[class_resources.types.watched]
levels = ["container", "pod"]
hook = "{self.hook}"
[class_resources.types.watched.classes.good]
[class_resources.types.watched.classes.bad]
[class_resources.types.watched.classes.fine]
[class_resources.types.watched.classes.weak]
"""

    def told(self, type_name: str) -> list[tuple[str, str, str | None]]:
        """Return the calls for a type: action, class, previous class."""
        found = []
        for line in self.calls.read_text().splitlines():
            action, _, told = line.partition(" ")
            document = json.loads(told)
            if document["type"] == type_name:
                found.append((action, document["class"], document["previousClass"]))
        return found


def container_classes(**classes: str) -> api.ContainerClassResources:
    """Return the field of a container's configuration."""
    return api.ContainerClassResources(classes=classes)


def pod_classes(**classes: str) -> api.PodClassResources:
    """Return the field of a sandbox's configuration, which is called as a keyword of Python."""
    return api.PodClassResources(**{"class": classes})


def in_force(pods: Pods, *, container: str = "", sandbox: str = "") -> dict[str, str]:
    """Return the classes that verbose status shows of a container or a sandbox."""
    details: dict[str, Any]
    if container:
        request = api.ContainerStatusRequest(container_id=container, verbose=True)
        details = json.loads(pods.call("ContainerStatus", request).info["info"])
    else:
        details = json.loads(pods.pod_status(sandbox, verbose=True).info["info"])
    classes: dict[str, str] = details["classResources"]
    return classes


def share(daemon: Daemon, pods: Pods, *, container: str = "", sandbox: str = "") -> str:
    """Return the shares of processors as the kernel has them."""
    if container:
        (listed,) = pods.containers(id=container)
        cgroup = container_cgroup(daemon.cgroup_parent, SandboxID(listed.pod_sandbox_id), ContainerID(container))
    else:
        cgroup = sandbox_cgroup(daemon.cgroup_parent, SandboxID(sandbox))
    return (Cgroups().read(cgroup, SHARE_FILE) or "").strip()


def oom_score(pods: Pods, container: str) -> int:
    """Return the oom_score_adj of a container's first process."""
    return int(Path(f"/proc/{pods.host_pid(container)}/oom_score_adj").read_text())
