"""What the host notices of pods: the lines of its table of mounts, and the events of those that watch it.

PID 1, udisks, and every agent that lists mounts wait as this test does: poll(2) for POLLPRI on an open table
(proc_pid_mounts(5)). How much CPU time that takes them is a benchmark's business (bench.mountns).
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podkeep.kernel.mount import mounts
from support.propagation import Agent, Node, pod_manifest, table

PODS = 50


class Watcher:
    """Somebody on the host who wants to know when its table of mounts changes."""

    def __init__(self, fd: int) -> None:
        self._poll = select.poll()
        self._poll.register(fd, select.POLLPRI)

    def woken(self) -> bool:
        """Return whether the table has changed since this was asked last."""
        return bool(self._poll.poll(0))


@contextmanager
def watching() -> Iterator[Watcher]:
    with Path("/proc/self/mountinfo").open("rb") as mountinfo:
        watcher = Watcher(mountinfo.fileno())
        watcher.woken()
        yield watcher


def with_volumes(name: str, image: str) -> dict[str, Any]:
    """Return a pod with two volumes that the agent mounts."""
    volumes = [{"name": "memory", "emptyDir": {"medium": "Memory"}}, {"name": "disk", "emptyDir": {}}]
    mounted = [{"name": "memory", "mountPath": "/memory"}, {"name": "disk", "mountPath": "/part", "subPath": "one"}]
    return pod_manifest(name, image, mounts=mounted, volumes=volumes)


@pytest.mark.requirement("M37")
def test_pods_and_the_hosts_table_of_mounts(node: Node, image: str) -> None:
    pods = [with_volumes(f"pod-{number}", image) for number in range(PODS)]
    before, inside = len(table()), len(table(node.runtime))
    with watching() as watcher:
        with Agent(node.daemon, node.pods, *pods):
            # The overlay, /dev/shm, three or four namespaces, and both volumes.
            assert len(table(node.runtime)) >= inside + 6 * PODS
            more, woken = len(table()) - before, watcher.woken()
        if node.mode == "hidden":
            assert (more, woken, watcher.woken()) == (0, False, False)
        else:
            assert more >= 6 * PODS
            assert woken
            assert watcher.woken(), "by what was unmounted"


@pytest.mark.requirement("M37")
def test_a_watcher_is_woken_by_what_the_host_mounts(node: Node) -> None:
    target = node.volume / "host"
    target.mkdir()
    with watching() as watcher:
        assert not watcher.woken()
        mounts.tmpfs(target)
        assert watcher.woken()
        mounts.unmount(target)
        assert watcher.woken()
    target.rmdir()
