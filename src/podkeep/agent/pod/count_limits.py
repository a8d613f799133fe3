"""How many containers and mounts a pod on this node has at most; pure.

What the runtime would refuse as often as it is asked, and what is taken outside of the pod's own limits of resources.
"""

from __future__ import annotations

from podkeep.agent.volumes.container_files import OWN_MOUNTS
from podkeep.agent.volumes.pod_volumes import kept_mounts
from podkeep.api.containers import Container
from podkeep.api.pod import Pod
from podkeep.base.frozen import FrozenStruct
from podkeep.cri.limits import MAX_DEVICES, MAX_MOUNTS

MAX_CONTAINERS = 256
"""Containers of a pod, init and ephemeral ones too. Each has a process on the node that keeps it (conmon), which does
not count for the pod, and a part of the pod's status, which has to fit into an object of the API."""
MAX_KEPT_MOUNTS = 512
"""Mounts that a pod has on the node for as long as it is there. The kernel bounds those of all pods together
(fs.mount-max: 100,000), and each container that starts has all of them copied."""


class Excess(FrozenStruct):
    """What a pod has too much of. ``reason`` is one word for its status."""

    reason: str
    message: str
    hint: str


def excess_of_pod(pod: Pod) -> Excess | None:
    """Return what a pod that is to be taken on has too much of."""
    found = _containers(len(pod.spec.init_containers) + len(pod.spec.containers))
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        found = found or excess_of_container(container)
    return found or _kept_mounts(pod)


def excess_of_ephemeral(pod: Pod, container: Container) -> Excess | None:
    """Return what an ephemeral container that came to a pod after it was taken on has too much of, or the pod by it."""
    place = [item.name for item in pod.spec.all_containers].index(container.name)
    return _containers(place + 1) or excess_of_container(container) or _kept_mounts(pod)


def excess_of_container(container: Container) -> Excess | None:
    """Return what a container has too much of: its runtime would refuse it."""
    for field, count, most in (
        ("volumeMounts", len(container.volume_mounts), MAX_MOUNTS - OWN_MOUNTS),
        ("volumeDevices", len(container.volume_devices), MAX_DEVICES),
    ):
        if count > most:
            message = f"container {container.name} has {count} {field}; a container on this node has at most {most}"
            return _too_many_mounts(message)
    return None


def _containers(count: int) -> Excess | None:
    if count <= MAX_CONTAINERS:
        return None
    message = f"the pod has {count} containers; a pod on this node has at most {MAX_CONTAINERS}"
    return Excess("TooManyContainers", message, "make several pods of it")


def _kept_mounts(pod: Pod) -> Excess | None:
    count = kept_mounts(pod)
    if count <= MAX_KEPT_MOUNTS:
        return None
    message = f"the volumes of the pod keep {count} mounts on the node; a pod on this node has at most"
    return _too_many_mounts(f"{message} {MAX_KEPT_MOUNTS}")


def _too_many_mounts(message: str) -> Excess:
    return Excess("TooManyVolumeMounts", message, "mount directories, in place of each of their files")
