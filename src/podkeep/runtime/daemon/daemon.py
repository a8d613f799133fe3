"""The runtime's process: putting the parts together, serving, stopping.

Owns: the order of starting and stopping. The process holds the lock of its directories and is in its mount namespace
already when this module is imported (``cli/runtime.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podkeep.base import in_force, service
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.concurrency.threads import SharedThreads
from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.cri import server
from podkeep.images.store.store import ImageStore
from podkeep.kernel.cgroup import cgroup_dynmods, systemd
from podkeep.kernel.cgroup.cgroup_stats import open_reader
from podkeep.kernel.cgroup.cgroups import Cgroups, detect
from podkeep.kernel.files.reserve import Reserve
from podkeep.kernel.namespace.namespaces import NamespaceHelper
from podkeep.kernel.process import allocator, descriptors, procfs
from podkeep.mountns import membership
from podkeep.mountns.membership import Membership
from podkeep.runtime.bundle import image_volumes, rootfs_variants
from podkeep.runtime.bundle.changed_trees import ChangedTrees
from podkeep.runtime.bundle.image_layers import ImageLayers
from podkeep.runtime.bundle.image_volumes import ImageVolumes
from podkeep.runtime.bundle.leftovers import Leftovers
from podkeep.runtime.bundle.staging import Staging
from podkeep.runtime.cgroup_driver import pod_cgroups
from podkeep.runtime.class_resources import loading
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.daemon import pods_elsewhere, settings
from podkeep.runtime.daemon.log_limit import LogLimit
from podkeep.runtime.daemon.reload import Reload
from podkeep.runtime.daemon.requests import Requests
from podkeep.runtime.lifecycle.checkpoint import Checkpoints
from podkeep.runtime.lifecycle.container_executor import ContainerExecutor
from podkeep.runtime.lifecycle.containers import Containers
from podkeep.runtime.lifecycle.events import EventHub
from podkeep.runtime.lifecycle.handlers import HandlerTable, Probe
from podkeep.runtime.lifecycle.recovery import Recovery
from podkeep.runtime.lifecycle.sandbox_executor import SandboxExecutor
from podkeep.runtime.lifecycle.sandboxes import Sandboxes
from podkeep.runtime.lifecycle.updates import Updates
from podkeep.runtime.model.counting import Counting
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import Container, Sandbox
from podkeep.runtime.model.state import State
from podkeep.runtime.network import ports
from podkeep.runtime.network.networks import Networks
from podkeep.runtime.oci.cdi.registry import Registry
from podkeep.runtime.oci.confinement import Confinement
from podkeep.runtime.rpc.container import ContainerRpc
from podkeep.runtime.rpc.events import EventRpc
from podkeep.runtime.rpc.image import ImageRpc
from podkeep.runtime.rpc.image_maintenance import ImageMaintenanceRpc
from podkeep.runtime.rpc.namespace_watch import NamespaceWatch
from podkeep.runtime.rpc.node import NodeRpc
from podkeep.runtime.rpc.pull_watch import PullWatch
from podkeep.runtime.rpc.runtime import RuntimeRpc
from podkeep.runtime.rpc.sandbox import SandboxRpc
from podkeep.runtime.rpc.services import Rpcs
from podkeep.runtime.rpc.stats import StatsRpc
from podkeep.runtime.rpc.streaming import StreamingRpc
from podkeep.runtime.stats.statistics import Statistics
from podkeep.runtime.streaming.server import StreamingServer
from podkeep.runtime.streaming.sessions import Sessions

if TYPE_CHECKING:
    import grpc.aio

    from podkeep.runtime.daemon.metrics_endpoint import MetricsEndpoint

log = logging.getLogger(__name__)

THREADS = 512
"""Blocking steps at a time: a thread is mostly waiting for a program."""
THREADS_OF_ONE = 16
"""Threads among them for one pod, one registry, one kind of other requests, or all that has no owner: steps that hang
keep out no others."""
RESERVE_BYTES = 1 << 20
"""Put aside for the start on a full disk: a look at what the file system can do, the journal of the records."""
STOP_TIMEOUT_S = 5.0
"""How long requests that are being served may take to finish when the daemon stops."""


_RESTART = "pods run on while a runtime is restarted: `podkeep runtime stop`, then again"
"""What to do about a runtime that is not replaced for another configuration."""


class Options(FrozenStruct, kw_only=True):
    """``idle_exit``: seconds without sandboxes and requests after which the daemon ends; None: never."""

    idle_exit: float | None = None
    load: Callable[[], Config] | None = None
    """Reads the configuration anew, on SIGHUP; None: SIGHUP is ignored."""
    on_ready: Callable[[], None] = lambda: None
    membership: Membership
    """Where the process is, of the mount namespaces."""


def serve(config: Config, options: Options) -> bool:
    """Run the runtime until it is told to stop (SIGTERM, SIGINT, Node.Shutdown) or is idle for long enough.

    :returns: whether no sandbox is left, so that what serves all sandboxes (bridge, cgroup) was removed as well.
    :raises InvalidArgument: if a value of the configuration cannot work; nothing has been made then.
    :raises FailedPrecondition: if the machine lacks something it needs.
    :raises DataLoss: if the state cannot be read.
    """
    settings.check(config)
    layout = Layout(root=Path(config.runtime.root), run=Path(config.runtime.run))
    descriptors.raise_limit()
    hangups: list[int] = []
    # SIGHUP would end a process that has no handler yet. One that is ignored would be so in containers, too.
    signal.signal(signal.SIGHUP, lambda number, _: hangups.append(number))
    with ExitStack() as stack:
        _make_directories(layout, Path(config.runtime.socket))
        reserve = Reserve(layout.reserve, RESERVE_BYTES)
        if reserve.give_up_if_full():
            # The pods that have it full are there after a crash or a reboot, too, and it is the runtime that ends them.
            log.warning("the disk of %s is full: what was put aside for the start is used up", layout.root)
        # The helper comes first: it must be started while this process is small and has no thread.
        helper = stack.enter_context(NamespaceHelper())
        if config.runtime.favordynmods:
            _favor_dynmods(stack)
        daemon = _Daemon(config, options, layout, helper, stack)
        try:
            daemon.prepare()
            daemon.keep(reserve)
            asyncio.run(daemon.run(reload_at_once=lambda: bool(hangups)))
        finally:
            left = daemon.sandboxes_left()
            if not left:
                daemon.clean_up()
    log.info("stopped; %s", f"pod sandboxes that stay as they are: {left}" if left else "no pod is left")
    return not left


class _Serving(FrozenStruct, kw_only=True):
    """The parts that are made once the event loop runs."""

    sandboxes: Sandboxes
    containers: Containers
    statistics: Statistics
    streaming: StreamingServer
    rpc_server: grpc.aio.Server
    requests: Requests


class _Daemon:
    """All parts of a running daemon."""

    def __init__(
        self, config: Config, options: Options, layout: Layout, helper: NamespaceHelper, stack: ExitStack
    ) -> None:
        self._config, self._options, self._layout, self._helper = config, options, layout, helper
        self._cgroups = Cgroups()
        self._stats_reader = open_reader(self._cgroups.layout)
        # With the stack, so after the event loop and its threads, which read by these descriptors.
        stack.callback(self._stats_reader.close)
        self._cgroup_parent = settings.cgroup_parent(config)
        if config.runtime.cgroup_driver == "systemd":
            systemd.require()
        self._state = State(layout.state)
        stack.callback(self._state.close)
        # Before anything of the pods is touched, and before it is told that they are here.
        pods_elsewhere.require_none(self._state, layout, options.membership)
        membership.publish(layout.run, options.membership)
        in_force.publish(layout.run, config, replaceable=options.idle_exit is not None)
        self._events = EventHub()
        # Before the recovery: what it finds ended is news.
        self._events.attach(self._state)
        self._counting, self._endpoint = _open_metrics(config, self._state)
        self._events.on_drop = self._counting.event_dropped
        self._networks = Networks(config.network, layout, self._state)
        self._images = ImageStore.open(
            layout.images,
            config=config.images,
            registries=config.registries,
            mounted=layout.layers,
            names_in_use=lambda: {name for item in self._state.containers() for name in item.image_names},
        )
        stack.callback(self._images.close)
        self._handlers = HandlerTable.from_config(
            config.runtime.handlers,
            config.runtime.default_handler,
            conmon=config.runtime.conmon,
            layout=layout,
            systemd_cgroup=config.runtime.cgroup_driver == "systemd",
        )
        self._classes = self._load_classes(config)
        self._confinement = Confinement.from_config(config.runtime)
        self._sandbox_executor = SandboxExecutor(
            layout=layout,
            helper=helper,
            cgroups=self._cgroups,
            networks=self._networks,
            catatonit=config.runtime.catatonit,
            confinement=self._confinement,
            classes=self._classes,
        )
        staging = Staging(layout, helper)
        layers = self._image_layers()
        policy = image_volumes.Policy(
            noexec=config.runtime.image_volume_noexec, files=config.runtime.image_volume_files
        )
        self._container_executor = ContainerExecutor(
            layout=layout,
            layers=layers,
            cgroups=self._cgroups,
            staging=staging,
            image_volumes=ImageVolumes(layers=layers, staging=staging, policy=policy),
            confinement=self._confinement,
            classes=self._classes,
            cdi=Registry(config.runtime.cdi_spec_dirs),
        )
        self._leftovers = Leftovers(layout.leftovers)

    def prepare(self) -> None:
        """Find out what the handlers can do, set the house in order, and make what serves all sandboxes.

        The parent cgroup is made here, and not with the first sandbox, so that no sandbox removes it while another
        needs it.
        """
        probe = Probe(
            layout=self._layout,
            helper=self._helper,
            cgroups=self._cgroups,
            cgroup_parent=self._cgroup_parent,
            program=self._config.runtime.catatonit,
            why_no_rootfs=self._variants.choice.why_not,
        )
        self._handlers.probe(probe)
        recovery = Recovery(
            state=self._state,
            layout=self._layout,
            handlers=self._handlers,
            cgroups=self._cgroups,
            classes=self._classes,
            sandboxes=self._sandbox_executor,
            containers=self._container_executor,
            leftovers=self._leftovers,
        )
        recovery.start_classes()
        recovery.run()
        self._networks.start()
        pod_cgroups.create_parent(self._cgroups, self._cgroup_parent)

    def keep(self, reserve: Reserve) -> None:
        """Put space aside for the next start, now or when a pod has gone and left room."""

        def fill(before: Sandbox | Container | None = None, after: Sandbox | Container | None = None) -> None:
            if after is None and not isinstance(before, Container):
                try:
                    reserve.fill()
                except OSError as error:
                    log.warning("no space is put aside for a start on a full disk: %s", error)

        fill()
        self._state.observers.append(fill)

    def _image_layers(self) -> ImageLayers:
        """Find out how images can be given the owners of pods.

        :raises FailedPrecondition: if the configuration names a way that does not work.
        """
        attempt = partial(
            rootfs_variants.attempt,
            directory=self._layout.rootfs_probe,
            userns=lambda: self._helper.user_namespace(rootfs_variants.PROBE_IDMAP),
        )
        self._variants = rootfs_variants.Variants(self._config.runtime.user_namespace_rootfs, attempt)
        costs = rootfs_variants.Costs(self._counting.rootfs_made, self._counting.rootfs_waited)
        trees = ChangedTrees(self._layout.changed_trees, self._images, boot_id=procfs.boot_id(), costs=costs)
        return ImageLayers(images=self._images, trees=trees, variant=self._variants.choice.variant, costs=costs)

    async def run(self, reload_at_once: Callable[[], bool]) -> None:
        """Serve until told to stop.

        :param reload_at_once: says whether the configuration has changed since it was read.
        """
        allocator.return_buffers()
        loop = asyncio.get_running_loop()
        # asyncio's own has at most 32 threads, which the steps of one pod that hang could take.
        loop.set_default_executor(SharedThreads(THREADS, share=THREADS_OF_ONE, name="work"))
        stop = asyncio.Event()

        def end(teller: str) -> None:
            if not stop.is_set():
                log.info("stopping: told by %s", teller)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number.name)
        serving = self._serving(partial(end, "Shutdown"))
        await self._start(serving)
        reload = Reload(self._config, self._options.load, self._images, self._replace_classes, self._in_force)
        loop.add_signal_handler(signal.SIGHUP, reload.start)
        # SIGHUP came while the daemon started: it was only noted (serve).
        if reload_at_once():
            reload.start()
        background = self._begin_background(serving.containers)
        try:
            await self._wait(stop, serving.requests)
        finally:
            # The service manager would take a reload's end for a new start.
            await reload.close()
            service.stopping()
            # The thread that empties them ends by this; closing the background tasks waits for it.
            self._leftovers.end()
            await background.close()
            await self._stop(serving)

    def _serving(self, shut_down: Callable[[], None]) -> _Serving:
        """Return what serves, on the event loop; containers and sandboxes are watched already."""
        sandboxes = Sandboxes(
            self._state, self._sandbox_executor, self._handlers, self._networks, self._classes, self._confinement
        )
        containers = Containers(
            self._state, self._container_executor, sandboxes, self._images, self._classes, self._layout
        )
        # Before the first request: StopContainer waits for the end that is watched here.
        containers.watch_all()
        sandboxes.watch_all(containers)
        resctrl = Path(self._config.class_resources.resctrl)
        serving = _Serving(
            sandboxes=sandboxes,
            containers=containers,
            statistics=Statistics(
                self._state, self._layout, self._stats_reader, self._counting.stats_pass, resctrl=resctrl
            ),
            streaming=StreamingServer(self._config.streaming),
            rpc_server=server.create_server(),
            requests=Requests(self._state, self._counting),
        )
        for name_of_service, handlers in self._rpcs(serving, shut_down).by_service().items():
            counted = {name: serving.requests.counted(name, rpc) for name, rpc in handlers.items()}
            server.bind(serving.rpc_server, name_of_service, counted)
        return serving

    async def _start(self, serving: _Serving) -> None:
        if self._endpoint is not None:
            await self._endpoint.start()
        await serving.streaming.start(ports.of_sandboxes(self._state.sandboxes(), "tcp"))
        # Last: who finds the CRI socket finds the others, too.
        server.listen(serving.rpc_server, self._config.runtime.socket)
        await serving.rpc_server.start()
        serving.statistics.start()
        log.info("serving %s", self._config.runtime.socket)
        self._options.on_ready()
        service.ready(f"serving {self._config.runtime.socket}")

    def _begin_background(self, containers: Containers) -> Tasks:
        background = Tasks("a background task of the daemon")
        background.start(service.feed_watchdog())
        self._networks.watch()
        background.start(self._networks.check_all())
        background.start(asyncio.to_thread(self._leftovers.remove_all))
        if limit := self._config.runtime.log_limit():
            background.keep(LogLimit(containers.running_logs, containers.reopen_log, limit).run)
        return background

    async def _stop(self, serving: _Serving) -> None:
        self._networks.close()
        # Before the server is stopped: streams of events end only by this, and the server waits for what it serves.
        self._events.close()
        await serving.rpc_server.stop(STOP_TIMEOUT_S)
        # While the event loop turns: it would wait for ever for a process whose start was cancelled.
        await self._images.end_pulls()
        await serving.streaming.close()
        await serving.statistics.close()
        if self._endpoint is not None:
            await self._endpoint.close()
        serving.sandboxes.close()
        serving.containers.close()
        Path(self._config.runtime.socket).unlink(missing_ok=True)

    def _load_classes(self, config: Config) -> ClassResources:
        systemd_cgroup = config.runtime.cgroup_driver == "systemd"
        return loading.load(
            config.class_resources, cgroups=self._cgroups, root=self._layout.root, systemd=systemd_cgroup
        )

    def _replace_classes(self, config: Config) -> None:
        self._classes.replace(self._load_classes(config))

    def _in_force(self, config: Config) -> None:
        """Tell callers which configuration is in force after a reload."""
        self._config = config
        try:
            in_force.publish(self._layout.run, config, replaceable=self._options.idle_exit is not None)
        except OSError as error:
            log.warning("callers are not told of the new configuration: %s", error)

    def _require_idle(self, requests: Requests) -> None:
        """Refuse to end for a caller who wants another configuration, if anybody has a use for this one.

        :raises FailedPrecondition: saying what for.
        """
        if self._options.idle_exit is None:
            raise FailedPrecondition("it was not started by `podkeep run`", hint=_RESTART)
        # The request that asks is counted as well.
        pods, others = self.sandboxes_left(), requests.running - 1
        if pods or others:
            what = f"pods: {pods}" if pods else f"requests of other clients: {others}"
            raise FailedPrecondition(f"it is in use ({what})", hint=_RESTART)

    def _rpcs(self, serving: _Serving, shut_down: Callable[[], None]) -> Rpcs:
        sandboxes, containers, layers = serving.sandboxes, serving.containers, self._container_executor.layers
        watch = PullWatch()
        updates = Updates(self._state, self._cgroups, self._classes)
        checkpoints = Checkpoints(self._state, sandboxes.driver, self._layout, self._cgroups, self._config.runtime.criu)
        sessions = Sessions(self._state, sandboxes, self._container_executor, self._layout)
        return Rpcs(
            runtime=RuntimeRpc(
                lambda: self._config,
                self._handlers,
                self._confinement,
                self._networks,
                NamespaceWatch(self._options.membership, self._config.runtime.socket),
                self._classes,
                partial(self._variants.describe, layers.costs),
            ),
            sandbox=SandboxRpc(self._state, sandboxes, containers, updates, self._cgroup_parent),
            container=ContainerRpc(self._state, containers, updates, checkpoints, self._classes),
            streaming=StreamingRpc(sessions, serving.streaming),
            stats=StatsRpc(
                self._state,
                serving.statistics.targets,
                serving.statistics.collector,
                mountpoint=str(self._layout.images),
            ),
            events=EventRpc(self._events),
            image=ImageRpc(self._images, self._state, watch, layers.trees),
            maintenance=ImageMaintenanceRpc(self._images, self._state, watch),
            node=NodeRpc(self._images, self._state, watch, shut_down, partial(self._require_idle, serving.requests)),
        )

    async def _wait(self, stop: asyncio.Event, requests: Requests) -> None:
        idle_exit = self._options.idle_exit
        if idle_exit is None:
            await stop.wait()
            return
        while not stop.is_set():
            idle = 0.0 if self._state.sandboxes() else requests.idle_seconds()
            if idle >= idle_exit:
                log.info("stopping: idle for %.0f s without a sandbox", idle)
                return
            await _first(stop.wait(), idle_exit - idle)

    def sandboxes_left(self) -> int:
        return len(self._state.sandboxes())

    def clean_up(self) -> None:
        """Remove what serves all sandboxes: the bridge, the parent cgroup, what classes needed."""
        self._classes.close()
        try:
            self._networks.stop()
            pod_cgroups.remove_parent(self._cgroups, self._cgroup_parent)
        except PodkeepError as error:
            log.warning("could not clean up: %s", error)


def _favor_dynmods(stack: ExitStack) -> None:
    try:
        stack.enter_context(cgroup_dynmods.favored(os.uname().release, detect()))
    except (PodkeepError, OSError) as error:
        log.info("containers start some 10 ms later than they could: %s", error)


def _open_metrics(config: Config, state: State) -> tuple[Counting, MetricsEndpoint | None]:
    endpoint = config.metrics.endpoint()
    if endpoint is None:
        return Counting(), None
    # Here and not above: most daemons do without (see counting.py).
    from podkeep.runtime.daemon.metrics import Metrics
    from podkeep.runtime.daemon.metrics_endpoint import MetricsEndpoint

    metrics = Metrics(state)
    return metrics, MetricsEndpoint(metrics.registry, endpoint)


async def _first(waiting: Awaitable[Any], seconds: float) -> None:
    try:
        await asyncio.wait_for(waiting, seconds)
    except TimeoutError:
        return


def _make_directories(layout: Layout, socket: Path) -> None:
    private = {layout.root, layout.sandboxes_data, layout.exits, layout.handlers}
    for directory in layout.shared_directories():
        directory.mkdir(mode=0o700 if directory in private else 0o711, parents=True, exist_ok=True)
    # Who is in a pod's user namespace passes these two; what is below has its own mode, for IDs are no secret.
    layout.root.chmod(0o711)
    layout.run.chmod(0o711)
    # An earlier version left it open.
    layout.sandboxes_data.chmod(0o700)
    socket.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
