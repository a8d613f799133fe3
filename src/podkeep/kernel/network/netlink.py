"""Links, addresses and routes of the built-in bridge network.

Owns: the rtnetlink requests (rtnetlink(7), linux/if_link.h) and their exchange over a plain socket. A socket costs 20
microseconds, so each call opens one; there is no shared state, and any thread may call anything. Does not own: framing
(``nlmsg``), which names and addresses are used (``runtime``). The tests compare the requests with pyroute2's, which
itself is not used: it would be a tenth of the daemon's start, and its sockets run an event loop of their own.

Every function acts in the network namespace of the calling thread, except where it is given a descriptor of one.
"""

from __future__ import annotations

import errno
import secrets
import socket
import struct
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address
from pathlib import Path

from podkeep.base.errors import AlreadyExists, Internal, InvalidArgument, KernelCallError, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.namespace.namespaces import run_in_netns
from podkeep.kernel.network import nlmsg
from podkeep.kernel.tables import read_text

MAX_NAME_BYTES = 15
"""IFNAMSIZ without the closing NUL."""

_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_RTM_NEWADDR, _RTM_DELADDR, _RTM_NEWROUTE = 20, 21, 24
_RTNLGRP_LINK, _RTNLGRP_IPV4_IFADDR, _RTNLGRP_IPV6_IFADDR = 1, 5, 9
_IFA_F_NODAD = 0x02
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_IFALIAS, _IFLA_NET_NS_FD = 1, 3, 10, 18, 20, 28
_IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES = 31, 32
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _IFLA_INFO_SLAVE_KIND, _IFLA_INFO_SLAVE_DATA = 1, 2, 4, 5
_VETH_INFO_PEER, _IFLA_BRPORT_MODE, _IFLA_BR_MCAST_SNOOPING, _IFLA_BR_MULTI_BOOLOPT = 1, 4, 23, 46
_NO_LL_LEARN = 1
"""The option of bridges (linux/if_bridge.h, BR_BOOLOPT_NO_LL_LEARN) as a bit."""
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_OIF, _RTA_GATEWAY = 4, 5
_IFF_UP = 0x1
_RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_UNIVERSE, _RTN_UNICAST = 254, 4, 0, 1
_LINK = struct.Struct("=BxHiII")
"""struct ifinfomsg: family, device type, index, flags, which of them are meant."""
_ADDRESS = struct.Struct("=BBBBI")
"""struct ifaddrmsg: family, prefix, flags, scope, index of the link."""
_ROUTE = struct.Struct("=BBBBBBBBI")
"""struct rtmsg: family, prefixes of destination and source, type of service, table, protocol, scope, type, flags."""
_MARK_S = 1.0
"""How long a bridge may be without a mark while somebody makes it."""
_PAUSE_S = 0.001
_MIN_OWN_INDEX = 1 << 30
"""The kernel counts interface indexes from 1; from here on there are none but those that somebody asked for."""

Interface = IPv4Interface | IPv6Interface
"""An address with the prefix of its subnet."""
Address = IPv4Address | IPv6Address


class _Request(FrozenStruct, kw_only=True):
    """A message, and the words for it in an error."""

    words: str
    type: int
    payload: bytes
    flags: int = 0


class Endpoint(FrozenStruct, kw_only=True):
    """An address of a pod, and the router of its subnet."""

    address: Interface
    gateway: Address


class _Link(FrozenStruct, kw_only=True):
    index: int
    kind: str
    """Empty for what is no virtual device."""
    alias: str


def ensure_bridge(name: str, gateways: Sequence[Interface], owner: str) -> None:
    """Make sure that bridge ``name`` exists, has the addresses ``gateways`` and is up; safe to repeat and to race.

    Its hardware address is derived from the first one: otherwise it would change with the ports that come and go.
    Router advertisements of pods are not believed, nor are their queries for members of multicast groups, and it learns
    nothing from frames that are not forwarded.

    :param owner: the bridge's alias (``ip link`` shows it); a bridge with another one, or none, is somebody else's.
    :raises AlreadyExists: if a link of another kind, or of another owner, has this name; it is left as it is.
    :raises KernelCallError: if the kernel refuses.
    """
    _check_name(name)
    with _connected() as channel:
        try:
            _exchange(channel, _bridge_requests(name, gateways[0], owner))
        except KernelCallError as error:
            # EXCL refused: it was there. Whose it is has to be looked at before anything of it is changed.
            if error.errno != errno.EEXIST:
                raise
            link = _settled(channel, name)
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
        # Before it is up: nothing can have been advertised until then.
        _ignore_router_advertisements(name)
        if any(gateway.version == 6 for gateway in gateways):
            _switch_ipv6(name, on=True)
        addresses = [_address_request(name, index, gateway) for gateway in gateways]
        # Up last: no frame is taken before the bridge knows what not to learn from.
        _exchange(channel, [_learn_less(name, index), *addresses, _up_request(name, index)])


def _settled(channel: socket.socket, name: str) -> _Link:
    """Return a link; a bridge that another thread or process makes right now, once it has its mark.

    The kernel lets others look between the two messages of :func:`_bridge_requests`. Who makes it is at work in the
    kernel, so it is a matter of microseconds.
    """
    deadline = time.monotonic() + _MARK_S
    while True:
        link = _link(channel, name)
        is_unmarked = link.kind == "bridge" and link.index >= _MIN_OWN_INDEX and not link.alias
        if not is_unmarked or time.monotonic() > deadline:
            return link
        time.sleep(_PAUSE_S)


def _bridge_requests(name: str, gateway: Interface, owner: str) -> list[_Request]:
    """Return what creates a marked bridge.

    A new link takes no alias. So that no kill can come between, both messages go in one packet, which the kernel works
    off in one system call; so that the second never marks a bridge that was there, it names the link by an index which
    only the first one gives.
    """
    index = _MIN_OWN_INDEX + secrets.randbelow(_MIN_OWN_INDEX)
    attributes = (
        nlmsg.text(_IFLA_IFNAME, name),
        _mac(hardware_address(gateway.ip)),
        nlmsg.group(_IFLA_LINKINFO, nlmsg.text(_IFLA_INFO_KIND, "bridge")),
    )
    flags = nlmsg.CREATE | nlmsg.EXCL
    create = _link_request(f"create bridge {name}", *attributes, flags=flags, index=index)
    mark = _link_request(f"mark bridge {name}", nlmsg.text(_IFLA_IFALIAS, owner), index=index)
    return [create, mark]


def _learn_less(name: str, index: int) -> _Request:
    """Return what keeps a bridge from learning from frames that pods may send what decides who receives others' frames.

    - hardware addresses from frames to 01:80:c2:00:00:0X: they are for the bridge, and do not pass what drops a pod's
      frames with another one's address (net/bridge/br_input.c, br_handle_frame);
    - who wants a multicast group (snooping of IGMP and MLD): whoever sends queries is the querier, and what nobody
      reported since, as the groups of neighbour discovery, reaches nobody else (net/bridge/br_multicast.c).
    """
    learning = nlmsg.attribute(_IFLA_BR_MULTI_BOOLOPT, struct.pack("=II", _NO_LL_LEARN, _NO_LL_LEARN))
    snooping = nlmsg.attribute(_IFLA_BR_MCAST_SNOOPING, b"\0")
    kind = nlmsg.text(_IFLA_INFO_KIND, "bridge")
    info = nlmsg.group(_IFLA_LINKINFO, kind, nlmsg.group(_IFLA_INFO_DATA, learning, snooping))
    return _link_request(f"set no_linklocal_learn and mcast_snooping of {name}", info, index=index)


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
        # By the index that was looked at: the name may be another link's by now.
        _delete(channel, _link_request(f"delete bridge {name}", kind=_RTM_DELLINK, index=link.index))
    return True


def delete_link(name: str) -> None:
    """Delete the link ``name`` (of a veth pair: both ends); a missing one is no error.

    :raises KernelCallError: if the kernel refuses.
    """
    _check_name(name)
    with _connected() as channel:
        _delete(channel, _link_request(f"delete link {name}", nlmsg.text(_IFLA_IFNAME, name), kind=_RTM_DELLINK))


def _delete(channel: socket.socket, request: _Request) -> None:
    try:
        _exchange(channel, [request])
    except KernelCallError as error:
        # Gone already: one end of a veth pair goes with the other, and with its namespace.
        if error.errno != errno.ENODEV:
            raise


def links(prefix: str = "") -> list[str]:
    """Return the names of the links that start with ``prefix``, sorted."""
    return sorted(name for _, name in socket.if_nameindex() if name.startswith(prefix))


class LinkWatch:
    """News of links and addresses that were removed, in the network namespace in which it was made."""

    def __init__(self) -> None:
        """:raises KernelCallError: if the kernel refuses."""
        groups = (_RTNLGRP_LINK, _RTNLGRP_IPV4_IFADDR, _RTNLGRP_IPV6_IFADDR)
        self._news = nlmsg.News(socket.NETLINK_ROUTE, *groups)

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are news."""
        return self._news.fileno()

    def close(self) -> None:
        self._news.close()

    def was_removed(self, name: str, addresses: Collection[Address]) -> bool:
        """Read news and return whether a link of this name was removed, or one of its addresses; also when news were
        lost.

        What is left of many makes :meth:`fileno` readable again.

        :raises KernelCallError: if they cannot be read.
        """
        messages = self._news.read()
        return messages is None or any(
            _is_removed_link(message, name) or _removed_address(message) in addresses for message in messages
        )


def _removed_address(message: nlmsg.Message) -> Address | None:
    if message.kind != _RTM_DELADDR or len(message.payload) < _ADDRESS.size:
        return None
    attributes = nlmsg.attributes(message.payload[_ADDRESS.size :])
    found = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS, b""))
    return ip_address(found) if len(found) in (4, 16) else None


def _is_removed_link(message: nlmsg.Message, name: str) -> bool:
    if message.kind != _RTM_DELLINK or len(message.payload) < _LINK.size:
        return False
    # A port that leaves a bridge is told of with the bridge's family.
    family, *_ = _LINK.unpack_from(message.payload)
    found = nlmsg.attributes(message.payload[_LINK.size :]).get(_IFLA_IFNAME, b"")
    return family == socket.AF_UNSPEC and nlmsg.string(found) == name


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
    index = _index(bridge)
    requests = [_veth_request(host_name, (index, bridge), inner_name, netns_fd, mac)]
    if hairpin:
        requests.append(_hairpin_request(host_name))
    with _connected() as channel:
        _exchange(channel, requests)


def _veth_request(name: str, bridge: tuple[int, str], inner: str, netns_fd: int, mac: str | None) -> _Request:
    # Not told, the kernel makes a queue for each processor and takes all but one away: a wait for RCU at either end.
    queues = nlmsg.number(_IFLA_NUM_TX_QUEUES, 1) + nlmsg.number(_IFLA_NUM_RX_QUEUES, 1)
    peer = [nlmsg.text(_IFLA_IFNAME, inner), nlmsg.number(_IFLA_NET_NS_FD, netns_fd), queues]
    if mac is not None:
        peer.append(_mac(mac))
    # The peer cannot be up yet: veth opens a device only when its other half exists.
    peer_info = nlmsg.attribute(_VETH_INFO_PEER, _LINK.pack(0, 0, 0, 0, 0) + b"".join(peer))
    kind = nlmsg.text(_IFLA_INFO_KIND, "veth")
    return _link_request(
        f"create veth {name} on {bridge[1]} with {inner} in network namespace fd {netns_fd}",
        nlmsg.text(_IFLA_IFNAME, name),
        nlmsg.number(_IFLA_MASTER, bridge[0]),
        queues,
        nlmsg.group(_IFLA_LINKINFO, kind, nlmsg.group(_IFLA_INFO_DATA, peer_info)),
        flags=nlmsg.CREATE | nlmsg.EXCL,
        up=True,
    )


def _hairpin_request(name: str) -> _Request:
    mode = nlmsg.group(_IFLA_INFO_SLAVE_DATA, nlmsg.attribute(_IFLA_BRPORT_MODE, b"\1"))
    port = nlmsg.group(_IFLA_LINKINFO, nlmsg.text(_IFLA_INFO_SLAVE_KIND, "bridge"), mode)
    return _link_request(f"set hairpin mode of {name}", nlmsg.text(_IFLA_IFNAME, name), port)


def connect_ports(bridge: str, ports: Mapping[str, bool]) -> None:
    """Make links ports of ``bridge``; those that are, and links that are not there, are no error.

    :param ports: names of links, and whether packets may leave the bridge through the port that they came from.
    :raises NotFound: if the bridge does not exist.
    :raises KernelCallError: if the kernel refuses.
    """
    index = _index(bridge)
    with _connected() as channel:
        for name, hairpin in ports.items():
            attributes = (nlmsg.text(_IFLA_IFNAME, name), nlmsg.number(_IFLA_MASTER, index))
            requests = [_link_request(f"make {name} a port of {bridge}", *attributes)]
            if hairpin:
                requests.append(_hairpin_request(name))
            try:
                _exchange(channel, requests)
            except KernelCallError as error:
                if error.errno != errno.ENODEV:
                    raise


def configure_inside(netns_fd: int, ifname: str, endpoints: Sequence[Endpoint]) -> None:
    """Set ``ifname`` in the namespace ``netns_fd`` up, with its addresses and default routes; safe to repeat.

    Another pod's router advertisements are not believed (CVE-2020-10749). With addresses of IPv4 alone the link has no
    IPv6, nor a link-local address with which to ask for any number of neighbours.

    :raises NotFound: if there is no such link in the namespace.
    :raises KernelCallError: if the kernel refuses.
    """
    _check_name(ifname)

    def body() -> None:
        index = _index(ifname)
        # Before it is up: nothing can have been advertised until then.
        _ignore_router_advertisements(ifname)
        _switch_ipv6(ifname, on=any(endpoint.address.version == 6 for endpoint in endpoints))
        # Up first: the kernel takes no route over a link that is down.
        requests = [_up_request(ifname, index)]
        for endpoint in endpoints:
            requests.append(_address_request(ifname, index, endpoint.address))
            requests.append(_default_route_request(ifname, index, endpoint.gateway))
        with _connected() as channel:
            _exchange(channel, requests)

    run_in_netns(netns_fd, body)


def _default_route_request(ifname: str, index: int, gateway: Address) -> _Request:
    route = _ROUTE.pack(_family(gateway), 0, 0, 0, _RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_UNIVERSE, _RTN_UNICAST, 0)
    return _Request(
        words=f"route default via {gateway} dev {ifname}",
        type=_RTM_NEWROUTE,
        payload=route + nlmsg.attribute(_RTA_GATEWAY, gateway.packed) + nlmsg.number(_RTA_OIF, index),
        flags=nlmsg.CREATE | nlmsg.REPLACE,
    )


def _ignore_router_advertisements(ifname: str) -> None:
    """Switch them off for a link in the network namespace of the calling thread; a kernel without IPv6 has none."""
    path = Path(f"/proc/sys/net/ipv6/conf/{ifname}/accept_ra")
    try:
        path.write_text("0")
    except FileNotFoundError:
        return
    except OSError as error:
        raise KernelCallError(f"write({str(path)!r}, '0')", error.errno or 0) from error


def _switch_ipv6(ifname: str, *, on: bool) -> None:
    """Switch it on or off for a link, whatever the machine, or a pod's sysctl, has it."""
    path, text = Path(f"/proc/sys/net/ipv6/conf/{ifname}/disable_ipv6"), "0" if on else "1"
    try:
        if read_text(path).strip() != text:
            path.write_text(text)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not on:
            return  # a kernel without IPv6
        raise KernelCallError(f"write({str(path)!r}, {text!r})", error.errno or 0) from error


def hardware_address(address: Address) -> str:
    """Return a locally administered hardware address that ends like ``address`` (the convention of CNI's plugins)."""
    return "0a:58:" + ":".join(f"{byte:02x}" for byte in address.packed[-4:])


def _mac(address: str) -> bytes:
    return nlmsg.attribute(_IFLA_ADDRESS, bytes.fromhex(address.replace(":", "")))


def _link_request(
    words: str, *attributes: bytes, kind: int = _RTM_NEWLINK, flags: int = 0, index: int = 0, up: bool = False
) -> _Request:
    # Only the flags in the mask change; the others of the link stay.
    change = _IFF_UP if up else 0
    payload = _LINK.pack(socket.AF_UNSPEC, 0, index, change, change) + b"".join(attributes)
    return _Request(words=words, type=kind, payload=payload, flags=flags)


def _up_request(name: str, index: int) -> _Request:
    return _link_request(f"set {name} up", index=index, up=True)


def _family(address: Interface | Address) -> int:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def _address_request(name: str, index: int, address: Interface, kind: int = _RTM_NEWADDR) -> _Request:
    # Nobody else can have one of IPv6: waiting a second for an objection is for nothing.
    flags = _IFA_F_NODAD if address.version == 6 else 0
    message = _ADDRESS.pack(_family(address), address.network.prefixlen, flags, _RT_SCOPE_UNIVERSE, index)
    payload = message + nlmsg.attribute(_IFA_LOCAL, address.packed) + nlmsg.attribute(_IFA_ADDRESS, address.packed)
    if kind == _RTM_DELADDR:
        return _Request(words=f"remove address {address} from {name}", type=kind, payload=payload)
    return _Request(
        words=f"add address {address} to {name}", type=kind, payload=payload, flags=nlmsg.CREATE | nlmsg.REPLACE
    )


def _connected() -> socket.socket:
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    for option in (nlmsg.NETLINK_CAP_ACK, nlmsg.NETLINK_EXT_ACK):
        with suppress(OSError):  # before Linux 4.12; errors are then numbers without words
            channel.setsockopt(nlmsg.SOL_NETLINK, option, 1)
    channel.settimeout(5.0)
    return channel


def _exchange(channel: socket.socket, requests: Iterable[_Request]) -> None:
    """Send the requests together and wait for the answer to each; the first refusal is raised after the last answer."""
    # The kernel works off a packet in order and answers each message, also behind one that failed.
    waiting = dict(enumerate(requests, start=1))
    _send(channel, b"".join(_encode(item, sequence, nlmsg.ACK) for sequence, item in waiting.items()))
    failure: KernelCallError | None = None
    while waiting:
        for answer in _receive(channel):
            if answer.kind == nlmsg.NOOP:
                continue
            if answer.kind != nlmsg.ERROR or answer.sequence not in waiting:
                what = f"message type {answer.kind}, sequence {answer.sequence}"
                raise Internal(f"netlink answered with {what}; an answer was expected")
            request = waiting.pop(answer.sequence)
            number, words = nlmsg.failure(answer)
            if number and failure is None:
                failure = KernelCallError(f"netlink({request.words})", number, hint=words)
    if failure is not None:
        raise failure


def _encode(request: _Request, sequence: int, flags: int) -> bytes:
    return nlmsg.encode(request.type, nlmsg.REQUEST | flags | request.flags, sequence, request.payload)


def _send(channel: socket.socket, packet: bytes) -> None:
    try:
        channel.sendto(packet, (0, 0))
    except OSError as error:
        raise nlmsg.call_error("sendto(netlink)", error) from error


def _receive(channel: socket.socket) -> list[nlmsg.Message]:
    try:
        return nlmsg.receive(channel)
    except OSError as error:
        raise nlmsg.call_error("recv(netlink)", error) from error


def _link(channel: socket.socket, name: str) -> _Link:
    """Return what the kernel says of a link.

    :raises NotFound: if there is none of this name.
    :raises KernelCallError: if the kernel refuses.
    """
    request = _link_request(f"get link {name}", nlmsg.text(_IFLA_IFNAME, name), kind=_RTM_GETLINK)
    _send(channel, _encode(request, 1, 0))
    while True:
        for answer in _receive(channel):
            if answer.sequence != 1:
                continue
            if answer.kind == _RTM_NEWLINK:
                return _decode_link(answer.payload)
            if answer.kind == nlmsg.ERROR:
                number, words = nlmsg.failure(answer)
                if number == errno.ENODEV:
                    raise NotFound(f"network link {name} is gone")
                raise KernelCallError(f"netlink({request.words})", number, hint=words)


def _decode_link(payload: bytes) -> _Link:
    """Return what is of interest in a message of type RTM_NEWLINK.

    :raises Internal: if it is cut short.
    """
    if len(payload) < _LINK.size:
        raise Internal(f"netlink answered with a link of {len(payload)} bytes")
    _, _, index, _, _ = _LINK.unpack_from(payload)
    attributes = nlmsg.attributes(payload[_LINK.size :])
    info = nlmsg.attributes(attributes.get(_IFLA_LINKINFO, b""))
    kind, alias = info.get(_IFLA_INFO_KIND, b""), attributes.get(_IFLA_IFALIAS, b"")
    return _Link(index=index, kind=nlmsg.string(kind), alias=nlmsg.string(alias))


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError as error:
        raise NotFound(f"there is no network link {name}") from error


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES or "/" in name or any(character.isspace() for character in name):
        raise InvalidArgument(f"{name!r} is not a link name: 1 to {MAX_NAME_BYTES} bytes without '/' or spaces")
