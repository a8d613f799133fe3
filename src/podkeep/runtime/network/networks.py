"""Which network a pod gets: the one interface in front of the built-in bridge and CNI.

Owns: the choice (``[network] mode``), what of it is noted in a sandbox's record, and that the maker of a network undoes
it, whatever is chosen by then. Does not own: how either is made (``bridge.py``, ``cni/``).

    plan      on the event loop, before the record is written: addresses and host ports are reserved
    attach    on a thread; returns the status with the addresses
    detach    on a thread; safe to repeat, also for what was never attached
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.config import NetworkConfig
from podkeep.base.errors import PodkeepError, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import SandboxID
from podkeep.kernel.namespace import namespaces
from podkeep.kernel.namespace.namespaces import NamespaceKind
from podkeep.kernel.network import netlink, nfnetlink
from podkeep.runtime.model.layout import Layout, sandbox_cgroup
from podkeep.runtime.model.records import (
    NamespaceMode,
    NetworkAttachment,
    NetworkMaker,
    Sandbox,
    SandboxConfig,
    SandboxState,
    SandboxStatus,
)
from podkeep.runtime.model.state import State
from podkeep.runtime.network import ports
from podkeep.runtime.network.bridge import Bridge
from podkeep.runtime.network.cni.network import CniNetwork, Pod
from podkeep.runtime.network.subnets import of_pod_cidr, text

log = logging.getLogger(__name__)

NOT_READY = "NetworkPluginNotReady"
"""The reason that the kubelet and people know."""
_PAUSE_S = 0.1
"""After what somebody removed was put back: who removes it again and again is not followed as fast as that goes."""


class Condition(FrozenStruct, kw_only=True):
    """Whether pods can get a network now; CRI: RuntimeCondition."""

    ready: bool
    reason: str = ""
    message: str = ""


class Networks:
    """The networks of one runtime."""

    def __init__(self, config: NetworkConfig, layout: Layout, state: State) -> None:
        """:raises InvalidArgument: if the bridge's settings contradict themselves."""
        self._mode = config.mode
        self._configured = f"{config.subnet},{config.subnet6}"
        self._layout = layout
        self._watches: list[nfnetlink.TableWatch | netlink.LinkWatch] = []
        self._tasks = Tasks("restoring the network")
        self._removed = self._restoring = False
        """Something was removed that is not looked at yet; a task looks."""
        self._state = state
        self.bridge = Bridge.from_config(config, layout.run)
        self._own_subnets = self.bridge.subnets
        """Those of the configuration."""
        self.cni = CniNetwork(
            Path(config.cni_conf_dir), tuple(Path(item) for item in config.cni_plugin_dirs), config.cni_timeout
        )

    def start(self) -> None:
        """Put in place what the pods that are there need, and what the next one will; once, after the recovery.

        :raises PodkeepError: if the bridge cannot be made.
        """
        configured, pod_cidr = self._state.pod_cidr
        # What a client told counts until the configured subnets are changed.
        if pod_cidr and configured == self._configured:
            self.bridge.use_subnets(of_pod_cidr(pod_cidr, self._own_subnets), self._state.addresses())
        mine = [item for item in self._state.sandboxes() if _maker(item) is NetworkMaker.BRIDGE]
        # Pods that the bridge connected keep it, also when new ones are connected by CNI.
        if mine or self.chosen() is NetworkMaker.BRIDGE:
            self.bridge.start(
                {
                    item.id: ports.forwards(item.config.host_ports, addresses(item.status))
                    for item in mine
                    if item.config.host_ports
                },
                self._state.addresses(),
                {item.id: addresses(item.status) for item in mine if item.status.address},
            )
        if self.chosen() is NetworkMaker.CNI:
            self.cni.collect_garbage(self._attached())

    def watch(self) -> None:
        """Put the bridge and its rules back when somebody removes them; called once on the event loop.

        :raises KernelCallError: if the kernel does not tell.
        """
        loop = asyncio.get_running_loop()
        tables = nfnetlink.TableWatch()
        self._watches.append(tables)
        loop.add_reader(tables.fileno(), self._rules_changed, tables)
        links = netlink.LinkWatch()
        self._watches.append(links)
        loop.add_reader(links.fileno(), self._links_changed, links)

    def close(self) -> None:
        """End the watches; networks stay."""
        while self._watches:
            watch = self._watches.pop()
            asyncio.get_running_loop().remove_reader(watch.fileno())
            watch.close()
        self.bridge.close()

    def _rules_changed(self, watch: nfnetlink.TableWatch) -> None:
        rules, filter_ = self.bridge.rules.table, self.bridge.ports.table
        if watch.was_removed((nfnetlink.INET, rules), (nfnetlink.BRIDGE, filter_)):
            # At once, and here: until nft has run, nothing else keeps pods from the machine's loopback.
            try:
                self.bridge.close_loopback()
            except PodkeepError as error:
                log.warning("the bridge %s: %s", self.bridge.name, error)
            self._restore_soon()

    def _links_changed(self, watch: netlink.LinkWatch) -> None:
        if watch.was_removed(self.bridge.name, self.bridge.routers):
            self._restore_soon()

    def _restore_soon(self) -> None:
        self._removed = True
        if not self._restoring:
            self._restoring = True
            self._tasks.start(self._restore())

    async def _restore(self) -> None:
        try:
            while self._removed:
                self._removed = False
                await self._restore_all()
                await asyncio.sleep(_PAUSE_S)
        finally:
            self._restoring = False

    async def _restore_all(self) -> None:
        bridge = self.bridge
        # The bridge last: pods are on it as soon as it is there.
        has_rules = await _is_back(f"the nftables table inet {bridge.rules.table}", bridge.rules.restore)
        await _is_back(f"the nftables table bridge {bridge.ports.table}", bridge.ports.restore)
        if await _is_back(f"the bridge {bridge.name}", bridge.restore) and has_rules:
            await _is_back(f"127.0.0.1 on the bridge {bridge.name}", bridge.open_loopback)

    async def check_all(self) -> None:
        """Let CNI plugins look at the pods that were there when the daemon started, and log what is not as it was.

        Nothing else comes of it: the pod's own probes say whether it can do without.
        """
        for sandbox_id in [item.id for item in self._state.sandboxes()]:
            sandbox = self._state.find_sandbox(sandbox_id)
            if sandbox is None or sandbox.status.state is not SandboxState.READY:
                continue
            try:
                await asyncio.to_thread(self.check, sandbox)
            except PodkeepError as error:
                # Records are replaced with each change: if it is another one, the pod was stopped or removed while
                # plugins looked.
                if self._state.find_sandbox(sandbox_id) is sandbox:
                    log.warning("the network of sandbox %s is not as it was made: %s", sandbox_id, error)

    def stop(self) -> None:
        """Remove what serves all pods; called when there are none."""
        self.bridge.stop()

    def chosen(self) -> NetworkMaker:
        """Return what connects the next pod."""
        if self._mode == "auto":
            # A file counts that is not valid, too: a pod must not get another network because of a mistake in it.
            return NetworkMaker.CNI if self.cni.has_files() else NetworkMaker.BRIDGE
        return NetworkMaker(self._mode)

    def condition(self) -> Condition:
        """Return whether the next pod can get a network. Blocks: it may ask CNI plugins (CNI 1.1.0, STATUS)."""
        if self.chosen() is NetworkMaker.BRIDGE:
            return Condition(ready=True)
        try:
            self.cni.require_ready()
        except PodkeepError as error:
            return Condition(ready=False, reason=NOT_READY, message=f"Network plugin returns error: {error}")
        return Condition(ready=True)

    def describe(self) -> dict[str, object]:
        """Return what a person wants to know of the network when a pod has none."""
        return {
            "mode": self._mode,
            "chosen": self.chosen().value,
            "subnets": [str(item) for item in self.bridge.subnets],
            "cni": self.cni.describe(),
        }

    def use_pod_cidr(self, pod_cidr: str) -> None:
        """Give new pods of the bridge addresses of the kubelet's choice, also after a restart.

        A family that it does not name keeps its configured subnet. It holds until ``[network] subnet`` or ``subnet6``
        is changed. Runs on the event loop's thread, so that no pod gets an address in between;
        takes a few system calls.

        :raises InvalidArgument: if it is no CIDR, or not one of each family.
        :raises KernelCallError: if the kernel refuses the bridge's address.
        """
        if not pod_cidr:
            return
        subnets = of_pod_cidr(pod_cidr, self._own_subnets)
        if subnets == self.bridge.subnets:
            return
        self.bridge.use_subnets(subnets, self._state.addresses())
        # Only now: a subnet that the bridge refused must not be used by the next start.
        self._state.note_pod_cidr(self._configured, text(subnets))
        log.info("new pods get addresses of %s", text(subnets))

    # a sandbox's network

    def plan(self, sandbox_id: SandboxID, config: SandboxConfig, status: SandboxStatus) -> SandboxStatus:
        """Reserve a sandbox's addresses and host ports and note who connects it; to be stored before :meth:`attach`.

        Runs on the event loop's thread. Addresses are given back by ``State.free_address``.

        :raises Unavailable: if there is no network to connect it to.
        :raises AlreadyExists: if another pod has one of its host ports.
        :raises InvalidArgument: if its host ports or annotations cannot be served.
        :raises ResourceExhausted: if no address is free.
        """
        if config.namespaces.network is not NamespaceMode.POD:
            return status
        ports.require_free(config.host_ports, self._state.sandboxes())
        if self.chosen() is NetworkMaker.CNI:
            found = self.cni.plan(config)
            return msgspec.structs.replace(status, network=NetworkAttachment(made_by=NetworkMaker.CNI, cni_list=found))
        first, *more = (self._state.take_address(sandbox_id, subnet) for subnet in self.bridge.subnets)
        # For its errors alone: what cannot be forwarded is refused before there is a record.
        ports.forwards(config.host_ports, [first, *more])
        return msgspec.structs.replace(status, address=first, more_addresses=tuple(more), network=NetworkAttachment())

    def attach(self, sandbox: Sandbox, netns: int) -> SandboxStatus:
        """Connect a sandbox whose network namespace is behind ``netns`` and pinned; return its status with addresses.

        :raises AlreadyExists: if something on the machine listens on one of its host ports.
        :raises PodkeepError: if that fails; :meth:`detach` then removes what was made.
        """
        status = sandbox.status
        network = status.network
        if network is None:
            raise Unavailable(f"pod sandbox {sandbox.id} was given no network")
        if network.made_by is NetworkMaker.BRIDGE:
            self.bridge.attach(sandbox.id, netns, addresses(status), sandbox.config.host_ports)
            return status
        result, found = self.cni.attach(network.cni_list, self._pod(sandbox))
        return msgspec.structs.replace(
            status,
            address=found[0] if found else "",
            more_addresses=tuple(found[1:]),
            network=msgspec.structs.replace(network, cni_result=result),
        )

    def detach(self, sandbox: Sandbox) -> None:
        """Disconnect a sandbox; safe to repeat.

        :raises PodkeepError: if a plugin, nft or the kernel refuses.
        """
        if sandbox.config.namespaces.network is not NamespaceMode.POD:
            return
        network = sandbox.status.network
        if network is not None and network.made_by is NetworkMaker.CNI:
            self.cni.detach(network.cni_list, network.cni_result, self._pod(sandbox))
            return
        host_ports = sandbox.config.host_ports if network is not None else ()
        self.bridge.detach(sandbox.id, addresses(sandbox.status), host_ports)

    def check(self, sandbox: Sandbox) -> None:
        """Check that a sandbox's network is as it was made (CNI 0.4.0, CHECK); the bridge's is not looked at.

        :raises PodkeepError: saying what a plugin missed.
        """
        network = sandbox.status.network
        if network is not None and network.made_by is NetworkMaker.CNI:
            self.cni.check(network.cni_list, network.cni_result, self._pod(sandbox))

    def _pod(self, sandbox: Sandbox) -> Pod:
        pin = self._layout.namespace_pin(sandbox.id, NamespaceKind.NET)
        return Pod(
            id=sandbox.id,
            config=sandbox.config,
            # A file that nothing is mounted on is no namespace; CNI: "DEL may be called without one".
            netns=str(pin) if namespaces.is_pinned(pin) else "",
            cgroup=sandbox_cgroup(sandbox.config.cgroup_parent, sandbox.id),
        )

    def _attached(self) -> Iterable[tuple[SandboxID, str]]:
        for sandbox in self._state.sandboxes():
            network = sandbox.status.network
            if network is not None and network.made_by is NetworkMaker.CNI:
                yield sandbox.id, network.cni_list


async def _is_back(what: str, restore: Callable[[], bool | None]) -> bool:
    """Restore something; return whether it is there, and log what was not."""
    try:
        if await asyncio.to_thread(restore):
            log.warning("somebody removed %s; it is back", what)
    except PodkeepError as error:
        log.warning("%s is gone: %s", what, error)
        return False
    return True


def addresses(status: SandboxStatus) -> tuple[str, ...]:
    """Return all addresses of a sandbox, the first one first."""
    return (status.address, *status.more_addresses) if status.address else ()


def _maker(sandbox: Sandbox) -> NetworkMaker | None:
    """Return what connected a sandbox that still has its network."""
    status = sandbox.status
    if status.network is not None:
        return status.network.made_by
    # A record of before there was a choice.
    return NetworkMaker.BRIDGE if status.address and status.state is SandboxState.READY else None
