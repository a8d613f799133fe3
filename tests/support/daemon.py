"""A real ``podkeep runtime`` with directories, a cgroup parent, a bridge and a subnet of its own.

It lives in the scratch machine that tests/integration/conftest.py makes, so nothing of it shows outside.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.mount import mountinfo
from podkeep.mountns import lifecycle
from podkeep.runtime.model.layout import Layout
from support import container_mounts, forked, resources, scratch
from support.container_mounts import ContainerMounts
from support.resources import Resources
from support.waiting import TIMEOUT_S, wait_for

_SUBNETS = itertools.count(random.randrange(0x10000))
"""Second and third byte of the next daemon's: bridges stay on the scratch machine, and no two may have one subnet."""


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
    process: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        self.layout = Layout(root=self.base / "root", run=self.base / "run")
        self.socket = str(self.layout.run / "podkeep.sock")
        self.log = self.base / "runtime.log"
        self.token = f"{next(_SUBNETS) % 0x10000:04x}{os.urandom(1).hex()}"
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
        process = self.process

        def serves() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"the runtime ended with {process.returncode}:\n{self.log.read_text()}")
            return self.listens()

        wait_for(serves, self.log.read_text)
        return self

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of podkeep with this daemon's configuration."""
        settings = [part for setting in self.settings for part in ("--set", setting)]
        return [sys.executable, "-m", "podkeep", "--config", str(self.config), *settings, *arguments]

    def run(
        self, *arguments: str, stdin: str = "", timeout: float = TIMEOUT_S, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb of podkeep against this daemon to its end."""
        command = self.command(*arguments)
        return forked.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=check)

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

    def hang_up(self) -> None:
        """Have it read its configuration anew."""
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """End the daemon with SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=TIMEOUT_S)

    def records(self) -> tuple[str, ...]:
        """Return what is in the state database, also while other things come and go."""
        return resources.records(self.layout.state)

    def resources(self) -> Resources:
        """Return what the daemon holds now: mounts in its namespace, links, cgroups, files, processes."""
        return resources.held(self.layout, self.pid, f"pkt{self.token}", self.cgroup_parent)

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
