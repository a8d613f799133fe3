"""gRPC health checks (grpc.health.v1), as ``grpc-health-probe`` does them (k8s.io/kubernetes/pkg/probe/grpc)."""

from __future__ import annotations

import asyncio

import podkeep.cri.transport  # noqa: F401 - before grpc

# isort: split
import grpc
import grpc.aio

from podkeep.agent import durations
from podkeep.agent.probes.model import VERSION, Outcome, Verdict
from podkeep.base.text import netloc

_CHECK = "/grpc.health.v1.Health/Check"
_MAX_ANSWER = 4096
_STATUSES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
# What the container sends is hostile, and each probe begins anew: no proxy of the agent's environment, no connection of
# another probe, no retry that hides a failure.
_OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.primary_user_agent", f"kube-probe/{VERSION}"),
    ("grpc.max_receive_message_length", _MAX_ANSWER),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # The default of what one connection may be sent ahead is megabytes.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
)


async def probe(host: str, port: int, service: str, timeout: float) -> Outcome:
    """Ask a server for the health of ``service``; empty: of the server as a whole.

    :param timeout: seconds for connecting and asking.
    """
    address = netloc.join(host, port)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    channel = grpc.aio.insecure_channel(f"ipv6:{address}" if ":" in host else f"ipv4:{address}", options=_OPTIONS)
    try:
        try:
            async with asyncio.timeout_at(deadline):
                await channel.channel_ready()
        except TimeoutError:
            text = f'timeout: failed to connect service "{address}" within {durations.text(timeout)}'
            return _failed(f"{text}: context deadline exceeded")
        try:
            call = channel.unary_unary(_CHECK, request_serializer=_request, response_deserializer=_status)
            status: int | None = await call(service, timeout=max(deadline - loop.time(), 0.0))
        except grpc.aio.AioRpcError as error:
            return _failed(_rpc_error(error, timeout))
    finally:
        await channel.close(None)
    if status is None:
        return _failed("error: health rpc probe failed: the answer is no HealthCheckResponse")
    if status != 1:
        return _failed(f'service unhealthy (responded with "{_STATUSES.get(status, str(status))}")')
    return Outcome(verdict=Verdict.SUCCESS, text="service healthy")


def _failed(text: str) -> Outcome:
    return Outcome(verdict=Verdict.FAILURE, text=text)


def _rpc_error(error: grpc.aio.AioRpcError, timeout: float) -> str:
    code, details = error.code(), (error.details() or "")[:1024]
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {details}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"timeout: health rpc did not complete within {durations.text(timeout)}"
    name = "".join(part.capitalize() for part in code.name.split("_"))
    return f"error: health rpc probe failed: rpc error: code = {name} desc = {details}"


def _request(service: str) -> bytes:
    """Return a HealthCheckRequest: field 1 is the service."""
    name = service.encode()
    return b"\x0a" + _varint(len(name)) + name if name else b""


def _varint(number: int) -> bytes:
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*result, number])


def _status(message: bytes) -> int | None:
    """Return field 1 of a HealthCheckResponse, 0 if there is none; ``None`` if the message is something else.

    A server of a newer version may have more fields after it, which are not looked at.
    """
    if not message:
        return 0
    # Tag 0x08 is field 1 as a varint. Statuses have one byte, so that a longer number is none.
    if message[0] != 0x08 or len(message) < 2:
        return None
    return message[1] & 0x7F if message[1] < 0x80 else None
