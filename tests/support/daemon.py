"""A real ``podkeep runtime`` with directories, a cgroup parent, a bridge and a subnet of its own.

It lives in the scratch machine that tests/integration/conftest.py makes, so nothing of it shows outside.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.namespace.namespaces import NamespaceKind
from podkeep.kernel.network import netlink
from podkeep.mountns import lifecycle
from podkeep.runtime.model.layout import Layout
from support import container_mounts, forked, processes, scratch
from support.container_mounts import ContainerMounts
from support.forked import Forked
from support.timeout import TIMEOUT_S


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


@dataclass
class Daemon:
    """Start it with :meth:`start` or as a context manager; ``base`` is an empty directory of the test's own.

    :param extra: TOML appended to the configuration, ``environment`` added to the daemon's.
    :param settings: ``KEY=VALUE`` that win over the configuration.
    """

    base: Path
    extra: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    network: str = ""
    """TOML appended to ``[network]``."""
    mounts: ContainerMounts = field(default_factory=container_mounts.of_run)
    """Whether it hides the mounts of containers; by default as all of this run do."""
    options: tuple[str, ...] = ()
    """Options of ``podkeep runtime``."""
    module: str = "podkeep"
    """What ``python -m`` runs as the daemon; its verbs are always podkeep's."""
    process: Forked | subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        self.layout = Layout(root=self.base / "root", run=self.base / "run")
        self.socket = str(self.layout.run / "podkeep.sock")
        self.log = self.base / "runtime.log"
        self.token = os.urandom(3).hex()
        self.cgroup_parent = f"/pktest-{self.token}"
        self.config = self.base / "config.toml"
        self.write()

    @property
    def pid(self) -> int:
        """Its process, which must have been started."""
        assert self.process is not None
        return self.process.pid

    @property
    def hides(self) -> bool:
        """Whether mounts of containers are hidden from the scratch machine."""
        return self.mounts is ContainerMounts.HIDDEN

    def mounts_elsewhere(self) -> list[mountinfo.MountEntry]:
        """Return the mounts outside the daemon's own directory, from where it is."""
        run = self.layout.run
        return [entry for entry in mountinfo.read(self.pid) if not Path(entry.mount_point).is_relative_to(run)]

    def write(self) -> None:
        """Write the configuration file."""
        self.config.write_text(
            f"""
[runtime]
root = "{self.layout.root}"
run = "{self.layout.run}"
socket = "{self.socket}"
cgroup_parent = "{self.cgroup_parent}"
[network]
bridge = "pkt{self.token}"
subnet = "10.{int(self.token[:2], 16)}.{int(self.token[2:4], 16)}.0/24"
cni_conf_dir = "{self.base / "cni"}"
{self.network}
[mountns]
enabled = {"true" if self.hides else "false"}
pin = "{self.base / "mountns/mnt"}"
[node]
run = "{self.base / "node"}"
[agent]
root = "{self.base / "kubelet"}"
pod_logs = "{self.base / "logs"}"
{self.extra}
"""
        )

    def start(self) -> Daemon:
        """Start the daemon and wait until it listens."""
        if not self.hides:
            scratch.detach_unified()
        environment = {**os.environ, **self.environment}
        with self.log.open("ab") as log:
            command = self.command("runtime", "--log-level", "debug", *self.options)
            if self.module != "podkeep":
                command[command.index(sys.executable) + 2] = self.module
            self.process = forked.start(command, stderr=log, env=environment)
        deadline = time.monotonic() + TIMEOUT_S
        while not self.listens():
            if self.process.poll() is not None:
                raise AssertionError(f"the runtime ended with {self.process.returncode}:\n{self.log.read_text()}")
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)
        return self

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of podkeep with this daemon's configuration."""
        settings = [part for setting in self.settings for part in ("--set", setting)]
        return [sys.executable, "-m", "podkeep", "--config", str(self.config), *settings, *arguments]

    def run(self, *arguments: str, timeout: float = TIMEOUT_S, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a verb of podkeep against this daemon to its end."""
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=timeout, check=check)

    def listens(self) -> bool:
        """Return whether somebody accepts connections on the socket."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self.socket)
            except OSError:
                return False
        return True

    def stop(self) -> int:
        """End the daemon with SIGTERM and return its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=TIMEOUT_S)

    def kill(self) -> None:
        """End the daemon with SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=TIMEOUT_S)

    def records(self) -> tuple[str, ...]:
        """Return what is in the state database, also while other things come and go."""
        return _records(self.layout.state)

    def resources(self) -> Resources:
        """Return what the daemon holds now: mounts in its namespace, links, cgroups, files, processes."""
        run, root = str(self.layout.run), self.layout.root
        mounts = [entry.mount_point for entry in mountinfo.under(run, self.pid)]
        cgroups = Cgroups()
        bridge = f"pkt{self.token}"
        data = [*root.glob("sandboxes/*"), *root.glob("containers/*")]
        files = [path for path in self.layout.run.rglob("*") if not path.is_socket()]
        return Resources(
            mounts=tuple(sorted(mounts)),
            links=tuple(sorted(name for name in netlink.links() if name.startswith("pk") and name != bridge)),
            # The parent itself comes with the first pod and may go with the last.
            cgroups=tuple(sorted(path for path in _below(cgroups, self.cgroup_parent) if path != self.cgroup_parent)),
            run_files=tuple(sorted(str(path.relative_to(run)) for path in files)),
            data_directories=tuple(sorted(str(path.relative_to(root)) for path in data)),
            processes=_settled_processes(run),
            records=self.records(),
            host_ports=host_ports(bridge),
            held_namespaces=_settled_namespaces(self.pid),
        )

    def __enter__(self) -> Daemon:
        try:
            return self.start()
        except BaseException:
            if self.process is not None and self.process.poll() is None:
                self.kill()
            raise

    def end(self) -> None:
        """Stop the daemon, if it runs, and remove its cgroups: what a failed test left in them is killed."""
        try:
            if self.process is not None and self.process.poll() is None:
                self.stop()
        finally:
            cgroups = Cgroups(timeout_s=TIMEOUT_S)  # 110 pods end at once
            cgroups.kill(self.cgroup_parent)
            cgroups.remove(self.cgroup_parent)
            # A test that was interrupted leaves mounts of containers, and so the namespace that they are in.
            lifecycle.stop(self.base / "mountns/mnt", force=True)

    def __exit__(self, *_: object) -> None:
        self.end()


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


def _records(state: Path) -> tuple[str, ...]:
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
    helpers: set[int] = set()
    for task in Path(f"/proc/{daemon}/task").iterdir():
        with suppress(OSError):  # the thread ended while we looked
            helpers.update(map(int, (task / "children").read_text().split()))
    found = []
    for pid in (daemon, *helpers):
        # The namespace helper keeps one mount namespace, an empty one, from its first request to lock mounts on.
        kept = pid in helpers
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed, or the process ended, while we looked
                target = os.readlink(descriptor)
                if kept and target.startswith("mnt:"):
                    kept = False
                elif target.partition(":[")[0] in {kind.value for kind in NamespaceKind}:
                    found.append(target)
    return tuple(sorted(found))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
