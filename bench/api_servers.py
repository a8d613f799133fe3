"""The API servers of a comparison: ``podkeep api``, and kube-apiserver with etcd; each on one core where there are two.

kube-apiserver gets the authority, certificates and keys that podkeep made, so that TLS costs both the same.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench import memory
from bench.daemons import Daemon, DaemonError, Podkeep, version
from bench.mountwatch import process_ms

PODKEEP, KUBE = "podkeep", "kube-apiserver"
_TIMEOUT_S = 300.0
_POLL_S = 0.01


def on_core(number: int, command: Sequence[str]) -> list[str]:
    """``command`` on one core of those that this process may use; as it is where there is one alone."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "--cpu-list", str(cores[number % len(cores)]), *command] if len(cores) > 1 else list(command)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The programs of kube-apiserver and etcd."""

    apiserver: Path
    etcd: Path


class ApiServer:
    """One server that is started and stopped again on the same data.

    :param pki: has ``ca.crt``, ``admin.crt`` and ``admin.key`` as soon as podkeep has served once.
    """

    name: str
    port: int

    def __init__(self, directory: Path, pki: Path) -> None:
        self.directory, self.pki = directory, pki
        self._processes: list[Daemon] = []

    def programs(self) -> list[Daemon]:
        """What is to be started, in that order."""
        raise NotImplementedError

    def version(self) -> str:
        raise NotImplementedError

    def start(self) -> float:
        """Start it; how long it took until ``/readyz`` is good, in milliseconds.

        :raises DaemonError: if that takes too long.
        """
        start = time.perf_counter()
        for program in self.programs():
            self._processes.append(program.__enter__())
        while not self._ready():
            if time.perf_counter() - start > _TIMEOUT_S:
                raise DaemonError(f"{self.name} is not ready:\n{self._processes[-1].log_tail()}")
            time.sleep(_POLL_S)
        return (time.perf_counter() - start) * 1e3

    def _ready(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            tls = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
            tls.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=tls, timeout=10)
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        return False

    def stop(self) -> None:
        while self._processes:
            self._processes.pop().__exit__(None, None, None)

    def __enter__(self) -> ApiServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def cpu_ms(self) -> float:
        """CPU time of its processes since they were started."""
        return sum(process_ms(process.pid) for process in self._processes)

    def pss_kib(self) -> dict[str, int]:
        """Memory of its processes by program."""
        pids = {pid for process in self._processes for pid in memory.tree(process.pid)}
        return memory.pss_kib(process for process in memory.processes() if process.pid in pids)

    def kubeconfig(self) -> Path:
        """The administrator's, for kubectl; JSON is YAML."""
        path = self.directory / "kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.pki / "ca.crt")}
        user = {"client-certificate": str(self.pki / "admin.crt"), "client-key": str(self.pki / "admin.key")}
        value = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "admin", "user": user}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "admin", "namespace": "bench"}}],
            "current-context": "it",
        }
        path.write_text(json.dumps(value))
        return path


class PodkeepApi(ApiServer):
    """``podkeep api`` of this checkout."""

    name, port = PODKEEP, 16443

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, directory / "api" / "pki")

    def programs(self) -> list[Daemon]:
        config = self.directory / "config.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text("")
        command = [str(Podkeep.program), "--config", str(config), "api", "--root", str(self.directory / "api")]
        command += ["--unix-socket", "", "--address", f"127.0.0.1:{self.port}"]
        return [Program("podkeep-api", self.directory, command)]

    def version(self) -> str:
        return f"podkeep with Python {sys.version.split()[0]}"


class KubeApiServer(ApiServer):
    """kube-apiserver with an etcd of its own, both with what they have as defaults."""

    name, port = KUBE, 26443
    _CLIENTS, _PEERS = "http://127.0.0.1:22379", "http://127.0.0.1:22380"

    def __init__(self, directory: Path, pki: Path, peer: Peer) -> None:
        super().__init__(directory, pki)
        self._peer = peer

    def programs(self) -> list[Daemon]:
        pki = self.pki
        etcd = [str(self._peer.etcd), "--data-dir", str(self.directory / "data"), "--log-level", "error"]
        etcd += ["--listen-client-urls", self._CLIENTS, "--advertise-client-urls", self._CLIENTS]
        etcd += ["--listen-peer-urls", self._PEERS, "--initial-advertise-peer-urls", self._PEERS]
        etcd += ["--initial-cluster", f"default={self._PEERS}"]
        options = {
            "etcd-servers": self._CLIENTS,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self.port,
            "tls-cert-file": pki / "apiserver.crt",
            "tls-private-key-file": pki / "apiserver.key",
            "client-ca-file": pki / "ca.crt",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": pki / "sa.pub",
            "service-account-signing-key-file": pki / "sa.key",
            "service-cluster-ip-range": "10.96.0.0/16",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
        }
        kube = [str(self._peer.apiserver), *(f"--{name}={value}" for name, value in options.items())]
        return [Program("etcd", self.directory / "etcd", etcd), Program(KUBE, self.directory / "kube", kube)]

    def version(self) -> str:
        parts = [version([str(self._peer.apiserver), "--version"]), version([str(self._peer.etcd), "--version"])]
        return ", ".join(parts)


class Program(Daemon):
    """A program on the servers' core; that it is ready is asked of the API."""

    def __init__(self, name: str, directory: Path, command: Sequence[str]) -> None:
        super().__init__(name, directory)
        self._command = list(command)

    def command(self) -> list[str]:
        return on_core(0, self._command)

    def wait_ready(self) -> None:
        """Return at once."""


def client(server: ApiServer, task: str, **numbers: int) -> subprocess.Popen[str]:
    """Start :mod:`bench.api_client` on the other core."""
    words = [f"{name}={number}" for name, number in numbers.items()]
    command = [sys.executable, "-m", "bench.api_client", str(server.port), str(server.pki), task, *words]
    return subprocess.Popen(on_core(1, command), stdout=subprocess.PIPE, text=True)


def kubectl(server: ApiServer, home: Path, *arguments: str) -> float:
    """Run kubectl with ``home`` for its cache; wall time in milliseconds.

    :raises DaemonError: if it fails.
    """
    program = shutil.which("kubectl")
    if program is None:
        raise DaemonError("missing program kubectl\nhint: apt-get install kubernetes-client")
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig()), "HOME": str(home)}
    start = time.perf_counter()
    done = subprocess.run(
        on_core(1, [program, *arguments]), capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode != 0:
        raise DaemonError(f"kubectl {' '.join(arguments)}: {done.stderr}")
    return (time.perf_counter() - start) * 1e3
