"""Host ports: what is one, who has it, where it leads."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_values import sandbox

from podkeep.base.errors import AlreadyExists, InvalidArgument, PodkeepError
from podkeep.runtime.model.records import HostPort, NetworkAttachment, Sandbox
from podkeep.runtime.network import ports

ADDRESSES = ("", "0.0.0.0", "::", "127.0.0.1", "192.0.2.1", "2001:db8::1")


def port(host_ip: str = "", number: int = 80, protocol: str = "tcp") -> HostPort:
    return ports.host_port(protocol, host_port=number, container_port=8080, host_ip=host_ip)


def test_addresses_are_kept_in_one_form() -> None:
    assert port("2001:0db8:0::1").host_ip == "2001:db8::1"
    assert port("::ffff:192.0.2.1").host_ip == "192.0.2.1"


def families(item: HostPort) -> set[int]:
    return {4, 6} if not item.host_ip else {6 if ":" in item.host_ip else 4}


host_ports = st.builds(
    port, st.sampled_from(ADDRESSES), st.sampled_from((80, 81)), st.sampled_from(("tcp", "udp", "sctp"))
)


@given(host_ports, host_ports)
@pytest.mark.slow
def test_ports_overlap_exactly_if_a_packet_could_be_for_both(one: HostPort, other: HostPort) -> None:
    machine = ("127.0.0.1", "192.0.2.1", "2001:db8::1")

    def takes(item: HostPort) -> set[tuple[str, int, str]]:
        wild = item.host_ip in {"", "0.0.0.0", "::"}
        return {
            (address, item.host_port, item.protocol)
            for address in machine
            if (6 if ":" in address else 4) in families(item) and (wild or address == item.host_ip)
        }

    assert ports.overlap(one, other) == ports.overlap(other, one) == bool(takes(one) & takes(other))


def test_a_port_given_twice_is_one() -> None:
    assert ports.unique([port(), port("127.0.0.1", 81), port()]) == (port(), port("127.0.0.1", 81))
    with pytest.raises(InvalidArgument, match=r"127\.0\.0\.1:80/tcp and host port 80/tcp"):
        ports.unique([port(), port("127.0.0.1")])


@given(st.lists(host_ports, max_size=6), st.lists(host_ports, max_size=6))
@pytest.mark.slow
def test_sets_of_ports_are_free_exactly_if_no_two_overlap(mine: list[HostPort], others: list[HostPort]) -> None:
    def refused(work: Callable[[], object], kind: type[PodkeepError]) -> bool:
        try:
            work()
        except kind:
            return True
        return False

    pairs = itertools.combinations(dict.fromkeys(mine), 2)
    assert refused(lambda: ports.unique(mine), InvalidArgument) == any(ports.overlap(*pair) for pair in pairs)
    holder = holding(*others)
    taken = any(ports.overlap(*pair) for pair in itertools.product(mine, others))
    assert refused(lambda: ports.require_free(mine, [holder]), AlreadyExists) == taken


@pytest.mark.slow
@pytest.mark.parametrize("same_number", [False, True])
def test_many_ports_cost_in_proportion_to_their_number(same_number: bool) -> None:
    def calls(count: int) -> int:
        many = [port(f"10.0.{n >> 8}.{n & 255}", 80 if same_number else n + 1) for n in range(count)]
        counted = itertools.count()
        sys.setprofile(lambda _frame, event, _: next(counted) if event == "call" else None)
        try:
            ports.unique(many)
            ports.require_free(many, [holding(*(port("192.0.2.1", n + 1) for n in range(count)))])
        finally:
            sys.setprofile(None)
        return next(counted)

    assert calls(800) < 3 * calls(400)


def test_a_pod_has_not_more_ports_than_are_looked_at_in_no_time() -> None:
    most = [port(number=number) for number in range(1, ports.MAX_HOST_PORTS + 1)]
    assert len(ports.unique(most * 2)) == ports.MAX_HOST_PORTS
    with pytest.raises(InvalidArgument, match="at most 4096 host ports"):
        ports.unique([*most, port(number=60_000)])


def holding(*taken: HostPort) -> Sandbox:
    stopped = sandbox(host_ports=taken)
    return msgspec.structs.replace(stopped, status=msgspec.structs.replace(stopped.status, network=NetworkAttachment()))


def test_a_port_is_free_when_its_pods_network_is_gone() -> None:
    stopped = sandbox(host_ports=(port(),))
    holder = holding(port())
    with pytest.raises(AlreadyExists, match="pod default/web"):
        ports.require_free([port("192.0.2.1")], [holder])
    ports.require_free([port(number=81)], [holder])
    ports.require_free([], [holder])
    ports.require_free([port()], [stopped])


def test_where_packets_go() -> None:
    both = ["10.0.0.2", "fd00::2"]

    def of(host_ip: str, addresses: list[str]) -> list[tuple[str | None, str]]:
        found = ports.forwards([port(host_ip)], addresses)
        return [(None if item.address is None else str(item.address), str(item.target)) for item in found]

    assert of("", both) == [(None, "10.0.0.2"), (None, "fd00::2")]
    assert of("", ["10.0.0.2"]) == of("0.0.0.0", both) == [(None, "10.0.0.2")]
    assert of("::", both) == [(None, "fd00::2")]
    assert of("192.0.2.1", both) == [("192.0.2.1", "10.0.0.2")]
    assert of("2001:db8::1", both) == [("2001:db8::1", "fd00::2")]
    with pytest.raises(InvalidArgument, match="no IPv6 address"):
        of("::", ["10.0.0.2"])
    with pytest.raises(InvalidArgument, match="no IPv4 address"):
        of("127.0.0.1", ["fd00::2"])
