"""podkeep's own RPCs about images: DescribeImages, SaveImages, RemoveImageName, PruneImages, VerifyImages."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing

from podkeep.base.errors import InvalidArgument
from podkeep.base.ids import ImageID
from podkeep.cri.v1 import podkeep_pb2 as node
from podkeep.images.formats.openfile import OpenFile
from podkeep.images.store.checking import Damage, Document, Step, Summary
from podkeep.images.store.maintenance import Description, ImageUser, Maintenance
from podkeep.images.store.store import ImageStore
from podkeep.runtime.model.state import State
from podkeep.runtime.rpc.chunks import Fitting
from podkeep.runtime.rpc.pull_watch import PullWatch

log = logging.getLogger(__name__)

_DOCUMENT_BYTES = 13 << 20
"""Of the documents of one image: an index, a manifest and the configuration have 12 MiB at most. The rest of a message
is for layers, names and users; an image that came by way of many large indexes is told of without some of them."""


class ImageMaintenanceRpc:
    """One method per RPC, from message to message."""

    def __init__(self, images: ImageStore, state: State, watch: PullWatch) -> None:
        self._state = state
        self._watch = watch
        self._maintenance = Maintenance(images, self._users)
        self._described = Fitting("DescribeImages")
        self._pruned = Fitting("PruneImages")

    async def describe(self, request: node.DescribeImagesRequest) -> AsyncIterator[node.ImageDescription]:
        async with aclosing(self._maintenance.describe(request.images, documents=request.documents)) as images:
            async for found in images:
                for message in self._described.fit([_description(found, whole=request.documents)]):
                    yield message

    async def save(self, request: node.SaveImagesRequest) -> node.SaveImagesResponse:
        if not request.images:
            raise InvalidArgument("images: at least one is required")
        if not request.HasField("target"):
            raise InvalidArgument("target is required")
        written = await self._maintenance.save(request.images, open_file(request.target), self._watch.publish)
        return node.SaveImagesResponse(bytes=written)

    async def remove(self, request: node.RemoveImageNameRequest) -> node.RemoveImageNameResponse:
        if not request.image:
            raise InvalidArgument("image is required")
        removed = await self._maintenance.remove(request.image)
        return node.RemoveImageNameResponse(
            untagged=removed.untagged, removed=removed.image or "", reclaimed_bytes=removed.reclaimed
        )

    async def prune(self, request: node.PruneImagesRequest) -> node.PruneImagesResponse:
        images, reclaimed = await self._maintenance.prune(
            tagged=request.all, pulled_before=request.pulled_before or None, dry_run=request.dry_run
        )
        messages = self._pruned.fit([_description(found) for found in images])
        return node.PruneImagesResponse(images=messages, reclaimed_bytes=reclaimed)

    async def verify(self, request: node.VerifyImagesRequest) -> AsyncIterator[node.VerifyEvent]:
        async with aclosing(self._maintenance.verify(request.images, repair=request.repair)) as events:
            async for event in events:
                yield _event(event)

    def _users(self) -> dict[ImageID, list[ImageUser]]:
        pods = {pod.id: pod.config for pod in self._state.sandboxes()}
        users: dict[ImageID, list[ImageUser]] = {}
        for container in self._state.containers():
            pod = pods.get(container.sandbox_id)
            for image in container.images:
                user = ImageUser(
                    container_id=container.id,
                    container_name=container.config.name,
                    pod_namespace=pod.namespace if pod else "",
                    pod_name=pod.name if pod else container.sandbox_id,
                    volume=image != container.image_id,
                )
                users.setdefault(image, []).append(user)
        return users


def open_file(message: node.OpenFile) -> OpenFile:
    return OpenFile(
        pid=message.pid,
        descriptor=message.descriptor,
        device=message.device,
        inode=message.inode,
        name=message.name,
    )


def _told(documents: Sequence[Document]) -> Iterator[Document]:
    """Yield the documents that fit into a message, the configuration and the smaller ones before others."""
    left = _DOCUMENT_BYTES
    told = set()
    for document in sorted(documents, key=lambda item: (item.role != "configuration", len(item.data))):
        left -= len(document.data)
        if left < 0:
            log.warning("document %s is left out of an answer: there are too many large ones", document.digest)
            break
        told.add(document)
    yield from (document for document in documents if document in told)


def _description(found: Description, *, whole: bool = False) -> node.ImageDescription:
    image = found.image
    return node.ImageDescription(
        id=image.id,
        kind=image.kind,
        artifact_type=image.artifact_type,
        repo_tags=image.repo_tags,
        repo_digests=image.repo_digests,
        size=image.size,
        shared_size=found.shared_size,
        pulled_at=image.pulled_at,
        pinned=image.pinned,
        users=[
            node.ImageUser(
                container_id=user.container_id,
                container_name=user.container_name,
                pod_namespace=user.pod_namespace,
                pod_name=user.pod_name,
                volume=user.volume,
            )
            for user in found.users
        ],
        documents=[
            node.ImageDocument(role=document.role, digest=document.digest, data=document.data)
            for document in _told(found.documents)
        ],
        layers=[
            node.ImageLayer(
                id=layer.id,
                kind=layer.kind,
                driver=layer.driver,
                bytes=layer.bytes,
                inodes=layer.inodes,
                images=images,
                title=layer.title,
            )
            for layer, images in (found.layers if whole else ())
        ],
    )


def _event(event: Step | Damage | Summary) -> node.VerifyEvent:
    if isinstance(event, Step):
        return node.VerifyEvent(progress=node.VerifyProgress(done=event.done, total=event.total))
    if isinstance(event, Damage):
        damage = node.VerifyDamage(
            object=event.object,
            problem=event.problem,
            images=event.images,
            names=event.names,
            repaired=event.repaired,
            kept=event.kept,
        )
        return node.VerifyEvent(damage=damage)
    summary = node.VerifySummary(
        images=event.images,
        layers=event.layers,
        documents=event.documents,
        bytes=event.bytes,
        damages=event.damages,
        unchecked=event.unchecked,
    )
    return node.VerifyEvent(summary=summary)
