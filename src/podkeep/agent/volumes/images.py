"""The images among a pod's volumes: had once for the pod, before its containers (KEP-4639, kubelet).

Owns: which are wanted, what each turned out to be, and whom a failure keeps waiting. Does not own: the pull itself
(``agent.images``) or the mount, which is the runtime's. A volume that no container mounts is left alone. A failure is
told to the containers that mount the volume and to no other; their next attempts try again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from podkeep.agent.convert.container import PlannedImage
from podkeep.agent.events import Event, StepFailed
from podkeep.agent.images import Images, Wanted
from podkeep.api.containers import Container
from podkeep.api.pod import Pod
from podkeep.cri.v1 import api_pb2

_EAGERNESS = ("Never", "IfNotPresent", "Always")


class VolumeImages:
    """The image volumes of one pod. What was found stays, whatever its tag means later, until the pod ends."""

    def __init__(self, pod: Pod, images: Images) -> None:
        self._images = images
        self._handler = pod.spec.runtime_class_name or ""
        self._sources = {volume.name: volume.image for volume in pod.spec.volumes if volume.image is not None}
        self._policies = policies(pod)
        self._found: dict[str, PlannedImage] = {}
        self._failed: dict[str, StepFailed] | None = None

    async def ensure(
        self, container: Container, sandbox: api_pb2.PodSandboxConfig, report: Callable[[Event], None]
    ) -> Mapping[str, PlannedImage]:
        """Return the images of the volumes that ``container`` mounts, by the volume's name.

        The first call has those of the whole pod.

        :raises StepFailed: with the kubelet's waiting reason, if one of them is not to be had.
        """
        if self._failed is None:
            self._failed = await self._try(self._policies, sandbox, report)
        names = [mount.name for mount in container.volume_mounts if mount.name in self._sources]
        wanted = dict.fromkeys(self._sources[name].reference for name in names)
        told = {reference: self._failed.pop(reference) for reference in wanted if reference in self._failed}
        if not told:
            told = await self._try((item for item in wanted if item not in self._found), sandbox, report)
        for failure in told.values():
            raise StepFailed(
                failure.message,
                reason=failure.reason,
                waiting=failure.waiting,
                container=container.name,
                hint=failure.hint,
            ) from failure
        return {name: self._found[self._sources[name].reference] for name in names}

    async def _try(
        self, references: Iterable[str], sandbox: api_pb2.PodSandboxConfig, report: Callable[[Event], None]
    ) -> dict[str, StepFailed]:
        """Have these images, and return why some are not to be had."""
        failed = {}
        for reference in references:
            wanted = Wanted(image=reference, policy=self._policies[reference])
            try:
                image = await self._images.ensure(wanted, self._handler, sandbox, report)
            except StepFailed as failure:
                failed[reference] = failure
            else:
                self._found[reference] = PlannedImage(reference=reference, ref=image.ref)
        return failed


def policies(pod: Pod) -> dict[str, str]:
    """Return the images of the volumes that a container mounts, and when to pull each; pure.

    Of two volumes with one image the more eager policy holds for both.
    """
    mounted = {
        mount.name
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for mount in container.volume_mounts
    }
    result: dict[str, str] = {}
    for volume in pod.spec.volumes:
        if volume.image is not None and volume.name in mounted:
            policy = volume.image.pull_policy or "IfNotPresent"
            known = result.setdefault(volume.image.reference, policy)
            result[volume.image.reference] = max(known, policy, key=_EAGERNESS.index)
    return result
