"""All volumes of one pod, over its life: made before containers start, their files kept up to date, failures told.

Owns: which volumes are wanted, what their files were last, and how long a volume that failed waits. Does not own: what
is made of a volume (``setup``), images (``images``), or who calls when (the pod's worker). Blocking, for a thread.

    set_up     before a sandbox and before each container: everything is looked at on disk
    refresh    when an object that the pod refers to has changed: what is as it was in memory is not touched on disk
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from podkeep.agent.events import Event, StepFailed
from podkeep.agent.objects.sources import Sources
from podkeep.agent.poddirs import PodDir
from podkeep.agent.volumes import payload, setup
from podkeep.agent.volumes.claims import NotProcessed, PodClaims
from podkeep.agent.volumes.setup import MountedVolume, Surroundings
from podkeep.api.pod import Pod
from podkeep.api.volumes import Volume
from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct

_FIRST_S = 0.5
_MOST_S = 122.0
"""Seconds between attempts for one volume: each pause is twice the last (kubelet: exponentialbackoff)."""
_NOT_PROCESSED_S = 10.0
"""Seconds between looks at a claim that is not ready, at most (kubelet: a pod's sync that failed)."""
_REASON = "FailedMount"


class VolumeFailure(FrozenStruct, kw_only=True):
    """Why a volume is not ready. ``processed`` is false if it is not even known what to mount."""

    volume: str
    message: str
    hint: str = ""
    processed: bool = True


class MountFailed(StepFailed):
    """Some volumes of a pod are not ready; ``again`` is after how many seconds to try again.

    The message is that of the first event, of which each volume has one, and those without anything to mount one
    together.
    """

    def __init__(self, failures: Sequence[VolumeFailure], again: float) -> None:
        self.failures = tuple(failures)
        self.texts = tuple(_texts(failures))
        hint = next((failure.hint for failure in failures if failure.hint), "")
        super().__init__(self.texts[0], reason=_REASON, waiting="ContainerCreating", hint=hint)
        self.again = again

    def events(self) -> Sequence[Event]:
        """Return the pod's events, one for each text."""
        return [Event(type="Warning", reason=_REASON, message=text) for text in self.texts]


def _texts(failures: Sequence[VolumeFailure]) -> list[str]:
    texts = [failure.message for failure in failures if failure.processed]
    rest = [failure for failure in failures if not failure.processed]
    if rest:
        missing = " ".join(sorted(failure.volume for failure in failures))
        unknown = " ".join(sorted(failure.volume for failure in rest))
        why = "; ".join(failure.message for failure in rest)
        texts.append(
            f"Unable to attach or mount volumes: unmounted volumes=[{missing}], unattached volumes=[], "
            f"failed to process volumes=[{unknown}]: {why}"
        )
    return texts


class PodVolumes:
    """The volumes of one pod that containers use, but for images."""

    def __init__(self, directory: PodDir, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._pauses: dict[str, tuple[float, float]] = {}
        self._written: dict[str, bytes] = {}

    def set_up(self, pod: Pod, sources: Sources, node: Surroundings) -> Mapping[str, MountedVolume]:
        """Make the volumes that containers mount or have as devices, and return them by name.

        Every volume is tried, whatever became of the others.

        :raises MountFailed: if some are not ready.
        """
        with self._lock:
            ready: dict[str, MountedVolume] = {}

            left, inside, claimed = payload.MAX_POD_BYTES, setup.mount_points(pod), PodClaims(pod, sources)

            def one(volume: Volume) -> None:
                nonlocal left
                files = setup.files(pod, volume, sources, node, left)
                ready[volume.name] = setup.set_up_one(pod, volume, self._directory, node, inside, claimed)
                if files is not None:
                    left -= payload.size_of(files)
                    self._written[volume.name] = payload.digest(files)

            self._each(wanted(pod, images=node.images), one)
            return ready

    def refresh(self, pod: Pod, sources: Sources, node: Surroundings) -> Sequence[str]:
        """Bring the files of volumes up to date, and return the names of the volumes that have changed.

        Nothing of a volume is touched, or looked at on disk, if its files should be what they were last. A volume that
        fails keeps the content that it has.

        :raises MountFailed: if some could not be brought up to date.
        """
        # A refresh and a start of a container come on different threads; both write the same files.
        with self._lock:
            changed: list[str] = []

            left, inside, claimed = payload.MAX_POD_BYTES, setup.mount_points(pod), PodClaims(pod, sources)

            def one(volume: Volume) -> None:
                nonlocal left
                files = setup.files(pod, volume, sources, node, left)
                if files is None:
                    return
                left -= payload.size_of(files)
                digest = payload.digest(files)
                if self._written.get(volume.name) == digest:
                    return
                setup.set_up_one(pod, volume, self._directory, node, inside, claimed)
                self._written[volume.name] = digest
                changed.append(volume.name)

            self._each(wanted(pod, images=node.images), one)
            return changed

    def _each(self, volumes: Iterable[Volume], work: Callable[[Volume], None]) -> None:
        failures: list[VolumeFailure] = []
        for volume in volumes:
            try:
                work(volume)
            except PodkeepError as error:
                processed = not isinstance(error, NotProcessed)
                failures.append(
                    VolumeFailure(volume=volume.name, message=error.message, hint=error.hint, processed=processed)
                )
            else:
                self._pauses.pop(volume.name, None)
        if failures:
            raise MountFailed(failures, min(self._pause(failure) for failure in failures))

    def _pause(self, failure: VolumeFailure) -> float:
        """Return the seconds until the volume is worth another attempt; an earlier one does not make it longer."""
        now = self._clock()
        due, last = self._pauses.get(failure.volume, (now, 0.0))
        # Each container of the pod asks for all its volumes: only the passing of time counts as another attempt.
        if now < due:
            return due - now
        pause = min(max(last * 2, _FIRST_S), _MOST_S if failure.processed else _NOT_PROCESSED_S)
        self._pauses[failure.volume] = (now + pause, pause)
        return pause


def wanted(pod: Pod, *, images: bool = True) -> list[Volume]:
    """Return the volumes that a container of the pod mounts or has as a device, but for images; pure.

    :param images: whether volumes may be images; if not, they are volumes that nobody can make.
    """
    spec, containers = pod.spec, pod.spec.all_containers
    used = {mount.name for container in containers for mount in container.volume_mounts}
    used |= {device.name for container in containers for device in container.volume_devices}
    return [volume for volume in spec.volumes if volume.name in used and (volume.image is None or not images)]


def kept_mounts(pod: Pod) -> int:
    """Return how many mounts the volumes of a pod have on the node for as long as it is there; pure.

    Volumes in memory have one, and each part of a volume (subPath) that a container mounts.
    """
    volumes = {volume.name: volume for volume in wanted(pod)}
    pinned = (
        # One that passes mounts on is in a file system of its own (sub_path).
        2 if mount.mount_propagation == "Bidirectional" else 1
        for container in pod.spec.all_containers
        for mount in container.volume_mounts
        if (volume := volumes.get(mount.name)) is not None
        and (mount.sub_path or mount.sub_path_expr or volume.persistent_volume_claim or volume.ephemeral)
    )
    return sum(map(_is_in_memory, volumes.values())) + sum(pinned)


def _is_in_memory(volume: Volume) -> bool:
    if volume.empty_dir is not None:
        return volume.empty_dir.medium != ""
    return payload.holds_files(volume) and volume.config_map is None
