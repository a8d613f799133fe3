"""Netlink messages: ours are those that pyroute2 makes, answers are understood as it does, and nonsense is an error."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import ip_address, ip_interface
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from podkeep.base.errors import Internal, KernelCallError, NotFound
from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, NamespaceRequest, run_in_netns
from podkeep.kernel.network import netlink, nlmsg, routes

Attributes = list[tuple[str, Any]]
MAC = "0a:58:0a:c9:03:04"


def link(*attributes: tuple[str, Any], index: int = 0, up: bool = False) -> ifinfmsg:
    message = ifinfmsg()
    message["index"] = index
    if up:
        message["flags"] = message["change"] = 1
    message["attrs"] = list(attributes)
    return message


QUEUES = (("IFLA_NUM_TX_QUEUES", 1), ("IFLA_NUM_RX_QUEUES", 1))


def veth(peer: Attributes) -> ifinfmsg:
    data = {"attrs": [("VETH_INFO_PEER", {"attrs": peer})]}
    info = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}
    names = ("IFLA_IFNAME", "pk12345678"), ("IFLA_MASTER", 7)
    return link(*names, *QUEUES, ("IFLA_LINKINFO", info), up=True)


def address(text: str, family: int, flags: int) -> ifaddrmsg:
    message = ifaddrmsg()
    interface = ip_interface(text)
    fields = {"family": family, "flags": flags, "prefixlen": interface.network.prefixlen, "index": 5}
    for name, value in fields.items():
        message[name] = value
    message["attrs"] = [("IFA_LOCAL", str(interface.ip)), ("IFA_ADDRESS", str(interface.ip))]
    return message


def route(gateway: str, family: int) -> rtmsg:
    message = rtmsg()
    for name, value in {"family": family, "table": 254, "proto": 4, "scope": 0, "type": 1}.items():
        message[name] = value
    message["attrs"] = [("RTA_GATEWAY", gateway), ("RTA_OIF", 5)]
    return message


def bridge_port() -> ifinfmsg:
    data = {"attrs": [("IFLA_BRPORT_MODE", 1)]}
    info = {"attrs": [("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", data)]}
    return link(("IFLA_IFNAME", "pk1"), ("IFLA_LINKINFO", info))


BRIDGE = link(
    ("IFLA_IFNAME", "podkeep0"),
    ("IFLA_ADDRESS", "0a:58:0a:c9:00:01"),
    ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "bridge")]}),
)
CREATE, REPLACE = 0x400 | 0x200, 0x400 | 0x100
SAME: dict[str, tuple[netlink._Request, int, int, Any]] = {
    "create a veth pair": (
        netlink._veth_request("pk12345678", (7, "podkeep0"), "eth0", 12, MAC), 16, CREATE,
        veth([("IFLA_IFNAME", "eth0"), ("IFLA_NET_NS_FD", 12), *QUEUES, ("IFLA_ADDRESS", MAC)]),
    ),
    "create one with any hardware address": (
        netlink._veth_request("pk12345678", (7, "podkeep0"), "eth0", 12, None), 16, CREATE,
        veth([("IFLA_IFNAME", "eth0"), ("IFLA_NET_NS_FD", 12), *QUEUES]),
    ),
    "hairpin": (netlink._hairpin_request("pk1"), 16, 0, bridge_port()),
    "up": (netlink._up_request("eth0", 5), 16, 0, link(index=5, up=True)),
    "delete by name": (
        netlink._link_request("", nlmsg.text(3, "pk1"), kind=17), 17, 0, link(("IFLA_IFNAME", "pk1")),
    ),
    "delete by index": (netlink._link_request("", kind=17, index=9), 17, 0, link(index=9)),
    "add an address": (
        netlink._address_request("eth0", 5, ip_interface("10.201.1.1/16")), 20, REPLACE,
        address("10.201.1.1/16", socket.AF_INET, 0),
    ),
    "add one of IPv6": (
        netlink._address_request("eth0", 5, ip_interface("fd00::7/64")), 20, REPLACE,
        address("fd00::7/64", socket.AF_INET6, 0x02),
    ),
    "remove an address": (
        netlink._address_request("eth0", 5, ip_interface("10.201.1.1/16"), kind=21), 21, 0,
        address("10.201.1.1/16", socket.AF_INET, 0),
    ),
    "default route": (
        netlink._default_route_request("eth0", 5, ip_address("10.201.0.1")), 24, REPLACE,
        route("10.201.0.1", socket.AF_INET),
    ),
    "default route of IPv6": (
        netlink._default_route_request("eth0", 5, ip_address("fd00::1")), 24, REPLACE,
        route("fd00::1", socket.AF_INET6),
    ),
}  # fmt: skip


def by_pyroute2(message: Any, kind: int, flags: int, sequence: int) -> bytes:
    for name, value in {"type": kind, "flags": flags, "sequence_number": sequence, "pid": 0}.items():
        message["header"][name] = value
    message.encode()
    return bytes(message.data)


@pytest.mark.parametrize("what", SAME)
def test_a_request_has_the_bytes_that_pyroute2_makes(what: str) -> None:
    request, kind, flags, message = SAME[what]
    assert request.type == kind
    ours = netlink._encode(request, 3, nlmsg.ACK)
    assert ours.hex(" ", 4) == by_pyroute2(message, kind, 0x1 | 0x4 | flags, 3).hex(" ", 4)


def test_the_requests_for_a_marked_bridge_have_the_bytes_that_pyroute2_makes() -> None:
    create, mark = netlink._bridge_requests("podkeep0", ip_interface("10.201.0.1/16"), "podkeep:/run/podkeep")
    (index,) = struct.unpack_from("=i", create.payload, 4)
    BRIDGE["index"] = index
    assert netlink._encode(create, 1, nlmsg.ACK) == by_pyroute2(BRIDGE, 16, 0x1 | 0x4 | CREATE, 1)
    alias = link(("IFLA_IFALIAS", "podkeep:/run/podkeep"), index=index)
    assert netlink._encode(mark, 2, nlmsg.ACK) == by_pyroute2(alias, 16, 0x1 | 0x4, 2)


@pytest.mark.slow
def test_the_runtime_does_not_load_pyroute2() -> None:
    code = "import sys, podkeep.runtime.daemon.daemon, podkeep.runtime.network.networks; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "podkeep.kernel.network.netlink" in done.stdout.split()
    assert "pyroute2" not in done.stdout.split()


# answers


@pytest.fixture
def netns(helper: NamespaceHelper) -> Iterator[int]:
    """A network namespace with a marked bridge, an unmarked one and a pair of links."""
    with ExitStack() as closing:
        (fd,) = helper.create(NamespaceRequest(kinds=frozenset({NamespaceKind.NET}))).values()
        closing.callback(os.close, fd)

        def prepare() -> None:
            netlink.ensure_bridge("marked", [ip_interface("10.201.0.1/16")], "podkeep:/run/\u00e4")
            for words in ("add plain type bridge", "add one type veth peer name two"):
                subprocess.run(["ip", "link", *words.split()], check=True)

        run_in_netns(fd, prepare)
        yield fd


def inside(netns: int, function: Callable[[socket.socket], Any]) -> Any:
    def body() -> Any:
        with netlink._connected() as channel:
            return function(channel)

    return run_in_netns(netns, body)


@pytest.mark.parametrize("name", ["lo", "marked", "plain", "one"])
def test_a_link_is_understood_as_pyroute2_does(netns: int, name: str) -> None:
    request = netlink._link_request("", nlmsg.text(3, name), kind=18)

    def asking(channel: socket.socket) -> tuple[bytes, netlink._Link]:
        channel.sendto(netlink._encode(request, 1, 0), (0, 0))
        return channel.recv(1 << 16), netlink._link(channel, name)

    data, found = inside(netns, asking)
    message = ifinfmsg(data)
    message.decode()
    info = message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info is not None else None
    expected = (message["index"], kind or "", message.get_attr("IFLA_IFALIAS") or "")
    assert (found.index, found.kind, found.alias) == expected


def test_a_missing_link_is_not_found(netns: int) -> None:
    with pytest.raises(NotFound, match="network link none is gone"):
        inside(netns, lambda channel: netlink._link(channel, "none"))


@pytest.mark.parametrize("capped", [True, False], ids=["of a capped answer", "of an answer with the whole request"])
def test_the_words_of_the_kernel_are_in_the_error(netns: int, capped: bool) -> None:
    unreachable = netlink._default_route_request("lo", 1, ip_address("192.0.2.1"))

    def asking(channel: socket.socket) -> tuple[int, str]:
        channel.setsockopt(nlmsg.SOL_NETLINK, nlmsg.NETLINK_CAP_ACK, int(capped))
        channel.sendto(netlink._encode(unreachable, 1, nlmsg.ACK), (0, 0))
        (answer,) = nlmsg.receive(channel)
        return nlmsg.failure(answer)

    number, words = inside(netns, asking)
    assert number == errno.ENETUNREACH
    assert "gateway" in words


def test_each_request_of_a_packet_has_its_answer_and_the_first_refusal_is_raised(netns: int) -> None:
    wrong = [netlink._link_request(f"delete link {name}", nlmsg.text(3, name), kind=17) for name in ("none", "lo")]
    requests = [netlink._up_request("one", 0), *wrong]
    with pytest.raises(KernelCallError, match="set one up"):
        inside(netns, lambda channel: netlink._exchange(channel, requests))
    with pytest.raises(KernelCallError, match=r"delete link none\): ENODEV"):
        inside(netns, lambda channel: netlink._exchange(channel, wrong))


def test_a_list_of_several_packets_is_read_whole(netns: int) -> None:
    def body() -> list[routes.Route]:
        subprocess.run(["ip", "link", "set", "plain", "up"], check=True)
        lines = "".join(f"route add 10.{number // 250}.{number % 250}.0/24 dev plain\n" for number in range(2000))
        subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)
        return routes.read()

    assert (
        len([item for item in run_in_netns(netns, body) if item.link == "plain" and item.network.version == 4]) == 2000
    )


def test_silence_is_a_timeout_and_no_end_of_waiting(netns: int) -> None:
    def body(channel: socket.socket) -> None:
        channel.settimeout(0.05)
        netlink._receive(channel)

    with pytest.raises(KernelCallError, match=r"recv\(netlink\): ETIMEDOUT"):
        inside(netns, body)


def test_lost_answers_are_an_error(netns: int) -> None:
    def body(channel: socket.socket) -> None:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for _ in range(100):
            channel.sendto(netlink._encode(netlink._up_request("lo", 1), 1, nlmsg.ACK), (0, 0))
        while True:
            netlink._receive(channel)

    with pytest.raises(KernelCallError, match=r"recv\(netlink\): ENOBUFS"):
        inside(netns, body)


def test_signals_do_not_interrupt_an_answer() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    main = threading.main_thread().ident
    assert main is not None

    def disturb() -> None:
        for _ in range(20):
            signal.pthread_kill(main, signal.SIGUSR1)
        theirs.send(nlmsg.encode(nlmsg.DONE, 0, 1, b""))

    class Kernel(socket.socket):
        """A socket whose sender is the kernel."""

        def recvmsg(self, *arguments: Any) -> Any:
            data, ancillary, flags, _ = super().recvmsg(*arguments)
            return data, ancillary, flags, (0, 0)

    try:
        with theirs, Kernel(fileno=ours.detach()) as channel:
            thread = threading.Thread(target=disturb)
            thread.start()
            assert [item.kind for item in nlmsg.receive(channel)] == [nlmsg.DONE]
            thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_message_of_another_process_is_left_out(netns: int) -> None:
    def body() -> None:
        with netlink._connected() as channel, netlink._connected() as other:
            channel.bind((0, 0))
            other.sendto(nlmsg.encode(nlmsg.ERROR, 0, 1, bytes(4)), (channel.getsockname()[0], 0))
            missing = netlink._link_request("", nlmsg.text(3, "none"), kind=17)
            channel.sendto(netlink._encode(missing, 1, nlmsg.ACK), (0, 0))
            answer = nlmsg.receive_acknowledgement(channel, 1)
            assert nlmsg.failure(answer)[0] == errno.ENODEV

    run_in_netns(netns, body)


ACK = nlmsg.encode(nlmsg.ERROR, 0, 1, bytes(4))
CUT_SHORT = {
    "a header": ACK[:10],
    "a message": ACK[:-1],
    "after a message": ACK + b"\0\0\0\0",
    "a message shorter than its header": struct.pack("=IHHII", 15, 2, 0, 1, 0),
}


@pytest.mark.parametrize("what", CUT_SHORT)
def test_a_packet_that_is_cut_short_is_an_error(what: str) -> None:
    with pytest.raises(Internal, match="netlink answered with"):
        list(nlmsg.decode(CUT_SHORT[what]))


@pytest.mark.parametrize("length", [0, 3, 9, 0xFFFF])
def test_an_attribute_with_a_wrong_length_is_an_error(length: int) -> None:
    with pytest.raises(Internal, match=f"an attribute of {length} bytes"):
        nlmsg.attributes(struct.pack("=HHI", length, 3, 1))


@given(st.binary(max_size=400))
def test_any_bytes_are_decoded_or_an_error(data: bytes) -> None:
    try:
        for answer in nlmsg.decode(data):
            netlink._decode_link(answer.payload)
            nlmsg.failure(answer)
    except Internal:
        pass


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=40)), unique_by=lambda item: item[0]))
def test_attributes_are_read_as_they_were_written(items: list[tuple[int, bytes]]) -> None:
    data = b"".join(nlmsg.attribute(kind, payload) for kind, payload in items)
    assert nlmsg.attributes(data) == dict(items)
    assert nlmsg.attributes(nlmsg.nested(5, data)) == {5: data}


@pytest.mark.parametrize("length", [100, 80_000])
def test_what_another_process_sends_is_left_out(length: int) -> None:
    """However long it is: a request to the kernel does not fail for it."""
    kinds = socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_USERSOCK
    with socket.socket(*kinds) as ours, socket.socket(*kinds) as others:
        ours.bind((0, 0))
        others.sendto(bytes(length), ours.getsockname())
        assert nlmsg.receive(ours) == []
