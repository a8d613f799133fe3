"""What class resources cost: podkeep with pods that are in classes beside the same podkeep with pods that are in none.

One daemon, pods in turn, so that what the machine does meanwhile meets both kinds. Then discovery, with many classes
and many pods in them. Returns a table; the document is the caller's business.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import report
from bench.daemons import Podkeep
from bench.measure import warm_up
from bench.pods import Pod, PodOptions, Pods
from bench.report import Cell
from bench.samples import Samples, Summary
from podkeep.base.config import load
from podkeep.cri.v1 import api_pb2 as pb
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import procfs
from podkeep.runtime.class_resources import loading
from podkeep.runtime.class_resources.model import Level, Target

CLASSES = 1000
POLLS = 200
IN_CLASSES: Mapping[str, str] = {"blockio": "slow", "oom": "first", "tasks": "few"}
"""One type that writes limits of disks, one that sets a value of processes, one of the configuration's own."""
OOM_SCORE = 900
_CALLS = ("CreateContainer", "StartContainer", "pod up", "pod down")

_BLOCKIO = """\
Classes:
  slow:
    - Devices: ["/dev/[svx]d*", "/dev/nvme*"]
      ThrottleReadBps: 100M
      ThrottleWriteBps: 100M
"""


class Metered(Samples):
    """Times, and the CPU time that a daemon took meanwhile: what else the machine does is not in it."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._tasks = Path(f"/proc/{pid}/task")

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        before = self._nanoseconds()
        with super().timed(name):
            yield
        self.add(_cpu(name), (self._nanoseconds() - before) / 1e6)

    def _nanoseconds(self) -> int:
        """Of all threads that live; the daemon keeps those it starts."""
        return sum(int((task / "schedstat").read_text().split()[0]) for task in self._tasks.iterdir())


def _cpu(call: str) -> str:
    return f"{call}, CPU"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured: so many pods of each kind in turn, and so many at once while classes are discovered."""

    pairs: int
    alive: int
    concurrency: int


def configuration(directory: Path) -> str:
    """Write the file of blockio classes; what is added to the daemon's configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    blockio = directory / "blockio.yaml"
    blockio.write_text(_BLOCKIO)
    many = "".join(
        f'[class_resources.types.many.classes.c{number}]\ncgroup = {{"cpu.shares" = "{number + 2}"}}\n'
        for number in range(CLASSES)
    )
    return (
        f'[class_resources]\nblockio_config = "{blockio}"\noom = {{first = {OOM_SCORE}}}\n'
        f'[class_resources.types.tasks.classes.few]\ncgroup = {{"pids.max" = "1000"}}\n{many}'
    )


def measure(directory: Path, cgroup_parent: str, image: str, plan: Plan) -> str:
    """The table, from a daemon of its own."""
    daemon = Podkeep(directory, cgroup_parent=cgroup_parent, extra=configuration(directory))
    with ExitStack() as stack:
        stack.enter_context(daemon)
        pods = stack.enter_context(Pods(daemon.socket))
        pods.version(wait_seconds=30)
        without = PodOptions(image=pods.pull(image), cgroup_parent=cgroup_parent)
        within = replace(without, classes=IN_CLASSES)
        for options in (without, within):
            warm_up(pods, options)
        sides = (Metered(daemon.pid), Metered(daemon.pid))
        _progress(f"classes: {plan.pairs} pods of each kind in turn")
        for number in range(plan.pairs):
            kinds = list(zip((without, within), sides, strict=True))
            for options, samples in kinds if number % 2 == 0 else reversed(kinds):
                pods.down(pods.up(options, samples), samples)
        _progress(f"classes: discovery with {plan.alive} pods")
        polls = _discover(pods, within, plan)
    return _table(sides[0], sides[1], _work(daemon.config, f"{cgroup_parent}/work"), polls, plan)


def _work(config: Path, cgroup: str) -> Samples:
    """The daemon's own steps for a container's classes, without all that a pod is: what noise cannot hide."""
    cgroups, samples = Cgroups(), Samples()
    loaded = loading.load(load(config).class_resources, cgroups=cgroups, root=config.parent)
    loaded.start()
    cgroups.create(cgroup)
    with subprocess.Popen(["sleep", "600"]) as process:
        cgroups.add(cgroup, process.pid)
        identity = procfs.identify(process.pid)
        target = Target(level=Level.CONTAINER, id="work", name="bench/work/main", cgroup=cgroup, process=identity)
        spec: dict[str, Any] = {"process": {}, "linux": {}}
        for _ in range(POLLS):
            procfs.set_oom_score_adj(process.pid, OOM_SCORE)  # as the OCI runtime was told to
            with samples.timed("create"):
                classes = loaded.catalog.resolve(Level.CONTAINER, IN_CLASSES)
                loaded.edit(classes, spec)
                loaded.apply(target, classes)
            with samples.timed("start"):
                loaded.verify(target, classes)
            with samples.timed("end"):
                loaded.release(target, classes)
        process.kill()
    cgroups.remove(cgroup)
    return samples


def _discover(pods: Pods, options: PodOptions, plan: Plan) -> Samples:
    polls, unused = Samples(), Samples()
    with ThreadPoolExecutor(plan.concurrency) as executor:
        live: list[Pod] = list(executor.map(lambda _: pods.up(options, unused), range(plan.alive)))
        for name, request in (("Status", pb.StatusRequest()), ("verbose", pb.StatusRequest(verbose=True))):
            for _ in range(POLLS):
                with polls.timed(name):
                    answer = pods.runtime.Status(request, timeout=30)
            classes = sum(len(item.classes) for item in answer.status.resources.container_class_resources)
            assert classes > CLASSES, f"only {classes} classes are offered"
        list(executor.map(lambda pod: pods.down(pod, unused), live))
    return polls


def _table(without: Samples, within: Samples, work: Samples, polls: Samples, plan: Plan) -> str:
    rows = []
    for call in _CALLS:
        title = f"{call[0].upper()}{call[1:]}"
        cells = [Cell.milliseconds(side.summary(call)).text for side in (without, within)]
        rows.append([title, *cells, f"{_difference(without, within, call):+.1f} ms"])
        cells = [_precise(side.summary(_cpu(call))) for side in (without, within)]
        rows.append([f"{title}, CPU time of podkeep", *cells, f"{_difference(without, within, _cpu(call)):+.2f} ms"])
    for step, title in (("create", "CreateContainer"), ("start", "StartContainer"), ("end", "the end")):
        rows.append([f"Work for classes in {title}", "–", _precise(work.summary(step)), "–"])
    sizes = f"{CLASSES} classes, {plan.alive} pods"
    rows.append([f"Status, {sizes}", "–", _precise(polls.summary("Status")), "–"])
    rows.append([f"Status, verbose, {sizes}", "–", _precise(polls.summary("verbose")), "–"])
    facts = [
        report.machine(),
        f"medians of {plan.pairs} pods of each kind in turn, and of {POLLS} of everything else; (95th percentile)",
        f"classes: {', '.join(f'{name}={value}' for name, value in IN_CLASSES.items())}",
    ]
    table = report.table(("", "in no class", f"in {len(IN_CLASSES)} classes", "difference"), rows)
    return f"{table}\n\n{report.facts_list(facts)}"


def _difference(without: Samples, within: Samples, name: str) -> float:
    """The median of what two pods that follow each other differ in, so that hardly anything else changed meanwhile."""
    pairs = zip(without.values(name), within.values(name), strict=True)
    return statistics.median(second - first for first, second in pairs)


def _precise(summary: Summary) -> str:
    return f"{summary.p50:.2f} ms ({summary.p95:.2f})"


def _progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
