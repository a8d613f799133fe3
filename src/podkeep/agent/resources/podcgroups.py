"""The cgroup of a pod, under which the runtime puts those of its containers.

Owns making it before the sandbox is asked for and removing it after, with the level of its class when that is empty.
The caller holds the agent's root lock: of two processes, one must not remove the level in which the other makes a pod.
Does not own where it is (``cgroup_names.py``), or the cgroup above all pods, which the runtime makes when it starts.
"""

from __future__ import annotations

import logging

from podkeep.agent.resources import cgroup_names
from podkeep.api.pod import Pod
from podkeep.kernel.cgroup import systemd
from podkeep.kernel.cgroup.cgroups import Cgroups

log = logging.getLogger(__name__)


def create(root: str, pod: Pod) -> None:
    """Make the cgroup of ``pod`` below ``root``; an existing one stays as it is.

    :raises PodkeepError: if the kernel, or systemd, refuses.
    """
    name = cgroup_names.of_pod(root, pod)
    if systemd.is_slice(name):
        systemd.start_slice(name)
    else:
        Cgroups().create(name)


def remove(root: str, uid: str) -> None:
    """Remove the cgroup of pod ``uid`` wherever its class put it, and the level of its class if that is empty now.

    :raises PodkeepError: if processes are left in it, or systemd refuses.
    """
    cgroups = Cgroups()
    for cgroup in cgroup_names.possible(root, uid):
        if systemd.is_slice(root):
            _remove_slice(cgroups, cgroup)
        else:
            _remove_directory(cgroups, cgroup)


def _remove_directory(cgroups: Cgroups, cgroup: cgroup_names.PodCgroup) -> None:
    if not cgroups.exists(cgroup.name):
        return
    cgroups.remove(cgroup.name)
    if cgroup.level and not cgroups.remove_empty(cgroup.level):
        log.debug("%s stays: another pod is in it", cgroup.level)


def _remove_slice(cgroups: Cgroups, cgroup: cgroup_names.PodCgroup) -> None:
    if not cgroups.exists(systemd.expand(cgroup.name)):
        return
    systemd.stop_slice(cgroup.name)
    # systemd stops what is in a slice with it.
    if cgroup.level and not cgroups.children(systemd.expand(cgroup.level)):
        systemd.stop_slice(cgroup.level)
