"""GetContainerEvents."""

from __future__ import annotations

from collections.abc import AsyncIterator

from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.bundle.container_log import log_file
from podkeep.runtime.lifecycle.events import Event, EventHub, EventKind
from podkeep.runtime.rpc.container import status_message as container_status_message
from podkeep.runtime.rpc.sandbox import status_message as sandbox_status_message
from podkeep.runtime.rpc.shortening import shorten_statuses

_TYPES = {
    EventKind.CREATED: api.CONTAINER_CREATED_EVENT,
    EventKind.STARTED: api.CONTAINER_STARTED_EVENT,
    EventKind.STOPPED: api.CONTAINER_STOPPED_EVENT,
    EventKind.DELETED: api.CONTAINER_DELETED_EVENT,
}


class EventRpc:
    """One method per RPC, from message to message."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub

    async def container_events(self, _request: api.GetEventsRequest) -> AsyncIterator[api.ContainerEventResponse]:
        with self._hub.subscribe() as reader:
            async for event in reader:
                yield event_message(event)


def event_message(event: Event) -> api.ContainerEventResponse:
    """Return the message of an event; the kubelet passes over one that has no status of the sandbox.

    One that no message holds would end the streams of everybody who listens. It is shortened, or as if the sandbox were
    gone: who wants to know more asks.
    """
    message = api.ContainerEventResponse(
        container_id=event.subject, container_event_type=_TYPES[event.kind], created_at=event.at
    )
    if event.sandbox is not None:
        message.pod_sandbox_status.CopyFrom(sandbox_status_message(event.sandbox))
        for container in event.containers:
            path = log_file(event.sandbox, container.config)
            message.containers_statuses.append(container_status_message(container, str(path or "")))
        if not shorten_statuses(message.pod_sandbox_status, message.containers_statuses):
            message.ClearField("pod_sandbox_status")
            message.ClearField("containers_statuses")
    return message
