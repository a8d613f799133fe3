"""The daemons of a comparison: a registry, Debian's containerd, podkeep; each started here, stopped here.

Each has its own mount namespace, directories and bridge; the network namespace is the run's (bench.isolation). What
they are told is what makes them comparable: same registry, no masquerading, no AppArmor, cgroupfs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bench import isolation
from bench.hosts import Host, Machine

REGISTRY = "127.0.0.1:5000"
CNI_PLUGINS = Path("/usr/lib/cni")
_START_SECONDS = 180.0
_STOP_SECONDS = 60.0


class DaemonError(Exception):
    """A daemon did not start or answer; the message has the end of its log."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program the comparison needs and the Debian package that brings it."""

    path: str
    package: str


PROGRAMS = (
    Program(path="containerd", package="containerd"),
    Program(path="runc", package="runc"),
    Program(path=str(CNI_PLUGINS / "bridge"), package="containernetworking-plugins"),
    Program(path="docker-registry", package="docker-registry"),
    Program(path="crun", package="crun"),
    Program(path="conmon", package="conmon"),
    Program(path="catatonit", package="catatonit"),
    Program(path="/bin/busybox", package="busybox-static"),
    Program(path="unshare", package="util-linux"),
    Program(path="ip", package="iproute2"),
)


def missing_packages() -> list[str]:
    """The Debian packages whose programs are not installed."""
    return [program.package for program in PROGRAMS if shutil.which(program.path) is None]


class Daemon(AbstractContextManager["Daemon"]):
    """One process that serves until the context ends, on ``host`` or on one of its own.

    Its output goes to ``<directory>/log``.
    """

    def __init__(self, name: str, directory: Path, *, host: Host | Machine | None = None) -> None:
        self.name = name
        self.directory = directory
        self._host = host
        self.socket = directory / f"{name}.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's ID while the context lasts."""
        assert self._process is not None
        return self._process.pid

    def command(self) -> list[str]:
        """Write the configuration and return the command that serves."""
        raise NotImplementedError

    def __enter__(self) -> Daemon:
        self.directory.mkdir(parents=True, exist_ok=True)
        command = self.command()
        command = isolation.daemon_command(command) if self._host is None else self._host.command(command)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def wait_ready(self) -> None:
        """Return when the socket is there.

        :raises DaemonError: if the process ended or took too long.
        """
        self._wait_for(self.socket.exists)

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            if self._process.poll() is not None:
                raise DaemonError(f"{self.name} ended with {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise DaemonError(f"{self.name} did not answer in {_START_SECONDS:.0f} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def log_text(self) -> str:
        """The daemon's output."""
        return (self.directory / "log").read_text(errors="replace")

    def log_tail(self) -> str:
        """Its last lines."""
        return "\n".join(self.log_text().splitlines()[-20:])

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class Registry(Daemon):
    """Debian's docker-registry on loopback, plain HTTP."""

    def command(self) -> list[str]:
        config = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.directory / "data")}},
            "http": {"addr": REGISTRY},
        }
        path = self.directory / "config.yml"
        path.write_text(json.dumps(config))  # JSON is YAML
        return ["docker-registry", "serve", str(path)]

    def wait_ready(self) -> None:
        self._wait_for(_registry_answers)


def _registry_answers() -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{REGISTRY}/v2/", timeout=5) as response:
            return bool(response.status == 200)
    except urllib.error.URLError:
        return False


class Containerd(Daemon):
    """Debian's containerd with runc and the reference CNI bridge plugin."""

    def __init__(self, directory: Path, *, pause_image: str) -> None:
        super().__init__("containerd", directory)
        self._pause_image = pause_image

    def command(self) -> list[str]:
        networks = self.directory / "cni"
        networks.mkdir(exist_ok=True)
        (networks / "10-bench.conflist").write_text(json.dumps(self._network()))
        path = self.directory / "config.toml"
        path.write_text(self._config(networks))
        return ["containerd", "--config", str(path)]

    def _network(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "dataDir": str(self.directory / "ipam"),
            "ranges": [[{"subnet": "10.189.0.0/16"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "bench-ctrd0", "isGateway": True, "ipMasq": False, "ipam": addresses}
        return {"cniVersion": "0.4.0", "name": "bench", "plugins": [bridge]}

    def _config(self, networks: Path) -> str:
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return f"""\
version = 2
root = "{self.directory}/root"
state = "{self.directory}/state"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = "{self.socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{self.directory}/opt"
[{cri}]
sandbox_image = "{self._pause_image}"
disable_apparmor = true
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[{cri}.cni]
bin_dir = "{CNI_PLUGINS}"
conf_dir = "{networks}"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = "{shutil.which("runc")}"
SystemdCgroup = false
"""


class Podkeep(Daemon):
    """The podkeep of this checkout, with crun, conmon and the built-in bridge."""

    program = Path(sys.executable).parent / "podkeep"
    environment: Mapping[str, str] = {}
    favordynmods = True

    def __init__(
        self,
        directory: Path,
        *,
        cgroup_parent: str,
        host: Host | Machine | None = None,
        hidden: bool = True,
        number: int = 0,
        extra: str = "",
    ) -> None:
        """:param number: another one for each of several that serve at once; ``extra``: tables of the configuration."""
        super().__init__("podkeep", directory, host=host)
        self._cgroup_parent = cgroup_parent
        self._hidden = hidden
        self._number = number
        self._extra = extra

    @property
    def config(self) -> Path:
        return self.directory / "config.toml"

    def command(self) -> list[str]:
        self.config.write_text(
            f"""\
[runtime]
root = "{self.directory}/root"
run = "{self.directory}/run"
socket = "{self.socket}"
cgroup_parent = "{self._cgroup_parent}"
favordynmods = {str(self.favordynmods).lower()}
[mountns]
enabled = {str(self._hidden).lower()}
pin = "{self.directory}/mountns/mnt"
[network]
bridge = "bench-podkeep{self._number}"
subnet = "10.{190 + self._number}.0.0/16"
masquerade = false
[registries."{REGISTRY}"]
insecure = true
{self._extra}"""
        )
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return ["env", *variables, *self.cli("runtime")]

    def cli(self, *arguments: str) -> list[str]:
        """A podkeep command with this daemon's configuration."""
        return [str(self.program), "--config", str(self.config), *arguments]


def version(command: Sequence[str]) -> str:
    """The first line a program prints about its version."""
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return output.splitlines()[0]
