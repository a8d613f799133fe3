"""Host ports and both address families on the built-in bridge, with real packets from everywhere."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from podkeep.base.errors import AlreadyExists, InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.namespace.namespaces import run_in_netns
from support.cri import BLOCK, Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.netpeer import Server, ask, netns_of, outside
from support.resources import host_ports
from support.waiting import wait_for

HERE, THERE = ("192.0.2.1/24", "2001:db8::1/64"), ("192.0.2.2/24", "2001:db8::2/64")
MACHINE, MACHINE6 = "192.0.2.1", "2001:db8::1"
KINDS = {"tcp": api.TCP, "udp": api.UDP, "sctp": api.SCTP}


def mapping(host_port: int, container_port: int = 80, *, kind: str = "tcp", host_ip: str = "") -> api.PortMapping:
    return api.PortMapping(protocol=KINDS[kind], container_port=container_port, host_port=host_port, host_ip=host_ip)


@pytest.fixture(params=[True, False], ids=["br_netfilter", "plain bridge"])
def bridge_filter(request: pytest.FixtureRequest, scratch_machine: None) -> None:
    """With Kubernetes, IP rules see what only crosses a bridge, else they do not; per network namespace."""
    for name in ("iptables", "ip6tables"):
        path = Path(f"/proc/sys/net/bridge/bridge-nf-call-{name}")
        if path.exists():
            path.write_text("1" if request.param else "0")


@pytest.fixture(scope="module")
def neighbour(scratch_machine: None) -> Iterator[int]:
    """A machine outside."""
    with outside("pktout", here=HERE, there=THERE) as fd:
        yield fd


@pytest.fixture(scope="module")
def dual_daemon(open_directory: Path, scratch_machine: None) -> Iterator[Daemon]:
    """A daemon whose pods have IPv6 as well."""
    base = open_directory / os.urandom(4).hex()
    base.mkdir()
    with Daemon(base, network='subnet6 = "fd07:183::/64"') as daemon:
        yield daemon


@pytest.fixture
def dual(dual_daemon: Daemon) -> Iterator[Pods]:
    """A client of it; it holds what it held before, afterwards."""
    before = dual_daemon.resources()
    with Pods(dual_daemon.socket, "") as client:
        yield client
    assert dual_daemon.resources() == before


@pytest.fixture
def place(dual_daemon: Daemon) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(dual_daemon, stack)


class Place:
    """Network namespaces of sandboxes, and servers in them."""

    def __init__(self, daemon: Daemon, stack: ExitStack) -> None:
        self._daemon = daemon
        self._stack = stack

    def netns(self, sandbox: str) -> int:
        fd = netns_of(self._daemon, sandbox)
        self._stack.callback(os.close, fd)
        return fd

    def serve(self, sandbox: str, port: int = 80, *, kind: str = "tcp", version: int = 4) -> int:
        fd = self.netns(sandbox)
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        self._stack.enter_context(Server(fd, port, kind=kind, family=family))
        return fd


def both_addresses(pods: Pods, sandbox: str) -> tuple[str, str]:
    network = pods.pod_status(sandbox).status.network
    (more,) = network.additional_ips
    return network.ip, more.ip


def gateway_of(netns: int, version: int) -> str:
    done = run_in_netns(
        netns,
        lambda: subprocess.run(
            ["ip", "-j", f"-{version}", "route", "show", "default"], capture_output=True, check=True
        ),
    )
    (route,) = json.loads(done.stdout)
    return str(route["gateway"])


def test_a_pod_has_an_address_of_each_family_at_once(dual: Pods, place: Place, neighbour: int) -> None:
    first, second = dual.run(pod("first", options=namespaces(user=BLOCK))), dual.run(pod("second"))
    ipv4, ipv6 = both_addresses(dual, first)
    assert ipv6.startswith("fd07:183::")
    assert set(both_addresses(dual, second)).isdisjoint({ipv4, ipv6})
    for version, address in ((4, ipv4), (6, ipv6)):
        netns = place.serve(first, version=version)
        other = place.netns(second)
        gateway = gateway_of(netns, version)
        assert ask(other, address, 80) == both_addresses(dual, second)[0 if version == 4 else 1]
        assert ask(None, address, 80) == gateway
    # Nothing waits for the check of a duplicate address, and another pod's router is not believed.
    shown = run_in_netns(netns, lambda: subprocess.run(["ip", "-6", "addr"], capture_output=True, check=True).stdout)
    assert b"nodad" in shown
    setting = Path("/proc/sys/net/ipv6/conf/eth0/accept_ra")
    assert run_in_netns(netns, setting.read_text).strip() == "0"
    dual.stop_pod(first)
    status = dual.pod_status(first).status
    assert (status.network.ip, list(status.network.additional_ips)) == ("", [])


def test_pods_reach_the_outside_under_the_machines_addresses(dual: Pods, place: Place, neighbour: int) -> None:
    netns = place.netns(dual.run(pod("inside")))
    with Server(neighbour, 8000), Server(neighbour, 8000, family=socket.AF_INET6):
        assert ask(netns, "192.0.2.2", 8000) == MACHINE
        assert ask(netns, "2001:db8::2", 8000) == MACHINE6


@pytest.mark.usefixtures("bridge_filter")
@pytest.mark.parametrize("kind", ["tcp", "udp"])
@pytest.mark.parametrize("version", [4, 6])
def test_a_host_port_answers_from_everywhere(dual: Pods, place: Place, neighbour: int, kind: str, version: int) -> None:
    server = dual.run(
        pod("server", port_mappings=[mapping(12080, kind=kind), mapping(0, 81), mapping(12081, kind=kind)])
    )
    client = place.netns(dual.run(pod("client")))
    netns = place.serve(server, kind=kind, version=version)
    machine, outer = (MACHINE, "192.0.2.2") if version == 4 else (MACHINE6, "2001:db8::2")
    gateway = gateway_of(netns, version)
    # Whoever is outside is seen as who it is.
    assert ask(neighbour, machine, 12080, kind=kind) == outer
    assert ask(neighbour, machine, 12081, kind=kind) == outer
    # The machine itself, through its addresses.
    assert ask(None, machine, 12080, kind=kind) in {machine, gateway}
    assert ask(None, gateway, 12080, kind=kind) == gateway
    # Other pods, and the pod itself: through the machine, or the answer would take another way.
    for place_of_client in (client, netns):
        assert ask(place_of_client, machine, 12080, kind=kind) == gateway
        assert ask(place_of_client, gateway, 12080, kind=kind) == gateway
    if version == 4:
        for loopback in ("127.0.0.1", "127.1.2.3"):
            assert ask(None, loopback, 12080, kind=kind) == gateway
    else:
        with pytest.raises(ConnectionRefusedError):
            ask(None, "::1", 12080, kind=kind)


def test_a_host_port_is_gone_with_its_pod(dual: Pods, dual_daemon: Daemon, place: Place, neighbour: int) -> None:
    config = pod("server", port_mappings=[mapping(12080)])
    sandbox = dual.run(config)
    place.serve(sandbox)
    assert ask(neighbour, MACHINE, 12080) == "192.0.2.2"
    assert len(host_ports(f"pkt{dual_daemon.token}")) == 4
    dual.stop_pod(sandbox)
    assert host_ports(f"pkt{dual_daemon.token}") == ()
    with pytest.raises(ConnectionRefusedError):
        ask(neighbour, MACHINE, 12080)
    # A stopped pod has no port any more: the next one takes it.
    again = dual.run(pod("server", attempt=1, port_mappings=[mapping(12080)]))
    place.serve(again)
    assert ask(neighbour, MACHINE, 12080) == "192.0.2.2"


def test_a_host_port_of_one_address(dual: Pods, place: Place, neighbour: int) -> None:
    ports = [
        mapping(12080, host_ip="127.0.0.1"),
        mapping(12081, host_ip=MACHINE),
        mapping(12082, host_ip=MACHINE6),
        mapping(12083, host_ip="0.0.0.0"),
        mapping(12084, host_ip="::"),
    ]
    sandbox = dual.run(pod("server", port_mappings=ports))
    place.serve(sandbox)
    place.serve(sandbox, version=6)
    assert ask(None, "127.0.0.1", 12080)
    assert ask(neighbour, MACHINE, 12081) == ask(neighbour, MACHINE, 12083) == "192.0.2.2"
    assert ask(neighbour, MACHINE6, 12082) == ask(neighbour, MACHINE6, 12084) == "2001:db8::2"
    for address, port in ((MACHINE, 12080), (MACHINE6, 12081), (MACHINE, 12082), (MACHINE6, 12083), (MACHINE, 12084)):
        with pytest.raises(ConnectionRefusedError):
            ask(neighbour, address, port)
    with pytest.raises(ConnectionRefusedError):
        ask(None, "127.0.0.1", 12081)


def lead_to_loopback(netns: int, gateway: str) -> None:
    """Have a pod send to the machine what it sends to 127.0.0.0/8, as its root can with frames of its own making."""

    def route_there() -> None:
        for path in ("all", "eth0"):
            Path(f"/proc/sys/net/ipv4/conf/{path}/route_localnet").write_text("1")
        subprocess.run(["ip", "route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local"], check=True)
        subprocess.run(["ip", "route", "del", "local", "127.0.0.1", "dev", "lo", "table", "local"], check=True)
        subprocess.run(["ip", "route", "add", "127.0.0.0/8", "via", gateway, "dev", "eth0"], check=True)

    run_in_netns(netns, route_there)


def reaches_loopback(netns: int) -> bool:
    """Say whether a pod gets at a server of the machine that listens on 127.0.0.1 alone.

    With a datagram: the pod's kernel would not take an answer, which a pod can read from its interface all the same.
    """

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"hello", ("127.0.0.1", 12099))

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 12099))
        server.settimeout(0.5)
        run_in_netns(netns, send)
        try:
            return server.recv(16) == b"hello"
        except TimeoutError:
            return False


@pytest.mark.usefixtures("bridge_filter")
def test_a_pod_does_not_reach_the_machines_loopback(dual: Pods, place: Place) -> None:
    """CVE-2020-8558: the setting that makes loopback host ports work must not let pods in."""
    sandbox = dual.run(pod("server", port_mappings=[mapping(12080)]))
    netns = place.serve(sandbox)
    gateway = gateway_of(netns, 4)

    lead_to_loopback(netns, gateway)
    assert not reaches_loopback(netns)
    assert ask(None, "127.0.0.1", 12080) == gateway


def test_a_pod_does_not_reach_it_while_flushed_rules_are_put_back(own_daemon: Daemon) -> None:
    """However long that takes: here nft waits for a lock."""
    held, programs = own_daemon.base / "nft.lock", own_daemon.base / "bin"
    programs.mkdir()
    (programs / "nft").write_text(f'#!/bin/sh\nexec flock {held} {shutil.which("nft")} "$@"\n')
    (programs / "nft").chmod(0o755)
    own_daemon.environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    with own_daemon, Pods(own_daemon.socket, "") as client, ExitStack() as stack:
        place = Place(own_daemon, stack)
        netns = place.serve(client.run(pod("server", port_mappings=[mapping(12080)])))
        gateway = gateway_of(netns, 4)
        lead_to_loopback(netns, gateway)
        setting = Path(f"/proc/sys/net/ipv4/conf/pkt{own_daemon.token}/route_localnet")
        with held.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run(["nft", "flush", "ruleset"], check=True)
            wait_for(lambda: setting.read_text() == "0\n", "the setting that lets answers in is off")
            assert not reaches_loopback(netns)
        wait_for(lambda: setting.read_text() == "1\n", "it is on again, with the rules")
        assert not reaches_loopback(netns)
        assert ask(None, "127.0.0.1", 12080) == gateway


def reaches(address: str) -> bool:
    """Say whether the machine gets an answer from a server, which must have been made, in a moment."""
    try:
        return bool(ask(None, address, 80, timeout=0.3))
    except OSError:
        return False


def remove_bridge(daemon: Daemon) -> None:
    subprocess.run(["ip", "link", "delete", f"pkt{daemon.token}"], check=True)


def test_a_bridge_that_somebody_removed_comes_back_with_its_pods(
    dual: Pods, dual_daemon: Daemon, place: Place, neighbour: int
) -> None:
    """As a manager of networks does that does not know it."""
    server, other = dual.run(pod("server", port_mappings=[mapping(12080)])), dual.run(pod("other"))
    place.serve(server)
    netns = place.serve(server, version=6)
    gateway, addresses = gateway_of(netns, 4), both_addresses(dual, server)
    name = f"pkt{dual_daemon.token}"
    for command in (["link", "delete", name], ["address", "flush", "dev", name], ["link", "delete", name]):
        subprocess.run(["ip", *command], check=True)
        for address in addresses:
            wait_for(lambda address=address: reaches(address), "the pod is reached")
    assert ask(neighbour, MACHINE, 12080) == "192.0.2.2"
    assert ask(None, "127.0.0.1", 12080) == gateway
    assert ask(place.netns(other), addresses[0], 80) == both_addresses(dual, other)[0]
    assert ask(netns, MACHINE, 12080) == gateway, "by the port that the packet came from"
    Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
    assert dual.run(pod("next"))
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == "1\n"


def test_a_daemon_that_starts_without_its_bridge_connects_its_pods_again(mortal: Mortal) -> None:
    client = mortal.start()
    server = client.run(pod("server"))
    address = client.pod_status(server).status.network.ip
    with ExitStack() as stack:
        Place(mortal.daemon, stack).serve(server)
        assert ask(None, address, 80)
        mortal.daemon.kill()
        remove_bridge(mortal.daemon)
        assert not reaches(address)
        mortal.start()
        assert ask(None, address, 80)


@pytest.mark.parametrize("kind", ["tcp", "udp"])
@pytest.mark.parametrize("where", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_port_on_which_the_machine_listens_is_refused(dual: Pods, kind: str, where: str) -> None:
    """A pod would get the packets of the API, or of whatever else listens there."""
    family = socket.AF_INET6 if ":" in where else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as server:
        server.bind((where, 12090))
        if kind == "tcp":
            server.listen()
        said = error_of(lambda: dual.run(pod("thief", port_mappings=[mapping(12090, kind=kind)])), AlreadyExists)
        assert f"host port 12090/{kind} is taken: a program of the machine has it" in said
        dual.run(pod("other", port_mappings=[mapping(12090, kind="udp" if kind == "tcp" else "tcp")]))
    dual.run(pod("later", port_mappings=[mapping(12090, kind=kind)]))


def test_a_port_that_is_a_clients_end_of_a_connection_is_free(dual: Pods) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), source_address=("127.0.0.1", 12090)),
    ):
        dual.run(pod("server", port_mappings=[mapping(12090)]))


def test_sctp_ports_are_in_the_rules(dual: Pods, dual_daemon: Daemon) -> None:
    dual.run(pod("server", port_mappings=[mapping(12080, kind="sctp")]))
    found = host_ports(f"pkt{dual_daemon.token}")
    assert len(found) == 4
    assert all("sctp" in element for element in found)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (mapping(12080), mapping(12080, 81)),
        (mapping(12080, host_ip="127.0.0.1"), mapping(12080)),
        (mapping(12080, host_ip="0.0.0.0"), mapping(12080, host_ip=MACHINE)),
        (mapping(12080, kind="udp", host_ip=MACHINE6), mapping(12080, kind="udp", host_ip="2001:0db8::0001")),
    ],
)
def test_a_port_that_another_pod_has_is_refused(
    dual: Pods, dual_daemon: Daemon, first: api.PortMapping, second: api.PortMapping
) -> None:
    holder = dual.run(pod("holder", port_mappings=[first]))
    before = dual_daemon.resources()
    text = error_of(lambda: dual.run(pod("other", port_mappings=[mapping(12079), second])), AlreadyExists)
    assert "12080" in text
    assert "tests/holder" in text
    assert holder in text
    assert dual_daemon.resources() == before


def test_ports_that_do_not_meet_are_several_pods(dual: Pods) -> None:
    for number, port in enumerate(
        [
            mapping(12080, kind="tcp", host_ip="127.0.0.1"),
            mapping(12080, kind="tcp", host_ip=MACHINE),
            mapping(12080, kind="tcp", host_ip="::"),
            mapping(12080, kind="udp"),
            mapping(12081),
        ]
    ):
        dual.run(pod(f"pod{number}", port_mappings=[port]))
    assert len(dual.sandboxes()) == 5


@pytest.mark.parametrize(
    ("ports", "named"),
    [
        ([mapping(65536)], "65536"),
        ([mapping(-1)], "-1"),
        ([mapping(80, 0)], "container_port 0"),
        ([mapping(80, host_ip="localhost")], "localhost"),
        ([mapping(80, host_ip="::1")], "::1"),
        ([mapping(80, host_ip="224.0.0.1")], "multicast"),
        ([mapping(80, 1), mapping(80, 2)], "the same host port"),
        ([api.PortMapping(protocol=api.Protocol.ValueType(7), host_port=1, container_port=1)], "protocol 7"),
    ],
)
def test_port_mappings_that_make_no_sense(
    dual: Pods, dual_daemon: Daemon, ports: list[api.PortMapping], named: str
) -> None:
    before = dual_daemon.resources()
    assert named in error_of(lambda: dual.run(pod(port_mappings=ports)), InvalidArgument)
    assert dual_daemon.resources() == before


def test_an_ipv6_address_of_the_machine_needs_pods_with_ipv6(pods: Pods, daemon: Daemon) -> None:
    text = error_of(lambda: pods.run(pod(port_mappings=[mapping(80, host_ip="fd00::1")])), InvalidArgument)
    assert "network.subnet6" in text


def test_a_pod_on_the_hosts_network_has_its_ports_anyway(dual: Pods, dual_daemon: Daemon) -> None:
    options = namespaces(network=api.NODE)
    for number in range(2):
        dual.run(pod(f"pod{number}", options=options, port_mappings=[mapping(12080)]))
    assert host_ports(f"pkt{dual_daemon.token}") == ()


def test_a_repeated_request_finds_its_ports_taken_by_itself(dual: Pods) -> None:
    config = pod("server", port_mappings=[mapping(12080)])
    assert dual.run(config) == dual.run(config)


def test_rules_that_somebody_flushed_come_back(dual: Pods, dual_daemon: Daemon, place: Place, neighbour: int) -> None:
    """As ``systemctl restart nftables`` does."""
    server = dual.run(pod("server", port_mappings=[mapping(12080)]))
    place.serve(server)
    name = f"pkt{dual_daemon.token}"

    def ports() -> bytes:
        return subprocess.run(["nft", "list", "table", "bridge", f"podkeep-{name}"], capture_output=True).stdout

    def noted() -> list[int]:
        log = dual_daemon.log.read_text()
        return [log.count(f"table {family} podkeep-{name}; it is back") for family in ("inet", "bridge")]

    before, ports_before, noted_before = host_ports(name), ports(), noted()
    assert b"pk" + server[:12].encode() in ports_before
    for _ in range(3):
        subprocess.run(["nft", "flush", "ruleset"], check=True)
        wait_for(lambda: host_ports(name) == before and ports() == ports_before, "the rules")
    assert ask(neighbour, MACHINE, 12080) == "192.0.2.2"
    # It is written when they are back, and may be read a little later.
    wait_for(lambda: noted() == [count + 3 for count in noted_before], "a line for each time")


def test_a_udp_client_that_goes_on_sending_reaches_the_next_pod(
    dual: Pods, place: Place, neighbour: int, scratch_machine: None
) -> None:
    """A flow is judged by its first packet; those of before are forgotten when a port changes hands."""

    def client() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.settimeout(5)
        made.connect((MACHINE, 12053))
        return made

    def turn(number: int) -> str:
        sandbox = dual.run(pod("dns", attempt=number, port_mappings=[mapping(12053, 53, kind="udp")]))
        place.serve(sandbox, 53, kind="udp")
        asking.send(b"hello")
        answer = asking.recv(64).decode()
        dual.remove(sandbox)
        return answer

    with run_in_netns(neighbour, client) as asking:
        asking.send(b"too early")
        with pytest.raises(ConnectionRefusedError):
            asking.recv(64)
        assert [turn(number) for number in range(3)] == ["hello 192.0.2.2"] * 3


@pytest.mark.parametrize("failpoint", ["sandbox.pinned", "network.ports", "sandbox.namespaces", "sandbox.cgroups"])
def test_a_daemon_killed_with_a_host_port_leaves_none(mortal: Mortal, failpoint: str) -> None:
    """And what a living pod has is put back, if it was flushed in the meantime."""
    client = mortal.start()
    client.run(pod("living", port_mappings=[mapping(12070)]))
    before = mortal.daemon.resources()
    assert len(before.host_ports) == 2
    mortal.daemon.kill()
    client = mortal.start(failpoints=f"{failpoint}=kill")
    with pytest.raises(Exception, match=r"."):
        client.run(pod("killed", port_mappings=[mapping(12080)]))
    assert mortal.daemon.process is not None
    mortal.daemon.process.wait(timeout=60)
    subprocess.run(["nft", "flush", "ruleset"], check=True)
    client = mortal.start()
    after = mortal.daemon.resources()
    assert (after.host_ports, after.links, after.records) == (before.host_ports, before.links, before.records)
    client.remove(client.run(pod("killed", port_mappings=[mapping(12080)])))
    assert mortal.daemon.resources().host_ports == before.host_ports


def test_a_daemon_killed_at_the_end_of_a_stop_leaves_no_host_port(mortal: Mortal) -> None:
    """The pod's record must not bring them back: its address may be another pod's by then."""
    client = mortal.start(failpoints="sandbox.stopped=kill")
    sandbox = client.run(pod("stopped", port_mappings=[mapping(12090)]))
    with pytest.raises(Exception, match=r"."):
        client.stop_pod(sandbox)
    assert mortal.daemon.process is not None
    mortal.daemon.process.wait(timeout=60)
    client = mortal.start()
    assert mortal.daemon.resources().host_ports == ()
    assert client.pod_status(sandbox).status.state == api.SANDBOX_NOTREADY
    client.run(pod("next", port_mappings=[mapping(12090)]))
    client.remove(sandbox)
    assert len(mortal.daemon.resources().host_ports) == 2


def test_a_daemon_does_not_stream_at_a_host_port_of_a_pod(mortal: Mortal) -> None:
    """The pod would get the commands of all others, and answer for them."""
    drawn = Path("/proc/sys/net/ipv4/ip_local_port_range")
    usual = drawn.read_text()
    client = mortal.start()
    container = client.launch(client.run())
    try:
        drawn.write_text("20000 20001")
        client.run(pod("thief", port_mappings=[mapping(20000), mapping(20001)]))
        mortal.daemon.kill()
        client = mortal.start()
    finally:
        drawn.write_text(usual)
    url = client.call("Exec", api.ExecRequest(container_id=container, cmd=["true"], stdout=True)).url
    assert urlsplit(url).port not in (None, 20000, 20001)


@pytest.mark.parametrize("failpoint", ["network.ports", "sandbox.namespaces", "sandbox.infra"])
def test_a_failure_gives_the_host_port_back(mortal: Mortal, failpoint: str) -> None:
    client = mortal.start(failpoints=f"{failpoint}=error")
    before = mortal.daemon.resources()
    for _ in range(2):
        with pytest.raises(Exception, match=failpoint):
            client.run(pod("failing", port_mappings=[mapping(12080)]))
    assert mortal.daemon.resources() == before


def test_the_last_daemon_takes_its_rules_with_it(own_daemon: Daemon) -> None:
    own_daemon.start()
    with Pods(own_daemon.socket, "") as client:
        client.run(pod("server", port_mappings=[mapping(12080)]))
    table = ["nft", "list", "table", "inet", f"podkeep-pkt{own_daemon.token}"]
    assert subprocess.run(table, capture_output=True, check=False).returncode == 0
    assert own_daemon.stop() == 0
    assert subprocess.run(table, capture_output=True, check=False).returncode != 0
    assert not Path(f"/sys/class/net/pkt{own_daemon.token}").exists()
