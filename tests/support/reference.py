"""Debian's containerd as a reference runtime: is a black-box test right where both runtimes should agree?

:class:`Containerd` runs inside the scratch machine with directories, a cgroup parent and a bridge of its own. It
listens on unix sockets and loopback only. Closing it removes its pods, its shims and its cgroups.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.mount.mounts import unmount
from podkeep.kernel.network import netlink
from podkeep.kernel.process import procfs
from support import processes, scratch
from support.images import Layout, LayoutBuilder, file, tar

PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/lib/cni/portmap": "containernetworking-plugins",
    "iptables": "iptables",
    "/usr/bin/catatonit": "catatonit",
}
"""The programs it needs, and the Debian package of each."""

_START_SECONDS = 30.0
_STOP_SECONDS = 20.0
_BRIDGE = "pkref0"


def missing_packages() -> list[str]:
    """Return the Debian packages whose programs are not installed."""
    return sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})


def pause_layout(path: Path) -> Layout:
    """Build the image of the pause container that containerd's sandboxes need: catatonit, and nothing else."""
    builder = LayoutBuilder(path)
    layer = tar([file("pause", Path("/usr/bin/catatonit").read_bytes(), 0o755)])
    return builder.finish(builder.image([layer], config={"Entrypoint": ["/pause", "-P"]}), "pause:1")


class Containerd:
    """A running containerd; use it as a context manager.

    :param base: an empty directory of its own.
    :param pause_image: reference of the sandboxes' image, in a registry on loopback.
    """

    def __init__(self, base: Path, *, pause_image: str) -> None:
        self.base = base
        self.socket = str(base / "containerd.sock")
        self.log = base / "containerd.log"
        self.cgroup_parent = f"/pkref-{os.urandom(3).hex()}"
        self._pause_image = pause_image
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Containerd:
        scratch.hide_run()  # the shims' sockets and runc's state are in /run/containerd, whatever the file says
        networks = self.base / "cni"
        networks.mkdir(parents=True)
        (networks / "10-reference.conflist").write_text(json.dumps(self._network()))
        config = self.base / "config.toml"
        config.write_text(self._config(networks))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(["containerd", "--config", str(config)], stdout=log, stderr=log)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def resources(self) -> tuple[str, ...]:
        """Return what it holds for pods: mounts, links and shims."""
        mounts = [entry.mount_point for entry in mountinfo.under(self.base / "state")]
        links = [name for name in netlink.links() if name.startswith("veth")]
        shims = [f"shim {item.pid}" for item in self._shims()]
        return tuple(sorted((*mounts, *links, *shims)))

    def close(self) -> None:
        """Stop containerd and whatever of it is left."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for shim in self._shims():
            procfs.kill(shim, signal.SIGKILL)
        cgroups = Cgroups()
        if cgroups.exists(self.cgroup_parent):
            cgroups.kill(self.cgroup_parent)
            cgroups.remove(self.cgroup_parent)
        for entry in reversed(mountinfo.under(self.base)):
            unmount(entry.mount_point, lazy=True)

    def _shims(self) -> list[procfs.ProcessId]:
        own = None if self._process is None else self._process.pid
        return [item for item in processes.find_by_argument(self.socket) if item.pid != own]

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._listens():
            assert self._process is not None
            assert self._process.poll() is None, f"containerd ended:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"containerd does not listen:\n{self.log.read_text()}"
            time.sleep(0.02)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self.socket)
            except OSError:
                return False
        return True

    def _network(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "dataDir": str(self.base / "ipam"),
            "ranges": [[{"subnet": "10.188.0.0/16"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {
            "type": "bridge",
            "bridge": _BRIDGE,
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": addresses,
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "0.4.0", "name": "reference", "plugins": [bridge, ports]}

    def _config(self, networks: Path) -> str:
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        unused = (
            "io.containerd.snapshotter.v1.aufs",
            "io.containerd.snapshotter.v1.btrfs",
            "io.containerd.snapshotter.v1.zfs",
            "io.containerd.snapshotter.v1.devmapper",
            "io.containerd.internal.v1.tracing",
            "io.containerd.tracing.processor.v1.otlp",
        )
        return f"""\
version = 2
root = "{self.base}/root"
state = "{self.base}/state"
oom_score = 0
disabled_plugins = {json.dumps(unused)}
[grpc]
address = "{self.socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{self.base}/opt"
[{cri}]
sandbox_image = "{self._pause_image}"
disable_apparmor = true
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[{cri}.cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{networks}"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = "{shutil.which("runc")}"
SystemdCgroup = false
"""
