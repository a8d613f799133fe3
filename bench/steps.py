"""Where the time of a pod's way up goes: podkeep's steps one by one, beside the floor (:mod:`bench.floor`).

The daemon notes when it comes by its failpoints; what the client notes is the begin and the end of each call.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from bench import floor, forks, report
from bench.daemons import Podkeep, version
from bench.measure import warm_up
from bench.pods import PodOptions, Pods
from bench.samples import Samples

_PROGRAMS = "conmon and crun create"


@dataclass(frozen=True, kw_only=True)
class Step:
    """What happens until a failpoint is reached, or (an empty name) until a call is answered."""

    call: str
    until: str
    what: str
    waits: str
    floor: str = ""


STEPS = (
    Step(call="RunPodSandbox", until="sandbox.files", what="request, record, three files", waits="the disk's cache"),
    Step(
        call="RunPodSandbox",
        until="sandbox.pinned",
        what="namespaces, and files for them",
        waits="a fork of the helper; a network namespace",
        floor="namespaces",
    ),
    Step(
        call="RunPodSandbox",
        until="sandbox.namespaces",
        what="shared memory, cable, address, route",
        waits="the lock of rtnetlink",
        floor="bridge port",
    ),
    Step(call="RunPodSandbox", until="sandbox.cgroups", what="cgroups", waits="the lock of cgroups"),
    Step(call="RunPodSandbox", until="", what="classes, record, answer", waits="threads and gRPC"),
    Step(call="CreateContainer", until="container.launched", what="request, record, conmon begun", waits="vfork"),
    Step(call="CreateContainer", until="container.rootfs", what="overlay", waits="end of copies of layers: RCU"),
    Step(call="CreateContainer", until="container.staged", what="plan, copies of volumes", waits="nothing"),
    Step(
        call="CreateContainer",
        until="container.locked",
        what="locked mounts",
        waits="with a user namespace a child of the helper",
    ),
    Step(call="CreateContainer", until="container.bundle", what="configuration written", waits="nothing"),
    Step(
        call="CreateContainer",
        until="container.created",
        what=_PROGRAMS,
        waits="the move into cgroups and the end of mounts: RCU",
        floor=_PROGRAMS,
    ),
    Step(call="CreateContainer", until="", what="classes, record, answer", waits="threads and gRPC"),
    Step(call="StartContainer", until="container.started", what="crun start", waits="crun", floor="crun start"),
    Step(call="StartContainer", until="", what="record, answer", waits="threads and gRPC"),
)
_MARK = re.compile(r"^failpoint (\S+) (\d+)$", re.MULTILINE)


class Marked(Podkeep):
    """podkeep that notes when it comes by its failpoints, on the machine as it is found."""

    environment: ClassVar = {"PODKEEP_FAILPOINTS": ",".join(f"{step.until}=time" for step in STEPS if step.until)}
    favordynmods = False  # it would stay until the next boot


class Timeline(Samples):
    """Times, and when what was timed began and ended."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int, int]] = []

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.monotonic_ns()
        with super().timed(name):
            yield
        self.calls.append((name, start, time.monotonic_ns()))


def of_steps(calls: list[tuple[str, int, int]], log: str) -> Samples:
    """Return how long each step took, under its call and its end; pure."""
    marks = [(int(moment), name) for name, moment in _MARK.findall(log)]
    result = Samples()
    for call, start, end in calls:
        before = start
        names = {step.until for step in STEPS if step.call == call}
        for moment, name in [*(mark for mark in marks if start <= mark[0] <= end and mark[1] in names), (end, "")]:
            result.add(f"{call} {name}", (moment - before) / 1e6)
            before = moment
    return result


def measure(directory: Path, cgroup_parent: str, image: str, count: int) -> str:
    """The table, from a daemon of its own, with ``count`` pods of each kind in turn."""
    daemon = Marked(directory / "daemon", cgroup_parent=cgroup_parent)
    with daemon, Pods(daemon.socket) as pods:
        pods.version(wait_seconds=30)
        plain = PodOptions(image=pods.pull(image), cgroup_parent=cgroup_parent)
        kinds = (plain, replace(plain, userns=True))
        lines = (Timeline(), Timeline())
        for options in kinds:
            warm_up(pods, options)
        for _ in range(count):
            for options, line in zip(kinds, lines, strict=True):
                pod = pods.up(options, line)
                if options is plain:
                    bundle = directory / "daemon/run/containers" / pod.container
                    config = json.loads((bundle / "config.json").read_text())
                pods.down(pod, Samples())
        below = floor.measure(directory / "floor", config, cgroup_parent, count)
        return _table(lines, daemon.log_text(), below, count)


def _table(lines: tuple[Timeline, Timeline], log: str, below: Samples, count: int) -> str:
    sides = [of_steps(line.calls, log) for line in lines]
    rows = []
    for step in STEPS:
        name = f"{step.call} {step.until}"
        times = [f"{side.summary(name).p50:.1f} ms" for side in sides]
        by_itself = f"{below.summary(step.floor).p50:.1f} ms" if step.floor else "–"
        rows.append([step.call, step.what, by_itself, *times, step.waits])
    whole = [f"**{line.summary('pod up').p50:.1f} ms**" for line in lines]
    beneath = sum(below.summary(name).p50 for name in floor.STEPS)
    rows.append(["", "**all**", f"**{beneath:.1f} ms**", *whole, ""])
    facts = [
        report.machine(),
        f"{version(['crun', '--version'])}, {version(['conmon', '--version'])}",
        f"medians of {count} pods of each kind in turn, and of {count} by themselves; {forks.state()}",
        f"load average of the last minute: {os.getloadavg()[0]:.1f}",
    ]
    header = ("Call", "Step", "by itself", "podkeep", "user namespace", "waits for")
    return f"{report.table(header, rows)}\n\n{report.facts_list(facts)}"
