"""RPCs on pod sandboxes: Run, Stop, Remove, List, Stream, Status, UpdatePodSandboxResources, UpdatePodSandboxConfig."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.base.ids import HandlerName
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.lifecycle.containers import Containers
from podkeep.runtime.lifecycle.sandboxes import Sandboxes, check_namespaces
from podkeep.runtime.lifecycle.updates import Updates
from podkeep.runtime.model.records import Sandbox, SandboxState
from podkeep.runtime.model.state import State
from podkeep.runtime.rpc.chunks import LIST_BYTES, in_chunks
from podkeep.runtime.rpc.container import status_message as container_status_message
from podkeep.runtime.rpc.convert.labels import labels_match
from podkeep.runtime.rpc.convert.namespaces import namespace_message, sandbox_without_user_namespace
from podkeep.runtime.rpc.convert.resources import resources_record
from podkeep.runtime.rpc.convert.sandbox import sandbox_config
from podkeep.runtime.rpc.convert.sandbox_update import changed_classes
from podkeep.runtime.rpc.encoded import Encoded
from podkeep.runtime.rpc.shortening import shorten_statuses


class SandboxRpc:
    """One method per RPC, from message to message."""

    def __init__(
        self,
        state: State,
        sandboxes: Sandboxes,
        containers: Containers,
        updates: Updates,
        default_cgroup_parent: str,
    ) -> None:
        self._state = state
        self._updates = updates
        self._sandboxes = sandboxes
        self._containers = containers
        self._default_cgroup_parent = default_cgroup_parent
        self._items = Encoded(_item)

    async def run(self, request: api.RunPodSandboxRequest) -> api.RunPodSandboxResponse:
        asked = request.config
        if self._sandboxes.is_virtual_machine(HandlerName(request.runtime_handler)):
            asked = sandbox_without_user_namespace(asked)
        config = sandbox_config(asked, request.runtime_handler, default_cgroup_parent=self._default_cgroup_parent)
        check_namespaces(config)
        return api.RunPodSandboxResponse(pod_sandbox_id=await self._sandboxes.run(config))

    async def stop(self, request: api.StopPodSandboxRequest) -> api.StopPodSandboxResponse:
        await self._sandboxes.stop(_required(request.pod_sandbox_id), self._containers)
        return api.StopPodSandboxResponse()

    async def remove(self, request: api.RemovePodSandboxRequest) -> api.RemovePodSandboxResponse:
        await self._sandboxes.remove(_required(request.pod_sandbox_id), self._containers)
        return api.RemovePodSandboxResponse()

    async def list(self, request: api.ListPodSandboxRequest) -> api.ListPodSandboxResponse:
        answer = api.ListPodSandboxResponse()
        answer.MergeFromString(self._items.repeated(self._chosen(request.filter)))
        return answer

    async def stream(self, request: api.StreamPodSandboxesRequest) -> AsyncIterator[api.StreamPodSandboxesResponse]:
        chosen = self._chosen(request.filter)
        async for items in in_chunks(_item(item) for item in chosen):
            yield api.StreamPodSandboxesResponse(pod_sandboxes=items)

    def _chosen(self, wanted: api.PodSandboxFilter) -> Sequence[Sandbox]:
        labels = dict(wanted.label_selector)  # a map of protobuf takes longer for each look into it
        return [item for item in self._state.sandboxes() if _selected(item, wanted, labels)]

    async def update(self, request: api.UpdatePodSandboxResourcesRequest) -> api.UpdatePodSandboxResourcesResponse:
        text = _required(request.pod_sandbox_id)
        resources, overhead = resources_record(request.resources), resources_record(request.overhead)
        await self._updates.update_sandbox(text, resources, overhead)
        return api.UpdatePodSandboxResourcesResponse()

    async def update_config(self, request: api.UpdatePodSandboxConfigRequest) -> api.UpdatePodSandboxConfigResponse:
        sandbox = self._state.sandbox(_required(request.pod_sandbox_id))
        await self._updates.update_sandbox_classes(sandbox.id, changed_classes(request.config, sandbox))
        return api.UpdatePodSandboxConfigResponse()

    async def status(self, request: api.PodSandboxStatusRequest) -> api.PodSandboxStatusResponse:
        sandbox = self._state.sandbox(_required(request.pod_sandbox_id))
        if not sandbox.status.state.shown:
            raise NotFound(f"pod sandbox {sandbox.id} is {sandbox.status.state.value}")
        info = {}
        if request.verbose:
            details = msgspec.to_builtins(sandbox) | {"classResources": sandbox.status.class_resources}
            info["info"] = msgspec.json.encode(details).decode()
        # The newest first: the kubelet (EventedPLEG) takes the first of several attempts for the last one.
        containers = sorted(self._state.containers(sandbox.id), key=lambda item: item.status.created_at, reverse=True)
        answer = api.PodSandboxStatusResponse(
            status=status_message(sandbox),
            info=info,
            containers_statuses=[
                container_status_message(item, self._containers.log_path(item))
                for item in containers
                if item.status.state.value not in {"creating", "removing"}
            ],
            timestamp=time.time_ns(),
        )
        shorten_statuses(answer.status, answer.containers_statuses, most=LIST_BYTES - _size(info))
        return answer


def _size(info: dict[str, str]) -> int:
    return sum(len(text.encode()) for text in info.values())


def _required(text: str) -> str:
    if not text:
        raise InvalidArgument("pod_sandbox_id is required")
    return text


def _selected(sandbox: Sandbox, chosen: api.PodSandboxFilter, labels: Mapping[str, str]) -> bool:
    if not sandbox.status.state.shown or not sandbox.id.startswith(chosen.id):
        return False
    if chosen.HasField("state") and _state(sandbox) != chosen.state.state:
        return False
    return labels_match(sandbox.config.labels, labels)


def _state(sandbox: Sandbox) -> api.PodSandboxState.ValueType:
    return api.SANDBOX_READY if sandbox.status.state is SandboxState.READY else api.SANDBOX_NOTREADY


def _metadata(sandbox: Sandbox) -> api.PodSandboxMetadata:
    config = sandbox.config
    return api.PodSandboxMetadata(name=config.name, uid=config.uid, namespace=config.namespace, attempt=config.attempt)


def _item(sandbox: Sandbox) -> api.PodSandbox:
    return api.PodSandbox(
        id=sandbox.id,
        metadata=_metadata(sandbox),
        state=_state(sandbox),
        created_at=sandbox.status.created_at,
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.config.handler,
    )


def status_message(sandbox: Sandbox) -> api.PodSandboxStatus:
    namespaces = namespace_message(sandbox.config.namespaces)
    ready = sandbox.status.state is SandboxState.READY
    # The addresses of a sandbox that was stopped may be another pod's by now.
    more = [api.PodIP(ip=item) for item in sandbox.status.more_addresses] if ready else []
    network = api.PodSandboxNetworkStatus(ip=sandbox.status.address if ready else "", additional_ips=more)
    return api.PodSandboxStatus(
        id=sandbox.id,
        metadata=_metadata(sandbox),
        state=_state(sandbox),
        created_at=sandbox.status.created_at,
        network=network,
        linux=api.LinuxPodSandboxStatus(namespaces=api.Namespace(options=namespaces)),
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.config.handler,
    )
