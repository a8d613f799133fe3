"""Where the cgroups of pods are: paths, or slices with the systemd cgroup driver. Pure; ``podcgroups.py`` makes them.

cgroupfs   /podkeep/burstable/pod1-2
systemd    podkeep-burstable-pod1_2.slice
"""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.agent.resources import qos
from podkeep.api.pod import Pod
from podkeep.api.status import PodQOSClass
from podkeep.base.config import Config
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.cgroup import systemd

_LEVELS: Mapping[PodQOSClass, str] = {"Guaranteed": "", "Burstable": "burstable", "BestEffort": "besteffort"}


class PodCgroup(FrozenStruct, kw_only=True):
    """The cgroup of a pod, and the one above it that pods of its class share; ``None`` if that is the root of all."""

    name: str
    level: str | None
    kind: PodQOSClass


def root(config: Config) -> str:
    """Return the cgroup above all pods: a path, or the name of a slice with the systemd cgroup driver."""
    parent = config.runtime.cgroup_parent
    return systemd.slice_of_path(parent) if config.runtime.cgroup_driver == "systemd" else parent


def of_pod(root: str, pod: Pod) -> str:
    """Return the cgroup of ``pod`` below ``root``: a level per class, none for Guaranteed, as the kubelet has it."""
    return place(root, pod).name


def place(root: str, pod: Pod) -> PodCgroup:
    return _pod_cgroup(root, qos.qos_class(pod), pod.metadata.uid)


def possible(root: str, uid: str) -> tuple[PodCgroup, ...]:
    """Return where the cgroup of pod ``uid`` can be, for each class."""
    return tuple(_pod_cgroup(root, kind, uid) for kind in _LEVELS)


def _pod_cgroup(root: str, kind: PodQOSClass, uid: str) -> PodCgroup:
    level = _LEVELS[kind]
    if systemd.is_slice(root):
        above = f"{root.removesuffix(systemd.SUFFIX)}{level and '-'}{level}"
        # A dash would be one more slice; the kubelet writes UIDs so, too.
        name = f"{above}-pod{uid.replace('-', '_')}{systemd.SUFFIX}"
        return PodCgroup(name=name, level=f"{above}{systemd.SUFFIX}" if level else None, kind=kind)
    above = f"{root.rstrip('/')}{level and '/'}{level}"
    return PodCgroup(name=f"{above}/pod{uid}", level=above if level else None, kind=kind)
