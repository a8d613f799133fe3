"""The image service: ListImages, ImageStatus, PullImage, RemoveImage, ImageFsInfo."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from podkeep.images.formats.image import Image, PullProgress, RegistryAuth
from podkeep.images.store.store import ImageStore
from podkeep.runtime.bundle.changed_trees import ChangedTrees
from podkeep.runtime.model.state import State
from podkeep.runtime.oci import users
from podkeep.runtime.rpc.chunks import Fitting, in_chunks
from podkeep.runtime.rpc.convert.checks import bounded
from podkeep.runtime.rpc.pull_watch import PullWatch


class ImageRpc:
    """One method per RPC, from message to message."""

    def __init__(self, images: ImageStore, state: State, watch: PullWatch, trees: ChangedTrees) -> None:
        self._images = images
        self._trees = trees
        self._state = state
        self._watch = watch
        self._fitting = Fitting("ListImages")

    async def list(self, request: api.ListImagesRequest) -> api.ListImagesResponse:
        messages = [_message(image) for image in self._chosen(request.filter)]
        return api.ListImagesResponse(images=self._fitting.fit(messages))

    async def stream(self, request: api.StreamImagesRequest) -> AsyncIterator[api.StreamImagesResponse]:
        chosen = self._chosen(request.filter)
        async for images in in_chunks(message for image in chosen for message in self._fitting.fit([_message(image)])):
            yield api.StreamImagesResponse(images=images)

    def _chosen(self, wanted: api.ImageFilter) -> Sequence[Image]:
        if not wanted.image.image:
            return list(self._images.images())
        found = self._images.find(wanted.image.image)
        return [] if found is None else [found]

    async def status(self, request: api.ImageStatusRequest) -> api.ImageStatusResponse:
        image = self._images.find(_required(request.image))
        if image is None:
            # CRI: an image that is not here is no error, but an answer without one.
            return api.ImageStatusResponse()
        info = {}
        if request.verbose:
            _, layers = await asyncio.to_thread(self._images.records)
            try:
                run = await asyncio.to_thread(self._images.run_config, image)
            except NotFound:
                return api.ImageStatusResponse()
            info["info"] = msgspec.json.encode(msgspec.structs.asdict(image) | {"config": run}).decode()
            info["layers"] = msgspec.json.encode([layers[item] for item in image.layers if item in layers]).decode()
        (message,) = self._fitting.fit([_message(image)])
        return api.ImageStatusResponse(image=message, info=info)

    async def pull(self, request: api.PullImageRequest) -> api.PullImageResponse:
        reference = _required(request.image)
        auth = _auth(request.auth) if request.HasField("auth") else None

        def progress(step: PullProgress) -> None:
            self._watch.publish(step)

        # Places for pulls are divided by namespace, so that slow registries of one keep no other one from pulling.
        tenant = request.sandbox_config.metadata.namespace
        image = await self._images.pull(reference, auth=auth, progress=progress, tenant=tenant)
        return api.PullImageResponse(image_ref=image.id)

    async def remove(self, request: api.RemoveImageRequest) -> api.RemoveImageResponse:
        text = _required(request.image)
        image = self._images.find(text)
        if image is not None:
            users = [item.id for item in self._state.containers() if image.id in item.images]
            if users:
                raise FailedPrecondition(
                    f"image {text} is in use by container {users[0]}"
                    + (f" and {len(users) - 1} more" if len(users) > 1 else ""),
                    hint="remove the containers first",
                )
            # No container can be made of it from here on; only then the files go, away from the event loop.
            await self._images.withdraw([image])
            await asyncio.to_thread(self._images.collect)
        return api.RemoveImageResponse()

    async def fs_info(self, _request: api.ImageFsInfoRequest) -> api.ImageFsInfoResponse:
        usage = await asyncio.to_thread(self._images.usage)
        # Of no single container, so that no statistics of containers have them.
        changed = await asyncio.to_thread(self._trees.usage)
        message = api.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=api.FilesystemIdentifier(mountpoint=usage.mountpoint),
            used_bytes=api.UInt64Value(value=usage.used_bytes + changed.used_bytes),
            inodes_used=api.UInt64Value(value=usage.inodes_used + changed.inodes),
        )
        return api.ImageFsInfoResponse(image_filesystems=[message], container_filesystems=[message])


def _required(image: api.ImageSpec) -> str:
    if not image.image:
        raise InvalidArgument("image.image is required")
    return bounded("image.image", image.image)


def _auth(config: api.AuthConfig) -> RegistryAuth:
    return RegistryAuth(
        username=config.username,
        password=config.password,
        auth=config.auth,
        identity_token=config.identity_token,
        registry_token=config.registry_token,
        server_address=config.server_address,
    )


def _message(image: Image) -> api.Image:
    user = image.user.partition(":")[0]
    try:
        uid = users.number_of(user or "0")
    except InvalidArgument:  # a container of it is refused for that, and the number would not fit
        uid = None
    result = api.Image(
        id=image.id,
        repo_tags=image.repo_tags,
        repo_digests=image.repo_digests,
        size=image.size,
        spec=api.ImageSpec(image=image.repo_tags[0] if image.repo_tags else image.id),
        pinned=image.pinned,
    )
    if image.unusable:
        return result
    if uid is None:
        result.username = user
    else:
        result.uid.value = uid
    return result
