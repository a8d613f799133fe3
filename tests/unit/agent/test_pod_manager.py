"""The manager of a node's pods: what goes wrong with one of them stays with that one, and is tried again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from podkeep.agent.manager import manager as manager_module
from podkeep.agent.manager.manager import PodManager
from podkeep.agent.manager.runtime_events import RuntimeEvents
from podkeep.agent.node import this_node
from podkeep.agent.objects.sources import Sources, StaticObjects
from podkeep.agent.pod import checkpoint
from podkeep.agent.poddirs import PodIdentity
from podkeep.agent.resources import resize
from podkeep.agent.resources.predicates import Preempt, Rejection
from podkeep.api.containers import Container, ResourceRequirements
from podkeep.api.meta import ObjectMeta
from podkeep.api.pod import Pod, PodSpec
from podkeep.api.status import PodStatus
from podkeep.base import config
from podkeep.base.concurrency import structs
from podkeep.base.ids import PodUID
from podkeep.cri.client import CriClient
from podkeep.kernel.cgroup.cgroups import Cgroups
from support.waiting import TIMEOUT_S

POD = Pod(
    metadata=ObjectMeta(name="web", namespace="default", uid="u-1"),
    spec=PodSpec(containers=(Container(name="c", image="i"),)),
)


class Told:
    """What is told of pods."""

    def __init__(self) -> None:
        self.phases: list[str | None] = []
        self.ended = asyncio.Event()

    def set(self, pod: Pod, status: PodStatus) -> None:
        self.phases.append(status.phase)
        self.ended.set()

    def finish(self, pod: Pod) -> None:
        self.ended.set()


@asynccontextmanager
async def configured(tmp_path: Path) -> AsyncIterator[tuple[CriClient, list[str]]]:
    """A client of a runtime that is not there, and settings of a node with directories and cgroups of its own."""
    socket, cgroup = str(tmp_path / "none.sock"), f"/pktest-{os.urandom(4).hex()}"
    settings = [f'agent.root="{tmp_path}/agent"', f'runtime.socket="{socket}"', f'runtime.cgroup_parent="{cgroup}"']
    try:
        async with CriClient(socket) as client:
            yield client, settings
    finally:
        # Without a runtime nothing of the pods was removed.
        Cgroups().remove(cgroup)


@asynccontextmanager
async def managing(
    tmp_path: Path, admit: Callable[[Pod, Sequence[Pod]], Rejection | None]
) -> AsyncIterator[tuple[PodManager, Told]]:
    """The manager of a node without a runtime, and what it tells; it is to be closed."""
    async with configured(tmp_path) as (client, settings):
        node, told = this_node(client, config.load(None, settings)), Told()
        manager = PodManager(
            node=node,
            objects=StaticObjects(Sources()),
            events=RuntimeEvents(client, node.metrics),
            statuses=told,
            report=lambda pod, event: None,
            admit=admit,
            sources=("api",),
        )
        yield manager, told


@pytest.mark.parametrize(
    ("own", "asked", "wanted", "source", "seconds"),
    [
        (None, None, True, "api", 1),
        (600, None, True, "api", 600),
        (600, 900, True, "api", 900),
        (600, 0, True, "api", 30),
        (600, None, False, "api", 30),
        (600, 900, False, "api", 30),
        (5, 0, False, "api", 5),
        (5, 2, False, "api", 2),
        (0, 0, False, "api", 1),
        (600, None, False, "file", 600),
    ],
)
def test_how_long_a_pod_has_for_its_end(
    own: int | None, asked: int | None, wanted: bool, source: str, seconds: int
) -> None:
    """One that was deleted by force, or whose deletion the API did not wait for, has not all the time that it says: its
    place is given to others. Static pods that are removed have it.
    """
    annotations = {"kubernetes.io/config.source": source}
    metadata = msgspec.structs.replace(POD.metadata, deletion_grace_period_seconds=asked, annotations=annotations)
    spec = msgspec.structs.replace(POD.spec, termination_grace_period_seconds=own)
    pod = msgspec.structs.replace(POD, metadata=metadata, spec=spec)
    managed = manager_module._ManagedPod(pod=pod, source=source, wanted=wanted)
    assert managed.grace() == seconds


@pytest.mark.slow
def test_a_pod_that_fails_in_a_way_that_nobody_expected_is_looked_after(tmp_path: Path) -> None:
    asked: list[str] = []

    def admit(pod: Pod, others: Sequence[Pod]) -> Rejection | None:
        asked.append(pod.metadata.name)
        if len(asked) == 1:
            raise ValueError("nobody expected that")
        return Rejection(reason="Judged", message="after all")

    async def main() -> None:
        async with managing(tmp_path, admit) as (manager, told):
            manager.changed("api", POD)
            async with asyncio.timeout(TIMEOUT_S):
                await told.ended.wait()
            assert (told.phases, asked) == (["Failed"], ["web", "web"])
            # An API that gives another pod the UID of this one gets nothing for it, and takes nothing away.
            other = msgspec.structs.replace(POD, metadata=msgspec.structs.replace(POD.metadata, name="other"))
            manager.changed("api", other)
            manager.changed("file", POD)
            manager.replaced("file", [])
            assert [pod.metadata.name for pod, _ in manager.pods()] == ["web"]
            assert manager.find("default", "other") is None
            await manager.close()

    asyncio.run(main())


def test_news_of_a_pod_that_comes_while_a_step_fails_needs_no_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "_FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(manager_module, "_LAST_PAUSE_S", 3600.0)
    asked: list[str] = []

    async def main() -> None:
        def admit(pod: Pod, others: Sequence[Pod]) -> Rejection | None:
            asked.append(pod.metadata.name)
            if len(asked) == 1:
                manager.changed("api", POD)
                raise ValueError("nobody expected that")
            return Rejection(reason="Judged", message="after all")

        async with managing(tmp_path, admit) as (manager, told):
            manager.changed("api", POD)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await told.ended.wait()
            finally:
                await manager.close()
            assert (told.phases, asked) == (["Failed"], ["web", "web"])

    asyncio.run(main())


def test_what_runs_since_an_earlier_process_counts_before_another_pod_is_judged(tmp_path: Path) -> None:
    beside: list[list[str]] = []
    judged = asyncio.Event()

    def admit(pod: Pod, others: Sequence[Pod]) -> Rejection | None:
        beside.append([other.metadata.name for other in others])
        judged.set()
        return Rejection(reason="Judged", message=pod.metadata.name)

    def called(number: int) -> Pod:
        metadata = ObjectMeta(name=f"pod-{number}", namespace="default", uid=f"u-{number}")
        return msgspec.structs.replace(POD, metadata=metadata)

    async def main() -> None:
        async with configured(tmp_path) as (client, settings):
            node = this_node(client, config.load(None, settings))
            for number in range(1, 20):
                os.close(node.dirs.own(PodUID(f"u-{number}")))
                node.dirs.identify(PodUID(f"u-{number}"), PodIdentity(namespace="default", name=f"pod-{number}"))
            manager = PodManager(
                node=node,
                objects=StaticObjects(Sources()),
                events=RuntimeEvents(client, node.metrics),
                statuses=Told(),
                report=lambda pod, event: None,
                admit=admit,
                sources=("api",),
            )
            for number in range(20):
                manager.changed("api", called(number))
            async with asyncio.timeout(TIMEOUT_S):
                await judged.wait()
            assert beside == [[f"pod-{number}" for number in range(1, 20)]]
            await manager.close()

    asyncio.run(main())


def test_a_resize_that_was_asked_for_while_no_agent_ran_is_not_believed_done(tmp_path: Path) -> None:
    """A pod that had nothing has no record of what it was granted: its object tells."""
    uid = PodUID(POD.metadata.uid)
    gold = msgspec.structs.replace(POD.spec.containers[0], resources=ResourceRequirements(classes={"rdt": "gold"}))
    resized = msgspec.structs.replace(POD, spec=PodSpec(containers=(gold,)))

    async def main() -> None:
        reported: asyncio.Queue[str] = asyncio.Queue()
        async with configured(tmp_path) as (client, settings):
            node = this_node(client, config.load(None, settings))
            os.close(node.dirs.own(uid))
            node.dirs.identify(uid, PodIdentity(namespace="default", name="web"))
            checkpoint.keep(node.dirs.directory(uid).path, POD, None)
            manager = PodManager(
                node=node,
                objects=StaticObjects(Sources()),
                events=RuntimeEvents(client, node.metrics),
                statuses=Told(),
                report=lambda pod, event: reported.put_nowait(event.reason),
                admit=lambda pod, others: None,
                sources=("api",),
            )
            manager.changed("api", resized)
            async with asyncio.timeout(TIMEOUT_S):
                assert await reported.get() == "ResizeStarted"
            found = node.allocations.get(uid)
            assert found is not None
            assert (found.granted, found.actuated) == (resize.of(resized), resize.of(POD))
            await manager.close()

    asyncio.run(main())


@asynccontextmanager
async def adopting(
    tmp_path: Path, pods: Sequence[Pod], events: asyncio.Queue[tuple[str, str]]
) -> AsyncIterator[PodManager]:
    """A manager that has taken on pods which run, and reports events by the name of the pod and their reason."""
    structs.complete()  # as for the agent's own threads
    async with configured(tmp_path) as (client, settings):
        node = this_node(client, config.load(None, settings))
        for pod in pods:
            os.close(node.dirs.own(PodUID(pod.metadata.uid)))
            identity = PodIdentity(namespace="default", name=pod.metadata.name)
            node.dirs.identify(PodUID(pod.metadata.uid), identity)
            checkpoint.keep(node.dirs.directory(PodUID(pod.metadata.uid)).path, pod, None)
        manager = PodManager(
            node=node,
            objects=StaticObjects(Sources()),
            events=RuntimeEvents(client, node.metrics),
            statuses=Told(),
            report=lambda pod, event: events.put_nowait((pod.metadata.name, event.reason)),
            admit=lambda pod, others: judge(pod),
            sources=("api",),
        )

        def judge(pod: Pod) -> Preempt | None:
            if pod.metadata.name != "critical":
                return None
            return Preempt(pods=tuple(one for one in manager.active() if one.metadata.name == "victim"), resource="cpu")

        node.allocations.judge = judge
        for pod in pods:
            manager.changed("api", pod)
        async with asyncio.timeout(TIMEOUT_S):
            while len(manager.active()) < len(pods):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        try:
            yield manager
        finally:
            await manager.close()


def sized(name: str, cpu: str, **fields: object) -> Pod:
    """Return a pod that asks for so much."""
    metadata = ObjectMeta(name=name, namespace="default", uid=f"u-{name}", **fields)  # type: ignore[arg-type]
    container = Container(name="c", image="i", resources=ResourceRequirements(requests={"cpu": cpu}))
    return Pod(metadata=metadata, spec=PodSpec(containers=(container,)))


async def nobody_else_is_ended(events: asyncio.Queue[tuple[str, str]]) -> None:
    for _ in range(20):
        await asyncio.sleep(0)  # what has begun goes on
    while not events.empty():
        assert events.get_nowait()[1] != "Preempting"


def test_what_a_critical_pod_asks_for_is_its_own_while_others_end_for_it(tmp_path: Path) -> None:
    """Others got the room, and more pods were ended; each change of the pod ended them once more."""

    async def main() -> None:
        events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        async with adopting(tmp_path, [sized("critical", "1"), sized("victim", "1")], events) as manager:
            for label in "abc":
                manager.changed("api", sized("critical", "2", labels={"is": label}))
            async with asyncio.timeout(TIMEOUT_S):
                while await events.get() != ("victim", "Preempting"):
                    pass
            asked = {pod.metadata.name: pod.spec.containers[0].resources.requests["cpu"] for pod in manager.active()}
            assert asked == {"critical": "2", "victim": "1"}
            await nobody_else_is_ended(events)

    asyncio.run(main())


def test_nobody_is_ended_for_a_pod_that_is_to_go(tmp_path: Path) -> None:
    async def main() -> None:
        events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        pods = [sized(name, "1") for name in ("critical", "victim", "web")]
        async with adopting(tmp_path, pods, events) as manager:
            going = sized("critical", "2", deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=30)
            manager.changed("api", going)
            manager.changed("api", sized("web", "2"))
            async with asyncio.timeout(TIMEOUT_S):
                while await events.get() != ("web", "ResizeStarted"):
                    pass
            await nobody_else_is_ended(events)

    asyncio.run(main())


def test_a_pod_for_which_others_end_can_be_deleted_before_they_have(tmp_path: Path) -> None:
    """They have as long as they asked for, which may be years."""

    async def main() -> None:
        events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        async with adopting(tmp_path, [sized("victim", "1")], events) as manager, asyncio.timeout(TIMEOUT_S):
            manager.changed("api", sized("critical", "1"))
            while await events.get() != ("victim", "Preempting"):
                pass
            going = sized("critical", "1", deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=30)
            manager.changed("api", going)
            # It is being removed, which this runtime that is away keeps from succeeding.
            while await events.get() != ("critical", "FailedKillPod"):
                pass

    asyncio.run(main())
