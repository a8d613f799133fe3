"""RPCs on containers: from Create to Remove, their lists and status, ExecSync, updates, logs, checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.lifecycle.checkpoint import Checkpoints
from podkeep.runtime.lifecycle.containers import Containers
from podkeep.runtime.lifecycle.updates import Updates
from podkeep.runtime.model import stop_signal
from podkeep.runtime.model.records import Container, ContainerState
from podkeep.runtime.model.state import State
from podkeep.runtime.rpc.chunks import in_chunks
from podkeep.runtime.rpc.convert.checks import check_program, path_text, refuse_nul, seconds
from podkeep.runtime.rpc.convert.class_resources import class_names
from podkeep.runtime.rpc.convert.container import asking_annotations, container_config
from podkeep.runtime.rpc.convert.labels import labels_match
from podkeep.runtime.rpc.convert.mounts import mount_message
from podkeep.runtime.rpc.convert.namespaces import container_without_user_namespace
from podkeep.runtime.rpc.convert.resources import resources_message, resources_record
from podkeep.runtime.rpc.encoded import Encoded

_STATES = {
    ContainerState.CREATED: api.CONTAINER_CREATED,
    ContainerState.RUNNING: api.CONTAINER_RUNNING,
    ContainerState.EXITED: api.CONTAINER_EXITED,
}
# The first of two names of one signal (SIGCHLD, SIGCLD) is kept.
_SIGNALS = {
    stop_signal.parse(name): value for name, value in reversed(api.Signal.items()) if value != api.RUNTIME_DEFAULT
}
"""The kernel's number of a signal to the interface's."""


class ContainerRpc:
    """One method per RPC, from message to message."""

    def __init__(
        self,
        state: State,
        containers: Containers,
        updates: Updates,
        checkpoints: Checkpoints,
        classes: ClassResources,
    ) -> None:
        self._state = state
        self._classes = classes
        self._checkpoints = checkpoints
        self._containers = containers
        self._updates = updates
        self._items = Encoded(_item)

    async def create(self, request: api.CreateContainerRequest) -> api.CreateContainerResponse:
        if not request.pod_sandbox_id:
            raise InvalidArgument("pod_sandbox_id is required")
        sandbox = self._state.sandbox(request.pod_sandbox_id)
        asked = request.config
        if self._containers.is_virtual_machine(sandbox):
            asked = container_without_user_namespace(asked)
        # On a thread: it looks at paths, and a file system need not answer.
        config = await asyncio.to_thread(container_config, asked, sandbox.config)
        self._classes.catalog.check_annotations(asking_annotations(request.config, sandbox.config))
        return api.CreateContainerResponse(container_id=await self._containers.create(sandbox, config))

    async def start(self, request: api.StartContainerRequest) -> api.StartContainerResponse:
        await self._containers.start(_required(request.container_id))
        return api.StartContainerResponse()

    async def stop(self, request: api.StopContainerRequest) -> api.StopContainerResponse:
        await self._containers.stop(_required(request.container_id), seconds(request.timeout))
        return api.StopContainerResponse()

    async def remove(self, request: api.RemoveContainerRequest) -> api.RemoveContainerResponse:
        await self._containers.remove(_required(request.container_id))
        return api.RemoveContainerResponse()

    async def list(self, request: api.ListContainersRequest) -> api.ListContainersResponse:
        answer = api.ListContainersResponse()
        answer.MergeFromString(self._items.repeated(self._chosen(request.filter)))
        return answer

    async def stream(self, request: api.StreamContainersRequest) -> AsyncIterator[api.StreamContainersResponse]:
        chosen = self._chosen(request.filter)
        async for items in in_chunks(_item(item) for item in chosen):
            yield api.StreamContainersResponse(containers=items)

    def _chosen(self, wanted: api.ContainerFilter) -> Sequence[Container]:
        labels = dict(wanted.label_selector)  # a map of protobuf takes longer for each look into it
        return [item for item in self._state.containers() if _selected(item, wanted, labels)]

    async def status(self, request: api.ContainerStatusRequest) -> api.ContainerStatusResponse:
        container = self._state.container(_required(request.container_id))
        if not container.status.state.shown:
            raise NotFound(f"container {container.id} is {container.status.state.value}")
        info = {}
        if request.verbose:
            process = container.status.process
            details = {
                "sandboxID": container.sandbox_id,
                "pid": process.pid if process else 0,
                "classResources": container.status.class_resources,
                "remapSeconds": container.status.remap_seconds,
                "record": container,
            }
            info["info"] = msgspec.json.encode(details).decode()
        status = status_message(container, self._containers.log_path(container))
        return api.ContainerStatusResponse(status=status, info=info)

    async def exec_sync(self, request: api.ExecSyncRequest) -> api.ExecSyncResponse:
        refuse_nul("cmd", *request.cmd)
        check_program({"cmd": request.cmd})
        # CRI: 0 is no timeout.
        timeout = float(request.timeout) if request.timeout > 0 else None
        result = await self._containers.exec_sync(_required(request.container_id), tuple(request.cmd), timeout)
        return api.ExecSyncResponse(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    async def update(self, request: api.UpdateContainerResourcesRequest) -> api.UpdateContainerResourcesResponse:
        if request.HasField("windows"):
            raise InvalidArgument("windows: this is a Linux machine")
        text, limits = _required(request.container_id), resources_record(request.linux, "linux")
        # As with other runtimes, annotations are for what stands between (NRI) and change nothing here.
        classes = class_names("class_resources", request.class_resources.classes)
        await self._updates.update_container(text, limits, classes)
        return api.UpdateContainerResourcesResponse()

    async def checkpoint(self, request: api.CheckpointContainerRequest) -> api.CheckpointContainerResponse:
        text = _required(request.container_id)
        await self._checkpoints.make(text, path_text("location", request.location), float(seconds(request.timeout)))
        return api.CheckpointContainerResponse()

    async def reopen_log(self, request: api.ReopenContainerLogRequest) -> api.ReopenContainerLogResponse:
        await self._containers.reopen_log(_required(request.container_id))
        return api.ReopenContainerLogResponse()


def status_message(container: Container, log_path: str) -> api.ContainerStatus:
    """Return the message of a container's status; the caller left out those that are not shown."""
    config, status = container.config, container.status
    uid, gid, groups = status.user
    return api.ContainerStatus(
        id=container.id,
        metadata=api.ContainerMetadata(name=config.name, attempt=config.attempt),
        state=_STATES[status.state],
        created_at=status.created_at,
        started_at=status.started_at,
        finished_at=status.finished_at,
        exit_code=status.exit_code,
        image=_status_image(container),
        image_ref=container.image_ref,
        reason=status.reason,
        message=status.message,
        labels=config.labels,
        annotations=config.annotations,
        mounts=[
            mount_message(mount, container.volume_images.get(number)) for number, mount in enumerate(config.mounts)
        ],
        log_path=log_path,
        resources=api.ContainerResources(linux=resources_message(status.resources or config.resources)),
        image_id=container.image_id,
        user=api.ContainerUser(linux=api.LinuxContainerUser(uid=uid, gid=gid, supplemental_groups=groups)),
        stop_signal=_stop_signal(container),
    )


def _stop_signal(container: Container) -> api.Signal.ValueType:
    """Return the signal that StopContainer sends; in the request's own spelling if it names one."""
    if container.config.stop_signal:
        return api.Signal.Value(container.config.stop_signal)
    # The kernel has a few that the interface does not name.
    return _SIGNALS.get(stop_signal.of(container), api.RUNTIME_DEFAULT)


def _status_image(container: Container) -> api.ImageSpec:
    """Return what the kubelet shows as the container's image: a name, while its own requests have the ID."""
    return api.ImageSpec(image=container.reported_image, user_specified_image=container.config.user_specified_image)


def _required(text: str) -> str:
    if not text:
        raise InvalidArgument("container_id is required")
    return text


def _selected(container: Container, chosen: api.ContainerFilter, labels: Mapping[str, str]) -> bool:
    if not container.status.state.shown or not container.id.startswith(chosen.id):
        return False
    if not container.sandbox_id.startswith(chosen.pod_sandbox_id):
        return False
    if chosen.HasField("state") and _STATES[container.status.state] != chosen.state.state:
        return False
    return labels_match(container.config.labels, labels)


def _requested_image(container: Container) -> api.ImageSpec:
    config = container.config
    return api.ImageSpec(image=config.image, user_specified_image=config.user_specified_image)


def _item(container: Container) -> api.Container:
    return api.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox_id,
        metadata=api.ContainerMetadata(name=container.config.name, attempt=container.config.attempt),
        image=_requested_image(container),
        image_ref=container.image_ref,
        state=_STATES[container.status.state],
        created_at=container.status.created_at,
        labels=container.config.labels,
        annotations=container.config.annotations,
        image_id=container.image_id,
    )
