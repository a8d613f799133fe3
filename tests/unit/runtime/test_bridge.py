"""The bridge's configuration and its nft rules, which the real nft reads."""

from __future__ import annotations

import subprocess
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from podkeep.base.config import NetworkConfig
from podkeep.base.errors import InvalidArgument
from podkeep.runtime.network.bridge import Bridge

RUN = Path("/run/podkeep")


def test_the_default_network() -> None:
    bridge = Bridge.from_config(NetworkConfig(), RUN)
    assert bridge.gateway == IPv4Address("10.183.0.1")
    assert bridge.subnet.num_addresses == 65536


@pytest.mark.parametrize(
    ("subnet", "named"),
    [
        ("10.0.0.0/30", "too small"),
        ("10.0.0.0/32", "too small"),
        ("10.0.0.0", "too small"),
        ("10.0.0.1/24", "host bits"),
        ("10.0.0.0/33", "network.subnet"),
        ("fd00::/64", "network.subnet"),
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
    "name", ["", "a" * 16, "a/b", "a b", 'a"; flush ruleset; "', "a\n", ".", "..", "a:1", "-a", "ä"]
)
def test_bridge_names_that_the_kernel_or_nft_would_not_take(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"network\.bridge"):
        Bridge.from_config(NetworkConfig(bridge=name), RUN)


@pytest.mark.parametrize("name", ["podkeep0", "a" * 15, "br-0.5_x", "0br"])
def test_nft_takes_the_rules_and_taking_them_twice_leaves_one(name: str) -> None:
    bridge = Bridge.from_config(NetworkConfig(bridge=name, subnet="10.7.0.0/29"), RUN)
    script = 'rules=$(cat); echo "$rules" | nft -f - && echo "$rules" | nft -f - && nft list ruleset'
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script], input=bridge.rules(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("masquerade") == 1
    assert f'ip saddr 10.7.0.0/29 oifname != "{name}" masquerade' in done.stdout
    assert done.stdout.count("table ip") == 1


def test_the_mark_names_the_run_directory_and_fits() -> None:
    assert Bridge.from_config(NetworkConfig(), RUN).owner == "podkeep:/run/podkeep"
    long = [Bridge.from_config(NetworkConfig(), Path("/" + "a" * 300, name)).owner for name in "bc"]
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 255
