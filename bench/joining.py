"""What it takes a daemon to get where it belongs, as its first steps: ``python -m bench.joining PIN stay|join|make``.

Does what ``podkeep runtime`` does before it has a thread, and prints how many milliseconds that took, the import of the
modules that the daemon needs only for that included. :func:`measure` starts one process after the other on a host.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

from bench.hosts import Host, module
from bench.samples import Samples
from podkeep.base import atomicfile
from podkeep.base.config import MountnsConfig
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.namespace import namespaces

NEEDED_ANYWAY = (logging, atomicfile, mountinfo, namespaces)
"""By the rest of the daemon: imported before the clock starts."""
STAY, JOIN, MAKE = "stay", "join", "make"


def measure(host: Host, pin: Path, count: int) -> Samples:
    """``count`` processes that stay on the host, that join a namespace that is there, that make one: milliseconds."""
    samples = Samples()
    for kind in (STAY, MAKE):
        _run(host, pin, kind)  # pays for caches
    for _ in range(count):
        samples.add(MAKE, _run(host, pin, MAKE))
    with subprocess.Popen(
        host.command([*module("bench.joining"), str(pin), "hold"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        for number in range(count):
            for kind in (STAY, JOIN) if number % 2 == 0 else (JOIN, STAY):
                samples.add(kind, _run(host, pin, kind))
        holder.communicate()
    return samples


def _run(host: Host, pin: Path, kind: str) -> float:
    command = host.command([*module("bench.joining"), str(pin), kind])
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main(pin: str, kind: str) -> None:
    """Do it, print what it took, and let go; ``hold`` does so only when its input ends."""
    config = MountnsConfig(enabled=kind != STAY, pin=pin)
    start = time.perf_counter()
    from podkeep.mountns import membership, namespace_ref, unified
    from podkeep.mountns.pin import is_pinned

    where = namespace_ref.resolve(config, environ={}, is_pinned=is_pinned)
    joined = membership.enter(where, pins=namespace_ref.candidates(config))
    if where is not None:
        unified.detach()
    print((time.perf_counter() - start) * 1e3, flush=True)
    if kind == "hold":
        sys.stdin.read()
    membership.leave(joined)


if __name__ == "__main__":
    main(*sys.argv[1:])
