"""Counting the layers of single pods: one at a time, whatever becomes of those who asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from runtime_values import container, sandbox

from podkeep.base.errors import FailedPrecondition
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.cgroup.cgroup_stats import open_reader
from podkeep.kernel.cgroup.cgroups import detect
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.state import State
from podkeep.runtime.rpc.stats import StatsRpc
from podkeep.runtime.stats.collector import Collector
from podkeep.runtime.stats.layers import Layers
from podkeep.runtime.stats.rates import Rates
from podkeep.runtime.stats.targets import ContainerTarget, Targets

CALLS = 4


class Slow(Layers):
    """Layers whose walks go on until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.began = asyncio.Event()
        self.walks = self.most = 0
        self._loop = asyncio.get_running_loop()

    def walk_now(self, targets: Iterable[ContainerTarget]) -> None:
        self.walks += 1
        self.most = max(self.most, self.walks)
        self._loop.call_soon_threadsafe(self.began.set)
        assert self.go.wait(60)
        super().walk_now(targets)
        self.walks -= 1


@pytest.mark.slow
def test_a_walk_that_nobody_waits_for_any_more_is_still_the_only_one(tmp_path: Path) -> None:
    """Clients that give up and ask again would take a thread each time."""
    state = State(tmp_path / "state.db")
    pod = sandbox()
    state.add_sandbox(pod)
    state.add_container(container())

    async def work() -> int:
        layers, reader = Slow(), open_reader(detect())
        targets = Targets(Layout(root=tmp_path, run=tmp_path))
        rpc = StatsRpc(state, targets, Collector(reader, Rates(), layers, tmp_path), mountpoint=str(tmp_path))
        calls = [
            asyncio.ensure_future(rpc.sandbox(api_pb2.PodSandboxStatsRequest(pod_sandbox_id=pod.id)))
            for _ in range(CALLS)
        ]
        for call in calls[:-1]:
            await layers.began.wait()
            call.cancel()
            await asyncio.wait({call}, timeout=0.2)
        layers.go.set()
        for call in calls:
            with suppress(asyncio.CancelledError, FailedPrecondition):  # the pod has no cgroup
                await call
        reader.close()
        return layers.most

    assert asyncio.run(work()) == 1
    state.close()
