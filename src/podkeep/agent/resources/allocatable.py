"""What pods can have of the machine: capacity, less what is reserved and what eviction keeps free. Pure.

Rules: pkg/kubelet/cm/node_container_manager, nodestatus/setters. Amounts are in the units of ``requests``.
"""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.agent.resources import machine, requests, thresholds
from podkeep.base.config import AgentConfig
from podkeep.base.errors import InvalidArgument

_KEPT_FREE = {
    thresholds.MEMORY: requests.MEMORY,
    thresholds.NODEFS: requests.EPHEMERAL_STORAGE,
    thresholds.PIDS: machine.PID,
}


def allocatable(capacity: Mapping[str, int], agent: AgentConfig) -> dict[str, int]:
    """Return what pods can request, by resource; :data:`machine.PID` is no resource of pods and is left out.

    :raises InvalidArgument: if more is reserved than there is.
    """
    kept = reserved(agent)
    for threshold in thresholds.read(agent):
        name = _KEPT_FREE.get(threshold.signal, "")
        # Soft thresholds are not kept free, as upstream: pods may be there until the grace period is over.
        if name in capacity and threshold.is_hard:
            kept[name] = kept.get(name, 0) + threshold.value.of(capacity[name])
    for name, value in kept.items():
        if value > capacity.get(name, value):
            raise InvalidArgument(
                "agent.kube_reserved, agent.system_reserved or agent.eviction_hard: "
                f'invalid Node Allocatable configuration. Resource "{name}" has a reservation of '
                f"{requests.text(name, value)} but capacity of {requests.text(name, capacity[name])}. "
                "Expected capacity >= reservation.",
                hint="lower the one that asks for so much",
            )
    left = {name: value - kept.get(name, 0) for name, value in capacity.items() if name != machine.PID}
    huge = sum(value for name, value in left.items() if name.startswith(requests.HUGE_PAGES))
    # Huge pages were reserved of the memory when the machine was set up: nobody can have it as pages of 4 KiB.
    left[requests.MEMORY] = max(left[requests.MEMORY] - huge, 0)
    return left


def enforced(capacity: Mapping[str, int], agent: AgentConfig) -> dict[str, int]:
    """Return what all pods together may use: the reserves alone are taken off, if pods are held to that at all."""
    kept = reserved(agent) if "pods" in agent.enforce_node_allocatable else {}
    return {name: max(value - kept.get(name, 0), 0) for name, value in capacity.items()}


def reserved(agent: AgentConfig) -> dict[str, int]:
    """Return what is reserved for podkeep and for the rest of the machine together."""
    found: dict[str, int] = {}
    for texts in (agent.kube_reserved, agent.system_reserved):
        for name, value in requests.amounts(texts).items():
            found[name] = found.get(name, 0) + value
    return found


def texts(amounts: Mapping[str, int]) -> dict[str, str]:
    """Return amounts as a Node's status shows them."""
    return {name: requests.text(name, value) for name, value in amounts.items() if name != machine.PID}
