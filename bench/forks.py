"""What favordynmods costs and gains: forks, ends of processes, threads, and moves into cgroups, without it and with it.

Since Linux 6.18 the kernel keeps the setting until it is booted anew (podkeep.kernel.cgroup.cgroup_dynmods), so the
first half can be measured once after a boot, before any podkeep ran; later runs have the second half alone.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import threading
import time

from bench import report
from bench.report import Cell
from podkeep.kernel.cgroup import cgroup_dynmods, cgroups

CHILDREN = 3000
THREADS = 5000
_FORKS = f"i=0; while [ $i -lt {CHILDREN} ]; do ( : ); i=$((i + 1)); done"
"""busybox forks for each subshell, which ends at once."""


def waits() -> bool:
    """Say whether a process that enters a cgroup waits for a grace period, so favordynmods is not in force."""
    return cgroup_dynmods.shortest_move(cgroups.detect()) > cgroup_dynmods.WAITS_S


def state() -> str:
    """What a reader of figures has to know about the machine they were taken on."""
    return "without favordynmods" if waits() else "with favordynmods in force"


def measure(rounds: int) -> str:
    """Return a table of medians over ``rounds``, and below it what a reader needs to judge it."""
    titles = ("Fork and end of a process, CPU", "Start and end of a thread, CPU", "A process enters a cgroup")
    before = _medians(rounds) if waits() else None
    with cgroup_dynmods.favored(platform.release(), cgroups.detect()):
        after = _medians(rounds)
    rows = []
    for number, title in enumerate(titles):
        cells = None if before is None else _microseconds(before[number]), _microseconds(after[number])
        rows.append([title, *(cell.text if cell else "–" for cell in cells), report.ratio(*cells)])
    facts = [report.machine(), f"medians of {rounds} rounds of {CHILDREN} processes and {THREADS} threads"]
    if before is None:
        facts.append("favordynmods was in force before; boot the machine anew to compare")
    header = ("", "without", "favordynmods", "favordynmods / without")
    return f"{report.table(header, rows)}\n\n{report.facts_list(facts)}"


def _medians(rounds: int) -> list[float]:
    """Microseconds."""
    return [statistics.median(values) for values in zip(*(_round() for _ in range(rounds)), strict=True)]


def _round() -> tuple[float, float, float]:
    enters = cgroup_dynmods.shortest_move(cgroups.detect())
    return _forks() * 1e6, _threads() * 1e6, enters * 1e6


def _forks() -> float:
    before = _cpu(resource.RUSAGE_CHILDREN)
    subprocess.run(["/bin/busybox", "sh", "-c", _FORKS], check=True)
    return (_cpu(resource.RUSAGE_CHILDREN) - before) / CHILDREN


def _threads() -> float:
    before = time.thread_time()  # the starter's share: the thread's own has nothing in it
    for _ in range(THREADS):
        thread = threading.Thread(target=os.getpid)
        thread.start()
        thread.join()
    return (time.thread_time() - before) / THREADS


def _cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _microseconds(value: float) -> Cell:
    return Cell(value=value, text=f"{value:,.0f} µs".replace(",", " "))
