"""Removing images that no pod uses: when their file system is full, or when they were not used for long.

Owns: which images are in use, since when the others are not, and in which order they go. Rules, times and texts are a
kubelet's (image_gc_manager.go), with one difference: what the node's pods refer to is in use whether or not a container
of theirs is there at the moment, so an image is not removed while a pod pulls another one, waits for its back-off, or
is about to be restarted. Does not own: how much room eviction wants (``eviction``), or the removal (the runtime's).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import chain

from podkeep.agent.convert import names
from podkeep.agent.events import Event
from podkeep.agent.metrics import IMAGES_COLLECTED, AgentMetrics
from podkeep.api.pod import Pod
from podkeep.base.config import AgentConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PodkeepError, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import aggregated, printable
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

log = logging.getLogger(__name__)

PERIOD_S = 300.0
"""Seconds between two collections."""
_BY_SPACE, _BY_AGE = "space", "age"
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_OVER = ("Succeeded", "Failed")
_SHOWN = 200
"""Characters of a path that a runtime says."""


class Policy(FrozenStruct, kw_only=True):
    """When images go: percentages of the file system in use, and ages in seconds; ``max_age`` 0 is never."""

    high_percent: int = 85
    low_percent: int = 80
    min_age: float = 120.0
    max_age: float = 0.0

    @classmethod
    def of(cls, config: AgentConfig) -> Policy:
        return cls(
            high_percent=config.image_gc_high_threshold_percent,
            low_percent=config.image_gc_low_threshold_percent,
            min_age=config.image_minimum_gc_age,
            max_age=config.image_maximum_gc_age,
        )


@dataclass(kw_only=True)
class ImageRecord:
    """What is known of an image: times in seconds of one clock, ``last_used`` 0 if it was never seen in use.

    ``first_seen`` is infinitely long ago for what was there before the agent.
    """

    id: str
    handler: str
    size: int
    pinned: bool
    first_seen: float
    last_used: float = 0.0


class Space(FrozenStruct, kw_only=True):
    """The file system of the images, in bytes."""

    capacity: int
    available: int

    @property
    def used_percent(self) -> int:
        return 100 - self.available * 100 // self.capacity


class Reclaimed(FrozenStruct, kw_only=True):
    """What a collection came to: bytes, and how many images."""

    size: int = 0
    images: int = 0


Key = tuple[str, str]
"""ID and runtime handler of an image."""


class ImageUsers(FrozenStruct, kw_only=True):
    """Who needs images: all pods that the node has, in whatever state, and names of images that are had just now.

    ``volumes`` says whether images of volumes count (feature gate ImageVolume); those that containers have mounted
    always do. ``removing`` is told of each image before it is removed, and what it returns is called afterwards;
    ``prune`` is told the names of all that are there at each look. All of them are called on a thread.
    """

    pods: Callable[[], Iterable[Pod]]
    pulling: Callable[[], Collection[str]]
    volumes: bool = True
    handler: Callable[[Pod], str] = lambda pod: pod.spec.runtime_class_name or ""
    """Returns the runtime handler of a pod."""
    removing: Callable[[str], Callable[[], None]] = lambda _: lambda: None
    prune: Callable[[Iterable[str]], None] = lambda _: None

    def wanted(self) -> set[tuple[str, str]]:
        """Return references with runtime handlers, as :func:`wanted_by` does."""
        pulled = {(name, "") for name in self.pulling()}
        return pulled.union(*(wanted_by(pod, self.handler(pod), volumes=self.volumes) for pod in self.pods()))


class ImageGarbage:
    """Collects the images of one runtime.

    :param report: takes events of the node.
    :param disk: says how large the file system at a path is.
    """

    def __init__(
        self,
        client: CriClient,
        policy: Policy,
        users: ImageUsers,
        *,
        report: Callable[[Event], None],
        metrics: AgentMetrics | None = None,
        disk: Callable[[str], Space] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._policy = policy
        self._users = users
        self._report = report
        self._disk = disk or space_of
        self._metrics = metrics or AgentMetrics()
        self._clock = clock
        self._began = clock()
        self._records: dict[Key, ImageRecord] = {}
        self._has_looked = False
        self._looked_up: dict[tuple[str, str], Key | None] = {}
        self._failed = False
        self._lock = asyncio.Lock()

    async def run(self, ready: asyncio.Event) -> None:
        """Collect every five minutes until cancelled; a second failure in a row is an event of the node.

        :param ready: set when it is known which pods the node has.
        """
        # How an administrator switches collection off (kubelet, imageGCHighThresholdPercent).
        if self._policy.high_percent == 100 and not self._policy.max_age:
            return
        await ready.wait()
        while True:
            await self.attempt()
            await asyncio.sleep(PERIOD_S)

    async def attempt(self) -> None:
        """Collect once; what fails is told."""
        try:
            await self.collect()
        except PodkeepError as error:
            # As with a kubelet, the first failure is logged only: right after a start the runtime may have no
            # statistics yet.
            if self._failed:
                self._report(Event(type="Warning", reason="ImageGCFailed", message=error.message))
            log.warning("image garbage collection failed: %s", error.message)
            self._failed = True
        else:
            self._failed = False

    async def collect(self) -> None:
        """Remove images that were not used for too long, and others if there is too little room.

        :raises PodkeepError: if the runtime does not answer, or not enough could be removed.
        """
        async with self._lock:
            now = self._clock()
            images = await self._in_order(now)
            images = await self._remove_old(images, now)
            space = await self._space()
            if space.capacity == 0:
                message = "invalid capacity 0 on image filesystem"
                self._report(Event(type="Warning", reason="InvalidDiskCapacity", message=message))
                raise FailedPrecondition(message)
            used = space.used_percent
            if used < self._policy.high_percent:
                return
            wanted = space.capacity * (100 - self._policy.low_percent) // 100 - space.available
            log.info("the file system of images is %d%% full: removing unused images of %d bytes", used, wanted)
            freed = await self._remove(images, now, wanted)
            if freed.size < wanted:
                message = (
                    f"Insufficient free disk space on the node's image filesystem ({used}% of {size(space.capacity)} "
                    f"used). Failed to free sufficient space by deleting unused images (freed {freed.size} bytes). "
                    "Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
                )
                self._report(Event(type="Warning", reason="FreeDiskSpaceFailed", message=message))
                raise FailedPrecondition(message)

    async def remove_unused(self) -> Reclaimed:
        """Remove every unused image, for a node that is out of disk space.

        :raises PodkeepError: if the runtime does not answer, or some could not be removed.
        """
        async with self._lock:
            now = self._clock()
            return await self._remove(await self._in_order(now), now, None)

    async def detect(self, now: float) -> set[Key]:
        """Bring the records up to date, and return the images in use.

        :param now: the time of the look.
        :raises PodkeepError: if the runtime does not answer.
        """
        answer = await self._client.images.ListImages(api_pb2.ListImagesRequest())
        known_as = chain.from_iterable((*image.repo_tags, *image.repo_digests) for image in answer.images)
        await asyncio.to_thread(self._users.prune, known_as)
        # What a tag means may have changed since the last collection; within one, each reference is asked for once.
        self._looked_up = {}
        used = await self._used(answer.images)
        known = {}
        # What is there at the first look was not pulled for a container just now: a node that starts with a full disk
        # frees it, and does not end a pod for that.
        first_seen = now if self._has_looked else -math.inf
        for image in answer.images:
            key = (image.id, image.spec.runtime_handler)
            record = self._records.get(key) or ImageRecord(
                id=key[0], handler=key[1], size=0, pinned=False, first_seen=first_seen
            )
            record.size, record.pinned = image.size, image.pinned
            if is_used(key, used):
                record.last_used = now
            known[key] = record
        self._records = known
        self._has_looked = True
        return used

    async def _used(self, images: Iterable[api_pb2.Image]) -> set[Key]:
        listed = await self._client.runtime.ListContainers(api_pb2.ListContainersRequest())
        used: set[Key] = set()
        ids = {image.id for image in images}
        for container in listed.containers:
            handler = container.image.runtime_handler
            for name in (container.image_id, container.image_ref, container.image.image):
                if name in ids:
                    used.add((name, handler))
        # Whatever the feature gate says: the runtime does not remove what a container has mounted, and each try would
        # fail.
        used |= {(image, "") for image in await self._mounted(listed.containers)}
        return used | await self._referred_to()

    async def _referred_to(self) -> set[Key]:
        """Return the images that pods refer to or that are had just now; only new references are looked up.

        A pod may say anything for the name of an image, and wait for it: what the runtime does not take for one refers
        to nothing.
        """
        wanted = self._users.wanted()
        for reference, handler in wanted - self._looked_up.keys():
            spec = api_pb2.ImageSpec(image=reference, runtime_handler=handler)
            try:
                found = (await self._client.images.ImageStatus(api_pb2.ImageStatusRequest(image=spec))).image.id
            except (InvalidArgument, FailedPrecondition):
                found = ""
            self._looked_up[reference, handler] = (found, handler) if found else None
        return {key for key in self._looked_up.values() if key is not None}

    async def _mounted(self, containers: Iterable[api_pb2.Container]) -> set[str]:
        """Return the images that containers have as volumes.

        A tag may mean another image by now, so pods do not say; only containers of pods that may have such volumes are
        asked for.
        """
        pods = self._users.pods()
        without = {pod.metadata.uid for pod in pods if all(volume.image is None for volume in pod.spec.volumes)}
        found = set()
        for container in containers:
            if container.labels.get(names.POD_UID) in without:
                continue
            request = api_pb2.ContainerStatusRequest(container_id=container.id)
            try:
                answer = await self._client.runtime.ContainerStatus(request)
            except NotFound:
                continue
            except Unavailable:
                raise
            except PodkeepError as error:
                # No container may keep all images; what it has mounted the runtime does not remove.
                log.warning("image garbage collection: container %s: %s", container.id, error)
                continue
            found |= {mount.image.image for mount in answer.status.mounts if mount.image.image}
        return found

    async def _in_order(self, now: float) -> list[ImageRecord]:
        used = await self.detect(now)
        return removable(self._records, used)

    async def _remove_old(self, images: list[ImageRecord], now: float) -> list[ImageRecord]:
        longest = self._policy.max_age
        # Not before the agent has run for that long: it does not know what was used before.
        if not longest or now - self._began <= longest:
            return images
        left, errors = [], []
        for image in images:
            if now - image.last_used <= longest:
                left.append(image)
                continue
            try:
                removed = await self._remove_one(image, _BY_AGE)
            except PodkeepError as error:
                removed = False
                errors.append(error.message)
            if not removed:
                left.append(image)
        if errors:
            raise FailedPrecondition(
                f"wanted to free images older than {longest:g}s, encountered errors in image deletion:"
                f" {aggregated(errors)}"
            )
        return left

    async def _remove(self, images: Iterable[ImageRecord], now: float, wanted: int | None) -> Reclaimed:
        """Remove images until ``wanted`` bytes are free, all that may go if it is None."""
        freed, errors, count = 0, [], 0
        for image in images:
            if not may_go(image, now, self._policy.min_age):
                continue
            try:
                if not await self._remove_one(image, _BY_SPACE):
                    continue
            except PodkeepError as error:
                errors.append(error.message)
                continue
            freed, count = freed + image.size, count + 1
            if wanted is not None and freed >= wanted:
                break
        if errors:
            asked = "all unused images" if wanted is None else f"{wanted} bytes"
            raise FailedPrecondition(
                f"wanted to free {asked}, but freed {freed} bytes space with errors in image deletion:"
                f" {aggregated(errors)}"
            )
        return Reclaimed(size=freed, images=count)

    async def _remove_one(self, image: ImageRecord, reason: str) -> bool:
        """Remove an image, unless a pod that came meanwhile refers to it."""
        # Looked at once more right before the removal: pods come while others of these images are removed.
        if is_used((image.id, image.handler), await self._referred_to()):
            return False
        spec = api_pb2.ImageSpec(image=image.id, runtime_handler=image.handler)
        log.info("removing image %s, %d bytes", image.id, image.size)
        removed = await asyncio.to_thread(self._users.removing, image.id)
        await self._client.images.RemoveImage(api_pb2.RemoveImageRequest(image=spec))
        self._records.pop((image.id, image.handler), None)
        await asyncio.to_thread(removed)
        self._metrics.add(IMAGES_COLLECTED, reason)
        return True

    async def _space(self) -> Space:
        answer = await self._client.images.ImageFsInfo(api_pb2.ImageFsInfoRequest())
        if not answer.image_filesystems:
            raise FailedPrecondition("the runtime says nothing of the file system of its images")
        return await asyncio.to_thread(self._disk, answer.image_filesystems[0].fs_id.mountpoint)


def wanted_by(pod: Pod, handler: str = "", *, volumes: bool) -> set[tuple[str, str]]:
    """Return the references, each with the runtime handler, of the images that a pod needs until it is over; pure.

    :param volumes: whether those of its volumes count (feature gate ImageVolume).
    """
    if pod.status.phase in _OVER:
        return set()
    images = {container.image for container in (*pod.spec.init_containers, *pod.spec.containers)}
    images |= {container.image for container in pod.spec.ephemeral_containers}
    if volumes:
        images |= {volume.image.reference for volume in pod.spec.volumes if volume.image is not None}
    return {(image, handler) for image in images if image}


def is_used(key: Key, used: Collection[Key]) -> bool:
    """Return whether an image is in use; a use without a handler counts for all of them."""
    return key in used or any(image == key[0] and "" in (handler, key[1]) for image, handler in used)


def removable(records: dict[Key, ImageRecord], used: Collection[Key]) -> list[ImageRecord]:
    """Return the unused images, that used longest ago first; pure."""
    free = [record for key, record in records.items() if not record.pinned and not is_used(key, used)]
    return sorted(free, key=lambda record: (record.last_used, record.first_seen, record.id))


def may_go(image: ImageRecord, now: float, min_age: float) -> bool:
    """Return whether an unused image may be removed to make room: it may have just been pulled for a container."""
    # `last_used` is `now` for what was in use at the look of this collection.
    return image.last_used < now and now - image.first_seen >= min_age


def space_of(path: str) -> Space:
    """Return the size of the file system at ``path``.

    :raises FailedPrecondition: if it cannot be known.
    """
    try:
        found = os.statvfs(path)
    except (OSError, ValueError) as error:  # the second of a NUL, which a runtime may say
        reason = error.strerror if isinstance(error, OSError) else error
        raise FailedPrecondition(f"statvfs({printable(path[:_SHOWN])}): {reason}") from error
    return Space(capacity=found.f_blocks * found.f_frsize, available=found.f_bavail * found.f_frsize)


def size(count: int) -> str:
    """Return bytes for people: ``1.5 GiB``."""
    for unit, least in _UNITS:
        if count >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count} B"
