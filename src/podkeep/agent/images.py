"""Having an image on the node before what needs it starts, by its pull policy."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from podkeep.agent.convert.security import ImageUser
from podkeep.agent.events import Event, StepFailed
from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

ShowPull = Callable[[str, Awaitable[str]], Awaitable[str]]
"""Awaits a pull and shows its progress meanwhile: called with the image's name and the pull."""


@dataclass(frozen=True, kw_only=True)
class LocalImage:
    """An image the runtime has: what to call it in requests, and the user it runs as."""

    ref: str
    user: ImageUser


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An image to have, pulled when ``policy`` says so. ``container`` is empty for one of the pod's volumes."""

    image: str
    policy: str
    container: str = ""


async def _silently(image: str, pull: Awaitable[str]) -> str:
    return await pull


class Images:
    """The image service of one runtime."""

    def __init__(self, client: CriClient, show: ShowPull | None = None) -> None:
        self._client = client
        self._show = show or _silently

    async def ensure(
        self, wanted: Wanted, handler: str, sandbox: api_pb2.PodSandboxConfig, report: Callable[[Event], None]
    ) -> LocalImage:
        """Return the image, pulled if its policy says so.

        :param handler: runtime handler of the pod.
        :param report: gets the events of the pull.
        :raises StepFailed: with the kubelet's waiting reason, if there is no image to run.
        """
        image, policy = wanted.image, wanted.policy
        spec = api_pb2.ImageSpec(image=image, user_specified_image=image, runtime_handler=handler)
        try:
            present = None if policy == "Always" else await self._find(spec)
        except InvalidArgument as error:
            raise _failed(
                wanted, "InvalidImageName", f'Failed to apply default image tag "{image}": {error.message}'
            ) from error
        except PodkeepError as error:
            raise _failed(wanted, "ImageInspectError", f'Failed to inspect image "{image}": {error.message}') from error
        if present is not None:
            message = f'Container image "{image}" already present on machine'
            report(Event(type="Normal", reason="Pulled", message=message, container=wanted.container))
            return present
        if policy == "Never":
            raise StepFailed(
                f'Container image "{image}" is not present with pull policy of Never',
                reason="ErrImageNeverPull",
                waiting="ErrImageNeverPull",
                container=wanted.container,
                hint="load it with `podkeep image load`, or set imagePullPolicy",
            )
        return await self._pull(wanted, spec, sandbox, report)

    async def _pull(
        self,
        wanted: Wanted,
        spec: api_pb2.ImageSpec,
        sandbox: api_pb2.PodSandboxConfig,
        report: Callable[[Event], None],
    ) -> LocalImage:
        image = wanted.image
        report(Event(type="Normal", reason="Pulling", message=f'Pulling image "{image}"', container=wanted.container))
        began = time.monotonic()
        request = api_pb2.PullImageRequest(image=spec, sandbox_config=sandbox)

        async def pull() -> str:
            return (await self._client.images.PullImage(request)).image_ref

        try:
            ref = await self._show(image, pull())
            found = await self._find(spec) or await self._find(api_pb2.ImageSpec(image=ref))
        except InvalidArgument as error:
            raise _failed(
                wanted, "InvalidImageName", f'Failed to pull image "{image}": {error.message}', error.hint
            ) from error
        except PodkeepError as error:
            raise _failed(
                wanted, "ErrImagePull", f'Failed to pull image "{image}": {error.message}', error.hint
            ) from error
        took = time.monotonic() - began
        message = f'Successfully pulled image "{image}" in {took:.3f}s'
        report(Event(type="Normal", reason="Pulled", message=message, container=wanted.container))
        return LocalImage(ref=ref, user=ImageUser() if found is None else found.user)

    async def _find(self, spec: api_pb2.ImageSpec) -> LocalImage | None:
        answer = await self._client.images.ImageStatus(api_pb2.ImageStatusRequest(image=spec))
        if not answer.image.id:
            return None
        uid = answer.image.uid.value if answer.image.HasField("uid") else None
        return LocalImage(ref=answer.image.id, user=ImageUser(uid=uid, name=answer.image.username))


def _failed(wanted: Wanted, waiting: str, message: str, hint: str = "") -> StepFailed:
    return StepFailed(message, reason="Failed", waiting=waiting, container=wanted.container, hint=hint)
