"""Where registries may send us: never to this node itself, however its address is written."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, ip_address

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.images.registry.client import Client, parse_url
from podkeep.images.registry.dialing import Allowed, forbidden
from podkeep.images.registry.endpoint import Tls
from podkeep.images.registry.http1 import TransferError
from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, NamespaceRequest, run_in_netns
from podkeep.kernel.network import netlink, routes
from podkeep.kernel.network.netlink import Endpoint

GATEWAY = IPv4Interface("10.201.0.1/16")
SECOND = "10.201.0.77"
ANY_LOCAL = "10.202.3.4"
OWN_V6 = "fd07::1"
REGISTRY = IPv4Interface("10.201.1.1/16")
OWN = (str(GATEWAY.ip), SECOND, ANY_LOCAL, OWN_V6, "127.0.0.1", "127.8.8.8", "::1", "0.0.0.0")
ELSEWHERE = (str(REGISTRY.ip), "10.201.0.2", "10.203.1.1", "fd07::2", "192.0.2.1", "2001:db8::1")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Node:
    """A network namespace that stands for the node, and one beside it in which registries are."""

    def __init__(self, helper: NamespaceHelper, closing: ExitStack) -> None:
        made = []
        for _ in range(2):
            fds = helper.create(NamespaceRequest(kinds=frozenset({NamespaceKind.NET}), idmap=None))
            for fd in fds.values():
                closing.callback(os.close, fd)
            made.append(fds[NamespaceKind.NET])
        self.netns, self.beside = made
        run_in_netns(self.netns, self._set_up)

    def _set_up(self) -> None:
        _ip("link", "set", "lo", "up")
        netlink.ensure_bridge("pktest0", [GATEWAY], "podkeep:/run/test")
        netlink.create_veth(host_name="pk0", bridge="pktest0", netns_fd=self.beside, inner_name="eth0")
        netlink.configure_inside(self.beside, "eth0", [Endpoint(address=REGISTRY, gateway=GATEWAY.ip)])
        _ip("address", "add", f"{SECOND}/16", "dev", "pktest0")
        _ip("address", "add", f"{OWN_V6}/64", "dev", "pktest0", "nodad")
        _ip("route", "add", "local", "10.202.0.0/16", "dev", "lo")
        _ip("route", "add", "blackhole", "10.203.0.0/16")


@pytest.fixture
def node(nothing_leaks: None) -> Iterator[Node]:
    """The node, with addresses of several kinds."""
    with NamespaceHelper() as helper, ExitStack() as closing:
        yield Node(helper, closing)


class Listening:
    """Answers every request with one answer, and counts who comes."""

    def __init__(self, netns: int, address: str, answer: bytes) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = run_in_netns(netns, lambda: socket.create_server((address, 0), family=family))
        self.port: int = self._listener.getsockname()[1]
        self._answer = answer
        self.visits = 0
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.visits += 1
                connection.recv(65536)
                connection.sendall(self._answer)

    def __enter__(self) -> Listening:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


def _redirect(location: str) -> bytes:
    return f"HTTP/1.1 307 x\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


def test_the_kernel_says_which_addresses_are_this_nodes(node: Node) -> None:
    def own(address: str) -> bool:
        return run_in_netns(node.netns, lambda: routes.is_own(ip_address(address)))

    assert [address for address in OWN if not own(address)] == []
    assert [address for address in ELSEWHERE if own(address)] == []
    run_in_netns(node.netns, lambda: _ip("address", "add", "10.201.0.99/16", "dev", "pktest0"))
    assert own("10.201.0.99")
    run_in_netns(node.netns, lambda: _ip("address", "del", "10.201.0.99/16", "dev", "pktest0"))
    assert not own("10.201.0.99")


def _spellings(inside: IPv4Address) -> dict[str, IPv6Address]:
    """Return the IPv6 addresses that stand for an IPv4 address."""
    number, data = int(inside), inside.packed

    def behind(prefix: str) -> IPv6Address:
        return IPv6Address(int(IPv6Address(prefix)) | number)

    def rfc_6052(length: int) -> IPv6Address:
        bits = {48: data[:2] + b"\0" + data[2:], 56: data[:1] + b"\0" + data[1:], 64: b"\0" + data}[length]
        whole = bytearray(IPv6Address("64:ff9b:1::").packed)
        whole[length // 8 : length // 8 + len(bits)] = bits
        return IPv6Address(bytes(whole))

    return {
        "IPv4-mapped": behind("::ffff:0:0"),
        "IPv4-compatible": behind("::"),
        "IPv4-translated": behind("::ffff:0:0:0"),
        "NAT64": behind("64:ff9b::"),
        "local NAT64, 48 bits": rfc_6052(48),
        "local NAT64, 56 bits": rfc_6052(56),
        "local NAT64, 64 bits": rfc_6052(64),
        "local NAT64, 96 bits": behind("64:ff9b:1:fffe::"),
        "6to4": IPv6Address((0x2002 << 112) | (number << 80) | 1),
        "Teredo server": IPv6Address((0x20010000 << 96) | (number << 64) | 0xFFFF_FFFF_F7F7_F7F7),
        "Teredo client": IPv6Address((0x20010000 << 96) | (0x08080808 << 64) | (number ^ 0xFFFF_FFFF)),
        "ISATAP": behind("2001:db8::5efe:0:0"),
        "ISATAP, global": behind("2001:db8::200:5efe:0:0"),
    }


NAMES = sorted(_spellings(GATEWAY.ip))


@pytest.mark.parametrize("spelling", NAMES)
def test_an_address_inside_another_one_is_judged(spelling: str, node: Node) -> None:
    def judge(inside: str, allowed: Allowed) -> str:
        address = _spellings(IPv4Address(inside))[spelling]
        return run_in_netns(node.netns, lambda: forbidden(address, allowed))

    nobody = Allowed(loopback=False, link_local=False)
    for own in (str(GATEWAY.ip), SECOND, ANY_LOCAL, "127.0.0.1", "127.9.8.7"):
        assert judge(own, nobody) == "an address of this machine itself"
        assert judge(own, Allowed(loopback=True, link_local=False)) == ""
    for metadata in ("169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192"):
        assert judge(metadata, nobody) == "a link-local address or that of a metadata service"
        assert judge(metadata, Allowed(loopback=True, link_local=False)) != ""
        assert judge(metadata, Allowed(loopback=False, link_local=True)) == ""
    for fine in ("10.0.0.1", "192.0.2.1", "8.8.8.8", "100.100.100.201"):
        assert judge(fine, nobody) == ""


def test_any_prefix_of_64_may_be_one_of_nat64_for_the_usual_metadata_service() -> None:
    refused = forbidden(
        ip_address("2001:db8:64::a9fe:a9fe"), Allowed(loopback=False, link_local=False), lambda _: False
    )
    assert refused == "a link-local address or that of a metadata service"


def _followed(node: Node, home: str, client: Callable[[], Client]) -> bool:
    """Ask a registry; return whether its redirect was followed to an answer."""

    def ask() -> bool:
        made = client()
        try:
            answer = made.follow("GET", parse_url(f"http://{home}/v2/a/blobs/b"), {})
            answer.close()
            return answer.status == 200
        except TransferError:
            return False
        finally:
            made.close()

    return run_in_netns(node.netns, ask)


@pytest.mark.parametrize("target", [str(GATEWAY.ip), SECOND, "127.0.0.1", OWN_V6, ANY_LOCAL, "::ffff:10.201.0.77"])
def test_a_registry_elsewhere_leads_nobody_to_the_node(node: Node, target: str) -> None:
    listening = "10.201.0.77" if target.startswith("::ffff") else target
    with Listening(node.netns, listening, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as victim:
        there = f"[{target}]:{victim.port}" if ":" in target else f"{target}:{victim.port}"
        with Listening(node.beside, "10.201.1.1", _redirect(f"http://{there}/secrets")) as registry:
            home = f"10.201.1.1:{registry.port}"

            def client(*configured: str, trusted: bool = False) -> Callable[[], Client]:
                tls = {host: Tls() for host in (home, *configured)}
                return lambda: Client(home, tls=tls, trusted=trusted, timeout=5)

            with pytest.raises(
                FailedPrecondition, match="an address of this machine itself, which is refused"
            ) as error:
                _followed(node, home, client())
            assert "registries" in error.value.hint
            # Naming one of the two is not enough.
            for made in (client(trusted=True), client(there)):
                with pytest.raises(FailedPrecondition, match="an address of this machine itself"):
                    _followed(node, home, made)
            assert victim.visits == 0
            assert _followed(node, home, client(there, trusted=True))
            assert victim.visits == 1


def test_a_registry_on_the_node_may_refer_to_the_node(node: Node) -> None:
    """A token server beside it, on another of the node's addresses."""
    with Listening(node.netns, SECOND, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as realm:
        away = _redirect(f"http://{SECOND}:{realm.port}/token")
        with Listening(node.netns, str(GATEWAY.ip), away) as registry:
            home = f"{GATEWAY.ip}:{registry.port}"
            assert _followed(node, home, lambda: Client(home, tls={home: Tls()}, trusted=False, timeout=5))
    assert realm.visits == 1
