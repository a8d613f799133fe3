"""Where the cgroups of pods are: paths, or slices with the systemd cgroup driver. Pure; ``podcgroups.py`` makes them.

cgroupfs   /podkeep/burstable/pod1-2
systemd    podkeep-burstable-pod1_2.slice
"""

from __future__ import annotations

from dataclasses import dataclass

from podkeep.agent.resources import qos
from podkeep.api.pod import Pod
from podkeep.base.config import Config
from podkeep.kernel.cgroup import systemd

_LEVELS = {"Guaranteed": "", "Burstable": "burstable", "BestEffort": "besteffort"}


@dataclass(frozen=True, kw_only=True)
class PodCgroup:
    """The cgroup of a pod, and the one above it that pods of its class share; ``None`` if that is the root of all."""

    name: str
    level: str | None


def root(config: Config) -> str:
    """Return the cgroup above all pods: a path, or the name of a slice with the systemd cgroup driver."""
    parent = config.runtime.cgroup_parent
    return systemd.slice_of_path(parent) if config.runtime.cgroup_driver == "systemd" else parent


def of_pod(root: str, pod: Pod) -> str:
    """Return the cgroup of ``pod`` below ``root``: a level per class, none for Guaranteed, as the kubelet has it."""
    return _pod_cgroup(root, _LEVELS[qos.qos_class(pod)], pod.metadata.uid).name


def possible(root: str, uid: str) -> tuple[PodCgroup, ...]:
    """Return where the cgroup of pod ``uid`` can be, for each class."""
    return tuple(_pod_cgroup(root, level, uid) for level in _LEVELS.values())


def _pod_cgroup(root: str, level: str, uid: str) -> PodCgroup:
    if systemd.is_slice(root):
        above = f"{root.removesuffix(systemd.SUFFIX)}{level and '-'}{level}"
        # A dash would be one more slice; the kubelet writes UIDs so, too.
        name = f"{above}-pod{uid.replace('-', '_')}{systemd.SUFFIX}"
        return PodCgroup(name=name, level=f"{above}{systemd.SUFFIX}" if level else None)
    above = f"{root.rstrip('/')}{level and '/'}{level}"
    return PodCgroup(name=f"{above}/pod{uid}", level=above if level else None)
