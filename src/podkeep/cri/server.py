"""The server side of the CRI socket: binding handlers, answering errors, listening.

Owns: what happens between a request's bytes and a handler: decoding, the request ID, the translation of errors and the
one log line of a failed RPC. Does not own: what the handlers do (``runtime``) or the codes (``cri/status.py``).

Cancellation. When the caller gives up or its deadline passes, gRPC cancels the task that runs the handler: the handler
gets ``asyncio.CancelledError`` at its next ``await``, while a thread it waits for (``asyncio.to_thread``) runs on. A
handler that changes the machine therefore must not do so in its own task. It puts the whole change into
``base.singleflight.SingleFlight.do(key, operation)``: the operation runs to its end in a task of its own and the
handler only waits. A retry joins the operation while it runs; after that the operation itself must find, in the stored
state, that its work is done. A handler that only reads may be cancelled anywhere. A stream handler is an asynchronous
generator; on cancellation it is closed, so its ``finally`` blocks run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket as socket_module
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeAlias

from podkeep.base.frozen import FrozenStruct
from podkeep.cri import transport

# isort: split
import grpc.aio
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from podkeep.base import log
from podkeep.base.errors import (
    DataLoss,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    KernelCallError,
    PodkeepError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
    of_request,
    refused,
)
from podkeep.cri import status
from podkeep.cri.v1 import api_pb2, podkeep_pb2

RUNTIME_SERVICE = api_pb2.DESCRIPTOR.services_by_name["RuntimeService"].full_name
IMAGE_SERVICE = api_pb2.DESCRIPTOR.services_by_name["ImageService"].full_name
NODE_SERVICE = podkeep_pb2.DESCRIPTOR.services_by_name["Node"].full_name

UnaryHandler: TypeAlias = Callable[[Any], Awaitable[Message]]
StreamHandler: TypeAlias = Callable[[Any], AsyncIterator[Message]]
Handler: TypeAlias = UnaryHandler | StreamHandler

_logger = logging.getLogger(__name__)


def create_server() -> grpc.aio.Server:
    """Return a server with podkeep's message limits; call it on the event loop that will run it."""
    return grpc.aio.server(options=transport.MESSAGE_LIMITS)


def bind(server: grpc.aio.Server, service: str, handlers: Mapping[str, Handler]) -> None:
    """Serve ``service`` (``RUNTIME_SERVICE``, ``IMAGE_SERVICE``, ``NODE_SERVICE``) with ``handlers`` by RPC name.

    A handler takes the request message and is a coroutine function that returns the response or, for a streaming RPC,
    an asynchronous generator function. It raises ``PodkeepError``; anything else is answered as INTERNAL with the
    request ID under which the log has the traceback. An RPC without a handler answers UNIMPLEMENTED.

    :raises InvalidArgument: if a handler's name is no RPC of the service, or its kind does not fit the RPC.
    """
    descriptor: ServiceDescriptor = descriptor_pool.Default().FindServiceByName(service)
    unknown = sorted(set(handlers) - set(descriptor.methods_by_name))
    if unknown:
        raise InvalidArgument(f"{service} has no RPC named {', '.join(unknown)}")
    bound = {name: _bind_rpc(method, handlers.get(name)) for name, method in descriptor.methods_by_name.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, bound),))


def listen(server: grpc.aio.Server, socket: str) -> None:
    """Have ``server`` listen on the unix socket ``socket``, for root alone; call it before ``server.start()``.

    A socket that a dead process left is replaced. Two processes starting at the same moment are not told apart here:
    the owner of the directory holds a lock.

    :param socket: absolute path, with or without ``unix://`` in front; the directory exists.
    :raises InvalidArgument: if the path is relative, too long for a unix socket or leads to something else.
    :raises FailedPrecondition: if another process answers on it.
    """
    path = transport.socket_path(socket)
    _require_free(path)
    server.add_insecure_port(transport.target(path))
    # Connecting needs write permission, which no usual umask leaves to others; this closes the unusual ones.
    path.chmod(0o600)


def _require_free(socket: Path) -> None:
    try:
        mode = socket.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidArgument(f"{socket} exists and is not a socket", hint="remove it or change runtime.socket")
    with socket_module.socket(socket_module.AF_UNIX, socket_module.SOCK_STREAM) as probe:
        try:
            probe.connect(str(socket))
        # A socket file without a listener is what a dead process leaves.
        except ConnectionRefusedError:
            return
    raise FailedPrecondition(
        f"another process serves {socket}", hint="`podkeep runtime` runs already; stop it or choose another socket"
    )


_LARGE_HINTS = {
    "ListPodSandbox": "use StreamPodSandboxes, or a filter",
    "ListContainers": "use StreamContainers, or a filter",
    "ListImages": "use StreamImages, or a filter",
    "ListContainerStats": "use StreamContainerStats, or a filter",
    "ListPodSandboxStats": "use StreamPodSandboxStats, or a filter",
    "ListPodSandboxMetrics": "use StreamPodSandboxMetrics",
}


class _Rpc(FrozenStruct, kw_only=True):
    """One RPC: its name in logs and errors, its message classes and whether it streams answers."""

    name: str
    request: type[Message]
    response: type[Message]
    streams: bool

    @classmethod
    def of(cls, method: MethodDescriptor) -> _Rpc:
        return cls(
            name=f"{method.containing_service.full_name}/{method.name}",
            request=message_factory.GetMessageClass(method.input_type),
            response=message_factory.GetMessageClass(method.output_type),
            streams=method.server_streaming,
        )

    def decode(self, data: bytes) -> Message:
        try:
            return self.request.FromString(data)
        except DecodeError as error:
            raise InvalidArgument(f"the request of {self.name} is not a {self.request.__name__}: {error}") from error

    def encode(self, answer: Message) -> bytes:
        # The client would decode a message of another type as this one, with wrong fields.
        if type(answer) is not self.response:
            raise TypeError(f"the handler of {self.name} answered with {type(answer).__name__}")
        if (size := answer.ByteSize()) > transport.MAX_MESSAGE_BYTES:
            raise ResourceExhausted(
                f"the answer of {self.name} has {size} bytes; a message holds {transport.MAX_MESSAGE_BYTES}",
                hint=_LARGE_HINTS.get(self.name.rpartition("/")[2], "ask for less"),
            )
        return answer.SerializeToString()


def _bind_rpc(method: MethodDescriptor, handler: Handler | None) -> grpc.RpcMethodHandler[Any, Any]:
    rpc = _Rpc.of(method)
    if handler is None:
        return grpc.unary_unary_rpc_method_handler(_unimplemented(rpc))
    makes_stream = inspect.isasyncgenfunction(handler)
    if rpc.streams != makes_stream:
        wanted = "an asynchronous generator" if rpc.streams else "a coroutine"
        raise InvalidArgument(f"the handler of {rpc.name} must be {wanted} function")
    # Without (de)serializers gRPC passes bytes; decoding in our code brings its errors into the same translation.
    if rpc.streams:
        return grpc.unary_stream_rpc_method_handler(_stream(rpc, handler))
    return grpc.unary_unary_rpc_method_handler(_unary(rpc, handler))


def _unary(rpc: _Rpc, handler: Any) -> Any:
    async def serve(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        log.begin_request()
        started = time.monotonic()
        try:
            answer = rpc.encode(await handler(rpc.decode(data)))
        except asyncio.CancelledError as error:
            failure = _cancelled(rpc, error, started)
        except Exception as error:  # noqa: BLE001 - the boundary: whatever happened must become an answer
            failure = _failure(rpc, error, started)
        else:
            if _logger.isEnabledFor(logging.DEBUG):
                _logger.debug("%s took %.1f ms", rpc.name, _milliseconds(started))
            return answer
        await _abort(context, failure)
        raise failure  # not reached: _abort raises

    return serve


def _stream(rpc: _Rpc, handler: Any) -> Any:
    # No generator: gRPC would write its messages, log it as an error that a reader is gone, and leave it unclosed.
    async def serve(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        log.begin_request()
        started = time.monotonic()
        try:
            async with aclosing(handler(rpc.decode(data))) as answers:
                async for answer in answers:
                    await _write(context, rpc.encode(answer))
        except _ReaderGoneError as error:
            _log_given_up(rpc, started)
            raise asyncio.CancelledError from error
        except asyncio.CancelledError as error:
            failure = _cancelled(rpc, error, started)
        except Exception as error:  # noqa: BLE001 - the boundary: whatever happened must become an answer
            failure = _failure(rpc, error, started)
        else:
            return
        await _abort(context, failure)

    return serve


class _ReaderGoneError(Exception):
    """A message of a stream cannot be sent: its reader went, and gRPC did not come to cancel the handler yet."""


async def _write(context: grpc.aio.ServicerContext[Any, Any], message: bytes) -> None:
    try:
        await context.write(message)
    except grpc.aio.BaseError as error:
        raise _ReaderGoneError from error


async def _abort(context: grpc.aio.ServicerContext[Any, Any], failure: PodkeepError) -> None:
    """Answer with an error; always raises.

    :raises grpc.aio.AbortError: with which a handler ends then.
    :raises asyncio.CancelledError: if it cannot be sent: the caller went, and gRPC did not come to cancel the handler.
    """
    try:
        await context.abort(status.code_of(failure), status.details_of(failure))
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as error:
        raise asyncio.CancelledError from error


def _unimplemented(rpc: _Rpc) -> Any:
    async def serve(_data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        log.begin_request()
        failure = _failure(rpc, Unimplemented(f"{rpc.name} is not implemented by this version of podkeep"), 0.0)
        await _abort(context, failure)

    return serve


def _cancelled(rpc: _Rpc, error: asyncio.CancelledError, started: float) -> PodkeepError:
    """Log a cancellation; re-raise it when it came from the caller, else return the error to answer with."""
    task = asyncio.current_task()
    # cancelling() counts requests to cancel this very task, which only gRPC makes.
    if task is not None and task.cancelling():
        _log_given_up(rpc, started)
        raise error
    # Something the handler waited for was cancelled under it (a shutdown); the caller still waits for an answer.
    return _failure(rpc, Unavailable(f"{rpc.name} was cancelled in the runtime", hint="repeat the request"), started)


def _log_given_up(rpc: _Rpc, started: float) -> None:
    # A stream ends no other way; a call that is given up has a caller that waits no longer.
    level = logging.DEBUG if rpc.streams else logging.INFO
    _logger.log(level, "%s was given up by its caller after %.0f ms", rpc.name, _milliseconds(started))


def _failure(rpc: _Rpc, error: Exception, started: float) -> PodkeepError:
    """Log a failed RPC, once, and return the error to answer with."""
    kind = of_request(error)
    if kind is not None and isinstance(error, KernelCallError):
        error = kind(error.message, hint=error.hint)
    elif kind is not None and isinstance(error, OSError):
        # Whoever made the call should have said what it was for.
        _logger.warning("%s was refused by the system", rpc.name, exc_info=error)
        return refused(rpc.name, error)
    if not isinstance(error, PodkeepError):
        _logger.error("%s failed unexpectedly", rpc.name, exc_info=error)
        return Internal(
            f"{rpc.name} failed unexpectedly ({type(error).__name__})",
            hint=f"the runtime's log has the traceback under request {log.request_id()}",
        )
    level = logging.ERROR if isinstance(error, Internal | DataLoss) else logging.INFO
    if isinstance(error, Unimplemented):
        level = logging.DEBUG  # clients ask what there is, some of them every second
    took = _milliseconds(started) if started else 0.0
    said = status.details_of(error)  # as the caller has it: it may have what the caller sent in it, megabytes of that
    _logger.log(level, "%s failed with %s after %.0f ms: %s", rpc.name, type(error).__name__, took, said)
    return error


def _milliseconds(started: float) -> float:
    return (time.monotonic() - started) * 1000
