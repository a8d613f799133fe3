"""Whether the machine's own firewall lets the traffic of pods through."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from podkeep.base import spawn
from podkeep.base.errors import PodkeepError
from podkeep.cli.diagnosis import finding
from podkeep.cli.diagnosis.finding import Finding

if TYPE_CHECKING:
    from podkeep.base.config import Config

_NAME = "forwarding of pod traffic"


def examine(config: Config) -> list[Finding]:
    """Look at the chains that see what is forwarded; nothing where nft is missing or pods are connected by CNI."""
    if config.network.mode == "cni":
        return []
    try:
        listed = spawn.run(["nft", "--json", "--terse", "list", "ruleset"])
        objects = json.loads(listed.check().stdout)["nftables"]
    except (PodkeepError, ValueError, KeyError):
        # That nft is missing or broken is another finding.
        return []
    return [forwarding(objects, config.network.bridge)]


def forwarding(objects: list[dict[str, Any]], bridge: str) -> Finding:
    """Judge nft's list of the rules: a chain that drops by policy and has no rule that names the bridge stops pods."""
    rules = [item["rule"] for item in objects if "rule" in item]
    for chain in (item["chain"] for item in objects if "chain" in item):
        if chain.get("hook") != "forward" or chain.get("policy") != "drop":
            continue
        beside = [rule for rule in rules if (rule["family"], rule["table"]) == (chain["family"], chain["table"])]
        if not any(f'"{bridge}"' in json.dumps(rule) for rule in beside):
            where = f"{chain['family']} {chain['table']} {chain['name']}"
            return finding.warning(
                _NAME,
                f"dropped by policy of nftables chain {where}",
                why="pods reach nothing outside, and are reached by nobody",
                fix="; ".join(f"nft insert rule {where} {side} {bridge} accept" for side in ("iifname", "oifname")),
            )
    return finding.ok(_NAME, "no firewall in the way")
