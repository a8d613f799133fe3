"""A CRI server that keeps pods in memory and runs nothing, for agents whose runtime is older, hangs or lies.

It answers what the first CRI v1 had, and only that: no runtime handlers, no features, no classes, no events, no
statistics, no ID of an image in a container's status. Tests add to that, take away from it, bend answers, or have calls
hang.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podkeep.base.errors import Internal, NotFound, PodkeepError
from podkeep.cri import server as cri_server
from podkeep.cri.v1 import api_pb2 as api
from support.daemon import Daemon
from support.waiting import TIMEOUT_S

Bend = Callable[[Any, Any], Any] | PodkeepError
"""Makes another answer of a request and the true answer; or the error that is answered."""


class StubRuntime:
    """Use it as a context manager; it serves in a thread of its own.

    :ivar calls: how often each RPC was asked; ``sent``: the requests that make something, in their order.
    :ivar bends: by the name of the RPC, what makes another answer of the true one, or an error: then nothing is done.
    :ivar hanging: names of RPCs that do not answer as long as they are in it.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.calls: Counter[str] = Counter()
        self.sent: list[Any] = []
        self.bends: dict[str, Bend] = {}
        self.hanging: set[str] = set()
        self.status = api.StatusResponse()
        for kind in ("RuntimeReady", "NetworkReady"):
            self.status.status.conditions.add(type=kind, status=True)
        self._sandboxes: dict[str, api.PodSandboxStatus] = {}
        self._containers: dict[str, tuple[str, api.ContainerStatus]] = {}
        self._images: set[str] = set()
        self._serves = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> StubRuntime:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._serves.wait(TIMEOUT_S)
        assert self._failure is None, self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(TIMEOUT_S)
            self._thread = None

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = cri_server.create_server()
            cri_server.bind(server, cri_server.RUNTIME_SERVICE, {name: self._rpc(name) for name in _RUNTIME})
            cri_server.bind(server, cri_server.IMAGE_SERVICE, {name: self._rpc(name) for name in _IMAGES})
            cri_server.listen(server, str(self.socket))
            await server.start()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._serves.set()
        await self._end.wait()
        await server.stop(None)

    def _rpc(self, name: str) -> Any:
        truth = self._truth(name)

        async def handler(request: Any) -> Any:
            self.calls[name] += 1
            while name in self.hanging:  # noqa: ASYNC110 - other threads change the set
                await asyncio.sleep(0.02)
            bend = self.bends.get(name)
            if isinstance(bend, PodkeepError):
                raise bend
            answer = truth(request)
            return answer if bend is None else bend(request, answer)

        return handler

    def _truth(self, name: str) -> Callable[[Any], Any]:
        truth: Callable[[Any], Any] = getattr(self, re.sub("(?=[A-Z])", "_", name).lower())
        return truth

    # -- for tests

    def unfiltered(self, name: str) -> Bend:
        """Return what bends the answer of a list: it holds everything, whatever was asked for."""
        return lambda request, _: self._truth(name)(type(request)())

    def add_running(self, container: str) -> str:
        """Have a container of that name that runs, of no sandbox; return its ID."""
        identity = os.urandom(16).hex()
        status = api.ContainerStatus(id=identity, state=api.CONTAINER_RUNNING, created_at=time.time_ns())
        status.metadata.name = container
        self._containers[identity] = ("", status)
        return identity

    def exit(self, container: str, code: int = 0) -> None:
        """Let the container of that name end."""
        for _, status in self._containers.values():
            if status.metadata.name == container and status.state == api.CONTAINER_RUNNING:
                _ended(status, code)

    def fails_to_start(self, why: str) -> Bend:
        """Return what lets no container be started: it has ended then, as containerd leaves it (``StartError``)."""

        def bend(request: Any, _: Any) -> Any:
            status = self._container(request.container_id)
            _ended(status, 128)
            status.started_at, status.reason, status.message = 0, "StartError", why
            raise Internal(why)

        return bend

    @property
    def containers(self) -> list[str]:
        """The IDs of its containers."""
        return list(self._containers)

    def end_sandboxes(self) -> None:
        """Let all sandboxes end; their containers run on."""
        for sandbox in self._sandboxes.values():
            sandbox.state = api.SANDBOX_NOTREADY

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the requests of that class."""
        return [request for request in self.sent if isinstance(request, kind)]

    @property
    def holds(self) -> list[str]:
        """The IDs of what it has of pods."""
        return [*self._sandboxes, *self._containers]

    @contextmanager
    def bent(self, **bends: Bend) -> Iterator[None]:
        """Bend answers for a while."""
        self.bends.update(bends)
        try:
            yield
        finally:
            for name in bends:
                del self.bends[name]

    @contextmanager
    def hung(self, *names: str) -> Iterator[None]:
        """Let calls hang for a while."""
        self.hanging.update(names)
        try:
            yield
        finally:
            self.hanging.difference_update(names)

    # -- RuntimeService

    def _version(self, _: api.VersionRequest) -> api.VersionResponse:
        return api.VersionResponse(version="0.1.0", runtime_name="stub", runtime_version="1", runtime_api_version="v1")

    def _status(self, _: api.StatusRequest) -> api.StatusResponse:
        return self.status

    def _run_pod_sandbox(self, request: api.RunPodSandboxRequest) -> api.RunPodSandboxResponse:
        self.sent.append(request)
        identity = os.urandom(16).hex()
        config = request.config
        self._sandboxes[identity] = api.PodSandboxStatus(
            id=identity,
            metadata=config.metadata,
            state=api.SANDBOX_READY,
            created_at=time.time_ns(),
            network=api.PodSandboxNetworkStatus(ip="10.9.9.9"),
            labels=config.labels,
            annotations=config.annotations,
        )
        return api.RunPodSandboxResponse(pod_sandbox_id=identity)

    def _stop_pod_sandbox(self, request: api.StopPodSandboxRequest) -> api.StopPodSandboxResponse:
        self._end_sandbox(request.pod_sandbox_id)
        return api.StopPodSandboxResponse()

    def _end_sandbox(self, identity: str) -> None:
        if identity in self._sandboxes:
            self._sandboxes[identity].state = api.SANDBOX_NOTREADY
        for owner, status in self._containers.values():
            if owner == identity:
                _ended(status, 137)

    def _remove_pod_sandbox(self, request: api.RemovePodSandboxRequest) -> api.RemovePodSandboxResponse:
        self.sent.append(request)
        self._sandboxes.pop(request.pod_sandbox_id, None)
        for identity in [key for key, (owner, _) in self._containers.items() if owner == request.pod_sandbox_id]:
            del self._containers[identity]
        return api.RemovePodSandboxResponse()

    def _pod_sandbox_status(self, request: api.PodSandboxStatusRequest) -> api.PodSandboxStatusResponse:
        return api.PodSandboxStatusResponse(status=self._sandbox(request.pod_sandbox_id))

    def _list_pod_sandbox(self, request: api.ListPodSandboxRequest) -> api.ListPodSandboxResponse:
        wanted = request.filter
        return api.ListPodSandboxResponse(
            items=[
                api.PodSandbox(
                    id=item.id,
                    metadata=item.metadata,
                    state=item.state,
                    created_at=item.created_at,
                    labels=item.labels,
                    annotations=item.annotations,
                )
                for item in self._sandboxes.values()
                if wanted.id in {"", item.id} and wanted.label_selector.items() <= item.labels.items()
            ]
        )

    def _create_container(self, request: api.CreateContainerRequest) -> api.CreateContainerResponse:
        self.sent.append(request)
        sandbox, config = self._sandbox(request.pod_sandbox_id), request.config
        identity = os.urandom(16).hex()
        status = api.ContainerStatus(
            id=identity,
            metadata=config.metadata,
            state=api.CONTAINER_CREATED,
            created_at=time.time_ns(),
            image=config.image,
            image_ref=config.image.image,
            labels=config.labels,
            annotations=config.annotations,
        )
        self._containers[identity] = (sandbox.id, status)
        return api.CreateContainerResponse(container_id=identity)

    def _start_container(self, request: api.StartContainerRequest) -> api.StartContainerResponse:
        status = self._container(request.container_id)
        status.state, status.started_at = api.CONTAINER_RUNNING, time.time_ns()
        return api.StartContainerResponse()

    def _stop_container(self, request: api.StopContainerRequest) -> api.StopContainerResponse:
        _ended(self._container(request.container_id), 137)
        return api.StopContainerResponse()

    def _remove_container(self, request: api.RemoveContainerRequest) -> api.RemoveContainerResponse:
        self._containers.pop(request.container_id, None)
        return api.RemoveContainerResponse()

    def _list_containers(self, request: api.ListContainersRequest) -> api.ListContainersResponse:
        wanted = request.filter
        return api.ListContainersResponse(
            containers=[
                api.Container(
                    id=item.id,
                    pod_sandbox_id=owner,
                    metadata=item.metadata,
                    image=item.image,
                    image_ref=item.image_ref,
                    state=item.state,
                    created_at=item.created_at,
                    labels=item.labels,
                    annotations=item.annotations,
                )
                for owner, item in self._containers.values()
                if wanted.pod_sandbox_id in {"", owner} and wanted.label_selector.items() <= item.labels.items()
            ]
        )

    def _container_status(self, request: api.ContainerStatusRequest) -> api.ContainerStatusResponse:
        return api.ContainerStatusResponse(status=self._container(request.container_id))

    def _sandbox(self, identity: str) -> api.PodSandboxStatus:
        if identity not in self._sandboxes:
            raise NotFound(f"an error occurred when try to find sandbox: {identity}: not found")
        return self._sandboxes[identity]

    def _container(self, identity: str) -> api.ContainerStatus:
        if identity not in self._containers:
            raise NotFound(f"an error occurred when try to find container {identity!r}: not found")
        return self._containers[identity][1]

    # -- ImageService

    def _image_status(self, request: api.ImageStatusRequest) -> api.ImageStatusResponse:
        name = request.image.image
        return api.ImageStatusResponse(image=_image(name) if name in self._images else None)

    def _list_images(self, _: api.ListImagesRequest) -> api.ListImagesResponse:
        return api.ListImagesResponse(images=[_image(name) for name in sorted(self._images)])

    def _pull_image(self, request: api.PullImageRequest) -> api.PullImageResponse:
        self._images.add(request.image.image)
        return api.PullImageResponse(image_ref=request.image.image)


_RUNTIME = (
    "Version",
    "Status",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PodSandboxStatus",
    "ListPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ListContainers",
    "ContainerStatus",
)
_IMAGES = ("ImageStatus", "ListImages", "PullImage")


def _image(name: str) -> api.Image:
    return api.Image(id=name, repo_tags=[name], size=1000)


def _ended(status: api.ContainerStatus, code: int) -> None:
    if status.state != api.CONTAINER_EXITED:
        status.state, status.exit_code, status.finished_at = api.CONTAINER_EXITED, code, time.time_ns()


class StubDaemon(Daemon):
    """The stub in the place of podkeep's runtime, for a node of a test.

    :param base: an empty directory of the test's own.
    """

    def __init__(self, base: Path) -> None:
        socket = base / "stub.sock"
        super().__init__(base, settings=(f"runtime.socket={socket}", "mountns.enabled=false"))
        self.stub = StubRuntime(socket)

    @property
    def pid(self) -> int:
        """The process that serves."""
        return os.getpid()

    def start(self) -> Daemon:
        """Serve."""
        self.stub.__enter__()
        return self

    def end(self) -> None:
        """Serve no more, and remove the cgroups."""
        self.stub.__exit__()
        super().end()
