"""What doctor says of the machine's firewall, from what nft lists."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from podkeep.cli.diagnosis.finding import Level
from podkeep.cli.diagnosis.machine import firewall, senders

DOCKER = "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }; "


def listed(commands: str) -> list[dict[str, Any]]:
    script = 'nft "$1" && nft --json --terse list ruleset'
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script, "sh", commands], capture_output=True, text=True, check=True
    )
    return list(json.loads(done.stdout)["nftables"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commands", "level"),
    [
        ("add table ip filter", Level.OK),
        (DOCKER, Level.WARNING),
        (DOCKER.replace("drop", "accept"), Level.OK),
        (DOCKER.replace("hook forward", "hook input"), Level.OK),
        (DOCKER + "add rule ip filter FORWARD iifname other accept", Level.WARNING),
        (DOCKER + "add rule ip filter FORWARD iifname podkeep0 accept", Level.OK),
    ],
)
def test_a_firewall_that_drops_what_is_forwarded(commands: str, level: Level) -> None:
    found = firewall(listed(commands), "podkeep0")
    assert found.level is level
    if level is Level.WARNING:
        assert "ip filter FORWARD" in found.detail
        fixed = firewall(listed(commands + ";" + found.fix.replace("nft ", "")), "podkeep0")
        assert fixed.level is Level.OK


def test_a_kernel_that_cannot_hold_pods_to_their_addresses_is_told_of() -> None:
    assert senders(can_filter=True).level is Level.OK
    found = senders(can_filter=False)
    assert found.level is Level.WARNING
    assert "CAP_NET_RAW" in found.why
