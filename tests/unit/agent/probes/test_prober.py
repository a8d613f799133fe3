"""The probes of one pod: which run, what they make of its containers, what is said of it. Against real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podkeep.agent.events import Event
from podkeep.agent.metrics import PROBE_DURATION, PROBE_TOTAL
from podkeep.agent.observed import ContainerView, Observed, SandboxView, State
from podkeep.agent.probes.checks import Checks
from podkeep.agent.probes.model import Outcome, ProbeResult, Target
from podkeep.agent.probes.prober import PodProbes, Probes
from podkeep.api.containers import Probe
from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus
from podkeep.base.metrics import Metrics
from podkeep.cri.client import CriClient
from support.pods import container, pod
from unit.cri.cri_endpoint import run

TCP = {"periodSeconds": 1, "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 1}


def view(
    name: str = "main", *, key: str = "1", state: State = State.RUNNING, started: float | None = None
) -> ContainerView:
    at = int((time.time() if started is None else started) * 1e9)
    return ContainerView(id=key, name=name, sandbox_id="s", attempt=0, state=state, started_at=at)


def observed(*views: ContainerView) -> Observed:
    sandbox = SandboxView(id="s", ready=True, attempt=0, created_at=1, ips=("127.0.0.1",))
    return Observed(sandboxes=(sandbox,), containers={item.name: (item,) for item in views})


class Watched:
    """The probes of a pod, and what they tell."""

    def __init__(self, pod: Pod) -> None:
        self.events: list[Event] = []
        self.metrics = Metrics()
        self._changed = asyncio.Event()
        self.probes: PodProbes = Probes(CriClient("/nowhere"), tuple, self.metrics).of(pod, self, self._changed.set)

    def event(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def waiting(self, container: str, reason: str, message: str) -> None:
        raise AssertionError(container)

    def started(self, container: str, attempt: int, log: Path) -> None:
        raise AssertionError(container)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Return once ``condition`` holds."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def result(self, key: str = "1") -> ProbeResult:
        return self.probes.results()[key]


@asynccontextmanager
async def server() -> AsyncIterator[tuple[int, list[float]]]:
    """Listen; yield the port, and when connections came."""
    times: list[float] = []

    async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        times.append(asyncio.get_running_loop().time())
        writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1], times


def tcp(port: int, **fields: Any) -> dict[str, Any]:
    return TCP | {"tcpSocket": {"port": str(port)}} | fields


def test_readiness_is_probed_at_once_and_counted() -> None:
    async def work() -> None:
        async with server() as (port, times):
            wanted = pod(container(readinessProbe=tcp(port, periodSeconds=1000)))
            watched = Watched(wanted)
            async with watched.probes as probes:
                assert probes.results() == {}
                probes.observe(wanted, observed(view()))
                assert watched.result() == ProbeResult(ready=False)
                await watched.until(lambda: watched.result().ready)
                assert len(times) == 1
                labels = ("Readiness", "main", "web", "default")
                assert watched.metrics.value(PROBE_TOTAL, "Readiness", "successful", *labels[1:], "uid-web") == 1
                assert watched.metrics.value(PROBE_DURATION, *labels) == 1
            assert watched.metrics.value(PROBE_DURATION, *labels) == 0
            assert watched.events == []

    run(work())


@pytest.mark.slow
def test_startup_comes_first() -> None:
    """Readiness and liveness are asked when startup is proven, which is not asked again."""

    async def work() -> None:
        async with server() as (port, times), server() as (startup, asked):
            wanted = pod(
                container(
                    startupProbe=tcp(startup, failureThreshold=60),
                    readinessProbe=tcp(port),
                    livenessProbe=tcp(port, failureThreshold=60),
                )
            )
            watched = Watched(wanted)
            async with watched.probes as probes:
                probes.observe(wanted, observed(view()))
                assert watched.result() == ProbeResult(started=None, ready=False, live=True)
                await watched.until(lambda: watched.result().started)
                proven = len(asked)
                assert times == []
                await watched.until(lambda: watched.result().ready)
                assert len(asked) == proven

    run(work())


def test_liveness_is_not_asked_while_a_container_is_starting() -> None:
    """Its times are counted from the first look at the pod on, which has no containers then."""

    async def work() -> None:
        async with server() as (port, times):
            wanted = pod(container(livenessProbe=tcp(1, periodSeconds=1000), readinessProbe=tcp(port)))
            watched = Watched(wanted)
            async with watched.probes as probes:
                probes.observe(wanted, observed())
                assert probes.results() == {}
                probes.observe(wanted, observed(view()))
                await watched.until(lambda: watched.result().ready)
                assert watched.result() == ProbeResult(ready=True, live=True)
                assert watched.events == []
                assert times

    run(work())


@pytest.mark.slow
def test_a_failed_liveness_probe_is_held_until_the_next_attempt() -> None:
    async def work() -> None:
        wanted = pod(container(livenessProbe=tcp(1)))
        watched = Watched(wanted)
        async with watched.probes as probes:
            probes.observe(wanted, observed(view()))
            await watched.until(lambda: watched.result().live is False)
            assert [event.message for event in watched.events] == [
                "Liveness probe failed: dial tcp 127.0.0.1:1: connect: connection refused"
            ]
            probes.observe(wanted, observed(view(state=State.EXITED)))
            probes.observe(wanted, observed(view(key="2")))
            assert probes.results() == {"2": ProbeResult(live=True)}
            await watched.until(lambda: watched.result("2").live is False)

    run(work())


def test_a_pod_that_is_stopped_is_probed_for_readiness_alone() -> None:
    async def work() -> None:
        async with server() as (port, _):
            wanted = pod(container(livenessProbe=tcp(1), readinessProbe=tcp(port), startupProbe=tcp(1)))
            watched = Watched(wanted)
            async with watched.probes as probes:
                probes.observe(wanted, observed(view()), ending=True)
                assert watched.result() == ProbeResult(started=True, ready=False, live=True)
                await watched.until(lambda: watched.result().ready)
                assert watched.events == []

    run(work())


def test_init_containers_are_not_probed_but_sidecars_are() -> None:
    async def work() -> None:
        async with server() as (port, _):
            sidecar = container("sidecar", readinessProbe=tcp(port), restartPolicy="Always")
            wanted = pod(container(), init=[container("init", readinessProbe=tcp(port)), sidecar])
            watched = Watched(wanted)
            async with watched.probes as probes:
                probes.observe(wanted, observed(view("init"), view("sidecar", key="2"), view(key="3")))
                await watched.until(lambda: watched.result("2").ready)
                assert set(probes.results()) == {"2"}

    run(work())


@pytest.mark.slow
def test_an_initial_delay_is_waited_for() -> None:
    async def work() -> None:
        async with server() as (port, times):
            wanted = pod(container(readinessProbe=tcp(port, initialDelaySeconds=3)))
            watched = Watched(wanted)
            begun = asyncio.get_running_loop().time()
            async with watched.probes as probes:
                probes.observe(wanted, observed(view(started=time.time() - 2)))
                await watched.until(lambda: watched.result().ready)
                assert times[0] - begun >= 0.9

    run(work())


@pytest.mark.slow
def test_what_was_reported_before_counts_until_a_probe_says_otherwise() -> None:
    """A clock that was set back makes nobody wait longer than the initial delay either."""

    async def work() -> None:
        state = {"name": "main", "ready": True, "started": True, "restartCount": 0, "image": "i", "imageID": "i"}
        wanted = pod(container(readinessProbe=tcp(1), startupProbe=tcp(1)))
        statuses = {"containerStatuses": [state | {"containerID": "podkeep://1"}]}
        known = msgspec.structs.replace(wanted, status=msgspec.convert(statuses, PodStatus))
        watched = Watched(known)
        async with watched.probes as probes:
            probes.observe(known, observed(view(started=time.time() + 1000)))
            assert watched.result() == ProbeResult(started=True, ready=True)
            await watched.until(lambda: watched.result().ready is False)
            assert watched.result().started is True

    run(work())


@pytest.mark.slow
def test_a_hanging_probe_delays_no_other() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def work() -> None:
        listening = await asyncio.start_server(silent, "127.0.0.1", 0)
        hanging = TCP | {"timeoutSeconds": 1000, "httpGet": {"port": str(listening.sockets[0].getsockname()[1])}}
        async with listening, server() as (port, times):
            stuck = [container(f"stuck{index}", readinessProbe=hanging) for index in range(100)]
            wanted = pod(*stuck, container("good", readinessProbe=tcp(port)))
            watched = Watched(wanted)
            views = [view(f"stuck{index}", key=f"stuck{index}") for index in range(100)]
            async with watched.probes as probes:
                probes.observe(wanted, observed(*views, view("good", key="good")))
                await watched.until(lambda: watched.result("good").ready)
                assert len(times) == 1
                assert not any(watched.result(item.id).ready for item in views)

    run(work())


@pytest.mark.slow
def test_a_probe_that_fails_unexpectedly_is_run_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours in one run is an error of that run: the probe goes on, as a kubelet's does after a panic."""
    real, faults = Checks.run, [RuntimeError("a fault")]

    async def fail_once(checks: Checks, spec: Probe, target: Target) -> Outcome:
        if faults:
            raise faults.pop()
        return await real(checks, spec, target)

    monkeypatch.setattr(Checks, "run", fail_once)

    async def work() -> None:
        async with server() as (port, times):
            wanted = pod(container(readinessProbe=tcp(port)))
            watched = Watched(wanted)
            async with watched.probes as probes:
                probes.observe(wanted, observed(view()))
                await watched.until(lambda: watched.result().ready)
            assert len(times) == 1
            message = "Readiness probe errored and resulted in unknown state: RuntimeError: a fault"
            assert [event.message for event in watched.events] == [message]

    run(work())
    assert "a probe of web failed unexpectedly" in caplog.text
