"""The bridge's configuration and its nft rules, which the real nft reads."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from podkeep.base.config import NetworkConfig
from podkeep.base.errors import AlreadyExists, FailedPrecondition, InvalidArgument, PodkeepError
from podkeep.base.ids import SandboxID
from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, NamespaceRequest, run_in_netns
from podkeep.kernel.network import netlink, routes
from podkeep.kernel.network.routes import Route
from podkeep.runtime.network import rules, subnets
from podkeep.runtime.network.bridge import Bridge
from podkeep.runtime.network.ports import Forward, host_port

RUN = Path("/run/podkeep")
FIRST, SECOND = SandboxID("1" * 64), SandboxID("2" * 64)
BRIDGE = "pkbr"
PODS = (ip_network("10.7.0.0/29"), ip_network("10.8.0.1/32"), ip_network("fd00::/64"))


@pytest.fixture
def machine() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Run a function in a network namespace that stands for a machine."""
    with NamespaceHelper() as helper:
        fd = helper.create(NamespaceRequest(kinds=frozenset({NamespaceKind.NET})))[NamespaceKind.NET]
        try:
            yield lambda body: run_in_netns(fd, lambda: body() and None)
        finally:
            os.close(fd)


def forward(port: int, **fields: object) -> Forward:
    address = fields.pop("address", None)
    return Forward(
        protocol=str(fields.pop("protocol", "tcp")),
        address=None if address is None else ip_address(str(address)),
        port=port,
        target=ip_address(str(fields.pop("target", "10.7.0.2"))),
        target_port=80,
    )


def listed(table: str) -> list[str]:
    """Return the elements of a table."""
    done = subprocess.run(["nft", "-j", "list", "table", "inet", table], capture_output=True, text=True, check=True)
    objects = [value for item in json.loads(done.stdout)["nftables"] for value in item.values()]
    return sorted(
        f"{item['name']} {json.dumps(element)}"
        for item in objects
        for element in item.get("elem", [])
        if not item["name"].startswith("pods")
    )


def addresses_of(link: str) -> set[str]:
    done = subprocess.run(["ip", "-j", "address", "show", link], capture_output=True, check=True)
    found = [item for link in json.loads(done.stdout) for item in link["addr_info"] if item["scope"] == "global"]
    return {f"{item['local']}/{item['prefixlen']}" for item in found}


def test_the_default_network() -> None:
    bridge = Bridge.from_config(NetworkConfig(), RUN)
    assert [str(subnets.router(item)) for item in bridge.subnets] == ["10.183.0.1/16"]
    both = Bridge.from_config(NetworkConfig(subnet6="fd10:183::/64"), RUN).subnets
    assert [str(subnets.router(item)) for item in both] == ["10.183.0.1/16", "fd10:183::1/64"]


@pytest.mark.parametrize(
    ("subnet", "named"),
    [
        ("10.0.0.0/30", "too small"),
        ("10.0.0.0/32", "too small"),
        ("10.0.0.0", "too small"),
        ("10.0.0.1/24", "host bits"),
        ("10.0.0.0/33", "network.subnet"),
        ("fd00::/64", "network.subnet"),
        ("127.0.0.0/16", "cannot have addresses"),
        ("0.0.0.0/0", "some of 0.0.0.0/8"),
        ("126.0.0.0/7", "some of 127.0.0.0/8"),
        ("169.254.0.0/16", "cannot have addresses"),
        ("240.0.0.0/8", "cannot have addresses"),
        ("", "network.subnet"),
        ("10.0.0.0/24\n", "network.subnet"),
        ("everything", "network.subnet"),
    ],
)
def test_subnets_that_are_refused(subnet: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=r"network\.subnet") as caught:
        Bridge.from_config(NetworkConfig(subnet=subnet), RUN)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "subnet", ["10.0.0.0/24", "fd00::/126", "fd00::1/64", "fe80::/64", "ff00::/64", "::/x", "::/0", "8000::/1"]
)
def test_ipv6_subnets_that_are_refused(subnet: str) -> None:
    with pytest.raises(InvalidArgument, match=r"network\.subnet6"):
        Bridge.from_config(NetworkConfig(subnet6=subnet), RUN)


def test_subnets_of_a_pod_cidr() -> None:
    assert subnets.text(subnets.of_pod_cidr("10.1.0.0/24")) == "10.1.0.0/24"
    assert subnets.text(subnets.of_pod_cidr("fd00::/64, 10.1.0.0/24")) == "fd00::/64,10.1.0.0/24"
    unusable = (
        "0.0.0.0/0",
        "0.0.0.0/8",
        "0.0.0.0/1",
        "255.255.255.0/24",
        "224.0.0.0/4",
        "127.1.0.0/16",
        "::/0",
        "ff00::/8",
    )
    for text in ("10.1.0.0/24,10.2.0.0/24", "10.1.0.0/24,", "x", "10.1.0.0/31", *unusable):
        with pytest.raises(InvalidArgument, match="pod_cidr"):
            subnets.of_pod_cidr(text)


@pytest.mark.parametrize(
    ("named", "whole"),
    [
        ("10.1.0.0/24", "10.1.0.0/24,fd07::/64"),
        ("fd01::/64", "fd01::/64,10.7.0.0/16"),
        ("fd01::/64,10.1.0.0/24", "fd01::/64,10.1.0.0/24"),
    ],
)
def test_a_family_that_a_pod_cidr_does_not_name_stays_as_configured(named: str, whole: str) -> None:
    configured = subnets.of_config(NetworkConfig(subnet="10.7.0.0/16", subnet6="fd07::/64"))
    assert subnets.text(subnets.of_pod_cidr(named, configured)) == whole


@pytest.mark.parametrize(
    "name", ["", "a" * 16, "a/b", "a b", 'a"; flush ruleset; "', "a\n", ".", "..", "a:1", "-a", "ä"]
)
def test_bridge_names_that_the_kernel_or_nft_would_not_take(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"network\.bridge"):
        Bridge.from_config(NetworkConfig(bridge=name), RUN)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["podkeep0", "a" * 15, "br-0.5_x", "0br"])
def test_nft_takes_the_rules_and_taking_them_twice_leaves_one(
    name: str, machine: Callable[[Callable[[], object]], None]
) -> None:
    def body() -> None:
        table = rules.Rules(name, masquerade=True)
        for _ in range(2):
            table.install(PODS, {FIRST: (forward(8080),)})
        done = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True)
        assert done.stdout.count(f'ip saddr @pods4 oifname != "{name}" masquerade') == 1
        assert done.stdout.count("table inet") == 1
        assert len(listed(table.table)) == 2
        table.drop()
        table.drop()
        assert subprocess.run(["nft", "list", "ruleset"], capture_output=True, check=True).stdout == b""

    machine(body)


@pytest.mark.slow
def test_host_ports_come_and_go_and_are_put_back_when_somebody_flushed_them(
    machine: Callable[[Callable[[], object]], None],
) -> None:
    def body() -> None:
        table = rules.Rules(BRIDGE, masquerade=False)
        table.install(PODS)
        assert subprocess.run(["nft", "list", "ruleset"], capture_output=True, check=True).stdout == b"", "not needed"
        mine = (forward(80), forward(80, protocol="sctp"), forward(53, protocol="udp", address="127.0.0.1"))
        other = (forward(80, target="fd00::2"), forward(81, target="fd00::2", address="fd00::9"))
        table.add(FIRST, mine)
        first = listed(table.table)
        table.add(SECOND, other)
        both = listed(table.table)
        # One per port, and one per port of the pod: 53 and 80 of the first one are distinct by their protocols.
        assert (len(first), len(both)) == (6, 9)
        table.remove(SECOND, other)
        table.remove(SECOND, other)
        assert listed(table.table) == first
        subprocess.run(["nft", "flush", "ruleset"], check=True)
        table.add(SECOND, other)
        assert listed(table.table) == both
        subprocess.run(["nft", "flush", "ruleset"], check=True)
        table.remove(SECOND, other)
        assert listed(table.table) == first

    machine(body)


@pytest.mark.slow
def test_the_bridge_has_what_its_subnets_need_and_changes_them(
    machine: Callable[[Callable[[], object]], None],
) -> None:
    config = NetworkConfig(bridge=BRIDGE, subnet="10.7.0.0/29", subnet6="fd07::/64", masquerade=False)

    def settings(path: str) -> str:
        return Path("/proc/sys/net", path).read_text().strip()

    def body() -> None:
        Path("/proc/sys/net/ipv6/conf/lo/accept_ra").write_text("1")
        bridge = Bridge.from_config(config, RUN)
        bridge.start({})
        assert addresses_of(BRIDGE) == {"10.7.0.1/29", "fd07::1/64"}
        assert settings("ipv4/ip_forward") == settings("ipv6/conf/all/forwarding") == "1"
        assert settings(f"ipv6/conf/{BRIDGE}/accept_ra") == "0", "pods are no routers"
        assert settings("ipv6/conf/lo/accept_ra") == "2", "the machine still learns its own router"
        assert settings(f"ipv4/conf/{BRIDGE}/route_localnet") == "0", "no host port needs it"
        bridge.use_subnets(subnets.of_pod_cidr("10.8.0.0/24"), ["fd07::2"])
        assert addresses_of(BRIDGE) == {"10.8.0.1/24", "fd07::1/64"}, "somebody still needs a router"
        bridge.use_subnets(subnets.of_pod_cidr("10.9.0.0/24"), [])
        assert addresses_of(BRIDGE) == {"10.9.0.1/24"}
        # The router's address stays, its prefix changes.
        for text in ("10.9.0.0/25,fd07::/64", "10.9.0.0/24,fd07::/80", "10.9.0.0/26,fd07::/64"):
            bridge.use_subnets(subnets.of_pod_cidr(text), [])
            assert addresses_of(BRIDGE) == {str(subnets.router(item)) for item in bridge.subnets}
        bridge.stop()
        assert netlink.links() == ["lo"]
        bridge.stop()

    machine(body)


@pytest.mark.parametrize(
    ("network", "has_router", "other"),
    [
        ("10.0.0.0/8", False, True),
        ("10.7.0.0/16", False, True),
        ("10.7.0.0/16", True, True),
        ("10.7.3.0/24", True, True),
        ("10.7.3.1/32", False, True),
        ("10.0.0.0/8", True, False),
        ("10.8.0.0/16", False, False),
        ("fd07::/64", False, False),
    ],
)
def test_routes_that_are_in_the_way(network: str, has_router: bool, other: bool) -> None:
    route = Route(network=ip_network(network), link="eth0", has_router=has_router)
    (subnet,) = subnets.of_pod_cidr("10.7.0.0/16")
    assert (subnets.in_the_way(subnet, [route], BRIDGE) is route) is other
    assert subnets.in_the_way(subnet, [route], "eth0") is None, "the bridge's own"


@pytest.mark.slow
def test_a_subnet_that_the_machine_uses_is_refused(machine: Callable[[Callable[[], object]], None]) -> None:
    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    def body() -> None:
        ip("link", "add", "name", "vpn", "type", "bridge")
        ip("link", "set", "vpn", "up")
        ip("address", "add", "10.9.1.1/24", "dev", "vpn")
        ip("address", "add", "fd09::1/64", "dev", "vpn")
        ip("route", "add", "10.7.0.0/16", "via", "10.9.1.2")
        found = {str(item.network): (item.link, item.has_router) for item in routes.read()}
        assert found["10.9.1.0/24"] == found["fd09::/64"] == ("vpn", False)
        assert found["10.7.0.0/16"] == ("vpn", True)
        for wrong in ({"subnet": "10.9.0.0/16"}, {"subnet": "10.9.1.128/25"}, {"subnet6": "fd09::/64"}):
            bridge = Bridge.from_config(NetworkConfig(bridge=BRIDGE, **wrong), RUN)
            with pytest.raises(FailedPrecondition, match=r"over vpn.*network\.subnet"):
                bridge.start({})
            assert BRIDGE not in netlink.links()
        bridge = Bridge.from_config(NetworkConfig(bridge=BRIDGE, subnet="10.7.8.0/24"), RUN)
        bridge.start({})
        before = bridge.subnets
        with pytest.raises(FailedPrecondition, match="over vpn"):
            bridge.use_subnets(subnets.of_pod_cidr("10.9.1.0/24"), [])
        with pytest.raises(FailedPrecondition, match="is a pod's"):
            bridge.use_subnets(subnets.of_pod_cidr("10.7.8.64/26"), ["10.7.8.65"])
        assert bridge.subnets == before
        # What came later keeps no daemon from starting again.
        ip("route", "add", "10.7.8.128/25", "via", "10.9.1.2")
        other = Bridge.from_config(NetworkConfig(bridge=BRIDGE, subnet="10.7.8.0/24"), RUN)
        other.start({})
        other.close()
        bridge.stop()

    machine(body)


@pytest.mark.slow
def test_new_subnets_that_nft_refuses_are_not_used(
    machine: Callable[[Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> None:
        bridge = Bridge.from_config(NetworkConfig(bridge=BRIDGE, subnet="10.7.0.0/24", subnet6="fd07::/64"), RUN)
        bridge.start({})
        before, there, path = bridge.subnets, addresses_of(BRIDGE), os.environ["PATH"]
        assert there == {"10.7.0.1/24", "fd07::1/64"}
        # Others; the same network, longer and shorter; one family alone, and one that stays. Somebody has one of each.
        for cidr in ("10.9.1.0/24,fd09::/64", "10.7.0.0/25,fd07::/80", "10.7.0.0/16,fd07::/48", "10.9.1.0/24"):
            monkeypatch.setenv("PATH", "/nowhere")
            with pytest.raises(PodkeepError, match="nft"):
                bridge.use_subnets(subnets.of_pod_cidr(cidr), ["10.7.0.2", "fd07::2"])
            assert bridge.subnets == before
            monkeypatch.setenv("PATH", path)
            assert addresses_of(BRIDGE) == there, cidr
        bridge.use_subnets(subnets.of_pod_cidr("10.9.1.0/24"), [])
        assert bridge.subnets != before
        bridge.stop()

    machine(body)


@pytest.mark.slow
def test_ipv6_that_is_switched_off_is_switched_on_for_the_bridge_and_its_pods(
    machine: Callable[[Callable[[], object]], None],
) -> None:
    off = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}

    def body() -> None:
        for which in ("all", "default"):
            Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6").write_text("1")
        bridge = Bridge.from_config(NetworkConfig(bridge=BRIDGE, subnet6="fd07::/64"), RUN)
        bridge.start({})
        with NamespaceHelper() as helper:
            wanted = NamespaceRequest(kinds=frozenset({NamespaceKind.NET}), sysctls=off)
            fd = helper.create(wanted)[NamespaceKind.NET]
            try:
                bridge.attach(FIRST, fd, ["10.183.0.2", "fd07::2"])
                done = run_in_netns(
                    fd, lambda: subprocess.run(["ip", "-6", "address"], capture_output=True, text=True, check=True)
                )
            finally:
                os.close(fd)
        assert "fd07::2/64" in done.stdout
        bridge.stop()

    machine(body)


@pytest.mark.slow
def test_the_first_pods_start_the_bridge_together(machine: Callable[[Callable[[], object]], None]) -> None:
    """It is not started while pods are connected by CNI."""

    def body() -> None:
        bridge = Bridge.from_config(NetworkConfig(bridge=BRIDGE), RUN)
        with NamespaceHelper() as helper, ExitStack() as closing, ThreadPoolExecutor(8) as pool:
            here = closing.enter_context(Path("/proc/thread-self/ns/net").open("rb")).fileno()

            def attach(number: int) -> None:
                fd = helper.create(NamespaceRequest(kinds=frozenset({NamespaceKind.NET})))[NamespaceKind.NET]
                try:
                    port = host_port("tcp", host_port=8000 + number, container_port=80)
                    identity = SandboxID(f"{number}" * 64)
                    run_in_netns(here, lambda: bridge.attach(identity, fd, [f"10.183.0.{number + 2}"], [port]))
                finally:
                    os.close(fd)

            assert list(pool.map(attach, range(8))) == [None] * 8
            assert len([item for item in listed(bridge.rules.table) if item.startswith("ports4 ")]) == 8
        bridge.stop()

    machine(body)


def test_another_ones_bridge_and_its_rules_are_left_alone(machine: Callable[[Callable[[], object]], None]) -> None:
    def body() -> None:
        config = NetworkConfig(bridge=BRIDGE)
        first, second = (Bridge.from_config(config, Path("/run", name)) for name in ("first", "second"))
        first.start({FIRST: (forward(80),)})
        with pytest.raises(AlreadyExists, match="not ours"):
            second.start({})
        first.close()
        second.stop()
        assert BRIDGE in netlink.links()
        assert len(listed(first.rules.table)) == 2

    machine(body)


def test_the_mark_names_the_run_directory_and_fits() -> None:
    assert Bridge.from_config(NetworkConfig(), RUN).owner == "podkeep:/run/podkeep"
    long = [Bridge.from_config(NetworkConfig(), Path("/" + "a" * 300, name)).owner for name in "bc"]
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 255
