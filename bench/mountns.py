"""What hiding the mounts is worth to the host, and what it costs: podkeep with hidden mounts beside podkeep without.

Each of the two has a host of its own (bench.hosts), whose table of mounts somebody watches; rounds alternate. Measures
with connected daemons and returns tables; the document is the caller's business.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import hosts, joining, report
from bench.daemons import Podkeep
from bench.hosts import Host, Machine
from bench.measure import warm_up
from bench.mounter import Mounter
from bench.mountwatch import Bystander, Watched, Watcher, findmnt, poller, process_ms
from bench.pods import Pod, PodOptions, Pods
from bench.report import Cell
from bench.samples import Samples

SHOWN, HIDDEN = "shown", "hidden"
POLLER, FINDMNT = "poll, read, parse", "`findmnt --poll`"
WATCHERS = {POLLER: poller, FINDMNT: findmnt}
EVENTS = 50
"""So many mounts come and go on the host while the cost of one is measured."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured.

    :param pods: that come and go in a round, ``concurrency`` at a time.
    :param tables: numbers of pods with which the cost of one more mount is measured, in ascending order.
    :param starts: processes of each kind that are started to see what joining takes.
    """

    rounds: int
    pods: int
    concurrency: int
    tables: tuple[int, ...]
    starts: int


@dataclass(frozen=True, kw_only=True)
class Churn:
    """Pods that came, were all there, and went: how long that took, and what the host saw.

    :param daemon_ms: CPU time of the daemon itself for each pod; what it started is not in it.
    """

    seconds: float
    most_lines: int
    daemon_ms: float
    watchers: dict[str, Watched]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The host's table with a number of pods, CPU milliseconds of each watcher for one event, and for one more pod."""

    lines: int
    event_ms: dict[str, float]
    pod_ms: dict[str, float]


@dataclass(kw_only=True)
class Side:
    """A daemon on its host, connected, with what was measured so far."""

    name: str
    host: Host | Machine
    daemon: Podkeep
    pods: Pods
    options: PodOptions
    inside: Mounter
    """Mounts volumes where the daemon sees them, as the agent does."""
    outside: Mounter
    """Mounts on the host, as an administrator does."""
    calls: Samples = field(default_factory=Samples)
    idle_lines: int = 0
    inner_lines: int = 0
    """The most that the daemon itself sees."""
    watched: list[Churn] = field(default_factory=list)
    unwatched: list[Churn] = field(default_factory=list)
    tables: dict[int, Table] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    @contextmanager
    def connected(
        cls, name: str, host: Host | Machine, directory: Path, cgroup_parent: str, image: str
    ) -> Iterator[Side]:
        """Start podkeep on ``host``, connect, and pull ``image`` from the registry."""
        hidden = name == HIDDEN
        daemon = Podkeep(directory, cgroup_parent=cgroup_parent, host=host, hidden=hidden, number=int(hidden))
        with daemon, Pods(daemon.socket) as pods, Mounter(daemon.pid) as inside, Mounter(host.pid) as outside:
            pods.version(wait_seconds=180)
            options = PodOptions(image=pods.pull(image), cgroup_parent=cgroup_parent)
            yield cls(name=name, host=host, daemon=daemon, pods=pods, options=options, inside=inside, outside=outside)

    def lines(self) -> int:
        """Of the host's table of mounts."""
        return hosts.lines(self.host.pid)

    def up(self, samples: Samples) -> _Volumed:
        """A pod with a volume in memory; only the pod is timed."""
        volume = self.daemon.directory / f"volume-{next(self._numbers)}"
        self.inside.mount(volume)
        return _Volumed(pod=self.pods.up(replace(self.options, host_path=str(volume)), samples), volume=volume)

    def down(self, volumed: _Volumed, samples: Samples) -> None:
        self.pods.down(volumed.pod, samples)
        self.inside.unmount(volumed.volume)


@dataclass(frozen=True, kw_only=True)
class _Volumed:
    pod: Pod
    volume: Path


def measure(sides: Sequence[Side], plan: Plan) -> None:
    """Everything but starts: fill ``sides``, which are warm and without a pod."""
    for side in sides:
        warm_up(side.pods, side.options)
        side.idle_lines = side.lines()
    for number in range(plan.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            _progress(f"round {number + 1} of {plan.rounds}: {side.name}")
            side.unwatched.append(churn(side, plan, side.calls))
            with _watchers(side.host.pid) as watchers:
                side.watched.append(churn(side, plan, Samples(), watchers))
    for side in sides:
        _progress(f"tables: {side.name}")
        side.tables = grow(side, plan)


def churn(
    side: Side,
    plan: Plan,
    samples: Samples,
    watchers: Mapping[str, Watcher | Bystander] | None = None,
    *,
    probe: Callable[[], object] = lambda: None,
) -> Churn:
    """All pods up, then all down; the watchers may finish afterwards, and that is not part of the time.

    :param probe: called while all are there; that is not part of it either.
    """
    watchers = watchers or {}
    before = {name: watcher.seen() for name, watcher in watchers.items()}
    cpu = process_ms(side.daemon.pid)
    start = time.perf_counter()
    with ThreadPoolExecutor(plan.concurrency) as executor:
        live = list(executor.map(lambda _: side.up(samples), range(plan.pods)))
        up = time.perf_counter() - start
        most, side.inner_lines = side.lines(), hosts.lines(side.daemon.pid)
        probe()
        start = time.perf_counter()
        list(executor.map(lambda pod: side.down(pod, samples), live))
    seconds = up + time.perf_counter() - start
    daemon_ms = (process_ms(side.daemon.pid) - cpu) / plan.pods
    seen = {name: watcher.seen().since(before[name]) for name, watcher in watchers.items()}
    return Churn(seconds=seconds, most_lines=most, daemon_ms=daemon_ms, watchers=seen)


def grow(side: Side, plan: Plan) -> dict[int, Table]:
    """More and more pods: what one more costs the watchers, and what a mount on the host does."""
    tables: dict[int, Table] = {}
    live: list[_Volumed] = []
    samples = Samples()
    with _watchers(side.host.pid) as watchers, ThreadPoolExecutor(plan.concurrency) as executor:
        for count in plan.tables:
            more = count - len(live)
            before = {name: watcher.seen() for name, watcher in watchers.items()}
            live += executor.map(lambda _: side.up(samples), range(more))
            pod_ms = {name: watcher.seen().since(before[name]).cpu_ms / more for name, watcher in watchers.items()}
            tables[count] = Table(lines=side.lines(), event_ms=_event_ms(side, watchers), pod_ms=pod_ms)
        list(executor.map(lambda pod: side.down(pod, samples), live))
    return tables


def _event_ms(side: Side, watchers: dict[str, Watcher]) -> dict[str, float]:
    """CPU milliseconds per event, one event at a time, so that each is looked at for itself."""
    result = {}
    target = side.daemon.directory / "event"
    for name, watcher in watchers.items():
        before = watcher.seen()
        for _ in range(EVENTS):
            for change in (side.outside.mount, side.outside.unmount):
                expected = watcher.events + 1
                change(target)
                watcher.wait_for(expected)
        spent = watcher.seen().since(before)
        result[name] = spent.cpu_ms / spent.events
    return result


@contextmanager
def _watchers(pid: int) -> Iterator[dict[str, Watcher]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(watch(pid)) for name, watch in WATCHERS.items()}


def comparison(shown: Side, hidden: Side, starts: Samples, plan: Plan) -> str:
    """The table of both, medians of the rounds."""
    both = (shown, hidden)

    def median(of: Callable[[Side], Iterable[float]], unit: Callable[[float], Cell]) -> list[Cell]:
        return [unit(statistics.median(of(side))) for side in both]

    pods = f"{plan.pods} pods"
    rows = [
        row("Lines of the host's table, no pods", [Cell.count(side.idle_lines) for side in both]),
        row(
            f"Lines of the host's table, {pods}",
            median(lambda side: (churn.most_lines for churn in side.unwatched), Cell.count),
        ),
    ]
    for name in WATCHERS:
        watched = [[churn.watchers[name] for churn in side.watched] for side in both]
        events = [Cell.count(statistics.median(seen.events for seen in rounds)) for rounds in watched]
        times = [Cell.rounded_milliseconds(statistics.median(seen.cpu_ms for seen in rounds)) for rounds in watched]
        rows += [row(f"Events, {name}", events), row(f"CPU time, {name}", times)]
    rows += [
        row(
            f"{pods} up and down", median(lambda side: (churn.seconds for churn in side.unwatched), Cell.exact_seconds)
        ),
        row(
            f"{pods} up and down, with both watchers",
            median(lambda side: (churn.seconds for churn in side.watched), Cell.exact_seconds),
        ),
    ]
    for call in ("Pod up", "Pod down"):
        rows.append(row(call, [Cell.milliseconds(side.calls.summary(call.lower())) for side in both]))
    rows.append(
        row(
            "CPU time of the daemon for a pod",
            median(lambda side: (churn.daemon_ms for churn in side.unwatched), Cell.rounded_milliseconds),
        )
    )
    return report.table(("", SHOWN, HIDDEN, f"{HIDDEN} / {SHOWN}"), rows + _starts(starts))


def _starts(starts: Samples) -> list[list[str]]:
    stay, join, make = (starts.summary(kind) for kind in (joining.STAY, joining.JOIN, joining.MAKE))
    return [
        row("A daemon's first steps", [Cell.milliseconds(stay), Cell.milliseconds(join)]),
        ["Joining adds to a daemon's start", "–", f"{join.p50 - stay.p50:+.1f} ms", "–"],
        ["Making the namespace adds to a daemon's start", "–", f"{make.p50 - stay.p50:+.1f} ms", "–"],
    ]


def growth(shown: Mapping[int, Table], hidden: Mapping[int, Table]) -> str:
    """The table of what the watchers pay as there are more pods."""
    header = ["Pods", "Lines"]
    header += [f"{what}, {name}" for what in ("A mount on the host", "A pod that comes") for name in WATCHERS]
    rows = []
    for count in shown:
        tables = (shown[count], hidden[count])
        cells = [str(count), " / ".join(str(table.lines) for table in tables)]
        cells += [" / ".join(f"{table.event_ms[name]:.2f}" for table in tables) + " ms" for name in WATCHERS]
        cells += [" / ".join(f"{table.pod_ms[name]:.1f}" for table in tables) + " ms" for name in WATCHERS]
        rows.append(cells)
    return report.table(header, rows)


def row(title: str, cells: Sequence[Cell]) -> list[str]:
    """A row of a table of both: shown, hidden, and their ratio."""
    shown, hidden = cells
    return [title, shown.text, hidden.text, report.ratio(shown, hidden)]


def _progress(text: str) -> None:
    print(f"bench: mountns: {text}", file=sys.stderr, flush=True)
