"""What pods use of what can become scarce: memory, processes, disk. Values, and sums over them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from podkeep.api.pod import Pod
from podkeep.api.volumes import Volume
from podkeep.base.frozen import FrozenStruct

ROOT, LOGS, VOLUMES = "root", "logs", "volumes"
"""What of a pod is on a disk: writable layers, logs, what is in the agent's directory: volumes that are local and end
with the pod, and files that the agent made for it."""


class DiskUse(FrozenStruct):
    """Space on a file system. ``hidden``: there is more, in more files or directories than are counted."""

    used_bytes: int = 0
    inodes: int = 0
    hidden: bool = False

    def __add__(self, other: DiskUse) -> DiskUse:
        return DiskUse(
            self.used_bytes + other.used_bytes, self.inodes + other.inodes, hidden=self.hidden or other.hidden
        )


class ContainerUse(FrozenStruct, kw_only=True):
    """What one container uses; ``memory`` is its working set in bytes, ``None`` if nobody measured it."""

    memory: int | None = None
    layer: DiskUse | None = None
    logs: DiskUse = DiskUse()


class PodUse(FrozenStruct, kw_only=True):
    """What one pod uses. ``other``: files that the agent made for it and containers write to, such as /etc/hosts.

    ``in_memory``: volumes that take nothing of a disk. ``seconds``: how long its files were counted; ``partly``: not to
    their end.
    """

    memory: int | None = None
    processes: int = 0
    containers: Mapping[str, ContainerUse] = msgspec.field(default_factory=dict)
    volumes: Mapping[str, DiskUse] = msgspec.field(default_factory=dict)
    in_memory: Mapping[str, DiskUse] = msgspec.field(default_factory=dict)
    other: DiskUse = DiskUse()
    seconds: float = 0.0
    partly: bool = False

    def disk(self, kinds: Collection[str]) -> DiskUse:
        """Return what it has on disk, of the kinds that count."""
        found = DiskUse()
        for container in self.containers.values():
            if ROOT in kinds and container.layer is not None:
                found += container.layer
            if LOGS in kinds:
                found += container.logs
        if VOLUMES in kinds:
            for use in self.volumes.values():
                found += use
            found += self.other
        return found

    def ephemeral_storage(self) -> int:
        """Return the bytes that count against the pod's limit of ephemeral storage."""
        return self.disk((ROOT, LOGS, VOLUMES)).used_bytes


UseOf = Callable[[Pod], PodUse | None]
"""What a pod uses; ``None`` if it was not measured."""


def is_local(volume: Volume) -> bool:
    """Return whether a volume is on the node's disk, and ends with the pod (volume/util, IsLocalEphemeralVolume)."""
    if volume.empty_dir is not None:
        return not volume.empty_dir.medium
    return volume.config_map is not None or volume.git_repo is not None
