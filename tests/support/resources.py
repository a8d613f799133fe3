"""What a runtime holds on the machine, by kind, and what pods have there beside it: for before and after.

A program, too, for a machine that tests reach by its standard output alone: what the runtime of ``podkeep node`` holds
where nothing is configured, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from podkeep.base.config import Config
from podkeep.cli.core import node_report
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.namespace.namespaces import NamespaceKind
from podkeep.kernel.network import netlink
from podkeep.runtime.model.layout import Layout
from support import processes


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a daemon holds, by kind; two equal values mean that nothing leaked between them."""

    mounts: tuple[str, ...]
    links: tuple[str, ...]
    cgroups: tuple[str, ...]
    run_files: tuple[str, ...]
    data_directories: tuple[str, ...]
    processes: tuple[str, ...]
    records: tuple[str, ...]
    """Sandboxes, containers and addresses in the state database."""
    host_ports: tuple[str, ...]
    """Elements of the bridge's nftables maps and sets."""
    held_namespaces: tuple[str, ...]
    """Namespaces that the daemon or its helper holds by a descriptor; what is pinned is among the mounts."""

    def after_a_restart(self) -> Resources:
        """Return what the next daemon holds: mounts of layers are let go of, and made again when they are needed."""
        return replace(
            self,
            mounts=tuple(path for path in self.mounts if "/run/layers" not in path),
            run_files=tuple(path for path in self.run_files if path.split("/")[0] != "layers"),
        )

    def after_a_boot(self) -> Resources:
        """Return what the daemon of another boot holds: namespaces have other numbers then."""
        kinds = tuple(name.partition(":")[0] for name in self.held_namespaces)
        return replace(self.after_a_restart(), held_namespaces=kinds)


def held(layout: Layout, daemon: int, bridge: str, cgroup_parent: str) -> Resources:
    """Return what a runtime holds now: mounts in its namespace, links, cgroups, files, processes.

    :param daemon: its process.
    """
    run, root = str(layout.run), layout.root
    cgroups = Cgroups()
    data = [*root.glob("sandboxes/*"), *root.glob("containers/*")]
    files = [path for path in layout.run.rglob("*") if not path.is_socket()]
    return Resources(
        mounts=tuple(sorted(entry.mount_point for entry in mountinfo.under(run, daemon))),
        links=tuple(sorted(name for name in netlink.links() if name.startswith("pk") and name != bridge)),
        # The parent itself comes with the first pod and may go with the last.
        cgroups=tuple(sorted(path for path in _below(cgroups, cgroup_parent) if path != cgroup_parent)),
        run_files=tuple(sorted(str(path.relative_to(run)) for path in files)),
        data_directories=tuple(sorted(str(path.relative_to(root)) for path in data)),
        processes=_settled_processes(run),
        records=records(layout.state),
        host_ports=host_ports(bridge),
        held_namespaces=_settled_namespaces(daemon),
    )


def of_pods(agent: Path, logs: Path, daemon: int) -> list[str]:
    """Return what pods have on a node beside its runtime: directories, logs, mounts.

    :param agent: the agent's directory.
    :param daemon: a process in the mount namespace of the volumes.
    """
    found = [str(path) for root in (agent / "pods", logs) if root.exists() for path in root.iterdir()]
    return sorted([*found, *(item.mount_point for item in mountinfo.under(agent, daemon))])


def pods_with_processes(cgroups: str, cgroup_parent: str) -> frozenset[str]:
    """Return the UIDs of pods below a cgroup that have processes.

    :param cgroups: ``/proc/<pid>/cgroup`` of all processes, one after the other.
    """
    return frozenset(re.findall(rf"{re.escape(cgroup_parent)}/(?:[a-z]+/)?pod([0-9a-f-]+)", cgroups))


def _below(cgroups: Cgroups, path: str) -> list[str]:
    if not cgroups.exists(path):
        return []
    return [path, *(item for child in cgroups.children(path) for item in _below(cgroups, child))]


def host_ports(bridge: str) -> tuple[str, ...]:
    """Return what nftables has of host ports, as JSON; none if there is no table."""
    listed = subprocess.run(
        ["nft", "--json", "list", "table", "inet", f"podkeep-{bridge}"], capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        return ()
    objects = [value for item in json.loads(listed.stdout)["nftables"] for value in item.values()]
    return tuple(
        sorted(
            f"{item['name']} {json.dumps(element)}"
            for item in objects
            if item.get("name", "").startswith(("ports", "targets"))
            for element in item.get("elem", [])
        )
    )


def records(state: Path) -> tuple[str, ...]:
    """Return what is in the state database, also while other things come and go."""
    with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True)) as database:
        found = []
        for table, column in (("sandboxes", "id"), ("containers", "id"), ("addresses", "address")):
            found += [f"{table} {name}" for (name,) in database.execute(f"SELECT {column} FROM {table}")]
    return tuple(sorted(found))


def _settled(look: Callable[[], tuple[str, ...]], is_passing: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the names that ``look`` finds when nothing is under way: none that ``is_passing``, or 2 s have gone by."""
    deadline = time.monotonic() + 2
    while True:
        found = look()
        if not any(map(is_passing, found)) or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def _settled_namespaces(daemon: int) -> tuple[str, ...]:
    """Return what is held when nothing is under way: those of a new pod are closed a moment after the answer."""
    return _settled(lambda: _held_namespaces(daemon), lambda name: not name.startswith("mnt:"))


def _settled_processes(run: str) -> tuple[str, ...]:
    """Return the names of processes with a path below ``run`` among their arguments, when nothing is under way.

    The first process of a container that was just started is crun until it executes its program; crun, executed from a
    descriptor, is named by its number. Who executes a program between two looks has crun's arguments and its own name.
    """

    def named() -> tuple[str, ...]:
        found = [(item, _name(item.pid)) for item in processes.find_by_argument(f"{run}/")]
        return tuple(sorted(name for item, name in found if processes.has_argument(item, f"{run}/")))

    return _settled(named, str.isdigit)


def _held_namespaces(daemon: int) -> tuple[str, ...]:
    helpers = processes.children(daemon)
    found = []
    kinds = {kind.value for kind in NamespaceKind}
    for pid in (daemon, *helpers):
        # The namespace helper keeps one mount namespace, an empty one, from its first request to lock mounts on.
        kept = pid in helpers
        descriptors: list[str] = []
        with suppress(*((FileNotFoundError,) if kept else ())):  # a child ended while we looked; the daemon may not
            descriptors = os.listdir(f"/proc/{pid}/fd")
        for descriptor in descriptors:
            with suppress(OSError):  # closed, or the process ended, while we looked
                target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if kept and target.startswith("mnt:"):
                    kept = False
                elif target.partition(":[")[0] in kinds:
                    found.append(target)
    return tuple(sorted(found))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def main() -> None:
    """Print what the node of this machine holds, and what its pods have, as JSON."""
    config = Config()
    told = node_report.of(config)
    assert told is not None, "no node runs here"
    (daemon,) = (item.pid for item in told.daemons if item.name == "runtime")
    layout = Layout(root=Path(config.runtime.root), run=Path(config.runtime.run))
    found = held(layout, daemon, config.network.bridge, config.runtime.cgroup_parent)
    pods = of_pods(Path(config.agent.root), Path(config.agent.pod_logs), daemon)
    print(json.dumps({"runtime": dataclasses.asdict(found), "pods": pods}))


if __name__ == "__main__":
    main()
