"""Networks of pods: addresses, names, resolvers, host ports, the host's network."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeep.base.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from support.cri import namespaces, pod
from support.endpoint import Node
from support.registry import free_port
from support.waiting import wait_for

SERVE = "mkdir /www; echo served >/www/index.html; exec httpd -f -p 80 -h /www"
GATEWAY = "ip route | sed -n 's/default via \\([0-9.]*\\).*/\\1/p'"
"""Prints an address of the host that pods reach."""


def body(url: str) -> str:
    """Return what an HTTP server answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=5) as response:
        text: str = response.read().decode()
        return text


def served(url: str) -> bool:
    """Return whether the web server of ``SERVE`` answers."""
    try:
        return body(url) == "served\n"
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def greeter(address: str) -> Iterator[int]:
    """Greet whoever connects to ``address``; the port is given."""
    with socket.create_server((address, 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"hello\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def datagram_socket_inside(pid: int) -> socket.socket:
    """Return a socket in the network namespace of a process; the image has no program that serves datagrams."""

    def make() -> socket.socket:
        with Path(f"/proc/{pid}/ns/net").open("rb") as namespace:
            libc.setns(namespace.fileno(), CloneFlag.NEWNET)
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    with ThreadPoolExecutor(1) as thread:  # it changes the namespace of that thread alone
        return thread.submit(make).result()


def test_pod_has_an_address_of_its_own(node: Node) -> None:
    one, two = node.run(pod("one")), node.run(pod("two"))
    addresses = [ipaddress.ip_address(node.address(sandbox)) for sandbox in (one, two)]
    assert addresses[0] != addresses[1]
    container = node.launch(one)
    assert str(addresses[0]) in node.read(container, "ip -4 -o addr show dev eth0")
    assert "127.0.0.1" in node.read(container, "ip -4 -o addr show dev lo")


def test_containers_of_a_pod_share_its_network(node: Node) -> None:
    sandbox = node.run()
    node.launch(sandbox, "sh", "-c", SERVE, name="server")
    client = node.launch(sandbox, name="client")
    wait_for(lambda: node.exec(client, "wget", "-q", "-O-", "http://127.0.0.1").stdout == b"served\n", "the server")


def test_pods_reach_each_other_and_the_host_reaches_them(node: Node) -> None:
    server, client = node.run(pod("server")), node.run(pod("client"))
    node.launch(server, "sh", "-c", SERVE)
    address = node.address(server)
    wait_for(lambda: served(f"http://{address}"), "the server")
    other = node.launch(client)
    assert node.read(other, f"wget -q -O- http://{address}") == "served"


def test_container_port_alone_is_no_host_port(node: Node) -> None:
    sandbox = node.run(pod(port_mappings=[api.PortMapping(container_port=80)]))
    node.launch(sandbox, "sh", "-c", SERVE)
    wait_for(lambda: served(f"http://{node.address(sandbox)}"), "the server")
    assert not served("http://127.0.0.1:80")


def test_host_port_leads_to_the_pod(node: Node) -> None:
    port = free_port()
    sandbox = node.run(pod(port_mappings=[api.PortMapping(container_port=80, host_port=port)]))
    node.launch(sandbox, "sh", "-c", SERVE)
    gateway = node.read(node.launch(sandbox, name="look"), GATEWAY)
    wait_for(lambda: served(f"http://{gateway}:{port}"), "the server, by an address of the host")
    assert served(f"http://127.0.0.1:{port}")
    node.remove(sandbox)
    assert not served(f"http://{gateway}:{port}")


def test_host_port_is_reached_from_pods(node: Node) -> None:
    """From another pod and, by way of the host, from the pod itself (hairpin)."""
    port = free_port()
    sandbox = node.run(pod("server", port_mappings=[api.PortMapping(container_port=80, host_port=port)]))
    node.launch(sandbox, "sh", "-c", SERVE)
    inside = node.launch(sandbox, name="inside")
    outside = node.launch(node.run(pod("client")))
    gateway = node.read(outside, GATEWAY)
    wait_for(lambda: served(f"http://{gateway}:{port}"), "the server")
    fetch = f"wget -q -O- http://{gateway}:{port}"
    assert node.read(outside, fetch) == "served"
    assert node.read(inside, fetch) == "served"


def test_host_port_of_one_address(node: Node) -> None:
    port = free_port()
    mapping = api.PortMapping(container_port=80, host_port=port, host_ip="127.0.0.1")
    sandbox = node.run(pod(port_mappings=[mapping]))
    node.launch(sandbox, "sh", "-c", SERVE)
    gateway = node.read(node.launch(sandbox, name="look"), GATEWAY)
    wait_for(lambda: served(f"http://127.0.0.1:{port}"), "the server")
    assert not served(f"http://{gateway}:{port}")


def test_host_port_for_datagrams(node: Node) -> None:
    port = free_port()
    mapping = api.PortMapping(protocol=api.UDP, container_port=9000, host_port=port)
    sandbox = node.run(pod(port_mappings=[mapping]))
    container = node.launch(sandbox)
    gateway = node.read(container, GATEWAY)
    with datagram_socket_inside(node.host_pid(container)) as receiver:
        receiver.bind(("", 9000))
        receiver.settimeout(10)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.settimeout(10)
            sender.sendto(b"question", (gateway, port))
            question, client = receiver.recvfrom(100)
            receiver.sendto(b"answer", client)
            answer, source = sender.recvfrom(100)
    assert (question, answer, source) == (b"question", b"answer", (gateway, port))


@pytest.mark.reference(differs="two pods may ask for one host port, and the first gets the traffic")
def test_host_port_of_another_pod_is_refused(node: Node) -> None:
    port = free_port()
    mapping = api.PortMapping(container_port=80, host_port=port)
    node.run(pod("first", port_mappings=[mapping]))
    node.refused(
        lambda: node.run(pod("second", port_mappings=[mapping])), AlreadyExists, FailedPrecondition, InvalidArgument
    )
    assert len(node.sandboxes()) == 1


def test_pod_on_the_hosts_network(node: Node) -> None:
    sandbox = node.run(pod(options=namespaces(network=api.NODE)))
    container = node.launch(sandbox)
    assert node.address(sandbox) == ""
    assert node.pod_status(sandbox).status.linux.namespaces.options.network == api.NODE
    with greeter("127.0.0.1") as port:
        assert node.read(container, f"nc -w 5 127.0.0.1 {port} </dev/null") == "hello"


def test_pod_off_the_hosts_network(node: Node) -> None:
    container = node.launch(node.run())
    with greeter("127.0.0.1") as port:
        assert node.exec(container, "nc", "-w", "1", "127.0.0.1", str(port)).exit_code != 0


def test_hostname(node: Node) -> None:
    container = node.launch(node.run(pod(hostname="test-hostname")))
    assert node.read(container, "hostname; cat /etc/hostname") == "test-hostname\ntest-hostname"


def test_resolver(node: Node) -> None:
    dns = api.DNSConfig(
        servers=["10.10.10.10", "fd00::10"], searches=["one.example", "two.example"], options=["ndots:5", "timeout:2"]
    )
    container = node.launch(node.run(pod(dns_config=dns)))
    lines = node.read(container, "cat /etc/resolv.conf").splitlines()
    assert [line for line in lines if line.startswith("nameserver")] == [
        "nameserver 10.10.10.10",
        "nameserver fd00::10",
    ]
    assert "search one.example two.example" in lines
    assert "options ndots:5 timeout:2" in lines


def test_address_survives_a_container(node: Node) -> None:
    sandbox = node.run()
    address = node.address(sandbox)
    node.exited(node.launch(sandbox, "true"))
    node.launch(sandbox, name="next")
    assert node.address(sandbox) == address


def test_addresses_are_used_again(node: Node) -> None:
    started = time.monotonic()
    for number in range(3):
        sandbox = node.run(pod(f"pod{number}"))
        assert node.address(sandbox)
        node.remove(sandbox)
    assert time.monotonic() - started < 60
