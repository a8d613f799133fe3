"""Which pod goes first when something is scarce, and what is said about it. Pure.

Rules and texts: pkg/kubelet/eviction/helpers.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from podkeep.agent.eviction.usage import LOGS, ROOT, VOLUMES, PodUse, UseOf, is_local
from podkeep.agent.resources import critical, requests
from podkeep.agent.resources import thresholds as signals
from podkeep.agent.resources.thresholds import INODES_RESOURCE, PIDS_RESOURCE, Observations, Threshold
from podkeep.api.pod import Pod
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import quantity

REASON = "Evicted"
_ALL = (ROOT, LOGS, VOLUMES)
_HIDDEN = "cannot be counted: there are too many files, or directories inside or beside each other. "
"""Who hides files from a limit has exceeded it."""


class Filesystems(FrozenStruct, kw_only=True):
    """How images and writable layers lie: on other file systems than the agent's directory, and than one another."""

    images_apart: bool = False
    layers_apart: bool = False


class Annotated(NamedTuple):
    """A message and the annotations of the event with it."""

    message: str
    annotations: dict[str, str]


def counted(signal: str, filesystems: Filesystems) -> Collection[str]:
    """Return what of a pod's files is on the file system of a signal."""
    if not filesystems.images_apart:
        return _ALL
    node = signal in (signals.NODEFS, signals.NODEFS_INODES)
    if filesystems.layers_apart:
        images = signal in (signals.IMAGEFS, signals.IMAGEFS_INODES)
        return () if images else _ALL
    return (LOGS, VOLUMES) if node else (ROOT,)


def rank(signal: str, pods: Iterable[Pod], use: UseOf, filesystems: Filesystems) -> list[Pod]:
    """Return ``pods`` in the order in which they are evicted: those beyond their requests, then by priority."""
    resource = signals.RESOURCES[signal]
    # Nothing requests processes, so that no request can be exceeded: the priority comes first (rankPIDPressure).
    if resource == PIDS_RESOURCE:
        return sorted(pods, key=lambda pod: (critical.priority(pod), *_processes(use(pod))))
    kinds = counted(signal, filesystems)

    def key(pod: Pod) -> tuple[bool, bool, int, int]:
        found = use(pod)
        # A pod of which nothing is known goes first, as upstream ranks it (helpers.go, exceedMemoryRequests).
        if found is None:
            return False, False, critical.priority(pod), 0
        used, hidden = found.memory or 0, False
        if resource != requests.MEMORY:
            disk = found.disk(kinds)
            hidden = disk.hidden
            used = disk.inodes if resource == INODES_RESOURCE else disk.used_bytes
        request = requests.pod_requests(pod).get(resource, 0)
        return True, used <= request and not hidden, critical.priority(pod), request - used

    return sorted(pods, key=key)


def _processes(use: PodUse | None) -> tuple[bool, int]:
    return (False, 0) if use is None else (True, -use.processes)


def first(thresholds: Iterable[Threshold]) -> Threshold | None:
    """Return the threshold that is dealt with first: memory goes before everything else."""
    order = (signals.MEMORY, signals.ALLOCATABLE_MEMORY)
    return min(thresholds, key=lambda item: item.signal not in order, default=None)


def message(resource: str, pod: Pod, use: PodUse | None, met: Sequence[Threshold], observed: Observations) -> Annotated:
    """Return why ``pod`` is evicted, for its status and event."""
    text = f"The node was low on resource: {resource}. "
    for threshold in met:
        seen = observed.get(threshold.signal)
        if signals.RESOURCES[threshold.signal] == resource and seen is not None:
            available = signals.shown(threshold.signal, seen.available)
            text += (
                f"Threshold quantity: {threshold.value.shown(threshold.signal, seen.capacity)}, "
                f"available: {available}. "
            )
            break
    if use is None:
        return Annotated(text, {})
    annotations = {}
    own = requests.pod_level(pod).requests.get(resource)
    if resource == requests.MEMORY and own is not None and use.memory is not None:
        used = requests.binary(use.memory)
        text += _larger("Pod", pod.metadata.name, used, own, resource)
        annotations = {"offending_pod": pod.metadata.name, "offending_pod_usage": used}
    names, amounts = [], []
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        amount = _container_use(resource, use, container.name)
        request = container.resources.requests.get(resource, "0")
        if amount is not None and amount > requests.amount(resource, request):
            text += _larger("Container", container.name, requests.binary(amount), request, resource)
            names.append(container.name)
            amounts.append(requests.binary(amount))
    annotations |= {
        "offending_containers": ",".join(names),
        "offending_containers_usage": ",".join(amounts),
        "starved_resource": resource,
    }
    return Annotated(text, annotations)


def _larger(what: str, name: str, used: str, request: str, resource: str) -> str:
    wanted = quantity.canonical(request)
    return f"{what} {name} was using {used}, request is {wanted}, has larger consumption of {resource}. "


def _container_use(resource: str, use: PodUse, name: str) -> int | None:
    found = use.containers.get(name)
    if found is None:
        return None
    if resource == requests.MEMORY:
        return found.memory
    if resource == requests.EPHEMERAL_STORAGE and found.layer is not None:
        return (found.layer + found.logs).used_bytes
    return None


class Violation(NamedTuple):
    """A pod that uses more local storage than it may: which limit that is, for the metric, and the message."""

    signal: str
    message: str


def limits_storage(pod: Pod) -> bool:
    """Return whether a pod has a limit of local storage, so that it has to be measured."""
    if requests.EPHEMERAL_STORAGE in requests.pod_limits(pod):
        return True
    return any(_size_limit(pod, volume.name) for volume in pod.spec.volumes if is_local(volume))


def violation(pod: Pod, use: PodUse, filesystems: Filesystems) -> Violation | None:
    """Return which limit of local storage a pod exceeds, or nothing: of a volume, of the pod, of a container."""
    for volume in pod.spec.volumes:
        limit = _size_limit(pod, volume.name)
        used = use.volumes.get(volume.name) or use.in_memory.get(volume.name)
        if limit and used is not None and used.hidden:
            shown = quantity.canonical(limit)
            text = f'Usage of EmptyDir volume "{volume.name}", which has the limit "{shown}", {_HIDDEN}'
            return Violation("emptydirfs.limit", text)
        if limit and used is not None and used.used_bytes > quantity.units(limit):
            text = f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{quantity.canonical(limit)}". '
            return Violation("emptydirfs.limit", text)
    total = requests.pod_limits(pod).get(requests.EPHEMERAL_STORAGE)
    if total is not None and use.disk(_ALL).hidden:
        text = f"Pod ephemeral local storage usage, which has the limit {requests.binary(total)}, {_HIDDEN}"
        return Violation("ephemeralpodfs.limit", text)
    if total is not None and use.ephemeral_storage() > total:
        shown = requests.binary(total)
        text = f"Pod ephemeral local storage usage exceeds the total limit of containers {shown}. "
        return Violation("ephemeralpodfs.limit", text)
    for container in pod.spec.containers:
        limit, found = (
            container.resources.limits.get(requests.EPHEMERAL_STORAGE, ""),
            use.containers.get(container.name),
        )
        if not limit or found is None or not quantity.units(limit):
            continue
        used_bytes = found.logs.used_bytes
        # As upstream (containerEphemeralStorageLimitEviction): a layer on the images' own file system takes nothing of
        # the node's.
        if not filesystems.images_apart and found.layer is not None:
            used_bytes += found.layer.used_bytes
        if used_bytes > quantity.units(limit):
            shown = quantity.canonical(limit)
            text = f'Container {container.name} exceeded its local ephemeral storage limit "{shown}". '
            return Violation("ephemeralcontainerfs.limit", text)
    return None


def _size_limit(pod: Pod, name: str) -> str:
    """Return the limit of an emptyDir, empty for none."""
    for volume in pod.spec.volumes:
        if volume.name == name and volume.empty_dir is not None and volume.empty_dir.size_limit is not None:
            limit = volume.empty_dir.size_limit
            return limit if quantity.parse(limit) > 0 else ""
    return ""
