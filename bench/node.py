"""``podkeep node`` whole: apply to Running, delete to gone, many pods at once, a restart of the agent, idling.

``python -m bench --part node``. The image is there, loaded from an archive. Times are a client's: of a watch on the
API's unix socket, from the request on.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import isolation, memory, report
from bench.daemons import DaemonError
from bench.samples import Samples

_IMAGE = "localhost/busybox:demo"
_ROOT = Path(__file__).resolve().parents[1]
_TIMEOUT_S = 180.0
_SETTLE_S = 5.0
_CLOCK = os.sysconf("SC_CLK_TCK")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Watch:
    """The pods of the namespace as a watch has them: when each was ready first, and when it was gone."""

    def __init__(self, path: Path) -> None:
        self.ready: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        self._changed = threading.Condition()
        connection = _Connection(path)
        connection.request("GET", "/api/v1/namespaces/default/pods?watch=true&timeoutSeconds=3600")
        self._answer = connection.getresponse()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._answer:
            event = json.loads(line)
            name, now = event["object"]["metadata"].get("name", ""), time.monotonic()
            with self._changed:
                if event["type"] == "DELETED":
                    self.gone[name] = now
                elif _is_ready(event["object"]):
                    self.ready.setdefault(name, now)
                self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Return when it holds.

        :raises DaemonError: if it does not in time.
        """
        with self._changed:
            if not self._changed.wait_for(condition, _TIMEOUT_S):
                raise DaemonError(f"never came: {what}")


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


class Node:
    """A ``podkeep node`` with everything below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "api.sock"
        self._run = directory / "node"
        self._config = directory / "config.toml"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        self._config.write_text(self._text())

    def _text(self) -> str:
        at = self.directory
        return f"""\
[runtime]
root = "{at}/root"
run = "{at}/run"
socket = "{at}/run/podkeep.sock"
cgroup_parent = "{isolation.cgroup(at)}"
[mountns]
pin = "{at}/mountns/mnt"
[network]
bridge = "bench-node0"
subnet = "10.188.0.0/16"
[agent]
root = "{at}/agent"
pod_logs = "{at}/logs"
port = 0
max_pods = 250
[node]
run = "{self._run}"
[api]
root = "{at}/api"
unix_socket = "{self.socket}"
address = "127.0.0.1:16443"
"""

    def podkeep(self, *arguments: str) -> list[str]:
        """Return a command line."""
        return [sys.executable, "-P", "-m", "podkeep", "--config", str(self._config), *arguments]

    def start(self) -> float:
        """Start it; return the seconds until all of it serves."""
        begin = time.monotonic()
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(self.podkeep("node"), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.until(lambda: self._states() == {"ready"}, "ready")
        return time.monotonic() - begin

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_TIMEOUT_S)
            self._process = None

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return when it holds.

        :raises DaemonError: if it does not in time, or the node has ended.
        """
        deadline = time.monotonic() + _TIMEOUT_S
        while not condition():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                text = (self.directory / "log").read_text(errors="replace").splitlines()[-20:]
                raise DaemonError("\n".join([f"podkeep node: never came: {what}", *text]))
            time.sleep(0.01)

    def daemons(self) -> dict[str, dict[str, Any]]:
        """Return what it tells of its daemons."""
        try:
            told = json.loads((self._run / "node.json").read_bytes())
        except FileNotFoundError:
            return {}
        return {item["name"]: item for item in told["daemons"]}

    def _states(self) -> set[str]:
        return {item["state"] for item in self.daemons().values()}

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON that the API answers.

        :raises DaemonError: if it refuses.
        """
        connection = _Connection(self.socket)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            value = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status >= 300:
            raise DaemonError(f"{method} {path}: {value.get('message')}")
        return value

    def tree(self) -> list[int]:
        """Return its processes, and the containers' monitors, which are no children of it any more."""
        assert self._process is not None
        monitors = [
            item.pid for item in memory.by_pattern(("conmon",)) if str(self.directory) in " ".join(item.arguments)
        ]
        return sorted({*memory.tree(self._process.pid), *monitors})

    def pss_kib(self) -> int:
        """Return its memory, PSS, without what runs in containers."""
        pids = set(self.tree())
        known = [item for item in memory.processes() if item.pid in pids and "sleep" not in item.arguments[-2:]]
        return sum(memory.pss_kib(known).values())

    def cpu_s(self) -> float:
        """Return the CPU time that its processes have used, in seconds."""
        return sum(_cpu_s(pid) for pid in self.tree())


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _CLOCK


def pod(name: str) -> dict[str, Any]:
    """Return a pod that does nothing until it is told to end."""
    container = {
        "name": "main",
        "image": _IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"],
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 5}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@contextmanager
def running(directory: Path) -> Iterator[tuple[Node, float]]:
    """A node that runs, and the seconds until all of it served."""
    node = Node(directory)
    try:
        yield node, node.start()
    finally:
        node.stop()
        isolation.remove_cgroups(isolation.cgroup(directory))


def load_image(node: Node, work: Path) -> None:
    """Load the image of :func:`pod`, from an archive that is made in ``work``."""
    archive = work / "busybox.tar"
    demo = [sys.executable, str(_ROOT / "tools" / "demo.py"), "--archive", str(archive)]
    subprocess.run(demo, check=True, capture_output=True)
    subprocess.run(node.podkeep("image", "load", str(archive)), check=True, capture_output=True)


def measure(work: Path, *, rounds: int, alive: int) -> tuple[str, dict[str, float]]:
    """Return the table, and every value for programs: milliseconds of one pod, else seconds, KiB, parts of a core."""
    samples = Samples()
    values: dict[str, float] = {}
    load = os.getloadavg()[0]
    with running(work / "node") as (node, values["ready"]):
        values["ready cpu"] = node.cpu_s()
        time.sleep(_SETTLE_S)
        values["empty pss"] = node.pss_kib()
        load_image(node, work)
        watch = Watch(node.socket)
        used = node.cpu_s()
        for number in range(rounds):
            _one(node, watch, f"one-{number}", samples)
        values["one cpu"] = 1000 * (node.cpu_s() - used) / rounds
        _many(node, watch, alive, values)
        _restart(node, alive, values)
        _idle(node, values)
        begin = time.monotonic()
        node.ask("DELETE", "/api/v1/namespaces/default/pods")
        names = [f"many-{number}" for number in range(alive)]
        watch.wait(lambda: all(name in watch.gone for name in names), "all pods gone")
        values["all gone"] = time.monotonic() - begin
    for key in ("apply", "delete"):
        values[key] = samples.summary(key).p50
        values[f"{key} p95"] = samples.summary(key).p95
    facts = [
        report.machine(),
        f"load average of the last minute: {load:.1f} before, {os.getloadavg()[0]:.1f} after",
        f"medians of {rounds} pods, one after the other; {alive} pods at once; the image is there",
    ]
    return _table(values, alive, facts), values


def _one(node: Node, watch: Watch, name: str, samples: Samples) -> None:
    begin = time.monotonic()
    node.ask("POST", "/api/v1/namespaces/default/pods", pod(name))
    watch.wait(lambda: name in watch.ready, f"{name} ready")
    samples.add("apply", 1000 * (watch.ready[name] - begin))
    begin = time.monotonic()
    node.ask("DELETE", f"/api/v1/namespaces/default/pods/{name}")
    watch.wait(lambda: name in watch.gone, f"{name} gone")
    samples.add("delete", 1000 * (watch.gone[name] - begin))


def _many(node: Node, watch: Watch, alive: int, values: dict[str, float]) -> None:
    names = [f"many-{number}" for number in range(alive)]
    used, begin = node.cpu_s(), time.monotonic()
    for name in names:
        node.ask("POST", "/api/v1/namespaces/default/pods", pod(name))
    watch.wait(lambda: all(name in watch.ready for name in names), "all pods ready")
    values["many"] = max(watch.ready[name] for name in names) - begin
    values["many cpu"] = node.cpu_s() - used


def _restart(node: Node, alive: int, values: dict[str, float]) -> None:
    """End the agent and start it again: until it serves and has said of each pod that it runs, no container touched."""
    before = _containers(node)
    pid = int(node.daemons()["agent"]["pid"])
    os.kill(pid, signal.SIGKILL)
    node.until(lambda: node.daemons()["agent"]["state"] == "starting", "the agent is started again")
    begin = time.monotonic()
    node.until(lambda: node.daemons()["agent"]["state"] == "ready", "the agent serves")
    values["restart"] = time.monotonic() - begin
    if _containers(node) != before or len(before) != alive:
        raise DaemonError("the restart of the agent has touched containers")


def _containers(node: Node) -> dict[str, str]:
    items = node.ask("GET", "/api/v1/namespaces/default/pods")["items"]
    return {item["metadata"]["name"]: item["status"]["containerStatuses"][0]["containerID"] for item in items}


def _idle(node: Node, values: dict[str, float], seconds: float = 30.0) -> None:
    time.sleep(_SETTLE_S)
    before = node.cpu_s()
    time.sleep(seconds)
    values["idle"] = (node.cpu_s() - before) / seconds
    values["pss"] = node.pss_kib()


def _table(values: dict[str, float], alive: int, facts: list[str]) -> str:
    rows = [
        ("`podkeep node` on an empty machine: all daemons serve", f"{values['ready']:.2f} s"),
        ("CPU time of that", f"{values['ready cpu']:.2f} s"),
        ("Memory of it, without a pod (PSS)", f"{values['empty pss'] / 1024:.0f} MiB"),
        ("apply to Ready, median (95th percentile)", _ms(values, "apply")),
        ("delete to gone, median (95th percentile)", _ms(values, "delete")),
        ("CPU time of the daemons for both", f"{values['one cpu']:.0f} ms"),
        (f"{alive} pods applied at once, all Ready", f"{values['many']:.1f} s"),
        ("CPU time of the daemons for that", f"{values['many cpu']:.1f} s"),
        (f"The agent started again with {alive} pods", f"{values['restart']:.2f} s"),
        (f"Idle with {alive} pods: CPU", f"{100 * values['idle']:.1f} % of a core"),
        (f"Memory with {alive} pods (PSS), conmons included", f"{values['pss'] / 1024:.0f} MiB"),
        (f"{alive} pods deleted at once, all gone", f"{values['all gone']:.1f} s"),
    ]
    return f"{report.table(['', 'podkeep'], [list(row) for row in rows])}\n\n{report.facts_list(facts)}\n"


def _ms(values: dict[str, float], key: str) -> str:
    return f"{values[key]:.0f} ms ({values[f'{key} p95']:.0f})"
