"""Classes as CRI has them: what a runtime reports, and what it is told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from podkeep.agent.resources.class_resources import Offer, Offers
from podkeep.cri.v1 import api_pb2


def offers(answer: api_pb2.StatusResponse) -> Offers:
    """Return what a runtime offers; one that says nothing about it is another thing than one that has no class."""
    if not answer.status.HasField("resources"):
        return Offers()
    resources = answer.status.resources
    return Offers(
        reported=True,
        pod=_by_type(resources.pod_class_resources),
        container=_by_type(resources.container_class_resources),
    )


def of_container(classes: Mapping[str, str]) -> api_pb2.ContainerClassResources | None:
    """Return the message of a container's classes; a container that names none has none, not an empty one."""
    return api_pb2.ContainerClassResources(classes=classes) if classes else None


def of_pod(classes: Mapping[str, str]) -> api_pb2.PodClassResources | None:
    """Return the message of a pod's classes. Its field is called ``class``, which Python cannot spell as a name."""
    return api_pb2.PodClassResources(**{"class": dict(classes)}) if classes else None


def _by_type(infos: Iterable[api_pb2.ClassResourceInfo]) -> dict[str, Offer]:
    return {
        info.Name: Offer(
            classes=tuple(item.Name for item in info.classes), default=info.default_class, immutable=info.immutable
        )
        for info in infos
    }
