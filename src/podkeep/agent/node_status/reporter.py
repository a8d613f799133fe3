"""Keeps the Node object as the node is: registers it, follows it, reports its status and renews its lease.

Every ten seconds the node is looked at; what changed is written at once, and all of it every five minutes
(kubelet, kubelet_node_status.go). A node that just started is looked at ten times a second until it is ready.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from podkeep.agent.node import Node as ThisNode
from podkeep.agent.node_status import registration, system
from podkeep.agent.node_status.conditions import READY
from podkeep.agent.node_status.lease import NodeLease
from podkeep.agent.node_status.runtime_state import RuntimeState
from podkeep.agent.node_status.status import SPREAD, Facts, Report, fields, report, with_missing
from podkeep.api.feature_gates import CLASS_RESOURCES
from podkeep.base.backoff import doubling
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339
from podkeep.client.client import Client
from podkeep.client.correlation import Reference
from podkeep.client.errors import ApiError
from podkeep.client.recorder import Recorder
from podkeep.client.reflector import Reflector
from podkeep.client.resources import NODES
from podkeep.kernel.process import procfs

log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 0.1, 7.0
"""Between attempts to register."""
_START_S = 0.1
"""Between looks until the node is ready for the first time."""


class NodeSettings(FrozenStruct, kw_only=True):
    """What the configuration says of the Node; times in seconds."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, str]] = ()
    addresses: Callable[[], Sequence[Mapping[str, str]]] = tuple
    """Returns them as they are by now; must not block."""
    register: bool = True
    """Make the Node object if there is none."""
    update_s: float = 10.0
    report_s: float = 300.0
    lease_s: int = 40
    port: int = 0
    classes: bool = True
    """Whether the feature gate of QoS-class resources is on."""


def settings_of(node: ThisNode, port: int = 0) -> NodeSettings:
    """Return what the configuration of this machine says.

    :param port: of the kubelet's endpoint; 0: it has none.
    :raises InvalidArgument: if a taint is invalid.
    """
    agent = node.config.agent
    hostname = {"type": "Hostname", "address": node.labels["kubernetes.io/hostname"]}

    def addresses() -> list[dict[str, str]]:
        return [*({"type": "InternalIP", "address": address} for address in node.addresses.look()), hostname]

    return NodeSettings(
        name=node.name,
        labels=registration.default_labels(node.labels) | agent.node_labels,
        taints=registration.taints(agent.register_with_taints),
        addresses=addresses,
        register=agent.register_node,
        update_s=agent.node_status_update_frequency,
        report_s=agent.node_status_report_frequency,
        lease_s=agent.node_lease_duration_seconds,
        port=port,
        classes=node.gates.enabled(CLASS_RESOURCES),
    )


class Sensors(FrozenStruct, kw_only=True):
    """Who knows what of the node; called at each look, and must not block."""

    capacity: Callable[[], Mapping[str, str]]
    allocatable: Callable[[], Mapping[str, str]]
    pressures: Callable[[], Collection[str]] = frozenset
    """Types of the conditions that are there: ``MemoryPressure`` and the like."""
    errors: Sequence[Callable[[], str]] = ()
    """Each returns why the node is not ready, in a kubelet's words; nothing if it is."""
    labelled: Callable[[Mapping[str, str]], None] = lambda _: None
    """Is told the Node's labels as the API has them, whenever they changed."""


class NodeReporter:
    """Of this node.

    :param note: is told why the API does not have the Node as it is; empty: it has.
    :ivar node: the Node as the API has it; empty before the first answer.
    """

    def __init__(
        self,
        client: Client,
        settings: NodeSettings,
        runtime: RuntimeState,
        sensors: Sensors,
        recorder: Recorder,
        note: Callable[[str], None],
    ) -> None:
        self._client, self._settings, self._note = client, settings, note
        self._runtime, self._sensors, self._recorder = runtime, sensors, recorder
        self._news = asyncio.Event()
        self._sent: Mapping[str, Any] = {}
        self._reported = float("-inf")
        self._delay = 0.0
        self._said = ""
        self._unschedulable = False
        self._was_ready = False
        self._info: dict[str, Any] | None = None
        self.node: Mapping[str, Any] = {}
        self.registered = asyncio.Event()
        self.reference = Reference(kind="Node", name=settings.name, uid=settings.name)
        """What events of the node are about; a kubelet gives its name for its UID."""

    def wake(self) -> None:
        """Have the status looked at now: something changed."""
        self._news.set()

    async def run(self) -> None:
        """Register, then report until cancelled."""
        await self._runtime.look()
        await self.register()
        lease = NodeLease(self._client, self._settings.name, self._settings.lease_s)
        own = Reflector(self._client, NODES, fields=f"metadata.name={self._settings.name}")
        async with Tasks("reporting the node") as tasks:
            tasks.keep(lease.run)
            tasks.keep(partial(own.run, self))
            while True:
                self._news.clear()
                await self._look()
                try:
                    async with asyncio.timeout(self._pause()):
                        await self._news.wait()
                except TimeoutError:
                    continue

    def _pause(self) -> float:
        """Return the seconds to the next look."""
        return self._settings.update_s if self._was_ready else min(_START_S, self._settings.update_s)

    # -- the Node, followed

    def replaced(self, items: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`podkeep.client.reflector.Handler`."""
        if items:
            self.changed(items[0])
        else:
            self.deleted({})

    def changed(self, item: Mapping[str, Any]) -> None:
        """See :class:`podkeep.client.reflector.Handler`."""
        self._know(item)
        ready = next((c for c in (item.get("status") or {}).get("conditions") or () if c.get("type") == READY), None)
        if ready is not None and ready.get("status") == "Unknown":
            # Somebody took this node for lost.
            self.wake()

    def deleted(self, item: Mapping[str, Any]) -> None:
        """See :class:`podkeep.client.reflector.Handler`: the Node is made again."""
        self.node = {}
        # Of the new Node nothing has been sent.
        self._sent = {}
        self.registered.clear()
        self.wake()

    def _know(self, node: Mapping[str, Any]) -> None:
        labels = (node.get("metadata") or {}).get("labels") or {}
        if labels != ((self.node.get("metadata") or {}).get("labels") or {}):
            self._sensors.labelled(labels)
        self.node = node
        unschedulable = bool((node.get("spec") or {}).get("unschedulable"))
        if unschedulable != self._unschedulable:
            self._unschedulable = unschedulable
            self._turned("NodeNotSchedulable" if unschedulable else "NodeSchedulable")

    # -- registration

    async def register(self) -> None:
        """Make the Node, or make the one that is there ours; try until it is done."""
        waits = doubling(_FIRST_S, _LONGEST_S)
        while True:
            if await self._registered():
                self.registered.set()
                return
            await asyncio.sleep(waits.next())

    async def _registered(self) -> bool:
        settings = self._settings
        facts = await self._facts()
        refused: ApiError | None = None
        try:
            if settings.register:
                made = report(facts, {}, {}, now=rfc3339.of_seconds(time.time()), due=True)
                status = {key: value for key, value in fields(facts).items() if value is not None}
                status["conditions"] = list(made.conditions.values)
                node = registration.new_node(settings.name, settings.labels, settings.taints, status)
                try:
                    self._know(await self._client.create(NODES, node))
                except ApiError as error:
                    # Who may not make Nodes may have one all the same (kubelet: tryRegisterWithAPIServer).
                    if not (error.already_exists or error.forbidden):
                        raise
                    refused = error
                else:
                    log.info("registered node %s", settings.name)
                    for reason in made.conditions.events:
                        self._turned(reason)
                    self._well()
                    return True
            await self._reconcile()
        except PodkeepError as error:
            is_missing = isinstance(error, ApiError) and error.not_found
            self._failed("registered", refused if refused is not None and is_missing else error)
            return False
        self._well()
        return True

    async def _reconcile(self) -> None:
        node = await self._client.get(NODES, self._settings.name)
        patch = registration.reconciled(node, self._settings.labels)
        if patch is not None:
            node = await self._client.patch(NODES, self._settings.name, patch)
        self._note_reboot(node)
        self._know(node)

    def _note_reboot(self, node: Mapping[str, Any]) -> None:
        before = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", "")
        now = procfs.boot_id()
        if before and before != now:
            name = self._settings.name
            message = f"Node {name} has been rebooted, boot id: {now}"
            self._recorder.event(self.reference, "Warning", "Rebooted", message)

    # -- status

    async def _facts(self) -> Facts:
        settings, runtime, sensors = self._settings, self._runtime, self._sensors
        if self._info is None or self._info["containerRuntimeVersion"] != runtime.version:
            architecture = settings.labels.get("kubernetes.io/arch", "")
            self._info = await asyncio.to_thread(system.node_info, runtime.version, architecture)
        errors = [*runtime.errors(), *filter(None, (sensor() for sensor in sensors.errors))]
        return Facts(
            capacity=sensors.capacity(),
            allocatable=sensors.allocatable(),
            addresses=settings.addresses(),
            node_info=self._info,
            port=settings.port,
            images=runtime.images,
            handlers=runtime.handlers,
            features=runtime.features,
            classes=runtime.classes if settings.classes else None,
            pressures=frozenset(sensors.pressures()),
            errors=tuple(errors),
        )

    async def _look(self) -> None:
        """Look at the node, and write what is to be written."""
        await self._runtime.look()
        if not self.registered.is_set():
            await self.register()
        facts = await self._facts()
        self._was_ready = self._was_ready or not with_missing(facts)
        try:
            if not self.node:
                self._know(await self._client.get(NODES, self._settings.name))
            due = time.monotonic() >= self._reported + self._settings.report_s + self._delay
            decided = report(facts, self.node, self._sent, now=rfc3339.of_seconds(time.time()), due=due)
            if decided.patch is not None:
                await self._write(decided, decided.patch)
        except PodkeepError as error:
            if isinstance(error, ApiError) and error.not_found and self._settings.register:
                self.deleted({})
            self._failed("reported", error)
        else:
            self._well()

    async def _write(self, decided: Report, patch: Mapping[str, Any]) -> None:
        first = self._reported == float("-inf")
        name = self._settings.name
        self._know(await self._client.patch(NODES, name, patch, subresource="status"))
        self._sent = decided.fields
        self._reported = time.monotonic()
        period = self._settings.report_s
        # Once after each change, as in a kubelet (delayAfterNodeStatusChange): nodes that see the same change at once
        # must not report in step from then on.
        self._delay = period * (2 * random.random() - 1) * SPREAD if decided.changed or first else 0.0
        for reason in decided.conditions.events:
            self._turned(reason)

    def _turned(self, reason: str) -> None:
        message = f"Node {self._settings.name} status is now: {reason}"
        self._recorder.event(self.reference, "Normal", reason, message)

    def _failed(self, what: str, error: PodkeepError) -> None:
        if error.message != self._said:
            log.warning("node %s cannot be %s: %s", self._settings.name, what, error)
            self._said = error.message
            self._note(f"the node cannot be {what}: {error.message}")

    def _well(self) -> None:
        if self._said:
            log.info("node %s is reported again", self._settings.name)
            self._said = ""
            self._note("")
