"""The parts of the statistics, put together for the daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from podkeep.kernel.cgroup.cgroup_stats import StatsReader
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import Container, ContainerState, Sandbox
from podkeep.runtime.model.state import State
from podkeep.runtime.stats.collector import Collector
from podkeep.runtime.stats.layers import Layers
from podkeep.runtime.stats.rates import Rates
from podkeep.runtime.stats.sampler import Sampler
from podkeep.runtime.stats.targets import Targets


class Statistics:
    """Reads what is asked for, and samples in the background from ``start`` to ``close``."""

    def __init__(
        self,
        state: State,
        layout: Layout,
        reader: StatsReader,
        on_pass: Callable[[float], None] = lambda _: None,
        *,
        resctrl: Path,
    ) -> None:
        """To be made in the event loop.

        :param reader: must be open for as long as a thread may read, that is, longer than the event loop runs.
        :param resctrl: where resctrl is mounted, if it is.
        :param on_pass: gets the seconds of each pass over the CPU times.
        """
        self._state = state
        layers = Layers()
        self.targets = Targets(layout)
        self.collector = Collector(reader, Rates(), layers, layout.root, resctrl=resctrl)
        self._sampler = Sampler(state, self.targets, self.collector, layers, on_pass)

    def start(self) -> None:
        """Sample from now on; a new container's layer is looked at right away."""
        self._state.observers.append(self._changed)
        self._sampler.start()

    def _changed(self, _before: Sandbox | Container | None, after: Sandbox | Container | None) -> None:
        if isinstance(after, Container) and after.status.state is ContainerState.CREATED:
            self._sampler.want_layers()

    async def close(self) -> None:
        await self._sampler.close()
