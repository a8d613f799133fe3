"""Links, addresses and routes of the built-in bridge network.

Owns: the rtnetlink requests, encoded by pyroute2's message classes and exchanged over a plain socket. pyroute2's own
socket classes are not used: their synchronous form runs an event loop underneath, which costs milliseconds per attach
and gets in the way of a process that has an event loop of its own. A plain socket costs 20 microseconds, so each call
opens one; there is no shared state, and any thread may call anything. Does not own: which names and addresses
are used (``runtime``).

Every function acts in the network namespace of the calling thread, except where it is given a descriptor of one.
"""

from __future__ import annotations

import errno
import secrets
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from pathlib import Path
from typing import Any

from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from podkeep.base.errors import AlreadyExists, Internal, InvalidArgument, KernelCallError, NotFound
from podkeep.kernel.namespaces import run_in_netns

MAX_NAME_BYTES = 15
"""IFNAMSIZ without the closing NUL."""

_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_RTM_NEWADDR, _RTM_DELADDR, _RTM_NEWROUTE = 20, 21, 24
_IFA_F_NODAD = 0x02
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_ACK_TLVS = 0x1, 0x4, 0x200
_NLM_F_REPLACE, _NLM_F_EXCL, _NLM_F_CREATE = 0x100, 0x200, 0x400
_NLMSG_ERROR = 2
_NLMSGERR_ATTR_MSG = 1
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_IFF_UP = 0x1
_RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_UNIVERSE, _RTN_UNICAST = 254, 4, 0, 1
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVE_BYTES = 64 * 1024
_MIN_OWN_INDEX = 1 << 30
"""The kernel counts interface indexes from 1; from here on there are none but those that somebody asked for."""

Interface = IPv4Interface | IPv6Interface
"""An address with the prefix of its subnet."""
Address = IPv4Address | IPv6Address


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A message, and the words for it in an error."""

    words: str
    type: int
    message: Any
    flags: int = 0


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An address of a pod, and the router of its subnet."""

    address: Interface
    gateway: Address


@dataclass(frozen=True, kw_only=True)
class _Link:
    index: int
    kind: str
    """Empty for what is no virtual device."""
    alias: str


def ensure_bridge(name: str, gateways: Sequence[Interface], owner: str) -> None:
    """Make sure that bridge ``name`` exists, has the addresses ``gateways`` and is up; safe to repeat and to race.

    Its hardware address is derived from the first one: otherwise it would change with the ports that come and go.
    Router advertisements of pods are not believed.

    :param owner: the bridge's alias (``ip link`` shows it); a bridge with another one, or none, is somebody else's.
    :raises AlreadyExists: if a link of another kind, or of another owner, has this name; it is left as it is.
    :raises KernelCallError: if the kernel refuses.
    """
    _check_name(name)
    with _connected() as channel:
        try:
            _exchange(channel, _bridge_requests(name, gateways[0], owner))
        except KernelCallError as error:
            if error.errno != errno.EEXIST:
                raise
            link = _link(channel, name)
            if link.kind != "bridge":
                raise AlreadyExists(
                    f"network link {name} exists and is not a bridge but {link.kind or 'a device'}",
                    hint="set another name as network.bridge",
                ) from error
            if link.alias != owner:
                words = f"is marked {link.alias!r}" if link.alias else "has no mark"
                raise AlreadyExists(
                    f"network link {name} is not ours: it {words}, not {owner!r}",
                    hint=f"set another name as network.bridge, or `ip link delete {name}` if nothing needs it",
                ) from error
        index = _index(name)
        _ignore_router_advertisements(name)
        _enable_ipv6(name, gateways)
        addresses = [_address_request(name, index, gateway) for gateway in gateways]
        _exchange(channel, [*addresses, _up_request(name, index)])


def _bridge_requests(name: str, gateway: Interface, owner: str) -> list[_Request]:
    """Return what creates a marked bridge.

    A new link takes no alias. So that no kill can come between, both messages go in one packet, which the kernel works
    off in one system call; so that the second never marks a bridge that was there, it names the link by an index which
    only the first one gives.
    """
    index = _MIN_OWN_INDEX + secrets.randbelow(_MIN_OWN_INDEX)
    attributes = [
        ("IFLA_IFNAME", name),
        ("IFLA_ADDRESS", hardware_address(gateway.ip)),
        ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "bridge")]}),
    ]
    flags = _NLM_F_CREATE | _NLM_F_EXCL
    create = _link_request(f"create bridge {name}", attributes, flags=flags, index=index)
    mark = _link_request(f"mark bridge {name}", [("IFLA_IFALIAS", owner)], index=index)
    return [create, mark]


def delete_bridge(name: str, owner: str) -> bool:
    """Delete the bridge that :func:`ensure_bridge` made for ``owner``; a missing one is no error.

    :returns: whether no such link is left; False if one of this name is somebody else's, which stays.
    :raises KernelCallError: if the kernel refuses.
    """
    _check_name(name)
    with _connected() as channel:
        try:
            link = _link(channel, name)
        except NotFound:
            return True
        if (link.kind, link.alias) != ("bridge", owner):
            return False
        _delete(channel, _link_request(f"delete bridge {name}", [], kind=_RTM_DELLINK, index=link.index))
    return True


def delete_link(name: str) -> None:
    """Delete the link ``name`` (of a veth pair: both ends); a missing one is no error.

    :raises KernelCallError: if the kernel refuses.
    """
    _check_name(name)
    with _connected() as channel:
        _delete(channel, _link_request(f"delete link {name}", [("IFLA_IFNAME", name)], kind=_RTM_DELLINK))


def _delete(channel: socket.socket, request: _Request) -> None:
    try:
        _exchange(channel, [request])
    except KernelCallError as error:
        if error.errno != errno.ENODEV:
            raise


def links(prefix: str = "") -> list[str]:
    """Return the names of the links that start with ``prefix``, sorted."""
    return sorted(name for _, name in socket.if_nameindex() if name.startswith(prefix))


def remove_address(name: str, address: Interface) -> None:
    """Take an address from the link ``name``; a missing one is no error.

    :raises NotFound: if there is no such link.
    :raises KernelCallError: if the kernel refuses.
    """
    request = _address_request(name, _index(name), address, kind=_RTM_DELADDR)
    with _connected() as channel:
        try:
            _exchange(channel, [request])
        except KernelCallError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise


def create_veth(
    *, host_name: str, bridge: str, netns_fd: int, inner_name: str, mac: str | None = None, hairpin: bool = False
) -> None:
    """Create a veth pair: one end a port of ``bridge`` and up, the other straight in the namespace ``netns_fd``.

    :param mac: hardware address of the inner end, as six hex pairs with colons; default: a random one.
    :param hairpin: let packets leave the bridge through the port that they came from.
    :raises NotFound: if the bridge does not exist.
    :raises KernelCallError: if the kernel refuses (EEXIST: one of the names is taken); nothing is left behind.
    """
    _check_name(host_name)
    _check_name(inner_name)
    peer: list[tuple[str, object]] = [("IFLA_IFNAME", inner_name), ("IFLA_NET_NS_FD", netns_fd)]
    if mac is not None:
        peer.append(("IFLA_ADDRESS", mac))
    # The peer cannot be up yet: veth opens a device only when its other half exists.
    peer_info = {"attrs": peer}
    attributes: Sequence[tuple[str, object]] = [
        ("IFLA_IFNAME", host_name),
        ("IFLA_MASTER", _index(bridge)),
        (
            "IFLA_LINKINFO",
            {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer_info)]})]},
        ),
    ]
    words = f"create veth {host_name} on {bridge} with {inner_name} in network namespace fd {netns_fd}"
    requests = [_link_request(words, attributes, flags=_NLM_F_CREATE | _NLM_F_EXCL, up=True)]
    if hairpin:
        requests.append(_hairpin_request(host_name))
    with _connected() as channel:
        _exchange(channel, requests)


def _hairpin_request(name: str) -> _Request:
    port = [("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", {"attrs": [("IFLA_BRPORT_MODE", 1)]})]
    attributes: Sequence[tuple[str, object]] = [("IFLA_IFNAME", name), ("IFLA_LINKINFO", {"attrs": port})]
    return _link_request(f"set hairpin mode of {name}", attributes)


def configure_inside(netns_fd: int, ifname: str, endpoints: Sequence[Endpoint]) -> None:
    """Set ``ifname`` in the namespace ``netns_fd`` up, with its addresses and default routes; safe to repeat.

    Another pod's router advertisements are not believed (CVE-2020-10749).

    :raises NotFound: if there is no such link in the namespace.
    :raises KernelCallError: if the kernel refuses.
    """
    _check_name(ifname)

    def body() -> None:
        index = _index(ifname)
        _ignore_router_advertisements(ifname)
        _enable_ipv6(ifname, [endpoint.address for endpoint in endpoints])
        requests = [_up_request(ifname, index)]
        for endpoint in endpoints:
            requests.append(_address_request(ifname, index, endpoint.address))
            requests.append(_default_route_request(ifname, index, endpoint.gateway))
        with _connected() as channel:
            _exchange(channel, requests)

    run_in_netns(netns_fd, body)


def _default_route_request(ifname: str, index: int, gateway: Address) -> _Request:
    route = rtmsg()
    for key, value in (
        ("family", _family(gateway)),
        ("table", _RT_TABLE_MAIN),
        ("proto", _RTPROT_STATIC),
        ("scope", _RT_SCOPE_UNIVERSE),
        ("type", _RTN_UNICAST),
    ):
        route[key] = value
    route["attrs"] = [("RTA_GATEWAY", str(gateway)), ("RTA_OIF", index)]
    words = f"route default via {gateway} dev {ifname}"
    return _Request(words=words, type=_RTM_NEWROUTE, message=route, flags=_NLM_F_CREATE | _NLM_F_REPLACE)


def _ignore_router_advertisements(ifname: str) -> None:
    """Switch them off for a link in the network namespace of the calling thread; a kernel without IPv6 has none."""
    path = Path(f"/proc/sys/net/ipv6/conf/{ifname}/accept_ra")
    try:
        path.write_text("0")
    except FileNotFoundError:
        return
    except OSError as error:
        raise KernelCallError(f"write({str(path)!r}, '0')", error.errno or 0) from error


def _enable_ipv6(ifname: str, addresses: Sequence[Interface]) -> None:
    """Switch it on for a link that is to have an IPv6 address: the machine, or a pod's sysctl, may have it off."""
    if all(address.version == 4 for address in addresses):
        return
    path = Path(f"/proc/sys/net/ipv6/conf/{ifname}/disable_ipv6")
    try:
        if path.read_text().strip() != "0":
            path.write_text("0")
    except OSError as error:
        raise KernelCallError(f"write({str(path)!r}, '0')", error.errno or 0) from error


def hardware_address(address: Address) -> str:
    """Return a locally administered hardware address that ends like ``address`` (the convention of CNI's plugins)."""
    return "0a:58:" + ":".join(f"{byte:02x}" for byte in address.packed[-4:])


def _link_request(
    words: str,
    attributes: Sequence[tuple[str, object]],
    *,
    kind: int = _RTM_NEWLINK,
    flags: int = 0,
    index: int = 0,
    up: bool = False,
) -> _Request:
    message = ifinfmsg()
    message["index"] = index
    if up:
        message["flags"] = message["change"] = _IFF_UP
    message["attrs"] = list(attributes)
    return _Request(words=words, type=kind, message=message, flags=flags)


def _up_request(name: str, index: int) -> _Request:
    return _link_request(f"set {name} up", [], index=index, up=True)


def _family(address: Interface | Address) -> int:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def _address_request(name: str, index: int, address: Interface, kind: int = _RTM_NEWADDR) -> _Request:
    message = ifaddrmsg()
    message["family"] = _family(address)
    if address.version == 6:
        # Nobody else can have it: waiting a second for an objection is for nothing.
        message["flags"] = _IFA_F_NODAD
    message["prefixlen"] = address.network.prefixlen
    message["index"] = index
    message["attrs"] = [("IFA_LOCAL", str(address.ip)), ("IFA_ADDRESS", str(address.ip))]
    if kind == _RTM_DELADDR:
        return _Request(words=f"remove address {address} from {name}", type=kind, message=message)
    flags = _NLM_F_CREATE | _NLM_F_REPLACE
    return _Request(words=f"add address {address} to {name}", type=kind, message=message, flags=flags)


def _connected() -> socket.socket:
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK):
        with suppress(OSError):  # before Linux 4.12; errors are then numbers without words
            channel.setsockopt(_SOL_NETLINK, option, 1)
    channel.settimeout(5.0)
    return channel


def _exchange(channel: socket.socket, requests: Iterable[_Request]) -> None:
    """Send the requests together and wait for the answer to each; the first refusal is raised after the last answer."""
    waiting = {}
    packet = b""
    for sequence, request in enumerate(requests, start=1):
        waiting[sequence] = request
        packet += _encode(request, sequence, _NLM_F_REQUEST | _NLM_F_ACK | request.flags)
    _send(channel, packet)
    failure: KernelCallError | None = None
    while waiting:
        for kind, flags, sequence, payload in _receive(channel):
            if kind != _NLMSG_ERROR or sequence not in waiting:
                raise Internal(
                    f"netlink answered with message type {kind}, sequence {sequence}; an answer was expected"
                )
            request = waiting.pop(sequence)
            if (number := -struct.unpack_from("=i", payload)[0]) and failure is None:
                hint = _extended_text(payload) if flags & _NLM_F_ACK_TLVS else ""
                failure = KernelCallError(f"netlink({request.words})", number, hint=hint)
    if failure is not None:
        raise failure


def _encode(request: _Request, sequence: int, flags: int) -> bytes:
    message = request.message
    message["header"]["type"] = request.type
    message["header"]["flags"] = flags
    message["header"]["sequence_number"] = sequence
    message.encode()
    return bytes(message.data)


def _send(channel: socket.socket, packet: bytes) -> None:
    try:
        channel.sendto(packet, (0, 0))
    except OSError as error:
        raise KernelCallError("sendto(netlink)", error.errno or 0) from error


def _receive(channel: socket.socket) -> list[tuple[int, int, int, bytes]]:
    try:
        data = channel.recv(_RECEIVE_BYTES)
    except OSError as error:
        raise KernelCallError("recv(netlink)", error.errno or errno.ETIMEDOUT) from error
    messages = []
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        messages.append((kind, flags, sequence, data[offset + _HEADER.size : offset + length]))
        offset += (length + 3) & ~3
    return messages


def _extended_text(payload: bytes) -> str:
    offset = 4 + _HEADER.size
    while offset + _ATTRIBUTE.size <= len(payload):
        length, kind = _ATTRIBUTE.unpack_from(payload, offset)
        if kind == _NLMSGERR_ATTR_MSG:
            return payload[offset + _ATTRIBUTE.size : offset + length].rstrip(b"\0").decode(errors="replace")
        offset += max((length + 3) & ~3, _ATTRIBUTE.size)
    return ""


def _link(channel: socket.socket, name: str) -> _Link:
    """Return what the kernel says of a link.

    :raises NotFound: if there is none of this name.
    """
    request = _link_request(f"get link {name}", [("IFLA_IFNAME", name)], kind=_RTM_GETLINK)
    _send(channel, _encode(request, 1, _NLM_F_REQUEST))
    for kind, _, _, payload in _receive(channel):
        if kind == _RTM_NEWLINK:
            header = _HEADER.pack(_HEADER.size + len(payload), kind, 0, 1, 0)
            message = ifinfmsg(header + payload)
            message.decode()
            info = message.get_attr("IFLA_LINKINFO")
            return _Link(
                index=int(message["index"]),
                kind=str(info.get_attr("IFLA_INFO_KIND")) if info is not None else "",
                alias=str(message.get_attr("IFLA_IFALIAS") or ""),
            )
    raise NotFound(f"network link {name} is gone")


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError as error:
        raise NotFound(f"there is no network link {name}") from error


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES or "/" in name or any(character.isspace() for character in name):
        raise InvalidArgument(f"{name!r} is not a link name: 1 to {MAX_NAME_BYTES} bytes without '/' or spaces")
