"""podkeep beside Debian's containerd, in one run: ``python -m bench`` (``make bench``).

Both daemons serve the same busybox image from one registry on loopback; rounds alternate between them, so that what the
machine does meanwhile meets both. Memory is measured with one of them alive at a time: every process that is there then
and was not before belongs to it. Needs root; leaves nothing behind (bench.isolation).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from bench import (
    api,
    classes,
    forks,
    images,
    isolation,
    joining,
    measure,
    memory,
    mountns,
    nested,
    node,
    pulls,
    report,
    steps,
    userns,
)
from bench.api_servers import Peer
from bench.daemons import REGISTRY, Containerd, Daemon, DaemonError, Podkeep, Registry, missing_packages, version
from bench.hosts import Host
from bench.measure import Scale
from bench.pods import PodOptions, Pods, Unmeasurable
from bench.report import Cell, Row
from bench.samples import Samples, Summary

CONTAINERD = "containerd"
PODKEEP = "podkeep"
PODKEEP_USERNS = "podkeep, user namespaces"
PARTS = ("pods", "steps", "forks", "pulls", "mountns", "classes")
NESTED = "nested"
"""Not one of all: it needs the nested machine, and takes long."""
API = "api"
"""Not one of all: it has other contenders."""
NODE = "node"
USERNS = "userns"
"""Not of all either: they are podkeep alone."""
_PS_RUNS = 10


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    pods: int
    concurrency: int
    churn: int
    alive: int


@dataclass(kw_only=True)
class Contender:
    """One column of the comparison: a connected daemon and a kind of pod, with what was measured so far."""

    name: str
    pods: Pods
    options: PodOptions
    samples: Samples = field(default_factory=Samples)
    churn: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Alone:
    """A daemon alone with many pods: what they cost, PSS in KiB by program, ``podkeep ps`` where it exists."""

    runtime: str
    scale: Scale
    pss_kib: dict[str, int]
    ps: Summary | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run works, and the references of the images in its registry."""

    work: Path
    busybox: str
    pause: str

    def cgroup(self, name: str) -> str:
        return f"{isolation.cgroup(self.work)}/{name}"

    def daemon(self, name: str, phase: str) -> Daemon:
        """The daemon called ``name``, with fresh directories for this phase; not started."""
        directory = self.work / phase / name
        if name == CONTAINERD:
            return Containerd(directory, pause_image=self.pause)
        return Podkeep(directory, cgroup_parent=self.cgroup(name))

    def options(self, pods: Pods, name: str, *, userns: bool = False) -> PodOptions:
        """Pods of the busybox image, pulled here, below the cgroup of ``name``."""
        return PodOptions(image=pods.pull(self.busybox), cgroup_parent=self.cgroup(name), userns=userns)


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(argv)
    nests = arguments.part == NESTED  # where everything takes ten times as long
    arguments.rounds = arguments.rounds or (1 if nests else 5)
    arguments.mounts = arguments.mounts or (50 if nests else 100)
    try:
        if arguments.inside is not None:
            return _inside(arguments)
        if os.geteuid() != 0:
            raise DaemonError("needs root: it starts container runtimes")
        if nests:
            text = nested.measure(rounds=arguments.rounds, pods=arguments.mounts, concurrency=arguments.concurrency)
            return _put(NESTED, text, write=arguments.write)
        if arguments.part not in ("steps", API) and (packages := missing_packages()):
            raise DaemonError(f"missing programs\nhint: apt-get install {' '.join(packages)}")
        return isolation.run("bench.compare", argv, arguments.directory)
    except KeyboardInterrupt:
        return 130
    except (DaemonError, Unmeasurable) as error:
        print(f"bench: {error}", file=sys.stderr)
    except grpc.RpcError as error:
        print(f"bench: {error.code().name}: {error.details()}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Compare podkeep with Debian's containerd.")
    parser.add_argument("--rounds", type=int, help="alternating rounds (default 5; nested: 1)")
    parser.add_argument("--pods", type=int, default=8, help="pods per round and contender (default 8)")
    parser.add_argument("--concurrency", type=int, default=4, help="pods at a time in the churn (default 4)")
    parser.add_argument("--churn", type=int, default=24, help="pods per round of churn (default 24)")
    parser.add_argument("--alive", type=int, default=110, help="pods alive while memory is measured (default 110)")
    parser.add_argument(
        "--part",
        choices=("all", *PARTS, API, NODE, USERNS, NESTED),
        default="all",
        help="what to measure (default all)",
    )
    parser.add_argument("--pulls", type=int, default=3, help="rounds of pulls of large images (default 3)")
    parser.add_argument("--artifact", type=int, default=5, help="GiB of the artifact, 0 for none (default 5)")
    parser.add_argument("--mounts", type=int, help="pods whose mounts are watched (default 100; nested: 50)")
    parser.add_argument("--starts", type=int, default=100, help="starts of each kind, to see joining (default 100)")
    parser.add_argument("--pairs", type=int, default=400, help="pods in classes, and as many in none (default 400)")
    parser.add_argument(
        "--tables", default="10,50,100,200", help="numbers of pods, to measure tables of mounts (default 10,50,100,200)"
    )
    parser.add_argument(
        "--directory", type=Path, default=Path("/var/tmp"), help="where the run works (default /var/tmp)"
    )
    parser.add_argument("--write", action="store_true", help=f"put the table into {report.DOCUMENT}")
    parser.add_argument("--objects", type=int, default=10_000, help="api: pods that are there (default 10000)")
    parser.add_argument("--requests", type=int, default=3000, help="api: reads, and writes, of a round (default 3000)")
    parser.add_argument("--connections", type=int, default=8, help="api: connections at a time (default 8)")
    parser.add_argument("--watchers", type=int, default=100, help="api: watches (default 100)")
    parser.add_argument("--rate", type=int, default=200, help="api: writes/s that they see (default 200)")
    parser.add_argument("--seconds", type=int, default=10, help="api: how long they watch (default 10)")
    parser.add_argument(
        "--peer-kube-apiserver", type=Path, metavar="PATH", help="api: a kube-apiserver to compare with"
    )
    parser.add_argument("--peer-etcd", type=Path, metavar="PATH", help="api: the etcd that it stores in")
    parser.add_argument("--json", type=Path, metavar="FILE", help="api, node, userns: every value, for programs")
    parser.add_argument("--turns", type=int, default=4, help="userns: how often many pods start at once (default 4)")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    return parser


def _inside(arguments: argparse.Namespace) -> int:
    """The run itself, in the namespaces that :func:`bench.isolation.run` made."""
    plan = Plan(
        rounds=arguments.rounds,
        pods=arguments.pods,
        concurrency=arguments.concurrency,
        churn=arguments.churn,
        alive=arguments.alive,
    )
    isolation.settle()
    if arguments.part == API:
        return _api(arguments)
    if arguments.part == NODE:
        text, values = node.measure(arguments.inside / NODE, rounds=4 * arguments.rounds, alive=arguments.alive)
        return _written(NODE, text, values, arguments)
    if arguments.part == USERNS:
        place = arguments.inside / USERNS
        text, values = userns.measure(place, rounds=4 * arguments.rounds, turns=arguments.turns, alive=arguments.alive)
        return _written(USERNS, text, values, arguments)
    with Registry("registry", arguments.inside / "registry"):
        place = Place(
            work=arguments.inside,
            busybox=images.push(images.busybox(), REGISTRY, "bench/busybox"),
            pause=images.push(images.pause(), REGISTRY, "bench/pause"),
        )
        texts = {}
        parts = PARTS if arguments.part == "all" else (arguments.part,)
        # Before anything sets favordynmods, which is for the whole machine and stays.
        came = forks.state()
        first = _first(place, plan) if "pods" in parts else None
        if "steps" in parts:
            count = plan.rounds * plan.pods
            texts["steps"] = steps.measure(place.work / "steps", place.cgroup("steps"), place.busybox, count)
        if "forks" in parts:
            texts["forks"] = forks.measure(plan.rounds)
        if first is not None:
            contenders = _alternate(place, plan)
            alone = {name: _alone(place, name, plan) for name in (CONTAINERD, PODKEEP)}
            as_it_comes = _latency("Pod up, containerd as it comes", "pod up", first, contenders[PODKEEP])
            rows = [as_it_comes, *_rows(contenders, alone, plan)]
            facts = _facts(contenders, alone, plan)
            facts.append(f"containerd as it comes: before podkeep ran, {came}; all else {forks.state()}")
            texts["results"] = report.markdown(rows, facts)
        if "pulls" in parts:
            texts["pulls"] = _pulls(place, arguments)
        if "mountns" in parts:
            texts["mountns"] = _mountns(place, arguments)
        if "classes" in parts:
            plans = classes.Plan(pairs=arguments.pairs, alive=arguments.alive, concurrency=arguments.concurrency)
            texts["classes"] = classes.measure(
                place.work / "classes" / PODKEEP, place.cgroup(PODKEEP), place.busybox, plans
            )
    for name, text in texts.items():
        _put(name, text, write=arguments.write)
    return 0


def _api(arguments: argparse.Namespace) -> int:
    paths = (arguments.peer_kube_apiserver, arguments.peer_etcd)
    if (paths[0] is None) != (paths[1] is None):
        raise DaemonError("--peer-kube-apiserver and --peer-etcd go together")
    peer = Peer(apiserver=paths[0].resolve(), etcd=paths[1].resolve()) if paths[0] is not None else None
    plan = api.Plan(
        rounds=arguments.rounds,
        objects=arguments.objects,
        requests=arguments.requests,
        connections=arguments.connections,
        watchers=arguments.watchers,
        rate=arguments.rate,
        seconds=arguments.seconds,
    )
    text, values = api.measure(arguments.inside / API, plan, peer)
    return _written(API, text, values, arguments)


def _written(name: str, text: str, values: object, arguments: argparse.Namespace) -> int:
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(values, indent=1) + "\n")
    return _put(name, text, write=arguments.write)


def _put(name: str, text: str, *, write: bool) -> int:
    print(text)
    if write:
        report.write(name, text)
    return 0


def _pulls(place: Place, arguments: argparse.Namespace) -> str:
    plan = pulls.Plan(rounds=arguments.pulls, pods=arguments.pods, artifact_gib=arguments.artifact)
    with ExitStack() as stack:
        pullers = []
        for name in (CONTAINERD, PODKEEP):
            daemon = stack.enter_context(place.daemon(name, "pulls"))
            pods = stack.enter_context(Pods(daemon.socket))
            pods.version(wait_seconds=30)
            pullers.append(pulls.Puller(daemon=daemon, pods=pods, options=place.options(pods, name)))
        rows = pulls.measure(pullers[0], pullers[1], place.busybox, plan)
    facts = [
        report.machine(),
        f"median (95th percentile) of {plan.rounds} alternating rounds of large images, {pulls.SMALL_PULLS} of small"
        f" ones, {plan.pods} pods",
    ]
    return report.markdown(rows, facts)


def _mountns(place: Place, arguments: argparse.Namespace) -> str:
    plan = mountns.Plan(
        rounds=arguments.rounds,
        pods=arguments.mounts,
        concurrency=arguments.concurrency,
        tables=tuple(sorted({int(number) for number in arguments.tables.split(",")})),
        starts=arguments.starts,
    )
    _progress("mountns: starts")
    with Host() as host:
        starts = joining.measure(host, place.work / "mountns" / "mnt", plan.starts)
    with ExitStack() as stack:
        sides = []
        for name in (mountns.SHOWN, mountns.HIDDEN):
            host, directory = stack.enter_context(Host()), place.work / "mountns" / name
            side = mountns.Side.connected(name, host, directory, place.cgroup(name), place.busybox)
            sides.append(stack.enter_context(side))
        mountns.measure(sides, plan)
    facts = [
        report.machine(),
        f"{version(['crun', '--version'])}, {version(['findmnt', '--version'])}",
        f"medians of {plan.rounds} alternating rounds of {plan.pods} pods, {plan.concurrency} at a time, and of"
        f" {plan.starts} starts of each kind; (95th percentile)",
    ]
    tables = (
        mountns.comparison(*sides, starts, plan),
        mountns.growth(*(side.tables for side in sides)),
        report.facts_list(facts),
    )
    return "\n\n".join(tables)


def _first(place: Place, plan: Plan) -> Contender:
    """containerd alone, on the machine as it was found."""
    with place.daemon(CONTAINERD, "first") as daemon, Pods(daemon.socket) as pods:
        pods.version(wait_seconds=30)
        contender = Contender(name=CONTAINERD, pods=pods, options=place.options(pods, CONTAINERD))
        measure.warm_up(contender.pods, contender.options)
        _progress("containerd as it comes")
        for _ in range(plan.rounds):
            contender.samples.merge(measure.sequential(contender.pods, contender.options, plan.pods))
        return contender


def _alternate(place: Place, plan: Plan) -> dict[str, Contender]:
    """Both daemons alive, rounds in turn, each second round in the opposite order."""
    with ExitStack() as stack:
        pods = {}
        for name in (CONTAINERD, PODKEEP):
            daemon = stack.enter_context(place.daemon(name, "together"))
            pods[name] = stack.enter_context(Pods(daemon.socket))
            pods[name].version(wait_seconds=30)
        contenders = [
            Contender(name=name, pods=pods[server], options=place.options(pods[server], server, userns=userns))
            for name, server, userns in (
                (CONTAINERD, CONTAINERD, False),
                (PODKEEP, PODKEEP, False),
                (PODKEEP_USERNS, PODKEEP, True),
            )
        ]
        for contender in contenders:
            measure.warm_up(contender.pods, contender.options)
        for number in range(plan.rounds):
            for contender in contenders if number % 2 == 0 else reversed(contenders):
                _progress(f"round {number + 1} of {plan.rounds}: {contender.name}")
                _round(contender, plan)
        return {contender.name: contender for contender in contenders}


def _round(contender: Contender, plan: Plan) -> None:
    contender.samples.merge(measure.sequential(contender.pods, contender.options, plan.pods))
    rate = measure.churn(contender.pods, contender.options, count=plan.churn, concurrency=plan.concurrency)
    contender.churn.append(rate)


def _alone(place: Place, name: str, plan: Plan) -> Alone:
    """One daemon with ``plan.alive`` pods: the new processes that are not the workload are what it costs."""
    known = {process.pid for process in memory.processes()}
    pss: dict[str, int] = {}
    ps: list[Summary] = []
    with place.daemon(name, "alone") as daemon, Pods(daemon.socket) as pods:
        runtime = pods.version(wait_seconds=30)
        options = place.options(pods, name)

        def probe() -> None:
            _progress(f"{plan.alive} pods alive: {name}")
            pss.update(memory.pss_kib(memory.beside(known, options.command)))
            if isinstance(daemon, Podkeep):
                ps.append(_time_ps(daemon))

        scale = measure.scale(pods, options, count=plan.alive, concurrency=plan.concurrency, probe=probe)
    return Alone(
        runtime=f"{runtime.runtime_name} {runtime.runtime_version}", scale=scale, pss_kib=pss, ps=ps[0] if ps else None
    )


def _time_ps(daemon: Podkeep) -> Summary:
    samples = Samples()
    for _ in range(_PS_RUNS):
        with samples.timed("ps"):
            subprocess.run(daemon.cli("ps"), check=True, stdout=subprocess.DEVNULL)
    return samples.summary("ps")


def _rows(contenders: dict[str, Contender], alone: dict[str, Alone], plan: Plan) -> list[Row]:
    """Every row of the table; user namespaces of podkeep stand beside containerd without, which has none."""
    rows = []
    for title, name in (("", PODKEEP), (", user namespace", PODKEEP_USERNS)):
        rows += [
            _latency(f"Pod up{title}", "pod up", contenders[CONTAINERD], contenders[name]),
            _latency(f"Pod down{title}", "pod down", contenders[CONTAINERD], contenders[name]),
            Row(
                title=f"Churn{title}, {plan.concurrency} at a time (more is better)",
                containerd=Cell.rate(statistics.median(contenders[CONTAINERD].churn)),
                podkeep=Cell.rate(statistics.median(contenders[name].churn)),
            ),
        ]
    rows.append(Row(title="A user namespace adds to pod up", containerd=None, podkeep=_added(contenders)))
    for call in ("RunPodSandbox", "CreateContainer", "StartContainer", "ExecSync"):
        rows.append(_latency(call, call, contenders[CONTAINERD], contenders[PODKEEP]))
    rows.append(
        Row(
            title=f"Memory, {plan.alive} pods (PSS)",
            containerd=Cell.mebibytes(sum(alone[CONTAINERD].pss_kib.values())),
            podkeep=Cell.mebibytes(sum(alone[PODKEEP].pss_kib.values())),
        )
    )
    for poll in ("ListPodSandbox", "ListContainers", "ListPodSandboxStats", "ListContainerStats"):
        polls = {name: result.scale.polls.get(poll) for name, result in alone.items()}
        cells = {name: Cell.milliseconds(summary) if summary else None for name, summary in polls.items()}
        rows.append(Row(title=f"{poll}, {plan.alive} pods", containerd=cells[CONTAINERD], podkeep=cells[PODKEEP]))
    ps = alone[PODKEEP].ps
    rows.append(
        Row(
            title=f"`podkeep ps`, {plan.alive} pods, wall",
            containerd=None,
            podkeep=Cell.milliseconds(ps) if ps else None,
        )
    )
    return rows


def _added(contenders: dict[str, Contender]) -> Cell:
    """The difference of the medians: containerd 1.6 has no user namespaces to compare with."""
    plain, mapped = (contenders[name].samples.summary("pod up").p50 for name in (PODKEEP, PODKEEP_USERNS))
    return Cell(value=mapped - plain, text=f"{mapped - plain:+.1f} ms")


def _latency(title: str, sample: str, containerd: Contender, podkeep: Contender) -> Row:
    return Row(
        title=title,
        containerd=Cell.milliseconds(containerd.samples.summary(sample)),
        podkeep=Cell.milliseconds(podkeep.samples.summary(sample)),
    )


def _facts(contenders: dict[str, Contender], alone: dict[str, Alone], plan: Plan) -> list[str]:
    """What a reader needs to judge the table: when, where, which versions, how often."""
    programs = {
        CONTAINERD: [version(["runc", "--version"])],
        PODKEEP: [version(["crun", "--version"]), version(["conmon", "--version"])],
    }
    samples = contenders[CONTAINERD].samples.summary("pod up").n
    facts = [
        report.machine(),
        *(f"{alone[name].runtime} with {', '.join(programs[name])}" for name in (CONTAINERD, PODKEEP)),
        f"median (95th percentile) of {samples} pods each in {plan.rounds} alternating rounds;"
        f" churn: median of {plan.rounds} rounds of {plan.churn} pods",
    ]
    for name in (CONTAINERD, PODKEEP):
        parts = sorted(alone[name].pss_kib.items(), key=lambda item: -item[1])
        facts.append(f"memory of {name}: " + ", ".join(f"{program} {kib / 1024:.1f} MiB" for program, kib in parts))
        failed = alone[name].scale.failed_polls
        if failed:
            facts.append(f"{name} answers " + ", ".join(f"{poll} with {code}" for poll, code in failed.items()))
    return facts


def _progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
