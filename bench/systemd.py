"""What a real systemd pays for pods whose mounts it sees: run in a nested machine by bench.nested, as its root.

``python -m bench.systemd DIRECTORY ROUNDS PODS CONCURRENCY`` prints a table. The machine is used up: daemons run on it
as they are, and PID 1 is what is measured.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import images, measure, mountns, report
from bench.daemons import REGISTRY, Registry, version
from bench.hosts import Machine
from bench.mountns import HIDDEN, SHOWN, Churn, Side
from bench.mountwatch import Bystander
from bench.report import Cell

_SYSTEM = ("systemd", "dbus-daemon", "udisksd")
"""What the names of processes begin with that may react to mounts."""


def main(directory: Path, plan: mountns.Plan) -> None:
    """Measure and print."""
    with Registry("registry", directory / "registry"), ExitStack() as stack:
        busybox = images.push(images.busybox(), REGISTRY, "bench/busybox")
        both = [
            stack.enter_context(Side.connected(name, Machine(cpus=2), directory / name, f"/bench-{name}", busybox))
            for name in (SHOWN, HIDDEN)
        ]
        units: dict[str, int] = {}
        for side in both:
            measure.warm_up(side.pods, side.options)
            side.idle_lines = side.lines()
        for number in range(plan.rounds):
            for side in both if number % 2 == 0 else reversed(both):
                print(f"bench: nested: round {number + 1} of {plan.rounds}: {side.name}", file=sys.stderr, flush=True)
                probe = partial(_count_units, units, side.name)
                side.watched.append(mountns.churn(side, plan, side.calls, _system(), probe=probe))
        print(_table(both, units, plan))


def _count_units(units: dict[str, int], name: str) -> None:
    """Count the mounts that systemd has a unit for."""
    command = ["systemctl", "list-units", "--type=mount", "--no-legend", "--plain"]
    units[name] = len(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())


def _system() -> dict[str, Bystander]:
    """PID 1 and others that may react, by name."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            name = (entry / "comm").read_text().strip()
            if name.startswith(_SYSTEM):
                name = "PID 1" if entry.name == "1" else "systemd --user" if name == "systemd" else name
                found[name] = Bystander(pid=int(entry.name))
    return found


def _table(both: list[Side], units: dict[str, int], plan: mountns.Plan) -> str:
    def median(of: str) -> list[float]:
        return [statistics.median(getattr(churn, of) for churn in side.watched) for side in both]

    rows = [
        mountns.row("Lines of PID 1's table, no pods", [Cell.count(side.idle_lines) for side in both]),
        mountns.row(f"Lines of PID 1's table, {plan.pods} pods", [Cell.count(value) for value in median("most_lines")]),
        mountns.row(f"Mount units of systemd, {plan.pods} pods", [Cell.count(units[side.name]) for side in both]),
    ]
    for name in sorted(both[0].watched[0].watchers):
        times = [_cpu_ms(side.watched, name) for side in both]
        if max(times) >= 1:
            rows.append(mountns.row(f"CPU time, {name}", [Cell.rounded_milliseconds(value) for value in times]))
    rows.append(
        mountns.row(f"{plan.pods} pods up and down", [Cell.exact_seconds(value) for value in median("seconds")])
    )
    facts = [
        report.machine(),
        f"{version(['systemctl', '--version'])}, {version(['crun', '--version'])}",
        f"medians of {plan.rounds} alternating rounds, {plan.concurrency} pods at a time",
    ]
    header = ("", SHOWN, HIDDEN, f"{HIDDEN} / {SHOWN}")
    return "\n\n".join((report.table(header, rows), report.facts_list(facts)))


def _cpu_ms(churns: list[Churn], name: str) -> float:
    return statistics.median(churn.watchers[name].cpu_ms for churn in churns)


if __name__ == "__main__":
    where, *numbers = sys.argv[1:]
    rounds, pods, concurrency = map(int, numbers)
    main(Path(where), mountns.Plan(rounds=rounds, pods=pods, concurrency=concurrency, tables=(), starts=0))
