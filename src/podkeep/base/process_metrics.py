"""Metrics of this process, under the names that Prometheus' clients have for them, from /proc/self."""

from __future__ import annotations

import os
import resource
from functools import cache
from pathlib import Path

from podkeep.base.metrics import Family, Metric, Sample, counter, gauge, text_of

START_TIME = gauge("process_start_time_seconds", "When the process was started, in seconds since 1970.")
_CPU = counter("process_cpu_seconds_total", "Processor time of the process, of user and system.")
_VIRTUAL = gauge("process_virtual_memory_bytes", "Size of the process' address space.")
_RESIDENT = gauge("process_resident_memory_bytes", "Memory that the process has in use.")
_OPEN = gauge("process_open_fds", "Open descriptors.")
_MOST_OPEN = gauge("process_max_fds", "How many descriptors may be open.")


def text() -> str:
    fields = _fields()
    values: tuple[tuple[Metric, float], ...] = (
        (_CPU, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")),
        (_VIRTUAL, int(fields[20])),
        (_RESIDENT, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")),
        (_OPEN, len(os.listdir("/proc/self/fd")) - 1),
        (_MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    )
    return text_of(Family(metric, [Sample((), value)]) for metric, value in values) + start_time()


def start_time() -> str:
    return text_of([Family(START_TIME, [Sample((), _started())])])


@cache
def _started() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    booted = next(float(line.split()[1]) for line in lines if line.startswith("btime"))
    return booted + int(_fields()[19]) / os.sysconf("SC_CLK_TCK")


def _fields() -> list[str]:
    """Return proc_pid_stat(5) from the third field on."""
    return Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
