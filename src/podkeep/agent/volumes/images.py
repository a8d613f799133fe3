"""The images among a pod's volumes: had once for the pod, before its containers (KEP-4639, kubelet).

Owns: which are wanted, what each turned out to be, and whom a failure keeps waiting. Does not own: the pull itself and
its back-off (``agent.images``) or the mount, which is the runtime's. A volume that no container mounts is left alone. A
failure is told to the containers that mount the volume and to no other; whichever of them is tried next tries again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from podkeep.agent.convert.container import PlannedImage
from podkeep.agent.events import PullFailed
from podkeep.agent.images.puller import Images, PodPull, Wanted
from podkeep.agent.metrics import IMAGE_VOLUMES_FAILED, IMAGE_VOLUMES_MOUNTED, IMAGE_VOLUMES_REQUESTED
from podkeep.api.containers import Container
from podkeep.api.pod import Pod
from podkeep.api.volumes import ImageVolumeSource

_EAGERNESS = ("Never", "IfNotPresent", "Always")


@dataclass(kw_only=True)
class _Failed:
    """A failure and the containers that were told of it."""

    failure: PullFailed
    told: set[str] = field(default_factory=set)


class VolumeImages:
    """The image volumes of one pod. What was found stays, whatever its tag means later, until the pod ends."""

    def __init__(self, pod: Pod, images: Images) -> None:
        self._images = images
        self._sources = {volume.name: volume.image for volume in pod.spec.volumes if volume.image is not None}
        self._policies = policies(pod)
        self._found: dict[str, PlannedImage] = {}
        self._failed: dict[str, _Failed] = {}
        self._begun = False

    async def ensure(self, container: Container, pull: PodPull) -> Mapping[str, PlannedImage]:
        """Return the images of the volumes that ``container`` mounts, by the volume's name.

        The first call has those of the whole pod.

        :raises PullFailed: with the kubelet's waiting reason, if one of them is not to be had.
        """
        if not self._begun:
            wanted = sum(source.reference in self._policies for source in self._sources.values())
            self._images.metrics.add(IMAGE_VOLUMES_REQUESTED, amount=wanted)
            # All of the pod, not the container's alone: a kubelet has them before it starts the first container
            # (KEP-4639).
            for reference in self._policies:
                await self._try(reference, pull)
            self._begun = True
        names = [mount.name for mount in container.volume_mounts if mount.name in self._sources]
        failures = []
        for reference in dict.fromkeys(self._sources[name].reference for name in names):
            if reference not in self._policies:
                # Of an ephemeral container, which came later and is the first to mount it.
                self._policies |= _most_eager(found for found in self._sources.values() if found.reference == reference)
                await self._try(reference, pull)
            # The containers that mount a failed volume share one failure: each is told of it once before it is tried
            # again.
            if reference not in self._found and container.name in self._known_to(reference):
                await self._try(reference, pull)
            if reference in self._failed:
                self._failed[reference].told.add(container.name)
                failures.append(self._failed[reference].failure)
        if failures:
            # The last one, as a kubelet does; all of them have events.
            failure = failures[-1].of(container.name)
            failure.again = min(other.again or 0.0 for other in failures)
            raise failure
        return {name: self._found[self._sources[name].reference] for name in names}

    def _known_to(self, reference: str) -> set[str]:
        failed = self._failed.get(reference)
        return set() if failed is None else failed.told

    async def _try(self, reference: str, pull: PodPull) -> None:
        wanted = Wanted(image=reference, policy=self._policies[reference])
        uses = sum(source.reference == reference for source in self._sources.values())
        try:
            image = await self._images.ensure(wanted, pull)
        except PullFailed as failure:
            self._failed[reference] = _Failed(failure=failure)
            self._images.metrics.add(IMAGE_VOLUMES_FAILED, amount=uses)
        else:
            self._failed.pop(reference, None)
            self._found[reference] = PlannedImage(reference=reference, ref=image.ref)
            self._images.metrics.add(IMAGE_VOLUMES_MOUNTED, amount=uses)


def policies(pod: Pod) -> dict[str, str]:
    """Return the images of the volumes that a container mounts, and when to pull each; pure.

    Of two volumes with one image the more eager policy holds for both. Ephemeral containers do not count.
    """
    mounted = {
        mount.name
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for mount in container.volume_mounts
    }
    volumes = (volume for volume in pod.spec.volumes if volume.name in mounted)
    return _most_eager(volume.image for volume in volumes if volume.image is not None)


def _most_eager(sources: Iterable[ImageVolumeSource]) -> dict[str, str]:
    result: dict[str, str] = {}
    for source in sources:
        policy = source.pull_policy or "IfNotPresent"
        known = result.setdefault(source.reference, policy)
        result[source.reference] = max(known, policy, key=_EAGERNESS.index)
    return result
