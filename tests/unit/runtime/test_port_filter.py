"""What a pod may send at its port of the bridge: frames of every kind that claim another pod's address, for real."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest

from podkeep.base.config import NetworkConfig
from podkeep.base.errors import CommandFailed
from podkeep.base.ids import SandboxID
from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, NamespaceRequest, run_in_netns
from podkeep.kernel.network import netlink, nfnetlink
from podkeep.runtime.model.layout import veth_name
from podkeep.runtime.network import port_filter
from podkeep.runtime.network.bridge import Bridge
from podkeep.runtime.network.port_filter import PortFilter
from support.processes import write_script

EVIL, VICTIM = SandboxID("e" * 64), SandboxID("1" * 64)
CONFIG = NetworkConfig(bridge="pkbr", subnet="10.7.0.0/24", subnet6="fd07::/64", masquerade=False)
ADDRESSES = {EVIL: ["10.7.0.66", "fd07::66"], VICTIM: ["10.7.0.2", "fd07::2"]}
ALL = b"\xff" * 6
GROUP = bytes.fromhex("333300000001")
LINK_LOCAL_GROUPS = tuple(bytes.fromhex(f"0180c200000{last:x}") for last in range(16))
"""For bridges themselves (IEEE 802.1D, table 7-10): but the first, frames to them are not forwarded."""
ARP, IPV4, IPV6, VLAN = 0x0806, 0x0800, 0x86DD, 0x8100
DATAGRAM = struct.pack("!HHHH", 9, 9, 8, 0)
"""Of UDP, without data; a host drops it, a bridge does not."""


def mac(address: str) -> bytes:
    return bytes.fromhex(netlink.hardware_address(ip_address(address)).replace(":", ""))


ME, OTHER = (mac(ADDRESSES[item][0]) for item in (EVIL, VICTIM))
ME4, OTHER4, ROUTER4 = (ip_address(text).packed for text in ("10.7.0.66", "10.7.0.2", "10.7.0.1"))
ME6, OTHER6, ROUTER6 = (ip_address(text).packed for text in ("fd07::66", "fd07::2", "fd07::1"))
ME_LOCAL, OTHER_LOCAL = (
    port_filter.link_local(netlink.hardware_address(ip_address(ADDRESSES[item][0]))).packed for item in (EVIL, VICTIM)
)


def ether(kind: int, payload: bytes, source: bytes = ME, to: bytes = ALL) -> bytes:
    return to + source + struct.pack("!H", kind) + payload


def arp(sender: bytes, address: bytes, operation: int = 2) -> bytes:
    return struct.pack("!HHBBH", 1, IPV4, 6, 4, operation) + sender + address + ALL + address


def ipv4(source: bytes) -> bytes:
    def header(checksum: int) -> bytes:
        return struct.pack("!BBHHHBBH", 0x45, 0, 28, 0, 0, 64, 17, checksum) + source + OTHER4

    total = sum(struct.unpack("!10H", header(0)))
    return header(~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + DATAGRAM


def ipv6(source: bytes, payload: bytes = DATAGRAM, kind: int = 17) -> bytes:
    group = ip_address("ff02::1").packed
    return struct.pack("!IHBB", 6 << 28, len(payload), kind, 255) + source + group + payload


def neighbour(kind: int, target: bytes, link: bytes = ME) -> bytes:
    """A neighbour solicitation or advertisement (RFC 4861, 4.3 and 4.4); nobody here looks at the checksum."""
    return struct.pack("!BBHI", kind, 0, 0, 0x60000000) + target + struct.pack("!BB", 2, 1) + link


ALLOWED = {
    "an ARP request": ether(ARP, arp(ME, ME4, 1)),
    "an ARP announcement": ether(ARP, arp(ME, ME4)),
    "IPv4": ether(IPV4, ipv4(ME4)),
    "IPv6": ether(IPV6, ipv6(ME6), to=GROUP),
    "IPv6 of the link": ether(IPV6, ipv6(ME_LOCAL), to=GROUP),
    "a solicitation": ether(IPV6, ipv6(ME6, neighbour(135, OTHER6), 58), to=GROUP),
    "an advertisement": ether(IPV6, ipv6(ME6, neighbour(136, ME6), 58), to=GROUP),
    "an advertisement of the link": ether(IPV6, ipv6(ME_LOCAL, neighbour(136, ME_LOCAL), 58), to=GROUP),
}
REFUSED = {
    "another's address, by ARP": ether(ARP, arp(ME, OTHER4)),
    "another's address, by an ARP request": ether(ARP, arp(ME, OTHER4, 1)),
    "the router's address, by ARP": ether(ARP, arp(ME, ROUTER4)),
    "another's hardware address, by ARP": ether(ARP, arp(OTHER, ME4)),
    "another's hardware address in front of ARP": ether(ARP, arp(ME, ME4), source=OTHER),
    "all of another's, by ARP": ether(ARP, arp(OTHER, OTHER4), source=OTHER),
    "the router's address, by ARP in a VLAN": ether(VLAN, struct.pack("!HH", 0, ARP) + arp(ME, ROUTER4, 1)),
    "another's address in IPv4": ether(IPV4, ipv4(OTHER4)),
    "no address in IPv4": ether(IPV4, ipv4(bytes(4))),
    "another's hardware address in front of IPv4": ether(IPV4, ipv4(ME4), source=OTHER),
    "another's address in IPv6": ether(IPV6, ipv6(OTHER6), to=GROUP),
    "another's address of the link": ether(IPV6, ipv6(OTHER_LOCAL), to=GROUP),
    "no address in IPv6": ether(IPV6, ipv6(bytes(16), neighbour(135, OTHER6), 58), to=GROUP),
    "another's hardware address in front of IPv6": ether(IPV6, ipv6(ME6), source=OTHER, to=GROUP),
    "an advertisement of another's address": ether(IPV6, ipv6(ME6, neighbour(136, OTHER6), 58), to=GROUP),
    "an advertisement of the router's address": ether(IPV6, ipv6(ME_LOCAL, neighbour(136, ROUTER6), 58), to=GROUP),
    "an advertisement behind options": ether(
        IPV6, ipv6(ME6, bytes([58, 0, 1, 4, 0, 0, 0, 0]) + neighbour(136, OTHER6), 60), to=GROUP
    ),
    "a router's advertisement": ether(IPV6, ipv6(ME_LOCAL, struct.pack("!BBHIII", 134, 0, 0, 0, 0, 0), 58), to=GROUP),
    "a redirection": ether(IPV6, ipv6(ME_LOCAL, neighbour(137, OTHER6) + OTHER6, 58), to=GROUP),
    "something else": ether(0x88B5, bytes(46)),
    "something shorter than Ethernet II": ether(4, bytes(46)),
}


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A bridge with two pods; each has a socket for frames."""

    bridge: Bridge
    evil: socket.socket
    victim: socket.socket

    def sent(self, frames: dict[str, bytes]) -> set[str]:
        """Return which frames reach the victim. The last one, which does, says that all others would have."""
        mark = ether(ARP, arp(ME, ME4) + os.urandom(8))
        for frame in (*frames.values(), mark):
            self.evil.send(frame)
        seen = set()
        while (frame := self.victim.recv(2048)) != mark:
            # A socket is shown a frame of a VLAN without what says so (packet(7), PACKET_AUXDATA).
            seen |= {name for name, sent in frames.items() if frame[: len(sent)] in (sent, sent[:12] + sent[16:])}
        return seen

    def port_of(self, address: bytes) -> set[str]:
        """Return the ports behind which the bridge believes a hardware address to be."""
        done = subprocess.run(["bridge", "-j", "fdb", "show", "br", "pkbr"], capture_output=True, check=True)
        return {item["ifname"] for item in json.loads(done.stdout) if item["mac"] == address.hex(":")}


def _checked(source: bytes, group: bytes, message: bytes) -> bytes:
    """Return a message of ICMPv6, of even length, with its checksum (RFC 4443, 2.3)."""
    data = source + group + struct.pack("!II", len(message), 58) + message
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return message[:2] + struct.pack("!H", ~total & 0xFFFF) + message[4:]


def query() -> bytes:
    """Who is in any group? (RFC 2710, 3). Bridges believe it; hosts do not: it came over a router."""
    group = ip_address("ff02::1").packed
    message = _checked(ME_LOCAL, group, struct.pack("!BBHHH", 130, 0, 0, 1, 0) + bytes(16))
    alert = bytes([58, 0, 5, 2, 0, 0, 1, 0])
    packet = struct.pack("!IHBB", 6 << 28, len(alert + message), 0, 255) + ME_LOCAL + group + alert + message
    return ether(IPV6, packet, to=GROUP)


def solicitation(number: int) -> bytes:
    """Who has this address? To the group of its last three bytes (RFC 4291, 2.7.1), of which nobody told the bridge."""
    last = number.to_bytes(3)
    group, wanted = ip_address("ff02::1:ff00:0").packed[:13] + last, ip_address("fd07::").packed[:13] + last
    message = _checked(ME6, group, neighbour(135, wanted))
    packet = struct.pack("!IHBB", 6 << 28, len(message), 58, 255) + ME6 + group + message
    return ether(IPV6, packet, to=b"\x33\x33\xff" + last)


def _attach(bridge: Bridge, helper: NamespaceHelper, closing: ExitStack, sandbox: SandboxID) -> socket.socket:
    fd = helper.create(NamespaceRequest(kinds=frozenset({NamespaceKind.NET})))[NamespaceKind.NET]
    closing.callback(os.close, fd)
    bridge.attach(sandbox, fd, ADDRESSES[sandbox])

    def opened() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
        made.bind(("eth0", 3))
        made.settimeout(10)
        return made

    return closing.enter_context(run_in_netns(fd, opened))


@pytest.fixture
def on_a_bridge() -> Iterator[Callable[[Callable[[Segment], None]], None]]:
    """Run a function in a network namespace that stands for a machine, with two pods on the bridge."""
    with NamespaceHelper() as helper, ExitStack() as closing:
        machine = helper.create(NamespaceRequest(kinds=frozenset({NamespaceKind.NET})))[NamespaceKind.NET]
        closing.callback(os.close, machine)

        def run(body: Callable[[Segment], None]) -> None:
            bridge = Bridge.from_config(CONFIG, Path("/run/podkeep"))
            bridge.start({})
            try:
                sockets = {item: _attach(bridge, helper, closing, item) for item in (EVIL, VICTIM)}
                body(Segment(bridge=bridge, evil=sockets[EVIL], victim=sockets[VICTIM]))
            finally:
                bridge.stop()

        yield lambda body: run_in_netns(machine, lambda: run(body))


def listed(table: str = "podkeep-pkbr") -> set[tuple[str, str]]:
    """Return the elements of the table: names of sets, and elements as nft writes them."""
    done = subprocess.run(["nft", "-j", "list", "table", "bridge", table], capture_output=True, text=True, check=True)
    sets = [item["set"] for item in json.loads(done.stdout)["nftables"] if "set" in item]
    return {(item["name"], json.dumps(element)) for item in sets for element in item.get("elem", [])}


def test_a_pod_without_an_ipv6_address_has_no_link_local_one() -> None:
    assert [str(item) for item in port_filter.port(EVIL, ["10.7.0.66"]).addresses] == ["10.7.0.66"]
    assert port_filter.port(EVIL, ADDRESSES[EVIL]).addresses[2].packed == ME_LOCAL


@pytest.mark.slow
def test_a_pod_sends_from_its_own_addresses_only(on_a_bridge: Callable[[Callable[[Segment], None]], None]) -> None:
    def body(segment: Segment) -> None:
        assert segment.sent(ALLOWED) == set(ALLOWED)
        assert segment.sent(REFUSED) == set()
        # Without the filter all of them come: the frames are right.
        segment.bridge.ports.drop()
        assert segment.sent(REFUSED) == set(REFUSED)

    on_a_bridge(body)


@pytest.mark.slow
def test_a_bridge_learns_no_hardware_address_from_another_pod(
    on_a_bridge: Callable[[Callable[[Segment], None]], None],
) -> None:
    def body(segment: Segment) -> None:
        segment.victim.send(ether(ARP, arp(OTHER, OTHER4), source=OTHER))
        while segment.evil.recv(2048)[6:12] != OTHER:
            pass
        claims = {
            f"{kind:#x} to {to.hex(':')}": ether(kind, bytes(46), source=OTHER, to=to)
            for kind in (ARP, 0x88CC)
            for to in (ALL, *LINK_LOCAL_GROUPS)
        }
        assert segment.sent(claims) == set()
        assert segment.port_of(OTHER) == {veth_name(VICTIM)}
        segment.bridge.ports.drop()
        # Without the filter it does. A busy kernel may take a moment until the filter is gone.
        while segment.port_of(OTHER) != {veth_name(EVIL)}:
            segment.sent(claims)

    on_a_bridge(body)


@pytest.mark.slow
def test_a_pod_that_asks_who_is_in_a_group_keeps_no_solicitation_from_others(
    on_a_bridge: Callable[[Callable[[Segment], None]], None],
) -> None:
    """A bridge that believed it would no longer pass on what goes to groups that nobody told it of since."""

    def body(segment: Segment) -> None:
        for first in range(0, 1000, 50):
            segment.evil.send(query())
            frames = {str(number): solicitation(number) for number in range(first, first + 50)}
            assert segment.sent(frames) == set(frames)

    on_a_bridge(body)


@pytest.mark.slow
def test_pods_come_and_go_and_are_put_back_when_somebody_flushed_the_rules(
    on_a_bridge: Callable[[Callable[[Segment], None]], None],
) -> None:
    def body(segment: Segment) -> None:
        ports, both = segment.bridge.ports, listed()
        assert len(both) == 8, "a port, two addresses and that of the link, twice"
        # By nft as by netlink.
        again = PortFilter("pkbr")
        again.install(ADDRESSES)
        assert listed() == both
        segment.bridge.detach(EVIL, ADDRESSES[EVIL])
        segment.bridge.detach(EVIL, ADDRESSES[EVIL])
        alone = listed()
        assert len(alone) == 4
        assert alone < both
        subprocess.run(["nft", "flush", "ruleset"], check=True)
        ports.add(EVIL, ADDRESSES[EVIL])
        assert listed() == both
        subprocess.run(["nft", "flush", "ruleset"], check=True)
        ports.remove(EVIL)
        assert listed() == alone
        assert not ports.restore()
        subprocess.run(["nft", "flush", "ruleset"], check=True)
        assert ports.restore()
        assert listed() == alone
        again.install({VICTIM: ADDRESSES[VICTIM], EVIL: ADDRESSES[EVIL]})
        again.install({EVIL: ADDRESSES[EVIL]})
        assert listed() == both - alone, "a table of before is replaced"
        again.drop()
        again.drop()
        assert subprocess.run(["nft", "list", "ruleset"], capture_output=True, check=True).stdout == b""

    on_a_bridge(body)


@pytest.mark.slow
def test_a_set_that_somebody_changed_is_an_error(on_a_bridge: Callable[[Callable[[Segment], None]], None]) -> None:
    def body(segment: Segment) -> None:
        sets = nfnetlink.Sets(nfnetlink.BRIDGE, "podkeep-pkbr")
        before = listed()
        wrong = nfnetlink.Element(set_name="claims4", key=b"short")
        right = nfnetlink.Element(set_name="ports", key=b"new".ljust(16, b"\0"))
        try:
            with pytest.raises(Exception, match="EINVAL"):
                sets.add([right, wrong, right])
            assert listed() == before, "all of a change, or nothing"
            sets.add([right])
            sets.add([right])
            assert len(listed()) == len(before) + 1
            sets.remove([right])
            sets.remove([right])
            assert listed() == before
        finally:
            sets.close()

    on_a_bridge(body)


def test_a_kernel_without_such_tables_is_told_of_and_others_errors_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As nft says it there; this kernel has them."""
    program = tmp_path / "nft"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write_script(program, "#!/bin/sh\necho 'Error: Could not process rule: Operation not supported' >&2\nexit 1\n")
    ports = PortFilter("pkbr")
    ports.install({})
    assert "CAP_NET_RAW" in caplog.text
    ports.add(EVIL, ADDRESSES[EVIL])
    ports.remove(EVIL)
    assert not ports.restore()
    ports.drop()
    program.write_text("#!/bin/sh\necho 'Error: Could not process rule: Operation not permitted' >&2\nexit 1\n")
    with pytest.raises(CommandFailed, match="not permitted"):
        ports.install({})
