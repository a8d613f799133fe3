"""podkeep's own service beside CRI: LoadImage, WatchPulls, ListPodUIDs, Shutdown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import podkeep_pb2 as node
from podkeep.images.store.store import ImageStore
from podkeep.runtime.model.state import State
from podkeep.runtime.rpc.convert.checks import path_text, quote
from podkeep.runtime.rpc.image_maintenance import open_file
from podkeep.runtime.rpc.pull_watch import PullWatch


class NodeRpc:
    """One method per RPC, from message to message."""

    def __init__(
        self,
        images: ImageStore,
        state: State,
        watch: PullWatch,
        shut_down: Callable[[], None],
        require_idle: Callable[[], None],
    ) -> None:
        """Serve with these parts.

        :param require_idle: raises if somebody has a use for this runtime, beside the one request that is served.
        """
        self._images = images
        self._state = state
        self._watch = watch
        self._shut_down = shut_down
        self._require_idle = require_idle

    async def load_image(self, request: node.LoadImageRequest) -> node.LoadImageResponse:
        file = open_file(request.file) if request.HasField("file") else None
        path = Path(path_text("path", request.path))
        if file is None and not path.is_absolute():
            raise InvalidArgument(f"path: {quote(request.path)} is not absolute")
        loaded = await self._images.load(path, file=file, progress=self._watch.publish)
        return node.LoadImageResponse(image_refs=[item.repo_tags[0] if item.repo_tags else item.id for item in loaded])

    async def watch_pulls(self, request: node.WatchPullsRequest) -> AsyncIterator[node.PullProgress]:
        async for step in self._watch.follow(request.image):
            yield node.PullProgress(
                image=step.image, digest=step.digest, phase=step.phase, done=step.done, total=step.total
            )

    async def list_pod_uids(self, _request: node.ListPodUIDsRequest) -> node.ListPodUIDsResponse:
        # Also of sandboxes that are being made or removed, which no list of CRI shows: an agent keeps the IDs of their
        # pods.
        return node.ListPodUIDsResponse(uids={sandbox.config.uid for sandbox in self._state.sandboxes()})

    async def shutdown(self, request: node.ShutdownRequest) -> node.ShutdownResponse:
        if request.if_idle:
            self._require_idle()
        self._shut_down()
        return node.ShutdownResponse()
