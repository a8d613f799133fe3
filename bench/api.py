"""The API server: what requests, watches, starts and objects cost, beside kube-apiserver with etcd if it is there.

``python -m bench --part api``. Servers have one core, clients another one; rounds alternate between the servers.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import report
from bench.api_servers import ApiServer, KubeApiServer, Peer, PodkeepApi, client, kubectl
from bench.daemons import DaemonError
from bench.report import Cell
from bench.samples import Samples

_CONFIG_MAPS = 50


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured.

    :param objects: pods that are there.
    :param requests: reads, and as many writes, of a round.
    :param rate: writes per second while ``watchers`` watch for ``seconds``.
    """

    rounds: int
    objects: int
    requests: int
    connections: int
    watchers: int
    rate: int
    seconds: int
    lists: int = 5


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A row of the table: the median of a sample that each round gives."""

    key: str
    title: str
    unit: str

    def cell(self, samples: Samples) -> Cell:
        value = statistics.median(samples.values(self.key))
        return Cell(value=value, text=UNITS[self.unit](value))


UNITS = {
    "ms": lambda value: f"{value:.2f} ms" if value < 10 else f"{value:,.0f} ms".replace(",", " "),
    "/s": lambda value: f"{value:,.0f}/s".replace(",", " "),
    "MiB": lambda value: f"{value / 1024:.1f} MiB",
    "KiB": lambda value: f"{value / 1024:,.0f} KiB".replace(",", " "),
    "": lambda value: f"{value:,.0f}".replace(",", " "),
}
"""How a value is written: ``MiB`` is given in KiB, ``KiB`` in bytes."""


def metrics(plan: Plan) -> list[Metric]:
    """Return the rows of the table, in their order."""
    pods = f"{plan.objects:,} pods".replace(",", " ")
    rows = [
        ("read cpu", "Read of a ConfigMap, CPU time", "ms"),
        ("read rate", "Reads (more is better)", "/s"),
        ("read p50", "Read, median", "ms"),
        ("read p99", "Read, 99th percentile", "ms"),
        ("write cpu", "Write of a ConfigMap, CPU time", "ms"),
        ("write rate", "Writes (more is better)", "/s"),
        ("write p50", "Write, median", "ms"),
        ("write p99", "Write, 99th percentile", "ms"),
        ("list cpu", f"List of {pods}, CPU time", "ms"),
        ("list", f"List of {pods}", "ms"),
        ("list bytes", f"List of {pods}, size", "KiB"),
        ("event cpu", "Watches: CPU time of a write, its events and its part of the lists", "ms"),
        ("watch p50", "Watch latency, median", "ms"),
        ("watch p99", "Watch latency, 99th percentile", "ms"),
        ("watch late", "Watches: how late the last write was made, against the rate", "ms"),
        ("watch lost", "Events that did not arrive", ""),
        ("start cpu", f"Start with {pods}, CPU time", "ms"),
        ("start", f"Start with {pods}, until `/readyz`", "ms"),
        ("start pss", f"Memory after a start with {pods} (PSS)", "MiB"),
        ("pss", "Memory after all of this (PSS)", "MiB"),
        ("discovery bytes", "Discovery and OpenAPI, size", "KiB"),
        ("discovery cpu", "Discovery and OpenAPI, CPU time", "ms"),
        ("discovery", "Discovery and OpenAPI", "ms"),
        ("cold cpu", "`kubectl get` without a cache, CPU time of the server", "ms"),
        ("cold", "`kubectl get` without a cache", "ms"),
        ("apply cpu", f"`kubectl apply` of {_CONFIG_MAPS} ConfigMaps, CPU time of the server", "ms"),
        ("apply", f"`kubectl apply` of {_CONFIG_MAPS} ConfigMaps", "ms"),
    ]
    return [Metric(key=key, title=title, unit=unit) for key, title, unit in rows]


@dataclass(kw_only=True)
class Side:
    """A server that runs, with what was measured so far."""

    server: ApiServer
    samples: Samples

    def run(self, task: str, **numbers: int) -> dict[str, object]:
        """Have a client do a task: what it says."""
        return _said(client(self.server, task, **numbers))


def measure(work: Path, plan: Plan, peer: Peer | None) -> tuple[str, dict[str, object]]:
    """The table, and every value of it for programs."""
    with ExitStack() as stack:
        podkeep = stack.enter_context(PodkeepApi(work / "podkeep"))
        servers = [podkeep]
        if peer is not None:
            servers.insert(0, stack.enter_context(KubeApiServer(work / "kube", podkeep.pki, peer)))
        sides = [Side(server=server, samples=Samples()) for server in servers]
        for side in sides:
            _progress(f"{side.server.name}: {plan.objects} pods")
            side.run("fill", pods=plan.objects, connections=plan.connections)
        for number in range(plan.rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                _progress(f"round {number + 1} of {plan.rounds}: {side.server.name}")
                _round(side, plan, number, work / f"home-{side.server.name}-{number}")
        facts = [
            report.machine(),
            *(side.server.version() for side in sides),
            f"medians of {plan.rounds} alternating rounds of {plan.requests} reads and writes on {plan.connections}"
            f" connections; {plan.watchers} watches, {plan.rate} writes/s, a list of all pods every other second",
            f"load average of the last minute: {os.getloadavg()[0]:.1f}",
        ]
    return table(sides, plan, facts), as_json(sides, plan)


def _round(side: Side, plan: Plan, number: int, home: Path) -> None:
    server, samples = side.server, side.samples
    # Starts come first, so that memory is that of a server that did nothing else.
    server.stop()
    samples.add("start", server.start())
    samples.add("start cpu", server.cpu_ms())
    samples.add("start pss", sum(server.pss_kib().values()))
    _cold(side, home)
    for kind, task in (("read", "reads"), ("write", "writes")):
        before = server.cpu_ms()
        numbers = {"run": number} if kind == "write" else {}
        said = side.run(task, count=plan.requests, connections=plan.connections, **numbers)
        samples.add(f"{kind} cpu", (server.cpu_ms() - before) / plan.requests)
        samples.add(f"{kind} rate", _number(said, "per_s"))
        _percentiles(samples, kind, said)
    before = server.cpu_ms()
    said = side.run("lists", count=plan.lists, pods=plan.objects)
    samples.add("list cpu", (server.cpu_ms() - before) / plan.lists)
    samples.add("list", percentile(_times(said), 50))
    samples.add("list bytes", _number(said, "bytes"))
    _watched(side, plan, number)
    samples.add("pss", sum(server.pss_kib().values()))


def _cold(side: Side, home: Path) -> None:
    """What a client meets that asks this server for the first time."""
    server, samples = side.server, side.samples
    home.mkdir()
    before = server.cpu_ms()
    said = side.run("discover")
    samples.add("discovery cpu", server.cpu_ms() - before)
    samples.add("discovery", _number(said, "ms"))
    samples.add("discovery bytes", _number(said, "bytes"))
    path = home / "config-maps.json"
    items = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{home.name}-{n}"}, "data": {"number": str(n)}}
        for n in range(_CONFIG_MAPS)
    ]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    for key, words in (("cold", ("get", "configmap", "one")), ("apply", ("apply", "-f", str(path)))):
        before = server.cpu_ms()
        samples.add(key, kubectl(server, home, *words))
        samples.add(f"{key} cpu", server.cpu_ms() - before)


def _watched(side: Side, plan: Plan, number: int) -> None:
    events = plan.rate * plan.seconds
    with client(side.server, "watch", watchers=plan.watchers, events=events) as watching:
        assert watching.stdout is not None
        if watching.stdout.readline() != "ready\n":
            raise DaemonError(f"{side.server.name}: no watches")
        # A process of its own: a thread would keep the writes waiting, and so their latency would count.
        with client(side.server, "lists_often") as listing:
            try:
                before = side.server.cpu_ms()
                paced = side.run("paced", rate=plan.rate, seconds=plan.seconds, run=number)
                said = _said(watching)
                side.samples.add("watch late", _number(paced, "late_s") * 1e3)
                side.samples.add("event cpu", (side.server.cpu_ms() - before) / events)
                if listing.poll() is not None:
                    raise DaemonError(f"{side.server.name}: no lists")
            finally:
                listing.terminate()
        _percentiles(side.samples, "watch", said)
        side.samples.add("watch lost", _number(said, "lost"))


def _said(process: subprocess.Popen[str]) -> dict[str, object]:
    output, _ = process.communicate()
    if process.returncode != 0:
        raise DaemonError("a client of the API failed")
    said = json.loads(output)
    return said if isinstance(said, dict) else {}


def _times(said: dict[str, object]) -> list[float]:
    times = said["times"]
    assert isinstance(times, list)
    return times


def _number(said: dict[str, object], key: str) -> float:
    value = said[key]
    assert isinstance(value, int | float)
    return value


def _percentiles(samples: Samples, name: str, said: dict[str, object]) -> None:
    for percent in (50, 99):
        samples.add(f"{name} p{percent}", percentile(_times(said), percent))


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest rank.

    :raises ValueError: if there are no values.
    """
    if not values:
        raise ValueError("no samples")
    return sorted(values)[max(math.ceil(percent / 100 * len(values)), 1) - 1]


def table(sides: Sequence[Side], plan: Plan, facts: Sequence[str]) -> str:
    """One column, or both and their ratio."""
    names = [side.server.name for side in sides]
    both = len(names) > 1
    rows = []
    for metric in metrics(plan):
        cells = [metric.cell(side.samples) for side in sides]
        rows.append([metric.title, *(cell.text for cell in cells), *([report.ratio(*cells)] if both else [])])
    header = ["", *names, *([f"{names[1]} / {names[0]}"] if both else [])]
    return f"{report.table(header, rows)}\n\n{report.facts_list(facts)}"


def as_json(sides: Sequence[Side], plan: Plan) -> dict[str, object]:
    """The values of every round by server and metric: times in ms, rates per s, memory in KiB, sizes in bytes."""
    rows = [metric.key for metric in metrics(plan)]
    values = {side.server.name: {key: side.samples.values(key) for key in rows} for side in sides}
    return {"plan": asdict(plan), "servers": values}


def _progress(text: str) -> None:
    print(f"bench: api: {text}", file=sys.stderr, flush=True)
