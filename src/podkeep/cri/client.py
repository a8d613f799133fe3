"""The client side of a CRI socket: typed stubs whose failures are ``base.errors`` classes.

Called by the agent and the command line, and by tests. Works with any CRI v1 runtime; ``node`` only with podkeep's.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from podkeep.base.frozen import FrozenStruct
from podkeep.cri import transport

# isort: split
import grpc.aio
from google.protobuf.message import DecodeError

from podkeep.base.errors import DeadlineExceeded, FailedPrecondition, Internal, PodkeepError, Unavailable, Unimplemented
from podkeep.cri import status
from podkeep.cri.v1 import api_pb2_grpc, podkeep_pb2_grpc

if TYPE_CHECKING:
    from podkeep.cri.v1.api_pb2_grpc import ImageServiceAsyncStub, RuntimeServiceAsyncStub
    from podkeep.cri.v1.podkeep_pb2_grpc import NodeAsyncStub

DEFAULT_TIMEOUT = 120.0
"""Seconds an RPC may take unless its caller says otherwise (the kubelet's runtimeRequestTimeout is the same)."""

_NO_DEADLINE = frozenset(
    {
        "/runtime.v1.ImageService/PullImage",
        "/podkeep.v1.Node/LoadImage",
        "/podkeep.v1.Node/SaveImages",
        "/podkeep.v1.Node/RemoveImageName",
        "/podkeep.v1.Node/PruneImages",
    }
)
"""As long as the image is; the runtime itself gives up on a registry that stalls."""

_OWN_TIMEOUT = frozenset(
    {
        "/runtime.v1.RuntimeService/StopContainer",
        "/runtime.v1.RuntimeService/ExecSync",
        "/runtime.v1.RuntimeService/CheckpointContainer",
    }
)
"""The request says in ``timeout`` how many seconds the work itself may take."""

_UNLIMITED_AT_ZERO = frozenset({"/runtime.v1.RuntimeService/ExecSync"})
"""Here ``timeout`` 0 means that the work may take for ever (CRI: ExecSyncRequest)."""
MAX_TIMEOUT = 1e9
"""The longest deadline, 31 years: gRPC takes a deadline beyond what its clock can count for one in the past."""

_OWN_DEADLINE_TEXTS = frozenset({"Deadline Exceeded", "Stream removed (Deadline Exceeded)"})
_BROKEN_OFF_TEXTS = (
    "Stream removed",
    "Socket closed",
    "Connection reset",
    "recvmsg:",
    "Broken pipe",
    "GOAWAY",
    "Cancelling",
)
_CANCELLED_TEXTS = ("", "CANCELLED", "Cancelled")
_START = "a node starts its own again (`podkeep status`); without a node, start one with `podkeep runtime`"
_NO_SUCH_RPC_TEXTS = ("Method not found!", "unknown service", "unknown method")  # gRPC core, grpc-go, grpc-go


Observe = Callable[[str, Any, float, PodkeepError | None], None]
"""Told of each call that was answered: name of the RPC, request, seconds, and the error if it failed."""


class _Connection(FrozenStruct, kw_only=True):
    channel: grpc.aio.Channel
    runtime: RuntimeServiceAsyncStub
    images: ImageServiceAsyncStub
    node: NodeAsyncStub


class CriClient:
    """A connection to the runtime behind ``socket``, to be used as an asynchronous context manager.

    ``runtime``, ``images`` and ``node`` are the generated stubs, called as ``await client.runtime.Version(request)`` or
    ``async for event in client.runtime.GetContainerEvents(request)``, with ``timeout=`` (seconds) to replace the
    default deadline. Streams have none; leaving the loop ends them, at once under ``contextlib.aclosing``.
    Other attributes of gRPC call objects are not there. A failed call raises the ``PodkeepError`` class of its code;
    the gRPC error is its ``__cause__``.

    :param socket: absolute path of the unix socket, with or without ``unix://`` in front.
    :param timeout: default deadline of an RPC in seconds.
    :raises InvalidArgument: if ``socket`` is not an absolute path or too long.
    """

    def __init__(self, socket: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.socket = transport.socket_path(socket)
        self.default_timeout = timeout
        self._connection: _Connection | None = None
        self.observe: Observe | None = None
        """Told of calls, but not of streams."""
        self.lost = 0
        """How often a call or a stream found that the runtime is away: what answers after that may be another one."""

    async def __aenter__(self) -> CriClient:
        channel = grpc.aio.insecure_channel(
            transport.target(self.socket),
            options=[
                *transport.MESSAGE_LIMITS,
                # A runtime that restarts is back within milliseconds; gRPC's defaults wait a second and more.
                ("grpc.initial_reconnect_backoff_ms", 50),
                # Despite its name, how long one attempt may take: a busy runtime needs a while for its first frame.
                ("grpc.min_reconnect_backoff_ms", 20_000),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        # The generated stubs only ask their channel for callables, so a stand-in channel can translate the errors.
        translating = cast("grpc.aio.Channel", _Translating(channel, self))
        self._connection = _Connection(
            channel=channel,
            runtime=api_pb2_grpc.RuntimeServiceStub(translating),
            images=api_pb2_grpc.ImageServiceStub(translating),
            node=podkeep_pb2_grpc.NodeStub(translating),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.channel.close(None)

    @property
    def runtime(self) -> RuntimeServiceAsyncStub:
        return self._opened().runtime

    @property
    def images(self) -> ImageServiceAsyncStub:
        """``runtime.v1.ImageService``."""
        return self._opened().images

    @property
    def node(self) -> NodeAsyncStub:
        """``podkeep.v1.Node``; other runtimes answer ``Unimplemented``."""
        return self._opened().node

    def _opened(self) -> _Connection:
        if self._connection is None:
            raise FailedPrecondition(
                f"the client of {self.socket} is not open", hint="use it inside `async with CriClient(...)`"
            )
        return self._connection


class _Translating:
    """What a generated stub needs of a channel, with our errors and deadlines.

    Answers are decoded here: of one that cannot be read, gRPC would make None and a traceback in the log.
    """

    def __init__(self, channel: grpc.aio.Channel, client: CriClient) -> None:
        self._channel = channel
        self._client = client
        self._socket = client.socket
        self._timeout = client.default_timeout

    def unary_unary(self, method: str, *, response_deserializer: Any, **kwargs: Any) -> Callable[..., Any]:
        rpc = self._channel.unary_unary(method, **kwargs)

        async def call(request: Any, *, timeout: float | None = None) -> Any:
            limit = self._limit(method, request) if timeout is None else timeout
            started = time.monotonic()
            try:
                answer = response_deserializer(await rpc(request, timeout=limit))
            except (grpc.aio.AioRpcError, DecodeError) as error:
                failure = self._error(method, error, limit)
                self._observed(method, request, started, failure)
                raise failure from error
            self._observed(method, request, started, None)
            return answer

        return call

    def unary_stream(self, method: str, *, response_deserializer: Any, **kwargs: Any) -> Callable[..., Any]:
        rpc = self._channel.unary_stream(method, **kwargs)

        async def call(request: Any, *, timeout: float | None = None) -> AsyncIterator[Any]:
            stream = rpc(request, timeout=timeout)
            try:
                async for answer in stream:
                    yield response_deserializer(answer)
                self._client.lost += 1  # a runtime that ends in order ends the streams of its events
            except (grpc.aio.AioRpcError, DecodeError) as error:
                raise self._error(method, error, timeout) from error
            finally:
                stream.cancel()  # no effect on a stream that has ended

        return call

    def _observed(self, method: str, request: Any, started: float, failure: PodkeepError | None) -> None:
        if self._client.observe is not None:
            self._client.observe(method.rpartition("/")[2], request, time.monotonic() - started, failure)

    def _limit(self, method: str, request: Any) -> float | None:
        if method in _NO_DEADLINE:
            return None
        if method not in _OWN_TIMEOUT:
            return self._timeout
        if request.timeout <= 0 and method in _UNLIMITED_AT_ZERO:
            return None
        # The runtime has the work's own time, and beyond it the usual one to answer.
        return min(self._timeout + max(int(request.timeout), 0), MAX_TIMEOUT)

    def _error(self, method: str, error: grpc.aio.AioRpcError | DecodeError, limit: float | None) -> PodkeepError:
        if isinstance(error, DecodeError):  # grpc-go's code for it, which a kubelet has
            return Internal(f"the runtime on {self._socket} answered {method[1:]} with what cannot be read: {error}")
        code, details = error.code(), error.details() or ""
        # A server that stops cancels what it is at; a caller that gives up gets asyncio's error.
        cancelled = code is grpc.StatusCode.CANCELLED and details in _CANCELLED_TEXTS
        if cancelled or code is grpc.StatusCode.UNAVAILABLE:
            self._client.lost += 1
        # gRPC's own words for what happened between the ends say neither which call nor which socket.
        if code is grpc.StatusCode.UNAVAILABLE and details.startswith("failed to connect"):
            return _no_answer(self._socket, details.rsplit(": ", 1)[-1])
        if cancelled or (code is grpc.StatusCode.UNAVAILABLE and details.startswith(_BROKEN_OFF_TEXTS)):
            return Unavailable(
                f"the runtime on {self._socket} ended before it answered {method[1:]}",
                hint=f"what it was doing is not done; try again once it runs; {_START}",
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and details in _OWN_DEADLINE_TEXTS:
            return DeadlineExceeded(f"{method[1:]} on {self._socket} did not answer within {limit or 0:g} s")
        if code is grpc.StatusCode.UNIMPLEMENTED and details.startswith(_NO_SUCH_RPC_TEXTS):
            return Unimplemented(f"the runtime on {self._socket} does not know {method[1:]}")
        return status.error_of(code, details)


def _no_answer(socket: Path, why: str) -> Unavailable:
    return Unavailable(f"no runtime answers on {socket}: {why}", hint=_START)
