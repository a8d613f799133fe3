"""What a pod takes of the node's disk: its logs, its volumes, its /etc/hosts and termination logs. Blocking.

What containers can write to is walked by descriptor (``tree_size``); a volume counts with the file system it is on.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from podkeep.agent.convert.names import log_directory
from podkeep.agent.logs import files as log_files
from podkeep.agent.poddirs import PodDir, PodDirs
from podkeep.agent.server.collector import file_system_of
from podkeep.agent.server.stats import PodDisk, Size, VolumeUsage
from podkeep.api.pod import Pod
from podkeep.api.volumes import Volume
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.base.ids import PodUID
from podkeep.kernel.files import openat, tree_size

# The unit of st_blocks, whatever the block size of the file system is (stat(2)).
_BLOCK_BYTES = 512


_MEASURE_S = 5.0
"""How long the volumes of one pod are counted; what was not seen until then counts nothing."""


def measure(dirs: PodDirs, pod_logs: str, pod: Pod, ending: threading.Event) -> PodDisk:
    """Return the sizes of a pod; what is gone meanwhile is left out, and so is the rest when ``ending`` is set."""
    directory = dirs.directory(PodUID(pod.metadata.uid))
    spec = pod.spec
    containers = [item.name for item in (*spec.init_containers, *spec.containers)]
    containers += [item.name for item in spec.ephemeral_containers]
    place = Path(log_directory(pod_logs, pod))
    logs = {name: size for name in containers if (size := _files(place / name)) is not None}
    late = time.monotonic() + _MEASURE_S

    def stop() -> bool:
        return ending.is_set() or time.monotonic() > late

    other = directory.size_beside_volumes(stop)
    return PodDisk(
        logs=logs,
        volumes=_volumes(pod, directory, stop),
        other=Size(used_bytes=other.used_bytes, inodes=other.inodes),
    )


def _files(directory: Path) -> Size | None:
    try:
        fd = log_files.open_directory(directory)
    except (OSError, FailedPrecondition):
        return None
    blocks = inodes = 0
    with openat.closing(fd), os.scandir(fd) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    blocks, inodes = blocks + status.st_blocks, inodes + 1
    return Size(used_bytes=blocks * _BLOCK_BYTES, inodes=inodes)


def _volumes(pod: Pod, directory: PodDir, stop: Callable[[], bool]) -> list[VolumeUsage]:
    found = []
    by_name = {volume.name: volume for volume in pod.spec.volumes}
    for path in _volume_directories(directory.volumes):
        volume = by_name.get(path.name)
        if volume is None:
            continue
        opened = tree_size.open_volume(path)
        if opened is None:
            continue
        # What the file system refuses of one volume leaves the others, and the other pods, theirs.
        with openat.closing(opened.fd), suppress(OSError, PodkeepError):
            size = tree_size.count(opened.fd, stop=stop, partly=True)
            if size is not None:
                found.append(
                    VolumeUsage(
                        name=volume.name,
                        size=Size(used_bytes=size.used_bytes, inodes=size.inodes),
                        file_system=file_system_of(os.fstatvfs(opened.fd)),
                        claim=_claim(volume),
                        in_memory=_in_memory(volume),
                    )
                )
    return found


def _volume_directories(root: Path) -> list[Path]:
    """Return ``<root>/<plugin>/<volume>``."""
    try:
        return sorted(path for plugin in root.iterdir() if plugin.is_dir() for path in plugin.iterdir())
    except OSError:
        return []


def _claim(volume: Volume) -> str:
    claim = volume.persistent_volume_claim
    return claim.claim_name if claim is not None else ""


def _in_memory(volume: Volume) -> bool:
    return volume.empty_dir is not None and volume.empty_dir.medium != ""
