"""What a user namespace with idmapped volumes costs a pod of ``podkeep node``: one after the other, and many at once.

``python -m bench --part userns``. Pods with and without ``hostUsers: false`` take turns, in changing order; each has a
ConfigMap, a Secret, a projection of both, and an emptyDir on disk and in memory. Times are a client's, as those of
``bench.node``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench import node, report
from bench.daemons import DaemonError
from bench.samples import Samples

_PODS = "/api/v1/namespaces/default/pods"
_KINDS = {"node's": True, "own": False}
"""``hostUsers``, by whose user namespace a pod has."""
VOLUMES: Sequence[Mapping[str, Any]] = (
    {"name": "map", "configMap": {"name": "map"}},
    {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}},
    {"name": "both", "projected": {"sources": [{"configMap": {"name": "map"}}, {"secret": {"name": "key"}}]}},
    {"name": "disk", "emptyDir": {}},
    {"name": "memory", "emptyDir": {"medium": "Memory"}},
)


def measure(work: Path, *, rounds: int, turns: int, alive: int) -> tuple[str, dict[str, float]]:
    """Return the table, and every value for programs: milliseconds of one pod, seconds of many.

    :param rounds: pods of each kind, one after the other.
    :param turns: how often ``alive`` pods of each kind are started at once.
    :raises DaemonError: if a pod fails, or two pods have a user of the machine in common.
    """
    samples, load = Samples(), os.getloadavg()[0]
    values: dict[str, float] = {}
    differences: list[float] = []
    many: dict[str, list[float]] = {name: [] for name in _KINDS}
    used: dict[str, list[float]] = {name: [] for name in _KINDS}
    with node.running(work / "node") as (running, _):
        node.load_image(running, work)
        for kind, plural, content in (("ConfigMap", "configmaps", "data"), ("Secret", "secrets", "stringData")):
            name = "map" if kind == "ConfigMap" else "key"
            body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, content: {name: "value"}}
            running.ask("POST", f"/api/v1/namespaces/default/{plural}", body)
        watch = node.Watch(running.socket)
        for number in range(rounds):
            took = {
                kind: _one(running, watch, f"one-{number}-{host}", host, samples, kind)
                for kind, host in _in_turn(number)
            }
            differences.append(took["own"] - took["node's"])
        for turn in range(turns):
            for kind, host in _in_turn(turn):
                took_s, cpu_s = _many(running, watch, f"many-{turn}-{host}", alive, host_users=host)
                many[kind].append(took_s)
                used[kind].append(cpu_s)
    for kind in _KINDS:
        values[kind] = samples.summary(kind).p50
        values[f"{kind} p95"] = samples.summary(kind).p95
        values[f"{kind} many"] = statistics.median(many[kind])
        values[f"{kind} cpu"] = statistics.median(used[kind])
    values["adds"] = statistics.median(differences)
    facts = [
        report.machine(),
        f"load average of the last minute: {load:.1f} before, {os.getloadavg()[0]:.1f} after",
        f"medians of {rounds} pods of each kind in turn, and of {turns} times {alive} pods at once; five volumes each",
        f"{turns} times {alive} pods with a user namespace had blocks that no two share, and none failed",
    ]
    return _table(values, alive, facts), values


def _in_turn(number: int) -> list[tuple[str, bool]]:
    """Return the kinds in an order that changes: each comes second as often, after the removal of the others."""
    kinds = list(_KINDS.items())
    return kinds[::-1] if number % 2 else kinds


def _pod(name: str, *, host_users: bool) -> dict[str, Any]:
    document = node.pod(name.lower())
    (container,) = document["spec"]["containers"]
    container["volumeMounts"] = [{"name": item["name"], "mountPath": f"/vol/{item['name']}"} for item in VOLUMES]
    document["spec"] |= {"hostUsers": host_users, "volumes": list(VOLUMES)}
    return document


def _one(running: node.Node, watch: node.Watch, name: str, host_users: bool, samples: Samples, kind: str) -> float:
    """Start a pod, and return the milliseconds until it was ready; then remove it."""
    document = _pod(name, host_users=host_users)
    name = document["metadata"]["name"]
    begin = time.monotonic()
    running.ask("POST", _PODS, document)
    watch.wait(lambda: name in watch.ready, f"{name} ready")
    took = 1000 * (watch.ready[name] - begin)
    samples.add(kind, took)
    running.ask("DELETE", f"{_PODS}/{name}")
    watch.wait(lambda: name in watch.gone, f"{name} gone")
    return took


def _many(running: node.Node, watch: node.Watch, prefix: str, alive: int, *, host_users: bool) -> tuple[float, float]:
    """Start pods at once, and return the seconds until all were ready, and those of CPU time; then remove them.

    :raises DaemonError: if they do not have a block each.
    """
    documents = [_pod(f"{prefix}-{number}", host_users=host_users) for number in range(alive)]
    names = [document["metadata"]["name"] for document in documents]
    used, begin = running.cpu_s(), time.monotonic()
    for document in documents:
        running.ask("POST", _PODS, document)
    watch.wait(lambda: all(name in watch.ready for name in names), "all pods ready")
    took, used = max(watch.ready[name] for name in names) - begin, running.cpu_s() - used
    blocks = [_first(file) for file in (running.directory / "agent/pods").glob("*/userns")]
    if len(set(blocks)) != len(blocks) or len(blocks) != (0 if host_users else alive):
        raise DaemonError(f"{alive} pods at once have {len(set(blocks))} blocks")
    running.ask("DELETE", _PODS)
    watch.wait(lambda: all(name in watch.gone for name in names), "all pods gone")
    return took, used


def _first(file: Path) -> int:
    (mapping,) = msgspec.json.decode(file.read_bytes())["uidMappings"]
    return int(mapping["hostId"])


def _table(values: Mapping[str, float], alive: int, facts: Sequence[str]) -> str:
    def one(kind: str) -> str:
        return f"{values[kind]:.1f} ms ({values[f'{kind} p95']:.1f})"

    def both(what: str) -> list[str]:
        plain, own = (values[f"{kind} {what}"] for kind in _KINDS)
        return [f"{plain:.1f} s", f"{own:.1f} s", f"**{own / plain:.2f}**"]

    rows = [
        ["apply to Ready, median (95th percentile)", one("node's"), one("own"), f"{values['adds']:+.1f} ms"],
        [f"{alive} pods at once, all Ready", *both("many")],
        ["CPU time of the daemons for that", *both("cpu")],
    ]
    header = ["Pods with five volumes", "node's user namespace", "own", "adds (of pairs), or ratio"]
    return f"{report.table(header, rows)}\n\n{report.facts_list(list(facts))}\n"
