"""Holding all pods together, and the machine's own daemons, to what is theirs (kubelet: enforceNodeAllocatable).

Owns writing the limits when the agent starts, again for as long as they cannot be written: more may be in use than is
allowed, until pods are evicted. Does not own the figures (``allocatable.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from podkeep.agent.resources import allocatable, cgroup_names, pod_limits, podcgroups, requests
from podkeep.agent.resources.pod_limits import CgroupLimits
from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.kernel.cgroup import systemd
from podkeep.kernel.cgroup.cgroups import Cgroups

log = logging.getLogger(__name__)

ENFORCED, FAILED = "NodeAllocatableEnforced", "FailedNodeAllocatableEnforcement"
_AGAIN_S = 60.0

Report = Callable[[str, str, str], None]
"""Takes an event of the node: its type, reason and message."""


def require_reserved(config: Config) -> None:
    """Hold the machine's own cgroups to their reserves, as far as the configuration says so.

    :raises PodkeepError: if a cgroup is missing, or cannot be held to it.
    """
    agent = config.agent
    for kind, name, texts in (
        ("system-reserved", agent.system_reserved_cgroup, agent.system_reserved),
        ("kube-reserved", agent.kube_reserved_cgroup, agent.kube_reserved),
    ):
        for suffix, compressible in (("", False), ("-compressible", True)):
            if f"{kind}{suffix}" in agent.enforce_node_allocatable:
                limits = pod_limits.of_reserve(requests.amounts(texts), compressible=compressible)
                _apply_existing(name, limits)


async def hold_pods(config: Config, capacity: Mapping[str, int], report: Report) -> None:
    """Hold all pods together to what is left of the machine; returns once that is so."""
    root = cgroup_names.root(config)
    limits = pod_limits.of_all_pods(allocatable.enforced(capacity, config.agent))
    while True:
        try:
            await asyncio.to_thread(partial(_apply_existing, root, limits))
        except PodkeepError as error:
            text = f'Failed to update Node Allocatable Limits "{root}": {error.message}'
            log.warning(text)
            report("Warning", FAILED, text)
            # cgroup version 1 refuses a limit of memory below what is in use (EBUSY), until eviction has made room.
            await asyncio.sleep(_AGAIN_S)
        else:
            report("Normal", ENFORCED, "Updated Node Allocatable limit across pods")
            return


def _apply_existing(name: str, limits: CgroupLimits) -> None:
    cgroups = Cgroups()
    if not cgroups.exists(systemd.expand(name) if systemd.is_slice(name) else name):
        raise FailedPrecondition(f"cgroup {name} does not exist", hint="make it, or name another one")
    podcgroups.apply(cgroups, name, limits)
