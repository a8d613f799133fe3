"""The probes of all pods: when each is due, running it, and what its outcomes make of the pod's containers.

A probe that is due is a timer of the event loop; nothing polls. Each run is a task of its own that ends by the probe's
timeout, so one that hangs delays nobody. Owns the results; who kills a container that fails is the pod's worker.

    observe(pod, observed) ──▶ timers ──▶ check ──▶ progress ──▶ on_change() ──▶ worker: results()
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType

from podkeep.agent.convert.names import full_name
from podkeep.agent.events import Event, PodListener
from podkeep.agent.metrics import PROBE_DURATION, PROBE_TOTAL
from podkeep.agent.observed import ContainerView, Observed, State
from podkeep.agent.probes import progress, ticks
from podkeep.agent.probes.checks import Checks
from podkeep.agent.probes.model import Kind, Outcome, ProbeResult, Target, Verdict, spec_of
from podkeep.agent.probes.progress import Progress
from podkeep.api.containers import Container, Probe, is_sidecar
from podkeep.api.pod import Pod
from podkeep.api.status import ContainerStatus
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.metrics import Metrics
from podkeep.cri.client import CriClient

log = logging.getLogger(__name__)

_TRIES = 3
"""How often a run is tried that cannot be carried out (kubelet, ``maxProbeRetries``)."""


class Probes:
    """What the probes of all pods of the node share.

    :param host_ips: returns the addresses of the node, which are those of pods on its network.
    :param metrics: gets ``prober_probe_total`` and ``prober_probe_duration_seconds``.
    """

    def __init__(self, client: CriClient, host_ips: Callable[[], tuple[str, ...]], metrics: Metrics) -> None:
        self.metrics = metrics
        self.checks = Checks(client)
        self._host_ips = host_ips
        self.since = time.monotonic()

    def address(self, pod: Pod, observed: Observed) -> str:
        """Return where the node reaches a pod; empty if it has no address."""
        if pod.spec.host_network:
            return next(iter(self._host_ips()), "127.0.0.1")
        return next(iter(observed.sandbox.ips), "") if observed.sandbox is not None else ""

    def of(self, pod: Pod, listener: PodListener, on_change: Callable[[], None]) -> PodProbes:
        """Return the probes of one pod, to be used as an asynchronous context manager; leaving it ends them.

        :param pod: with the status that it had before the agent was started, if it had one.
        :param listener: gets the events ``Unhealthy`` and ``ProbeWarning``.
        :param on_change: called on the event loop when :meth:`PodProbes.results` says something else.
        """
        return PodProbes(self, pod, listener, on_change)


class PodProbes:
    """The probes of one pod. Init containers that are no sidecars have none, and ephemeral ones neither."""

    def __init__(self, shared: Probes, pod: Pod, listener: PodListener, on_change: Callable[[], None]) -> None:
        self._shared = shared
        self._pod = pod
        self._listener = listener
        self._on_change = on_change
        self._tasks = Tasks(f"the probes of pod {pod.metadata.name}")
        self._before = _statuses(pod)
        self._host = ""
        self._ending = False
        self._probes: dict[tuple[str, Kind], _Probe] = {}

    async def __aenter__(self) -> PodProbes:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for probe in self._probes.values():
            probe.disarm()
        self._probes.clear()
        await self._tasks.close()
        meta, metrics = self._pod.metadata, self._shared.metrics
        # Series of pods that are gone would add up for as long as the agent runs.
        metrics.forget(PROBE_TOTAL, pod_uid=meta.uid)
        metrics.forget(PROBE_DURATION, pod=meta.name, namespace=meta.namespace)

    def observe(self, pod: Pod, observed: Observed, *, ending: bool = False) -> None:
        """Take note of how the pod is now: probes of containers that run start, those of others end.

        Ask :meth:`results` after it; ``on_change`` is not called for what this changes.

        :param ending: the pod is being stopped: liveness and startup are not probed any more, readiness is.
        """
        self._pod, self._ending = pod, ending
        self._host = self._shared.address(pod, observed)
        for container in _probed(pod):
            view = observed.latest(container.name)
            for kind in Kind:
                spec = spec_of(container, kind)
                if spec is not None:
                    self._observe(container, kind, spec, view)

    def results(self) -> Mapping[str, ProbeResult]:
        """Return what the probes of each container found, by its ID. One that is not here has no probes."""
        found: dict[str, dict[Kind, bool | None]] = {}
        for (_, kind), probe in self._probes.items():
            if probe.id:
                found.setdefault(probe.id, {})[kind] = probe.progress.result
        return {
            name: ProbeResult(
                started=kinds.get(Kind.STARTUP), ready=kinds.get(Kind.READINESS), live=kinds.get(Kind.LIVENESS)
            )
            for name, kinds in found.items()
        }

    # ------------------------------------------------------------------------------------------------------- inside

    def _observe(self, container: Container, kind: Kind, spec: Probe, view: ContainerView | None) -> None:
        key = (container.name, kind)
        probe = self._probes.get(key)
        if probe is None:
            probe = self._probes[key] = _Probe(kind, self._anchor(spec))
        probe.container, probe.spec = container, spec
        if view is None:
            return
        if probe.id != view.id:
            probe.disarm()
            probe.id, probe.progress = view.id, progress.begin(kind, known=self._known(view, kind))
        if view.state is not State.RUNNING:
            probe.disarm()
        elif self._ending and kind is not Kind.READINESS:
            # Nothing is to be killed because of what a container says while it is being stopped.
            probe.disarm()
            probe.progress = Progress(result=True, held=True)
        else:
            probe.started_at = view.started_at / 1e9
            self._arm(probe)

    def _anchor(self, spec: Probe) -> float:
        """Return from when a probe's times are counted: from now, when the pod has no containers yet.

        So liveness and startup are asked first when their period is almost over, as a kubelet does, and not while the
        program is still starting. Soon after our start they are spread: all pods come at once.
        """
        now, period = asyncio.get_running_loop().time(), _period(spec)
        recent = time.monotonic() - self._shared.since < period
        return now + random.random() * period if recent and self._before else now

    def _known(self, view: ContainerView, kind: Kind) -> bool | None:
        """Return what a probe's result was before we were started, of an attempt that was reported then.

        A kubelet goes by when the container started; the ID that was reported says it exactly.
        """
        status = self._before.get(view.id)
        if status is None:
            return None
        return {Kind.STARTUP: bool(status.started), Kind.READINESS: status.ready, Kind.LIVENESS: True}[kind]

    def _arm(self, probe: _Probe) -> None:
        """Have a probe run when it is due, unless it waits for something else than the time."""
        if probe.is_armed or probe.progress.held or not self._may_run(probe):
            return
        loop = asyncio.get_running_loop()
        now, period = loop.time(), _period(probe.spec)
        left = probe.started_at + probe.spec.initial_delay_seconds - time.time()
        # The clock may have been set: never later than if the container had started now.
        not_before = now + min(max(left, 0.0), probe.spec.initial_delay_seconds)
        if probe.kind is Kind.READINESS and not probe.progress.result:
            # A kubelet has readiness probed out of turn when a container that is not ready has changed.
            probe.tick = not_before
        else:
            probe.tick = ticks.first(now, probe.tick, period, not_before)
        probe.timer = loop.call_at(probe.tick, self._fire, probe)

    def _may_run(self, probe: _Probe) -> bool:
        """Return whether startup is proven, or is what is probed."""
        startup = self._probes.get((probe.container.name, Kind.STARTUP))
        return probe.kind is Kind.STARTUP or startup is None or startup.progress.result is True

    def _fire(self, probe: _Probe) -> None:
        probe.timer = None
        probe.task = self._tasks.start(self._run(probe))

    async def _run(self, probe: _Probe) -> None:
        target = Target(container=probe.container, id=probe.id, pod=full_name(self._pod), host=self._host)
        begun = time.monotonic()
        outcome = await self._outcome(probe.spec, target)
        # Nothing is awaited from here on: a run that is over must not count as armed any more.
        probe.task = None
        before = self.results()
        probe.progress = progress.after(probe.progress, probe.kind, probe.spec, outcome.verdict)
        if not probe.progress.held:
            loop = asyncio.get_running_loop()
            due, probe.tick = ticks.following(loop.time(), probe.tick, _period(probe.spec))
            probe.timer = loop.call_at(due, self._fire, probe)
        if self.results() != before:
            self._startup_proven(probe)
            self._on_change()
        # Last: the next run and the result do not hang on whether this one can be told.
        self._report(probe, outcome)
        self._count(probe, outcome.verdict, time.monotonic() - begun)

    async def _outcome(self, spec: Probe, target: Target) -> Outcome:
        for _ in range(_TRIES):
            try:
                outcome = await self._shared.checks.run(spec, target)
            except Exception as error:  # it is probed again all the same, as a kubelet does after a panic
                log.exception("a probe of %s failed unexpectedly", self._pod.metadata.name)
                return Outcome(verdict=Verdict.UNKNOWN, text=f"{type(error).__name__}: {error}")
            if outcome.verdict is not Verdict.UNKNOWN:
                break
        return outcome

    def _startup_proven(self, probe: _Probe) -> None:
        """Let the container's other probes begin."""
        if probe.kind is Kind.STARTUP and probe.progress.result:
            for (name, kind), other in self._probes.items():
                if name == probe.container.name and kind is not Kind.STARTUP and other.id == probe.id:
                    self._arm(other)

    def _count(self, probe: _Probe, verdict: Verdict, seconds: float) -> None:
        """Count a run. What cannot be carried out does not count, and of failures there is no duration, as upstream."""
        if verdict is Verdict.UNKNOWN:
            return
        meta, kind, metrics = self._pod.metadata, probe.kind.value, self._shared.metrics
        result = "failed" if verdict is Verdict.FAILURE else "successful"
        metrics.add(PROBE_TOTAL, kind, result, probe.container.name, meta.name, meta.namespace, meta.uid)
        if verdict is not Verdict.FAILURE:
            metrics.observe(PROBE_DURATION, seconds, kind, probe.container.name, meta.name, meta.namespace)

    def _report(self, probe: _Probe, outcome: Outcome) -> None:
        kind, text = probe.kind.value, outcome.text
        reason, message = "Unhealthy", ""
        if outcome.verdict is Verdict.UNKNOWN:
            message = f"{kind} probe errored and resulted in {outcome.verdict.value} state: {text}"
        elif outcome.verdict is Verdict.FAILURE:
            message = f"{kind} probe failed: {text}"
        elif outcome.verdict is Verdict.WARNING:
            reason, message = "ProbeWarning", f"{kind} probe warning: {text}"
        if message:
            event = Event(type="Warning", reason=reason, message=message, container=probe.container.name)
            self._listener.event(event)


class _Probe:
    """One probe of a container, through all its attempts. ``tick``: the time of its row that came last."""

    def __init__(self, kind: Kind, anchor: float) -> None:
        self.kind = kind
        self.tick = anchor
        self.container = Container()
        self.spec = Probe()
        self.id = ""
        self.started_at = 0.0
        self.progress = progress.begin(kind)
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def is_armed(self) -> bool:
        """Return whether it waits for its time, or runs."""
        return self.timer is not None or self.task is not None

    def disarm(self) -> None:
        """Neither run it nor wait for the run of now."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.task is not None:
            self.task.cancel()
            self.task = None


def _probed(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.containers
    yield from filter(is_sidecar, pod.spec.init_containers)


def _statuses(pod: Pod) -> dict[str, ContainerStatus]:
    """Return the statuses of the containers that ran before the agent was started, by ID without its scheme."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return {status.container_id.partition("://")[2]: status for status in statuses if status.container_id}


def _period(spec: Probe) -> float:
    return float(max(spec.period_seconds, 1))
