"""RPCs whose work happens on a connection of its own: Exec, Attach, PortForward. They answer with its URL."""

from __future__ import annotations

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.streaming.server import StreamingServer
from podkeep.runtime.streaming.sessions import Sessions, Wanted


class StreamingRpc:
    """One method per RPC, from message to message."""

    def __init__(self, sessions: Sessions, server: StreamingServer) -> None:
        self._sessions, self._server = sessions, server

    async def exec(self, request: api.ExecRequest) -> api.ExecResponse:
        session = self._sessions.exec(_container(request), tuple(request.cmd), _wanted(request))
        return api.ExecResponse(url=self._server.url("exec", session))

    async def attach(self, request: api.AttachRequest) -> api.AttachResponse:
        session = self._sessions.attach(_container(request), _wanted(request))
        return api.AttachResponse(url=self._server.url("attach", session))

    async def port_forward(self, request: api.PortForwardRequest) -> api.PortForwardResponse:
        if not request.pod_sandbox_id:
            raise InvalidArgument("pod_sandbox_id is required")
        session = self._sessions.port_forward(request.pod_sandbox_id, tuple(request.port))
        return api.PortForwardResponse(url=self._server.url("portforward", session))


def _container(request: api.ExecRequest | api.AttachRequest) -> str:
    if not request.container_id:
        raise InvalidArgument("container_id is required")
    return request.container_id


def _wanted(request: api.ExecRequest | api.AttachRequest) -> Wanted:
    return Wanted(stdin=request.stdin, stdout=request.stdout, stderr=request.stderr, tty=request.tty)
