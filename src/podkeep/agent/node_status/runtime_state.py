"""What the container runtime says of itself: whether it is ready, its handlers and features, classes, images.

The rules are a kubelet's (pkg/kubelet/runtime.go, updateRuntimeUp): a runtime that does not answer is down after half a
minute; handlers and features are those of the last answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from podkeep.agent.runtime_status import RuntimeStatus, not_ready
from podkeep.base.errors import PodkeepError
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

log = logging.getLogger(__name__)

Item = TypeVar("Item")

DOWN_S = 30.0
IMAGES_S = 30.0
"""Seconds for which a list of images is good (kubelet, images/image_gc_manager.go)."""
MAX_NAMES = 5
"""Names of an image in a Node's status."""
_MAX_TEXT = 4096
"""Characters of a version."""
_MAX_NAME = 1024
"""Of the name of an image; longer ones are left out."""
_MAX_LABEL = 253
"""Of the name of a handler or a class; longer ones are left out, as pods cannot ask for them."""
_MAX_ENTRIES = 64
_MAX_TYPES = 16
"""Handlers and classes of a type; types of classes. A Node whose status is more than an API server takes would be told
ready for as long as its runtime says so much."""
_MAX_INTEGER = (1 << 63) - 1
"""Of Kubernetes' integers, where CRI's have no sign."""
_TIMEOUT_S = 10.0


class RuntimeState:
    """The runtime as it was at the last look.

    :param max_images: how many images a Node's status has; -1: all.
    """

    def __init__(self, client: CriClient, status: RuntimeStatus, max_images: int = 50) -> None:
        self._client, self._status = client, status
        self._timeout = min(_TIMEOUT_S, client.default_timeout)
        self._max_images = max_images
        self._answered = 0.0
        self._is_known = False
        self._images_read = 0.0
        self._not_ready: list[str] = []
        self.version = "unknown://Unknown"
        self.handlers: list[dict[str, Any]] = []
        self.features: dict[str, Any] | None = None
        self.classes: Mapping[str, list[dict[str, Any]]] | None = None
        """``podClassResources`` and ``containerClassResources``; None: the runtime knows no classes."""
        self.images: list[dict[str, Any]] = []

    @property
    def known(self) -> bool:
        return bool(self._answered)

    async def look(self) -> None:
        """Ask the runtime; what it does not answer stays as it was."""
        try:
            answer = await self._status.read(fresh=True, timeout=self._timeout)
            # Asked once for each time that the runtime comes back: only a restart can change its version.
            if not self._is_known:
                about = await self._client.runtime.Version(api_pb2.VersionRequest(), timeout=self._timeout)
                self.version = f"{about.runtime_name}://{about.runtime_version}"[:_MAX_TEXT]
            self._not_ready = list(not_ready(answer).values())
            self.handlers = handlers(answer)
            self.features = features(answer)
            self.classes = classes(answer)
            self._answered, self._is_known = time.monotonic(), True
            if time.monotonic() - self._images_read >= IMAGES_S or not self._images_read:
                await self._look_at_images()
        except PodkeepError as error:
            # It may be another one when it is back.
            self._is_known = False
            log.debug("the runtime's status: %s", error)

    async def _look_at_images(self) -> None:
        answer = await self._client.images.ListImages(api_pb2.ListImagesRequest(), timeout=self._timeout)
        self.images = images(answer.images, self._max_images)
        self._images_read = time.monotonic()

    def forget_images(self) -> None:
        """Have the images read at the next look: one came or went."""
        self._images_read = 0.0

    def errors(self) -> list[str]:
        """Return why the node is not ready as far as the runtime goes."""
        if not self._answered:
            return ["container runtime status check may not have completed yet"]
        if time.monotonic() - self._answered > DOWN_S:
            return ["container runtime is down"]
        return self._not_ready


def handlers(answer: api_pb2.StatusResponse) -> list[dict[str, Any]]:
    """Return v1.NodeRuntimeHandler of each handler, by name."""
    return [
        {
            "name": handler.name,
            "features": {
                "recursiveReadOnlyMounts": handler.features.recursive_read_only_mounts,
                "userNamespaces": handler.features.user_namespaces,
            },
        }
        for handler in _few(answer.runtime_handlers, lambda handler: handler.name)
    ]


def features(answer: api_pb2.StatusResponse) -> dict[str, Any] | None:
    """Return v1.NodeFeatures; None: the runtime says nothing about them."""
    if not answer.HasField("features"):
        return None
    return {"supplementalGroupsPolicy": answer.features.supplemental_groups_policy}


def classes(answer: api_pb2.StatusResponse) -> Mapping[str, list[dict[str, Any]]] | None:
    """Return the QoS-class resources as a Node's status has them (KEP-3008), by name of type and class."""
    if not answer.status.HasField("resources"):
        return None
    resources = answer.status.resources
    return {
        "podClassResources": _infos(resources.pod_class_resources),
        "containerClassResources": _infos(resources.container_class_resources),
    }


def _infos(infos: Iterable[api_pb2.ClassResourceInfo]) -> list[dict[str, Any]]:
    return [
        {"name": info.Name, "classes": [item.Name for item in _few(info.classes, lambda item: item.Name)]}
        | ({"immutable": True} if info.immutable else {})
        for info in _few(infos, lambda info: info.Name, _MAX_TYPES)
    ]


def _few(items: Iterable[Item], name: Callable[[Item], str], most: int = _MAX_ENTRIES) -> list[Item]:
    """Return items by name, without those whose name is too long, at most so many."""
    return sorted((item for item in items if len(name(item)) <= _MAX_LABEL), key=name)[:most]


def images(found: Iterable[api_pb2.Image], most: int) -> list[dict[str, Any]]:
    """Return v1.ContainerImage of the largest images."""
    # Of two of one size the order must not change from look to look.
    ordered = sorted(found, key=lambda image: (-image.size, image.id))
    return [
        {
            "names": [name for name in (*image.repo_digests, *image.repo_tags) if len(name) <= _MAX_NAME][:MAX_NAMES],
            "sizeBytes": min(image.size, _MAX_INTEGER),
        }
        for image in (ordered if most < 0 else ordered[:most])
    ]
