"""The bridge network, in network namespaces of the tests' own."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from pathlib import Path

import grpc.aio
import pytest

from podkeep.base.errors import AlreadyExists, InvalidArgument, KernelCallError, NotFound
from podkeep.kernel.namespace.idmap import block
from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, NamespaceRequest, run_in_netns
from podkeep.kernel.network import netlink
from podkeep.kernel.network.netlink import Endpoint

GATEWAY = IPv4Interface("10.201.0.1/16")
POD = Endpoint(address=IPv4Interface("10.201.1.1/16"), gateway=GATEWAY.ip)
BRIDGE = "pktest0"
OWNER = "podkeep:/run/test"


class Machine:
    """A network namespace that stands for the machine, and more for pods."""

    def __init__(self, helper: NamespaceHelper, closing: ExitStack) -> None:
        self._helper = helper
        self._closing = closing
        self.fd = self.pod(userns=False)

    def pod(self, *, userns: bool = True) -> int:
        kinds = {NamespaceKind.NET, NamespaceKind.USER} if userns else {NamespaceKind.NET}
        idmap = block(65536, 65536) if userns else None
        fds = self._helper.create(NamespaceRequest(kinds=frozenset(kinds), idmap=idmap))
        for fd in fds.values():
            self._closing.callback(os.close, fd)
        return fds[NamespaceKind.NET]

    def run(self, function: Callable[[], object]) -> None:
        run_in_netns(self.fd, function)


@pytest.fixture
def machine(helper: NamespaceHelper) -> Iterator[Machine]:
    with ExitStack() as closing:
        yield Machine(helper, closing)


def attach(pod: int, number: int) -> None:
    netlink.create_veth(host_name=f"pk{number}", bridge=BRIDGE, netns_fd=pod, inner_name="eth0")
    address = IPv4Interface(f"10.201.{1 + number // 250}.{1 + number % 250}/16")
    netlink.configure_inside(pod, "eth0", [Endpoint(address=address, gateway=GATEWAY.ip)])


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


def test_two_pods_talk_to_each_other_and_to_the_machine(machine: Machine) -> None:
    def body() -> None:
        netlink.ensure_bridge(BRIDGE, [GATEWAY], OWNER)
        first, second = machine.pod(), machine.pod(userns=False)
        attach(first, 0)
        attach(second, 1)
        server = run_in_netns(first, lambda: socket.create_server(("10.201.1.1", 80)))
        with server:
            for place in (second, machine.fd):
                client = run_in_netns(place, lambda: socket.create_connection(("10.201.1.1", 80), timeout=10))
                accepted, (peer, _) = server.accept()
                assert peer == ("10.201.1.2" if place == second else "10.201.0.1")
                accepted.close()
                client.close()
        routes = run_in_netns(first, lambda: ip("route"))
        assert "default via 10.201.0.1 dev eth0 proto static" in routes
        assert "master pktest0" in ip("link", "show", "pk0")

    machine.run(body)


def test_a_pod_without_an_ipv6_address_asks_for_no_neighbour_by_ipv6(machine: Machine) -> None:
    """A link-local address would do for that; neighbours of all network namespaces are in one table of 1024."""

    def body() -> None:
        netlink.ensure_bridge(BRIDGE, [GATEWAY], OWNER)
        pod = machine.pod()
        attach(pod, 0)
        sysctl = Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6")
        assert run_in_netns(pod, sysctl.read_text) == "1\n"
        assert run_in_netns(pod, lambda: ip("-6", "address", "show", "dev", "eth0")) == ""
        with_both = [
            Endpoint(address=IPv4Interface("10.201.1.1/16"), gateway=GATEWAY.ip),
            Endpoint(address=IPv6Interface("fd07::2/64"), gateway=IPv6Address("fd07::1")),
        ]
        netlink.configure_inside(pod, "eth0", with_both)
        assert "fd07::2/64" in run_in_netns(pod, lambda: ip("-6", "address", "show", "dev", "eth0"))

    machine.run(body)


def test_everything_can_be_repeated(machine: Machine) -> None:
    def body() -> None:
        for _ in range(3):
            netlink.ensure_bridge(BRIDGE, [GATEWAY], OWNER)
        pod = machine.pod()
        attach(pod, 0)
        netlink.configure_inside(pod, "eth0", [POD])
        assert run_in_netns(pod, lambda: ip("-4", "-o", "address", "show", "eth0")).count("inet ") == 1
        assert ip("-4", "-o", "address", "show", BRIDGE).count("inet ") == 1
        netlink.delete_link("pk0")
        netlink.delete_link("pk0")
        assert netlink.links("pk0") == []
        assert run_in_netns(pod, lambda: netlink.links()) == ["lo"]
        netlink.delete_link(BRIDGE)
        assert netlink.links() == ["lo"]

    machine.run(body)


def test_hardware_addresses(machine: Machine) -> None:
    def body() -> None:
        netlink.ensure_bridge(BRIDGE, [GATEWAY], OWNER)
        pod = machine.pod()
        mac = netlink.hardware_address(IPv4Address("10.201.3.4"))
        assert mac == "0a:58:0a:c9:03:04"
        netlink.create_veth(host_name="pk1", bridge=BRIDGE, netns_fd=pod, inner_name="eth0", mac=mac)
        assert mac in run_in_netns(pod, lambda: ip("link", "show", "eth0"))
        assert "0a:58:0a:c9:00:01" in ip("link", "show", BRIDGE), "not one of its ports'"

    machine.run(body)


def test_cables_are_made_with_the_queue_that_they_use(machine: Machine) -> None:
    def queues(name: str) -> str:
        words = ip("-d", "link", "show", name).split()
        return " ".join(words[words.index("numtxqueues") :][:4])

    def body() -> None:
        netlink.ensure_bridge(BRIDGE, [GATEWAY], OWNER)
        pod = machine.pod()
        attach(pod, 0)
        expected = "numtxqueues 1 numrxqueues 1"
        assert [queues("pk0"), run_in_netns(pod, lambda: queues("eth0"))] == [expected, expected]

    machine.run(body)


def test_refusals_name_what_was_tried_and_leave_nothing(machine: Machine) -> None:
    def body() -> None:
        pod = machine.pod()
        with pytest.raises(NotFound, match="no network link pktest0"):
            netlink.create_veth(host_name="pk1", bridge=BRIDGE, netns_fd=pod, inner_name="eth0")
        netlink.ensure_bridge(BRIDGE, [GATEWAY], OWNER)
        attach(pod, 0)
        for host, inner in (("pk0", "eth1"), ("pk2", "eth0")):
            with pytest.raises(
                KernelCallError, match=rf"netlink\(create veth {host} .* with {inner} .*EEXIST"
            ) as caught:
                netlink.create_veth(host_name=host, bridge=BRIDGE, netns_fd=pod, inner_name=inner)
            assert caught.value.errno == errno.EEXIST
        with pytest.raises(KernelCallError, match=r"EBADF"):
            netlink.create_veth(host_name="pk3", bridge=BRIDGE, netns_fd=9999, inner_name="eth0")
        with pytest.raises(NotFound, match="no network link eth7"):
            netlink.configure_inside(pod, "eth7", [POD])
        with pytest.raises(KernelCallError, match=r"route default via .* dev eth0\): ENETUNREACH.*hint: .*gateway"):
            netlink.configure_inside(pod, "eth0", [Endpoint(address=POD.address, gateway=IPv4Address("192.168.1.1"))])
        with pytest.raises(AlreadyExists, match="pk0 exists and is not a bridge but veth"):
            netlink.ensure_bridge("pk0", [GATEWAY], OWNER)
        with pytest.raises(AlreadyExists, match="lo exists and is not a bridge but a device"):
            netlink.ensure_bridge("lo", [GATEWAY], OWNER)
        with pytest.raises(KernelCallError, match=r"netlink\(delete link lo\): E(OP)?NOTSUPP?"):
            netlink.delete_link("lo")
        assert netlink.links("pk") == ["pk0", BRIDGE]
        assert run_in_netns(pod, netlink.links) == ["eth0", "lo"]

    machine.run(body)


def test_a_bridge_of_somebody_else_is_neither_used_nor_deleted(machine: Machine) -> None:
    def body() -> None:
        for mark in ([], ["alias", "podkeep:/run/other"]):
            ip("link", "add", BRIDGE, "type", "bridge")
            if mark:
                ip("link", "set", BRIDGE, *mark)
            before = ip("addr", "show", BRIDGE)
            with pytest.raises(AlreadyExists, match=f"{BRIDGE} is not ours") as caught:
                netlink.ensure_bridge(BRIDGE, [GATEWAY], OWNER)
            assert "network.bridge" in caught.value.hint
            assert not netlink.delete_bridge(BRIDGE, OWNER)
            assert ip("addr", "show", BRIDGE) == before
            ip("link", "delete", BRIDGE)
        assert netlink.delete_bridge(BRIDGE, OWNER)

    machine.run(body)


def test_our_own_bridge_is_marked_and_deleted(machine: Machine) -> None:
    def body() -> None:
        for _ in range(2):
            netlink.ensure_bridge(BRIDGE, [GATEWAY], OWNER)
            assert f"alias {OWNER}" in ip("link", "show", BRIDGE)
        assert netlink.delete_bridge(BRIDGE, OWNER)
        assert netlink.links() == ["lo"]

    machine.run(body)


@pytest.mark.parametrize("name", ["", "a" * 16, "a/b", "a b"])
def test_link_names_are_checked(name: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(repr(name))):
        netlink.delete_link(name)
    with pytest.raises(InvalidArgument, match="15 bytes"):
        netlink.create_veth(host_name="a", bridge=BRIDGE, netns_fd=0, inner_name=name)


@pytest.mark.slow
def test_many_threads_beside_an_event_loop_with_grpc(machine: Machine) -> None:
    """Attach from worker threads of a loop that runs a gRPC server, as the runtime does."""
    pods = [machine.pod() for _ in range(24)]

    def work(number: int) -> None:
        run_in_netns(machine.fd, lambda: netlink.ensure_bridge(BRIDGE, [GATEWAY], OWNER))
        run_in_netns(machine.fd, lambda: attach(pods[number], number))

    async def serve() -> None:
        server = grpc.aio.server()
        server.add_insecure_port("unix-abstract:podkeep-netlink-test")
        await server.start()
        await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(len(pods))))
        await server.stop(None)

    program = threading.Thread(target=lambda: asyncio.run(serve()))
    program.start()
    program.join()
    assert run_in_netns(machine.fd, lambda: len(netlink.links("pk"))) == len(pods) + 1


def test_threads_race_for_one_bridge(machine: Machine) -> None:
    with ThreadPoolExecutor(8) as pool:
        ensure = lambda _: run_in_netns(machine.fd, lambda: netlink.ensure_bridge(BRIDGE, [GATEWAY], OWNER))  # noqa: E731
        list(pool.map(ensure, range(32)))
    assert run_in_netns(machine.fd, netlink.links) == ["lo", BRIDGE]
