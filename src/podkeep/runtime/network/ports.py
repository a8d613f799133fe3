"""Host ports: what a request asks for, who has them already, and where their packets go. Pure.

Source of the rules: CRI, PortMapping; Kubernetes, ContainerPort (a host port belongs to one pod per address and
protocol, and the address of a port that names none is every one).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from podkeep.base.errors import AlreadyExists, InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import netloc
from podkeep.base.text.printable import quoted
from podkeep.runtime.model.records import HostPort, Sandbox

PROTOCOLS = ("tcp", "udp", "sctp")
MAX_PORT = 65535
MAX_HOST_PORTS = 4096
"""Of one pod. Each is an entry in a map of the kernel's, and compared with those of other pods in the event loop."""

Address = IPv4Address | IPv6Address
_Held = dict[tuple[str, int], dict[str, HostPort]]
"""Ports by protocol and number, then by address."""


class Forward(FrozenStruct, kw_only=True):
    """Packets to ``port`` go to ``target``:``target_port``; ``address`` None: whichever one they came to."""

    protocol: str
    address: Address | None
    port: int
    target: Address
    target_port: int

    @property
    def family(self) -> int:
        """4 or 6."""
        return self.target.version


def host_port(protocol: str, *, host_port: int, container_port: int, host_ip: str = "") -> HostPort:
    """Return a checked host port.

    :raises InvalidArgument: if a number is no port, or ``host_ip`` no address that packets can come to.
    """
    where = f"config.port_mappings: host port {host_port}"
    if protocol not in PROTOCOLS:
        raise InvalidArgument(f"{where}: protocol {protocol!r} is not one of {', '.join(PROTOCOLS)}")
    for name, number in (("host_port", host_port), ("container_port", container_port)):
        if not 1 <= number <= MAX_PORT:
            raise InvalidArgument(f"{where}: {name} {number} is not between 1 and {MAX_PORT}")
    if host_ip:
        host_ip = str(_host_address(where, host_ip))
    return HostPort(protocol=protocol, host_port=host_port, container_port=container_port, host_ip=host_ip)


def _host_address(where: str, text: str) -> Address:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise InvalidArgument(f"{where}: host_ip {quoted(text)} is no IP address") from error
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            # Packets to such an address are IPv4 packets.
            return address.ipv4_mapped
        if address.is_loopback or address.scope_id is not None:
            raise InvalidArgument(
                f"{where}: host_ip {text}: the kernel does not translate packets to it",
                hint="use 127.0.0.1, or an address of the machine",
            )
    if address.is_multicast:
        raise InvalidArgument(f"{where}: host_ip {text} is a multicast address")
    return address


def unique(ports: Iterable[HostPort]) -> tuple[HostPort, ...]:
    """Return the host ports of a pod, each once.

    :raises InvalidArgument: if two of them would get the same packets, or there are too many.
    """
    result: list[HostPort] = []
    held: _Held = {}
    for port in ports:
        same = held.setdefault((port.protocol, port.host_port), {})
        if same.get(port.host_ip) == port:
            continue
        if other := _overlapping(port, same):
            raise InvalidArgument(f"config.port_mappings: {words(port)} and {words(other)} are the same host port")
        same[port.host_ip] = port
        result.append(port)
        if len(result) > MAX_HOST_PORTS:
            raise InvalidArgument(f"config.port_mappings: a pod has at most {MAX_HOST_PORTS} host ports")
    return tuple(result)


def _overlapping(port: HostPort, same: Mapping[str, HostPort]) -> HostPort | None:
    """Return one of the ports of that protocol and number, by address, that a packet for ``port`` could belong to."""
    if port.host_ip and not ip_address(port.host_ip).is_unspecified:
        # As many look-ups as there are ways to say it: there may be thousands of addresses.
        every = "::" if ":" in port.host_ip else "0.0.0.0"
        return next((same[address] for address in (port.host_ip, "", every) if address in same), None)
    return next((other for other in same.values() if overlap(port, other)), None)


def overlap(one: HostPort, other: HostPort) -> bool:
    """Return whether a packet could belong to both."""
    if (one.protocol, one.host_port) != (other.protocol, other.host_port):
        return False
    if not one.host_ip or not other.host_ip:
        return True
    first, second = ip_address(one.host_ip), ip_address(other.host_ip)
    if first.version != second.version:
        return False
    return first == second or first.is_unspecified or second.is_unspecified


def require_free(ports: Sequence[HostPort], sandboxes: Iterable[Sandbox]) -> None:
    """Check that no sandbox of ``sandboxes`` that still has its network has one of ``ports``.

    :raises AlreadyExists: naming the port and the pod that has it.
    """
    if not ports:
        return
    wanted: _Held = {}
    for port in ports:
        wanted.setdefault((port.protocol, port.host_port), {})[port.host_ip] = port
    for sandbox in sandboxes:
        if sandbox.status.network is None:
            continue
        for taken in sandbox.config.host_ports:
            if mine := _overlapping(taken, wanted.get((taken.protocol, taken.host_port), {})):
                pod = f"{sandbox.config.namespace}/{sandbox.config.name}"
                raise AlreadyExists(
                    f"{words(mine)} is taken: pod {pod} (sandbox {sandbox.id}) has {words(taken)}",
                    hint="use another host port, or stop that pod first",
                )


def of_sandboxes(sandboxes: Iterable[Sandbox], protocol: str) -> frozenset[int]:
    """Return the numbers of the host ports of those that still have their network."""
    return frozenset(
        port.host_port
        for sandbox in sandboxes
        if sandbox.status.network is not None
        for port in sandbox.config.host_ports
        if port.protocol == protocol
    )


def forwards(ports: Iterable[HostPort], addresses: Sequence[str]) -> tuple[Forward, ...]:
    """Return where packets to host ports go, for a pod with these addresses.

    A port without a host address, and one with the unspecified address of a family, is that of every address of the
    machine, in the families that the pod has.

    :raises InvalidArgument: if a port's address is of a family that the pod has no address of.
    """
    # Reversed, so that of several addresses of a family the first one stays.
    targets = {address.version: address for address in reversed([ip_address(text) for text in addresses])}
    result = []
    for port in ports:
        wanted = ip_address(port.host_ip) if port.host_ip else None
        if wanted is not None and wanted.version not in targets:
            raise InvalidArgument(
                f"config.port_mappings: {words(port)}: pods have no IPv{wanted.version} address",
                hint="set network.subnet6, or leave host_ip empty" if wanted.version == 6 else "leave host_ip empty",
            )
        for family, target in sorted(targets.items()):
            if wanted is None or wanted.version == family:
                result.append(
                    Forward(
                        protocol=port.protocol,
                        address=None if wanted is None or wanted.is_unspecified else wanted,
                        port=port.host_port,
                        target=target,
                        target_port=port.container_port,
                    )
                )
    return tuple(result)


def words(port: HostPort) -> str:
    """Return a host port as a reader would write it."""
    address = netloc.bracketed(port.host_ip)
    return f"host port {address}{':' if address else ''}{port.host_port}/{port.protocol}"
