"""The agent's process: putting the parts together, serving, stopping. Pods run on when it ends.

The process is in the runtime's mount namespace and holds the lock of the agent's root when this module is called.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from msgspec import structs

from podkeep.agent import kubelet_configuration
from podkeep.agent.certificates import bootstrap
from podkeep.agent.certificates.manager import CertificateManager, client_certificate, serving_certificate
from podkeep.agent.daemon.reports import Reports
from podkeep.agent.daemon.static_problems import StaticProblems
from podkeep.agent.eviction.containers import ContainerGarbage
from podkeep.agent.eviction.manager import EvictionManager
from podkeep.agent.eviction.shutdown import GracefulShutdown
from podkeep.agent.eviction.statistics import Statistics
from podkeep.agent.images.garbage import ImageGarbage, ImageUsers, Policy
from podkeep.agent.manager import api_source, static_files, without_api
from podkeep.agent.manager.api_source import ApiSource
from podkeep.agent.manager.manager import PodManager
from podkeep.agent.manager.mirrors import Mirrors
from podkeep.agent.manager.orphans import Orphans
from podkeep.agent.manager.runtime_events import RuntimeEvents
from podkeep.agent.manager.static_files import StaticFiles
from podkeep.agent.manager.status_manager import StatusManager
from podkeep.agent.metrics import STATIC_PODS_LEFT_OUT
from podkeep.agent.mount_namespace import require_runtime_here
from podkeep.agent.node import Node, this_node
from podkeep.agent.node_status.reporter import NodeReporter, Sensors, settings_of
from podkeep.agent.node_status.runtime_state import RuntimeState
from podkeep.agent.objects import services_file
from podkeep.agent.objects.api_objects import ApiObjects
from podkeep.agent.objects.services_file import ServicesFile
from podkeep.agent.resources import allocatable, machine, node_cgroups, predicates, resize
from podkeep.agent.resources.node_selection import Taint
from podkeep.agent.resources.predicates import NodeFacts, Preempt, Rejection
from podkeep.agent.server.server import KubeletServer, serving_store
from podkeep.agent.user_namespaces import blocks, mapping, subordinate_ids
from podkeep.agent.user_namespaces.blocks import Block
from podkeep.api.feature_gates import IMAGE_VOLUME, USER_NAMESPACES
from podkeep.api.pod import Pod
from podkeep.base import service
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.concurrency.threads import SharedThreads
from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition
from podkeep.client.client import Client
from podkeep.client.correlation import Reference
from podkeep.client.recorder import Recorder
from podkeep.client.reflector import Reflector
from podkeep.client.resources import PODS
from podkeep.client.settings import Settings
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.http.health import Check
from podkeep.kernel.process import allocator, descriptors, lsm

log = logging.getLogger(__name__)

_THREADS, _THREADS_OF_ONE = 512, 4
"""For blocking steps; and of them for one pod, whose volumes may hang. As many as all pods of a node need then."""
_RETRY_S = 60.0
"""How often resizes that wait are looked at again without a reason."""
_LAST_EVENTS_S = 1.0
"""How long the agent's end waits for events that are not written yet."""
_END_S = 20.0
"""How long the agent's end may take in all, before its supervisor would kill it. Nothing is lost then: pods run on, and
the next agent finds them as after a crash."""


def serve(
    config: Config,
    settings: Settings,
    mount_namespace: int,
    on_ready: Callable[[str], None] = lambda _: None,
    certify: Callable[[Sequence[str]], object] | None = None,
) -> None:
    """Run the node's pods until SIGTERM or SIGINT.

    :param settings: how the API is reached.
    :param mount_namespace: inode of the mount namespace that this process is in.
    :param on_ready: told in words when pods are followed.
    :param certify: see :class:`KubeletServer`.
    :raises InvalidArgument: if the configuration reserves more than the machine has, or cannot be understood.
    :raises DataLoss: if the record of a pod's user namespace cannot be read.
    :raises FailedPrecondition: if the runtime is in another mount namespace, or the server's address is taken.
    """
    descriptors.raise_limit()
    bound = _BoundedEnd()
    try:
        asyncio.run(_serve(config, settings, mount_namespace, bound, on_ready, certify))
    except asyncio.CancelledError:
        log.info("stopped before pods were followed; they run on")
    finally:
        bound.over()


class _BoundedEnd:
    """Sees to it that the process ends when it was told to, whatever a step of it waits for.

    A step on a thread cannot be interrupted, and a thread that waits for a file system that does not answer would keep
    the process for ever.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.serving = False
        """Whether who is told to end looks at :attr:`asked`; before, it is cancelled."""
        self._main: asyncio.Task[None] | None = None
        self._timer: threading.Timer | None = None

    def follow(self) -> None:
        """Be told of SIGTERM and SIGINT from now on; the calling task is the one that ends then."""
        self._main = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._ask)

    def _ask(self) -> None:
        self.asked.set()
        if self._timer is not None:
            return
        self._timer = threading.Timer(_END_S, _give_up)
        self._timer.daemon = True
        self._timer.start()
        if not self.serving and self._main is not None:
            self._main.cancel()

    def over(self) -> None:
        """Note that nothing is left to wait for."""
        if self._timer is not None:
            self._timer.cancel()


def _give_up() -> None:
    log.error("the agent has not ended within %g s: something that it waits for does not answer", _END_S)
    # Not sys.exit, which would wait for the thread that does not end.
    os._exit(1)


@dataclass(kw_only=True)
class _Size:
    """What the machine has and what pods can have of it, by resource."""

    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    app_armor: bool
    """Whether the kernel enforces AppArmor profiles."""

    @classmethod
    def of(cls, config: Config) -> _Size:
        """Look at the machine, and hold its own daemons to their reserves; blocks.

        :raises PodkeepError: if more is reserved than there is, or a cgroup cannot be held to its reserve.
        """
        capacity = machine.capacity(Path(config.agent.root), config.agent.max_pods)
        node_cgroups.require_reserved(config)
        return cls(
            capacity=capacity,
            allocatable=allocatable.allocatable(capacity, config.agent),
            app_armor=lsm.apparmor_enabled(),
        )


async def _serve(
    config: Config,
    settings: Settings,
    mount_namespace: int,
    bound: _BoundedEnd,
    on_ready: Callable[[str], None],
    certify: Callable[[Sequence[str]], object] | None,
) -> None:
    stop = bound.asked
    allocator.return_buffers()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(SharedThreads(_THREADS, share=_THREADS_OF_ONE, name="work"))
    bound.follow()
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(
            CriClient(config.runtime.socket, timeout=config.agent.runtime_request_timeout)
        )
        # First of all: volumes that are mounted in another namespace than the runtime's are empty directories to
        # containers.
        lost = runtime.lost
        status = await require_runtime_here(runtime, mount_namespace)
        client = Client(settings, user_agent="podkeep-agent")
        stack.push_async_callback(client.close)
        about = await runtime.runtime.Version(api_pb2.VersionRequest())
        node = structs.replace(this_node(runtime, config), runtime_name=about.runtime_name or "cri")
        node.runtime_status.keep(status, lost=lost)
        stack.push_async_callback(node.logs.close)
        await asyncio.to_thread(_require_blocks, node)
        # It may come back elsewhere at any time, so this is looked at again whenever it answers after it was away.
        here = _Here(node, mount_namespace, stop)
        events = RuntimeEvents(runtime, node.metrics, here.check)
        agent = _Agent(node, client, await asyncio.to_thread(_Size.of, config), events)
        registered = await agent.start(stack, certify)
        bound.serving = True
        await _first(registered, stop)
        words = f"node {node.name} runs the pods of {settings.server}"
        on_ready(words)
        agent.say_ready(words)
        await stop.wait()
        log.info("stopping; pods run on")
        service.stopping()
        await agent.recorder.written(_LAST_EVENTS_S)
        if here.moved is not None:
            raise here.moved


def _require_blocks(node: Node) -> None:
    """Check that the blocks of IDs of all pods are known, so that none is given twice; with the gate off none is given.

    :raises FailedPrecondition: if the range that they are of cannot be retrieved.
    :raises DataLoss: naming the pod whose record cannot be read.
    """
    granted = subordinate_ids.read()
    held: Mapping[str, Block] = {}
    if node.gates.enabled(USER_NAMESPACES):
        held = blocks.read_all(node.dirs.pods, node.id_range().without(granted)).held()
    if node.one_mapping is None:
        return
    for text in mapping.warnings(node.one_mapping, granted):
        log.warning("%s", text)
    shared = blocks.extents(node.one_mapping)
    for uid, block in held.items():
        if any(block.overlaps(extent) for extent in shared):
            log.warning("pod %s has IDs from %s until it is removed, which all new pods have by now", uid, block)


class _Here:
    """Ends the agent when the runtime comes back in another mount namespace, where volumes of this one are not."""

    def __init__(self, node: Node, mount_namespace: int, stop: asyncio.Event) -> None:
        self._node, self._mount_namespace, self._stop = node, mount_namespace, stop
        self.moved: FailedPrecondition | None = None

    async def check(self) -> None:
        """Look where the runtime is.

        :raises PodkeepError: if it does not say so, or is elsewhere.
        """
        lost = self._node.client.lost
        try:
            answer = await require_runtime_here(self._node.client, self._mount_namespace)
        except FailedPrecondition as error:
            self.moved = error
            self._stop.set()
            raise
        self._node.runtime_status.keep(answer, lost=lost)  # it may be another one


class _Agent:
    """The parts of the agent, and who knows whom."""

    def __init__(self, node: Node, client: Client, size: _Size, events: RuntimeEvents) -> None:
        config = node.config
        self._node, self._client, self._size = node, client, size
        self.recorder = Recorder(
            client, "kubelet", node.name, rate=config.agent.event_record_qps, burst=config.agent.event_burst
        )
        self._reports = Reports(
            # A kubelet's events of its Node have the name as UID: they begin before the object is known.
            recorder=self.recorder,
            node_reference=Reference(kind="Node", name=node.name, uid=node.name),
        )
        self._events = events
        self._state = RuntimeState(node.client, node.runtime_status, config.agent.node_status_max_images)
        self._reporter: NodeReporter | None = None
        self._words = ""
        self._unreported = ""
        self._static = StaticProblems()
        self._statuses = StatusManager(client, node.metrics)
        services = ServicesFile(Path(config.agent.root) / services_file.FILE_NAME)
        self._objects = ApiObjects(client, runtime_classes=node.runtime_classes, services=services)
        self._mirrors = Mirrors(client, node.name, self._note_not_shown)
        sources = (api_source.SOURCE, static_files.SOURCE) if config.agent.static_pod_path else (api_source.SOURCE,)
        self._manager = PodManager(
            node=node,
            objects=self._objects,
            events=self._events,
            statuses=self._statuses,
            report=self._reports.of_pod,
            admit=self._admit,
            sources=sources,
        )
        self._source = ApiSource(self._manager, self._statuses, self._mirrors)
        self._kept = asyncio.Event()
        """Set once pods are looked after without the API."""
        self._objects.on_change = self._manager.sources_changed
        node.allocations.judge = self._judge
        self._images = ImageGarbage(
            node.client,
            Policy.of(config.agent),
            ImageUsers(
                pods=self._pods,
                pulling=lambda: node.images.wanted,
                volumes=node.gates.enabled(IMAGE_VOLUME),
                handler=node.runtime_classes.handler_of_running,
                removing=node.images.removing,
                prune=node.images.prune,
            ),
            report=self._reports.of_node,
            metrics=node.metrics,
        )
        self._containers = ContainerGarbage(
            client=node.client,
            agent=config.agent,
            dirs=node.dirs,
            knows=self._manager.knows,
            ended=self._manager.has_ended,
            report=self._reports.of_node,
        )
        self._eviction = EvictionManager(
            agent=config.agent,
            statistics=Statistics(node.client, config, node.dirs),
            pods=self._manager,
            events=self._reports,
            containers=self._containers.remove_unused,
            images=self._images.remove_unused,
            metrics=node.metrics,
        )

        self._shutdown = GracefulShutdown(
            agent=config.agent,
            pods=self._manager,
            events=self._reports,
            metrics=node.metrics,
            report_status=self._wake_reporter,
        )

    async def start(
        self, stack: AsyncExitStack, certify: Callable[[Sequence[str]], object] | None = None
    ) -> asyncio.Event:
        """Start everything, to be ended with ``stack``; return what is set once the node is registered."""
        node, client, agent = self._node, self._client, self._node.config.agent
        stack.push_async_callback(self._objects.close)
        self._objects.start()
        # The stack is unwound from its end: all tasks below are over before the manager lets go of its pods.
        stack.push_async_callback(self._manager.close)
        tasks = await stack.enter_async_context(Tasks("the agent"))
        port = 0
        if agent.enable_server:
            shown = partial(kubelet_configuration.in_force, node.config)
            checks = [Check("syncloop", self._events.unhealthy)]
            server = KubeletServer(node, client, self._manager, configuration=shown, checks=checks, certify=certify)
            port = (await stack.enter_async_context(server)).port
            if agent.server_tls_bootstrap and not agent.tls_cert_file:
                wanted = serving_certificate(node.name, (node.name,), node.host_ips)
                tasks.keep(partial(CertificateManager(serving_store(agent), wanted, server.look).run, client))
        reporter = NodeReporter(
            client, settings_of(node, port), self._state, self._sensors(), self.recorder, self._note_unreported
        )
        self._reporter = reporter
        self.recorder.event(reporter.reference, "Normal", "Starting", "Starting kubelet.")
        orphans = Orphans(
            client=node.client,
            dirs=node.dirs,
            config=node.config,
            metrics=node.metrics,
            is_wanted=self._manager.knows,
        )
        pods = Reflector(client, PODS, fields=f"spec.nodeName={node.name}")
        for loop in (
            self._events.run,
            self._statuses.run,
            self.recorder.run,
            self._mirrors.run,
            reporter.run,
            partial(pods.run, self._source),
            partial(self._images.run, self._manager.ready),
            partial(self._once_known, orphans.run),
            partial(self._once_known, self._containers.run),
            partial(self._wake_for_pressure, reporter),
        ):
            tasks.keep(loop)
        for work in (
            service.feed_watchdog(),
            without_api.adopt(node.client, node.dirs, pods.synced, self._keep_pods),
            self._once_pods_run(self._eviction.run),
            self._once_pods_run(self._shutdown.run),
            node_cgroups.hold_pods(node.config, self._size.capacity, self._reports.node),
        ):
            tasks.start(work)
        if bootstrap.is_renewed_here(node.config, client.settings):
            kind = client_certificate(node.name)
            tasks.keep(partial(CertificateManager(bootstrap.store(node.config), kind, client.renew).run, client))
        if agent.static_pod_path:
            path = Path(agent.static_pod_path)
            files = StaticFiles(
                path=path,
                node_name=node.name,
                gates=node.gates,
                take=self._take_static,
                refused=self._note_left_out,
            )
            tasks.keep(files.run)
        else:
            # Mirrors that an agent with static pods has left are deleted.
            self._mirrors.want(())
        return reporter.registered

    def say_ready(self, words: str) -> None:
        """Tell the service manager that pods are followed, and what else there is to say."""
        self._words = words
        service.ready(*self._said())

    def _said(self) -> tuple[str, str]:
        """Return what the daemon does, and what is wrong."""
        problems = filter(None, (self._unreported, self._static.summary))
        return self._static.status(self._words or "starting"), "; ".join(problems)

    def _note_unreported(self, problem: str) -> None:
        self._unreported = problem
        service.status(*self._said())

    def _note_left_out(self, problems: Mapping[str, str]) -> None:
        self._node.metrics.set(STATIC_PODS_LEFT_OUT, len(problems))
        self._note(StaticProblems(left_out=problems, not_shown=self._static.not_shown))

    def _note_not_shown(self, problems: Mapping[str, str]) -> None:
        self._note(StaticProblems(left_out=self._static.left_out, not_shown=problems))

    def _note(self, found: StaticProblems) -> None:
        """Tell what is wrong with static pods in events and in the daemon's status."""
        for reason, message in found.news(self._static):
            self._reports.node("Warning", reason, message)
        self._static = found
        service.status(*self._said())

    async def _once_known(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run what must not begin before it is known which pods the node has."""
        await self._manager.ready.wait()
        await run()

    async def _once_pods_run(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run what is about pods that run: also while the API is away, once they are looked after as they were."""
        await _first(self._manager.ready, self._kept)
        await run()

    def _keep_pods(self, pods: Sequence[Pod]) -> None:
        self._manager.kept(api_source.SOURCE, pods)
        self._kept.set()

    async def _wake_for_pressure(self, reporter: NodeReporter) -> None:
        while True:
            # What is refused for another reason (a taint, a shutdown) is looked at again, too: nobody tells of its end.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._eviction.changed.wait(), _RETRY_S)
            if self._eviction.changed.is_set():
                self._eviction.changed.clear()
                reporter.wake()
            self._manager.retry_resizes()

    def _wake_reporter(self) -> None:
        if self._reporter is not None:
            self._reporter.wake()

    def _pods(self) -> list[Pod]:
        return [msgspec.structs.replace(pod, status=status) for pod, status in self._manager.pods()]

    def _take_static(self, pods: Sequence[Pod]) -> None:
        self._manager.replaced(static_files.SOURCE, pods)
        self._statuses.forget_static({pod.metadata.uid for pod in pods})
        self._mirrors.want(pods)

    def _admit(self, pod: Pod, others: Sequence[Pod]) -> Rejection | Preempt | None:
        node = self._node
        facts = NodeFacts(
            name=node.name,
            labels=node.labels,
            taints=self._taints(),
            allocatable=self._size.allocatable,
            conditions=self._eviction.conditions,
            # Until the runtime has been asked for its features, no pod is refused because of one.
            supplemental_groups_policy=not self._state.known
            or bool((self._state.features or {}).get("supplementalGroupsPolicy")),
            shutting_down=self._shutdown.shutting_down,
            app_armor=self._size.app_armor and node.config.runtime.apparmor != "off",
            allowed_unsafe_sysctls=node.config.agent.allowed_unsafe_sysctls,
        )
        return self._source.refusal(pod) or predicates.admit(pod, others, facts)

    def _taints(self) -> list[Taint]:
        spec = {} if self._reporter is None else self._reporter.node.get("spec") or {}
        return [
            Taint(item.get("key", ""), item.get("value", ""), item.get("effect", "")) for item in spec.get("taints", ())
        ]

    def _judge(self, pod: Pod) -> Rejection | Preempt | None:
        """Say whether a pod that runs may have what it asks for by now; Infeasible: not if it were alone, either."""
        never = predicates.beyond_capacity(pod, self._size.allocatable)
        if never:
            return Rejection(reason=resize.INFEASIBLE, message=never)
        uid = pod.metadata.uid
        return self._admit(pod, [other for other in self._manager.active() if other.metadata.uid != uid])

    def _sensors(self) -> Sensors:
        whole, left = allocatable.texts(self._size.capacity), allocatable.texts(self._size.allocatable)

        def labelled(labels: Mapping[str, str]) -> None:
            self._node.api_labels.clear()
            self._node.api_labels.update(labels)

        return Sensors(
            capacity=lambda: whole,
            allocatable=lambda: left,
            pressures=lambda: self._eviction.conditions,
            errors=(self._events.unhealthy, self._shutdown.not_ready),
            labelled=labelled,
        )


async def _first(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
