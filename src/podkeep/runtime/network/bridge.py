"""The built-in network: one bridge per machine; a cable, an address per family and host ports per pod.

Owns: the bridge, its addresses, the system settings it needs, and a pod's cable. Does not own: the nftables tables
(``rules.py``, ``port_filter.py``), which address a pod gets (``state.py``) or the namespace (``sandbox_executor.py``).
Everything blocks; the server calls it on threads.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from pathlib import Path

from podkeep.base import failpoints
from podkeep.base.config import NetworkConfig
from podkeep.base.errors import AlreadyExists, FailedPrecondition, Internal, InvalidArgument
from podkeep.base.ids import SandboxID
from podkeep.base.undo import UndoStack
from podkeep.kernel.network import listeners, netlink, routes
from podkeep.kernel.network.netlink import Endpoint
from podkeep.runtime.model.layout import veth_name
from podkeep.runtime.model.records import HostPort
from podkeep.runtime.network import ports, subnets
from podkeep.runtime.network.port_filter import PortFilter
from podkeep.runtime.network.ports import Forward
from podkeep.runtime.network.rules import Rules
from podkeep.runtime.network.subnets import Subnet

log = logging.getLogger(__name__)

INNER_NAME = "eth0"
_SYSCTL = Path("/proc/sys/net")
_MAX_ALIAS = 255
"""IFALIASZ without the closing NUL."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
"""Names that the kernel takes (15 bytes) and that are words of nft's language."""


class Bridge:
    """The bridge network of one runtime. Any thread may call anything."""

    def __init__(self, *, name: str, subnets: tuple[Subnet, ...], masquerade: bool, owner: str) -> None:
        self.name = name
        self.owner = owner
        """The mark (alias) of a bridge that this runtime made. Another one of the same name is neither used nor
        removed.
        """
        self.rules = Rules(name, masquerade=masquerade)
        self.ports = PortFilter(name)
        self._subnets = subnets
        self._former: tuple[Subnet, ...] = ()
        self._lock = threading.Lock()
        self._started = False

    @classmethod
    def from_config(cls, config: NetworkConfig, run: Path) -> Bridge:
        """Return the network that ``[network]`` describes, of the runtime whose run directory is ``run``.

        :raises InvalidArgument: if a subnet is none, or too small, or the bridge's name is none.
        """
        if not _NAME.fullmatch(config.bridge):
            raise InvalidArgument(
                f"network.bridge: {config.bridge!r} is no name of an interface",
                hint="use at most 15 letters, digits, '_', '.' and '-'",
            )
        owner = f"podkeep:{run}"
        if len(owner.encode(errors="surrogateescape")) > _MAX_ALIAS:
            owner = f"podkeep:{hashlib.sha256(bytes(run)).hexdigest()}"
        return cls(name=config.bridge, subnets=subnets.of_config(config), masquerade=config.masquerade, owner=owner)

    @property
    def subnets(self) -> tuple[Subnet, ...]:
        """Where a new pod gets its addresses from, one of each family at most."""
        return self._subnets

    def use_subnets(self, wanted: tuple[Subnet, ...], in_use: Sequence[str]) -> None:
        """Give new pods addresses of other subnets; those that are there keep theirs, and their router.

        :param in_use: addresses of pods.
        :raises FailedPrecondition: if the machine uses one of the subnets, or a pod has what is to be its router's
            address; nothing has changed then.
        :raises KernelCallError: if the kernel refuses the new router's address; likewise.
        :raises CommandFailed: if nft refuses the rules; likewise.
        """
        with self._lock:
            if wanted == self._subnets:
                return
            held = [ip_address(text) for text in in_use]
            for subnet in wanted:
                if subnets.router(subnet).ip in held:
                    raise FailedPrecondition(
                        f"{subnets.router(subnet).ip}, the router's address in {subnet}, is a pod's",
                        hint="stop the pods that have addresses of other subnets first",
                    )
            before = self._subnets, self._former
            # Pods that are there keep their addresses, and with them the router's address in their subnet.
            former = tuple(item for item in (*self._subnets, *self._former) if item not in wanted)
            with UndoStack() as undo:
                if self._started:
                    undo.push(f"take back the addresses of the bridge {self.name}", lambda: self._reset(wanted))
                    self._make(wanted)
                undo.push("use the subnets of before", lambda: self._use(*before))
                self._use(wanted, tuple(item for item in former if any(address in item for address in held)))
                if self._started:
                    self.rules.install(self._pods(in_use))
            if self._started:
                gone = [item for item in former if item not in self._former]
                for subnet in gone:
                    netlink.remove_address(self.name, subnets.router(subnet))
                if gone:
                    # The kernel has an IPv6 address once: an old one that differed from a new one in its length only
                    # took the new one with it.
                    self._make(wanted)

    def _use(self, wanted: tuple[Subnet, ...], former: tuple[Subnet, ...]) -> None:
        self._subnets, self._former = wanted, former

    def _reset(self, refused: tuple[Subnet, ...]) -> None:
        """Leave the bridge the routers' addresses that it had before others, some of which it may have got."""
        kept = (*self._subnets, *self._former)
        for subnet in refused:
            if subnet not in kept:
                netlink.remove_address(self.name, subnets.router(subnet))
        # As in use_subnets: what differs in its length only may have taken one with it.
        netlink.ensure_bridge(self.name, [subnets.router(item) for item in kept], self.owner)

    def start(
        self,
        forwards: Mapping[SandboxID, tuple[Forward, ...]],
        in_use: Sequence[str] = (),
        pods: Mapping[SandboxID, Sequence[str]] | None = None,
    ) -> None:
        """Make the bridge and its rules, or take those it made before, and let the machine forward.

        :param forwards: the host ports of the pods that are there.
        :param in_use: addresses of pods, also of those that are not connected.
        :param pods: the addresses of each pod that is connected.
        :raises AlreadyExists: if the name is that of a link which this runtime did not make.
        :raises FailedPrecondition: if the machine uses one of the subnets, by a route that is not the bridge's.
        :raises KernelCallError: if the kernel refuses the bridge.
        :raises CommandFailed: if nft refuses the rules.
        """
        with self._lock:
            self._start(forwards, in_use, pods or {})

    def _start(
        self,
        forwards: Mapping[SandboxID, tuple[Forward, ...]],
        in_use: Sequence[str],
        pods: Mapping[SandboxID, Sequence[str]],
    ) -> None:
        self._make(self._subnets)
        self.ports.install(pods)
        self.rules.install(self._pods(in_use), forwards)
        self._connect()
        self.open_loopback()
        self._started = True

    def _connect(self) -> None:
        """Connect the pods that are there, after the rules: somebody may have removed the bridge that they were on."""
        forwarded = self.rules.ports()
        netlink.connect_ports(self.name, {veth_name(item): item in forwarded for item in self.ports.pods()})

    def restore(self) -> bool:
        """Put the bridge and its addresses back, and return whether it was removed; see also :meth:`open_loopback`.

        :raises FailedPrecondition: if the machine uses one of the subnets by now.
        :raises KernelCallError: if the kernel refuses.
        """
        with self._lock:
            if not self._started:
                return False
            was_removed = self.name not in netlink.links()
            self._make(self._subnets)
            # Pods that were there before the subnets were changed have other routers.
            kept = (*self._subnets, *self._former)
            netlink.ensure_bridge(self.name, [subnets.router(item) for item in kept], self.owner)
            self._connect()
            return was_removed

    @property
    def routers(self) -> frozenset[IPv4Address | IPv6Address]:
        """The bridge's own addresses."""
        return frozenset(subnets.router(item).ip for item in (*self._subnets, *self._former))

    def _pods(self, in_use: Sequence[str]) -> list[Subnet]:
        """Return where pods' addresses are: in the subnets, and those of before that somebody still has."""
        held = [ip_address(text) for text in in_use]
        others = [item for item in held if not any(item in subnet for subnet in self._subnets)]
        return [*self._subnets, *(ip_network(item) for item in others)]

    def _make(self, wanted: tuple[Subnet, ...]) -> None:
        self._require_unused(wanted)
        netlink.ensure_bridge(self.name, [subnets.router(item) for item in wanted], self.owner)
        for family in sorted({item.version for item in wanted}):
            _forward(family)

    def _require_unused(self, wanted: tuple[Subnet, ...]) -> None:
        there = routes.read()
        mine = {route.network for route in there if route.link == self.name}
        for subnet in wanted:
            other = subnets.in_the_way(subnet, there, self.name)
            if other is None:
                continue
            way = f"the machine reaches {other.network} over {other.link or 'several links'}"
            if subnet in mine:
                log.warning("pods of %s may not be reached: %s as well", subnet, way)
                continue
            raise FailedPrecondition(
                f"the bridge {self.name} cannot have {subnet}: {way}",
                hint="set network.subnet (or subnet6) to what nothing else uses",
            )

    def stop(self) -> None:
        """Remove the bridge and its rules if this runtime made them; missing ones are no error."""
        with self._lock:
            # Not started, but there: the bridge that a killed runtime left.
            there = self._started or self.name in netlink.links()
            self._started = False
            if there and netlink.delete_bridge(self.name, self.owner):
                self.rules.drop()
                self.ports.drop()

    def close(self) -> None:
        """Give back what the daemon holds; the network stays."""
        self.ports.close()

    def attach(
        self, sandbox: SandboxID, netns: int, addresses: Sequence[str], host_ports: Sequence[HostPort] = ()
    ) -> None:
        """Connect a network namespace and give it its addresses, default routes and host ports.

        :raises AlreadyExists: if something on the machine listens on one of its host ports.
        :raises KernelCallError: if the kernel refuses; the cable is then to be removed by :meth:`detach`.
        :raises CommandFailed: if nft refuses the host ports; likewise.
        """
        forwards = ports.forwards(host_ports, addresses)
        _require_unused(forwards)
        with self._lock:
            # Until now pods were connected by CNI: this is the first one here.
            if not self._started:
                self._start({}, (), {})
        endpoints = [self._endpoint(text) for text in addresses]
        # Somebody may have set it back, as with all settings that are not in sysctl.d.
        for family in sorted({endpoint.address.version for endpoint in endpoints}):
            _forward(family)
        # Before the cable: the filter has to know the port when its first frame comes.
        self.ports.add(sandbox, addresses)
        netlink.create_veth(
            host_name=veth_name(sandbox),
            bridge=self.name,
            netns_fd=netns,
            inner_name=INNER_NAME,
            # The filter makes it of the address in the same way, before there is an interface (port_filter.port).
            mac=netlink.hardware_address(endpoints[0].address.ip),
            # A pod that calls its own host port gets the packet back by the port of the bridge that it came from.
            hairpin=bool(host_ports),
        )
        netlink.configure_inside(netns, INNER_NAME, endpoints)
        if host_ports:
            self.rules.add(sandbox, forwards)
            self.open_loopback()
            failpoints.reach("network.ports")

    def _endpoint(self, text: str) -> Endpoint:
        address = ip_address(text)
        for subnet in (*self._subnets, *self._former):
            if address in subnet:
                interface = ip_interface(f"{address}/{subnet.prefixlen}")
                return Endpoint(address=interface, gateway=subnets.router(subnet).ip)
        raise Internal(f"{address} is in no subnet of the bridge {self.name}")

    def detach(self, sandbox: SandboxID, addresses: Sequence[str], host_ports: Sequence[HostPort] = ()) -> None:
        """Remove a pod's host ports and cable; missing ones are no error."""
        try:
            if host_ports and addresses:
                self.rules.remove(sandbox, ports.forwards(host_ports, addresses))
        finally:
            netlink.delete_link(veth_name(sandbox))
            self.ports.remove(sandbox)

    def open_loopback(self) -> None:
        """Let answers to packets from 127.0.0.1 come in over the bridge; the rules are in place (``rules.py``).

        Not before there is a host port: without this setting the kernel drops what pods send to 127.0.0.0/8 by itself.
        """
        if self.rules.ports():
            _set(self._route_localnet, "1")

    def close_loopback(self) -> None:
        """Let nothing in over the bridge that is for 127.0.0.0/8: the rules that drop what pods send there are gone.

        Takes two system calls.
        """
        if self._route_localnet.exists():
            _set(self._route_localnet, "0")

    @property
    def _route_localnet(self) -> Path:
        return _SYSCTL / "ipv4/conf" / self.name / "route_localnet"


def _forward(family: int) -> None:
    """Let the machine forward; it goes on believing router advertisements where it did before."""
    if family == 4:
        _set(_SYSCTL / "ipv4/ip_forward", "1")
        return
    switch = _SYSCTL / "ipv6/conf/all/forwarding"
    try:
        forwards = switch.read_text().strip() != "0"
    except FileNotFoundError as error:
        raise FailedPrecondition(
            "network.subnet6: this kernel has no IPv6", hint="leave it empty, or boot without ipv6.disable=1"
        ) from error
    if forwards:
        return
    # 2: believed although the machine forwards. Otherwise it would lose its own default route with the next line.
    for path in (_SYSCTL / "ipv6/conf").glob("*/accept_ra"):
        if path.parent.name != "all" and path.read_text().strip() == "1":
            _set(path, "2")
    _set(switch, "1")


def _set(path: Path, value: str) -> None:
    try:
        if path.read_text().strip() != value:
            path.write_text(value)
    except OSError as error:
        raise FailedPrecondition(f"cannot set {path} to {value}: {error.strerror}") from error


def _require_unused(forwards: Iterable[Forward]) -> None:
    """Check that nothing on the machine listens where a pod would get the packets: the API, say, or a server of ssh.

    :raises AlreadyExists: naming the port.
    """
    for item in forwards:
        every = IPv4Address(0) if item.family == 4 else IPv6Address(0)
        if listeners.is_taken(item.protocol, item.port, item.address or every):
            raise AlreadyExists(
                f"host port {item.port}/{item.protocol} is taken: a program of the machine has it",
                hint=f"use another one, or another hostIP; `ss -lntup sport = {item.port}` shows which it is",
            )
