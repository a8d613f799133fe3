"""The cgroup of a pod, under which the runtime puts those of its containers.

Owns making it before the sandbox is asked for and removing it after, with the level of its class when that is empty.
The caller holds the agent's root lock: of two processes, one must not remove the level in which the other makes its
pod. Does not own the cgroup above all pods, which the runtime makes when it starts.
"""

from __future__ import annotations

import logging

from podkeep.agent import qos
from podkeep.api.pod import Pod
from podkeep.kernel.cgroups import Cgroups

log = logging.getLogger(__name__)

_LEVELS = ("", "/burstable", "/besteffort")


def create(root: str, pod: Pod) -> None:
    """Make the cgroup of ``pod`` below ``root``; an existing one stays as it is.

    :raises KernelCallError: if the kernel refuses.
    """
    Cgroups().create(qos.cgroup_parent(root, pod))


def remove(root: str, uid: str) -> None:
    """Remove the cgroup of pod ``uid`` wherever its class put it, and the level of its class if that is empty now.

    :raises KernelCallError: if processes are left in it.
    """
    cgroups = Cgroups()
    for level in _LEVELS:
        path = f"{root.rstrip('/')}{level}/pod{uid}"
        if not cgroups.exists(path):
            continue
        cgroups.remove(path)
        if level and not cgroups.remove_empty(f"{root.rstrip('/')}{level}"):
            log.debug("%s%s stays: another pod is in it", root, level)
