"""The daemon's own metrics: what it serves, holds and loses, for Prometheus.

Owns: their names (``podkeep_…``; docs/cri.md lists them) and what is counted. Does not own: the HTTP endpoint
(``metrics_endpoint.py``), and the metrics of pods, which travel over CRI (``stats/``). Each daemon has a registry of
its own. Used on the event loop's thread, where the records are.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from podkeep.base.errors import PodkeepError
from podkeep.cri import status
from podkeep.runtime.model.counting import Counting
from podkeep.runtime.model.records import Container, ContainerState, Sandbox, SandboxState
from podkeep.runtime.model.state import State

# When each counter was made is a second series for every one, and the process says when it was started.
disable_created_metrics()  # type: ignore[no-untyped-call]

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_ENDED = frozenset({ContainerState.EXITED, ContainerState.REMOVING})


@dataclass(slots=True)
class _Apart:
    """Time of a request that is measured elsewhere, as that of a pull is (KEP-127, Scalability)."""

    seconds: float = 0.0


_APART: ContextVar[_Apart] = ContextVar("apart")
OOM_KILLED = "OOMKilled"
"""The reason in the status of a container whose process was killed because memory ran out."""


class Metrics(Counting):
    """The counters of one daemon."""

    def __init__(self, state: State) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        ProcessCollector(registry=registry)
        registry.register(_Records(state))
        self._operations = Counter("podkeep_operations", "Requests answered, by RPC.", ["operation"], registry=registry)
        self._errors = Counter(
            "podkeep_operations_errors",
            "Requests answered with an error, by RPC and gRPC code.",
            ["operation", "code"],
            registry=registry,
        )
        self._durations = Histogram(
            "podkeep_operation_duration_seconds",
            "Time to answer, by RPC; of streams none.",
            ["operation"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._pulls = Counter("podkeep_image_pulls", "Image pulls, by result.", ["result"], registry=registry)
        self._exits = Counter(
            "podkeep_container_exits", "Containers that ended, by reason.", ["reason"], registry=registry
        )
        self._oom_kills = Counter(
            "podkeep_container_oom_kills", "Containers that ended because memory ran out.", registry=registry
        )
        self._dropped = Counter(
            "podkeep_container_events_dropped",
            "Events that slow readers lost.",
            registry=registry,
        )
        self._remaps = Histogram(
            "podkeep_rootfs_remap_seconds",
            "Time to give an image the owners of a pod with a user namespace, by variant; in no operation's duration.",
            ["variant"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._passes = Histogram(
            "podkeep_stats_pass_seconds",
            "Time of a pass of the statistics' sampler over all containers.",
            buckets=_BUCKETS_S[:9],
            registry=registry,
        )
        state.observers.append(self._changed)

    @contextmanager
    def operation(self, name: str, *, streams: bool) -> Iterator[None]:
        """Count one request of the RPC ``name``, with what it raises."""
        started, code, apart = time.monotonic(), "", _Apart()
        _APART.set(apart)
        try:
            yield
        except PodkeepError as error:
            code = status.code_of(error).name
            raise
        except (asyncio.CancelledError, GeneratorExit):
            # A stream ends no other way.
            code = "" if streams else "CANCELLED"
            raise
        except Exception:
            code = "INTERNAL"
            raise
        finally:
            self._operations.labels(name).inc()
            if code:
                self._errors.labels(name, code).inc()
            if not streams:
                self._durations.labels(name).observe(max(0.0, time.monotonic() - started - apart.seconds))
            if name == "PullImage":
                self._pulls.labels("failure" if code else "success").inc()

    def event_dropped(self) -> None:
        self._dropped.inc()

    def rootfs_made(self, variant: str, seconds: float) -> None:
        """Note that an image was given other owners; on any thread."""
        self._remaps.labels(variant).observe(seconds)

    def rootfs_waited(self, seconds: float) -> None:
        """Take the time off the request's; on any thread that works for it, and has its context."""
        if (apart := _APART.get(None)) is not None:
            apart.seconds += seconds

    def stats_pass(self, seconds: float) -> None:
        self._passes.observe(seconds)

    def _changed(self, before: Sandbox | Container | None, after: Sandbox | Container | None) -> None:
        if not (isinstance(before, Container) and isinstance(after, Container)):
            return
        reason = after.status.reason
        if after.status.state is ContainerState.EXITED and before.status.state not in _ENDED:
            self._exits.labels(reason or "Unknown").inc()
            if reason == OOM_KILLED:
                self._oom_kills.inc()


class _Records(Collector):
    """How many pods and containers there are, counted when somebody asks."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        pods = Tally(item.status.state.value for item in self._state.sandboxes())
        containers = Tally(item.status.state.value for item in self._state.containers())
        for name, text, states, counts in (
            ("podkeep_pods", "Pod sandboxes, by state.", SandboxState, pods),
            ("podkeep_containers", "Containers, by state.", ContainerState, containers),
        ):
            family = GaugeMetricFamily(name, text, labels=["state"])
            for state in states:
                family.add_metric([state.value], counts[state.value])
            yield family
