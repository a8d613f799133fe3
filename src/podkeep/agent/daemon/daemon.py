"""The agent's process: putting the parts together, serving, stopping. Pods run on when it ends.

The process is in the runtime's mount namespace and holds the lock of the agent's root when this module is called.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec

from podkeep.agent.images.garbage import ImageGarbage, Policy, Users
from podkeep.agent.manager import api_source, static_files
from podkeep.agent.manager.api_source import ApiSource
from podkeep.agent.manager.manager import PodManager
from podkeep.agent.manager.mirrors import Mirrors
from podkeep.agent.manager.orphans import Orphans
from podkeep.agent.manager.runtime_events import RuntimeEvents
from podkeep.agent.manager.static_files import StaticFiles
from podkeep.agent.manager.status_manager import StatusManager
from podkeep.agent.mount_namespace import require_runtime_here
from podkeep.agent.node import Node, this_node
from podkeep.agent.node_status.reporter import NodeReporter, Sensors, settings_of
from podkeep.agent.node_status.runtime_state import RuntimeState
from podkeep.agent.objects import ApiObjects
from podkeep.agent.pod.events import Event
from podkeep.agent.resources import allocatable, machine, predicates, requests
from podkeep.agent.resources.predicates import NodeFacts, Preempt, Rejection
from podkeep.api.feature_gates import IMAGE_VOLUME
from podkeep.api.pod import Pod
from podkeep.base import service
from podkeep.base.config import Config
from podkeep.base.tasks import Tasks
from podkeep.client.client import Client
from podkeep.client.correlation import Reference
from podkeep.client.recorder import Recorder
from podkeep.client.reflector import Reflector
from podkeep.client.resources import PODS
from podkeep.client.settings import Settings
from podkeep.cri.client import CriClient

log = logging.getLogger(__name__)


def serve(
    config: Config, settings: Settings, mount_namespace: int, on_ready: Callable[[str], None] = lambda _: None
) -> None:
    """Run the node's pods until SIGTERM or SIGINT.

    :param settings: how the API is reached.
    :param mount_namespace: inode of the mount namespace that this process is in.
    :param on_ready: told in words when pods are followed.
    """
    asyncio.run(_serve(config, settings, mount_namespace, on_ready))


async def _serve(config: Config, settings: Settings, mount_namespace: int, on_ready: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        client = Client(settings, user_agent="podkeep-agent")
        stack.push_async_callback(client.close)
        runtime = await stack.enter_async_context(CriClient(config.runtime.socket))
        await require_runtime_here(runtime, mount_namespace)
        node = this_node(runtime, config)
        statuses = StatusManager(client)
        events = RuntimeEvents(runtime)
        objects = ApiObjects(client)
        stack.push_async_callback(objects.close)
        agent = config.agent
        recorder = Recorder(client, "kubelet", node.name, rate=agent.event_record_qps, burst=agent.event_burst)
        reporter = NodeReporter(
            client,
            settings_of(node),
            RuntimeState(runtime, agent.node_status_max_images),
            await asyncio.to_thread(_sensors, node, events),
            recorder,
        )
        static_path = config.agent.static_pod_path
        manager = PodManager(
            node=node,
            objects=objects,
            events=events,
            statuses=statuses,
            report=partial(_report, recorder),
            admit=partial(_admitted, node),
            sources=(api_source.SOURCE, static_files.SOURCE) if static_path else (api_source.SOURCE,),
        )
        objects.on_change = manager.sources_changed
        stack.push_async_callback(manager.close)
        tasks = await stack.enter_async_context(Tasks("the agent"))
        pods = Reflector(client, PODS, fields=f"spec.nodeName={node.name}")
        mirrors = Mirrors(client, node.name)
        handler = ApiSource(manager, statuses, mirrors)
        recorder.event(reporter.reference, "Normal", "Starting", "Starting kubelet.")
        for work in (events.run(), statuses.run(), recorder.run(), mirrors.run(), reporter.run(), pods.run(handler)):
            tasks.start(work)
        if static_path:
            take = partial(_take_static, manager, statuses, mirrors)
            files = StaticFiles(path=Path(static_path), node_name=node.name, gates=node.gates, take=take)
            tasks.start(files.run())
        tasks.start(_remove_orphans(Orphans(node=node, is_wanted=manager.knows), manager))
        garbage = _image_garbage(node, manager, partial(_report_node, recorder, reporter))
        tasks.start(garbage.run(manager.ready))
        await _first(tasks, reporter.registered, stop)
        words = f"node {node.name} runs the pods of {settings.server}"
        on_ready(words)
        service.ready(words)
        await stop.wait()
        log.info("stopping; pods run on")
        service.stopping()


async def _remove_orphans(orphans: Orphans, manager: PodManager) -> None:
    await manager.ready.wait()
    await orphans.run()


def _image_garbage(node: Node, manager: PodManager, report: Callable[[Event], None]) -> ImageGarbage:
    def pods() -> list[Pod]:
        return [msgspec.structs.replace(pod, status=status) for pod, status in manager.pods()]

    users = Users(pods=pods, pulling=lambda: node.images.wanted, volumes=node.gates.enabled(IMAGE_VOLUME))
    policy = Policy.of(node.config.agent)
    return ImageGarbage(node.client, policy, users, report=report, metrics=node.metrics)


def _report_node(recorder: Recorder, reporter: NodeReporter, event: Event) -> None:
    recorder.event(reporter.reference, event.type, event.reason, event.message)


def _take_static(manager: PodManager, statuses: StatusManager, mirrors: Mirrors, pods: Sequence[Pod]) -> None:
    manager.replaced(static_files.SOURCE, pods)
    statuses.forget_static({(pod.metadata.namespace, pod.metadata.name) for pod in pods})
    mirrors.want(pods)


def _admitted(node: Node, pod: Pod, others: Sequence[Pod]) -> Rejection | Preempt | None:
    size = {requests.PODS: node.config.agent.max_pods}
    return predicates.admit(pod, others, NodeFacts(name=node.name, labels=node.labels, allocatable=size))


def _sensors(node: Node, events: RuntimeEvents) -> Sensors:
    """Return who knows what of the node; blocks.

    :raises InvalidArgument: if more is reserved than the machine has.
    """
    agent = node.config.agent
    capacity = machine.capacity(Path(agent.root), agent.max_pods)
    whole, left = allocatable.texts(capacity), allocatable.texts(allocatable.allocatable(capacity, agent))

    def labelled(labels: Mapping[str, str]) -> None:
        node.api_labels.clear()
        node.api_labels.update(labels)

    return Sensors(capacity=lambda: whole, allocatable=lambda: left, errors=(events.unhealthy,), labelled=labelled)


async def _first(tasks: Tasks, *events: asyncio.Event) -> None:
    """Wait until one of the events is there."""
    happened = asyncio.Event()

    async def follow(event: asyncio.Event) -> None:
        await event.wait()
        happened.set()

    waiting = [tasks.start(follow(event)) for event in events]
    await happened.wait()
    for task in waiting:
        task.cancel()


def _report(recorder: Recorder, pod: Pod, event: Event) -> None:
    metadata = pod.metadata
    about = Reference(
        kind="Pod",
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        field_path=_field_path(pod, event.container),
    )
    recorder.event(about, event.type, event.reason, event.message)


def _field_path(pod: Pod, container: str) -> str:
    """Return where in a pod a container is, as a kubelet's events say it; nothing for the pod as a whole."""
    spec = pod.spec
    for field, among in (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        if any(item.name == container for item in among):
            return f"spec.{field}{{{container}}}"
    return ""
