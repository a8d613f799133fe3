"""What the machine has: CPUs, memory, huge pages, processes, the file system of the agent. Read once, at the start."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from podkeep.agent.resources import requests
from podkeep.agent.resources.qos import page_size
from podkeep.kernel.process import totals

PID = "pid"
"""Processes and threads: a resource of the node that is not in its status."""
_HUGE_PAGES = Path("/sys/kernel/mm/hugepages")


def capacity(root: Path, max_pods: int) -> dict[str, int]:
    """Return what there is of each resource, in the units of ``requests``, :data:`PID` among them.

    :param root: a directory on the file system that pods write to; it, or one above it, exists.
    """
    return {
        requests.CPU: 1000 * (os.cpu_count() or 1),
        requests.MEMORY: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        requests.EPHEMERAL_STORAGE: _storage(root),
        requests.PODS: max_pods,
        PID: totals.max_tasks(),
    } | {f"{requests.HUGE_PAGES}{requests.binary(size)}": size * pages for size, pages in sorted(_huge_pages().items())}


def page_sizes() -> tuple[str, ...]:
    """Return the sizes of huge pages, as the kernel and CRI write them: ``2MB``."""
    return tuple(page_size(str(size)) for size in sorted(_huge_pages()))


def _huge_pages() -> dict[int, int]:
    """Return how many pages are reserved, by their size in bytes."""
    found: dict[int, int] = {}
    with suppress(OSError):
        for entry in sorted(_HUGE_PAGES.iterdir()):
            with suppress(OSError, ValueError):
                size = int(entry.name.removeprefix("hugepages-").removesuffix("kB")) << 10
                found[size] = int((entry / "nr_hugepages").read_text())
    return found


def _storage(root: Path) -> int:
    for directory in (root, *root.parents):
        with suppress(FileNotFoundError):
            info = os.statvfs(directory)
            return info.f_blocks * info.f_frsize
    return 0
