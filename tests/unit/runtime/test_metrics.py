"""The daemon's own metrics, and the endpoint that serves them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from runtime_values import container, sandbox

from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.runtime.daemon.metrics import Metrics
from podkeep.runtime.daemon.metrics_endpoint import LIMITS, MetricsEndpoint
from podkeep.runtime.model.records import ContainerState
from podkeep.runtime.model.state import State


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """An empty state."""
    opened = State(tmp_path / "state.db")
    yield opened
    opened.close()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_requests_are_counted_by_name_and_result(state: State) -> None:
    metrics = Metrics(state)
    with metrics.operation("ListContainers", streams=False):
        pass
    with pytest.raises(NotFound), metrics.operation("PullImage", streams=False):
        raise NotFound("no such image")
    with pytest.raises(ValueError, match="defect"), metrics.operation("ListContainers", streams=False):
        raise ValueError("defect")
    with pytest.raises(asyncio.CancelledError), metrics.operation("GetContainerEvents", streams=True):
        raise asyncio.CancelledError
    with pytest.raises(asyncio.CancelledError), metrics.operation("ExecSync", streams=False):
        raise asyncio.CancelledError
    assert value(metrics, "podkeep_operations_total", operation="ListContainers") == 2
    assert value(metrics, "podkeep_operations_errors_total", operation="ListContainers", code="INTERNAL") == 1
    assert value(metrics, "podkeep_operations_errors_total", operation="PullImage", code="NOT_FOUND") == 1
    assert value(metrics, "podkeep_operations_errors_total", operation="ExecSync", code="CANCELLED") == 1
    assert value(metrics, "podkeep_operations_errors_total", operation="GetContainerEvents", code="CANCELLED") is None
    assert value(metrics, "podkeep_operation_duration_seconds_count", operation="ListContainers") == 2
    assert value(metrics, "podkeep_operation_duration_seconds_count", operation="GetContainerEvents") is None
    assert value(metrics, "podkeep_image_pulls_total", result="failure") == 1


@pytest.mark.requirement("U81")
def test_giving_an_image_other_owners_is_no_part_of_a_request(state: State) -> None:
    metrics = Metrics(state)
    with metrics.operation("CreateContainer", streams=False):
        asyncio.run(asyncio.to_thread(metrics.rootfs_waited, 1e9))
    for variant, seconds in (("idmapped", 0.001), ("metacopy", 2.0), ("copy", 30.0)):
        metrics.rootfs_made(variant, seconds)
    assert value(metrics, "podkeep_operation_duration_seconds_sum", operation="CreateContainer") == 0
    found = {
        variant: value(metrics, "podkeep_rootfs_remap_seconds_sum", variant=variant)
        for variant in ("idmapped", "metacopy", "copy")
    }
    assert found == {"idmapped": 0.001, "metacopy": 2.0, "copy": 30.0}
    metrics.rootfs_waited(1.0)  # of no request


def test_records_are_counted_when_somebody_asks(state: State) -> None:
    metrics = Metrics(state)
    state.add_sandbox(sandbox())
    state.add_container(container())
    assert value(metrics, "podkeep_pods", state="ready") == 1
    assert value(metrics, "podkeep_containers", state="created") == 1
    assert value(metrics, "podkeep_containers", state="running") == 0


def test_ends_are_counted_once_and_by_reason(state: State) -> None:
    seen: list[object] = []
    state.observers.append(lambda before, after: seen.append(after))
    metrics = Metrics(state)
    state.add_sandbox(sandbox())
    state.add_container(container())
    status = state.container("c" * 64).status
    ended = msgspec.structs.replace(status, state=ContainerState.EXITED, reason="OOMKilled")
    state.set_container(container().id, ended)
    state.set_container(container().id, msgspec.structs.replace(ended, message="again"))
    state.forget_container(container().id)
    assert value(metrics, "podkeep_container_exits_total", reason="OOMKilled") == 1
    assert value(metrics, "podkeep_container_oom_kills_total") == 1
    assert len(seen) == 5, "who listened before still hears everything"


def test_what_parts_report(state: State) -> None:
    metrics = Metrics(state)
    metrics.event_dropped()
    metrics.stats_pass(0.003)
    assert value(metrics, "podkeep_container_events_dropped_total") == 1
    assert value(metrics, "podkeep_stats_pass_seconds_count") == 1


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def ask(endpoint: Path | int, request: bytes) -> bytes:
    if isinstance(endpoint, Path):
        reader, writer = await asyncio.open_unix_connection(endpoint)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def test_the_endpoint_answers_and_goes(state: State, tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"

    async def scenario() -> None:
        endpoint = MetricsEndpoint(Metrics(state).registry, str(path))
        await endpoint.start()
        assert path.stat().st_mode & 0o777 == 0o600
        answer = await ask(path, b"GET /metrics?x=y HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain")
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"podkeep_pods" in body
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n"
        assert (await ask(path, request)).endswith(b"# EOF\n")
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text; version=new\r\n\r\n"
        assert (await ask(path, request)).startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain")
        assert (await ask(path, b"GET /metrics\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert (await ask(path, b"\x00\xff\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert (await ask(path, b"x" * (2 * LIMITS.head_bytes))).startswith(b"HTTP/1.1 431 ")
        await endpoint.close()
        assert not path.exists()

    run(scenario())


def test_a_socket_that_nobody_serves_is_replaced_and_no_other(state: State, tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))

    async def scenario() -> None:
        first, second = (MetricsEndpoint(Metrics(state).registry, str(path)) for _ in range(2))
        await first.start()
        with pytest.raises(FailedPrecondition, match="another process"):
            await second.start()
        assert (await ask(path, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await first.close()
        path.write_text("a file")
        with pytest.raises(FailedPrecondition, match="not a socket"):
            await second.start()
        assert path.read_text() == "a file"

    run(scenario())


def test_a_port_that_is_taken_is_an_error(state: State) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            endpoint = MetricsEndpoint(Metrics(state).registry, ("127.0.0.1", taken.getsockname()[1]))
            with pytest.raises(FailedPrecondition, match=r"metrics\.address"):
                await endpoint.start()
            await endpoint.close()

    run(scenario())


def test_the_endpoint_over_tcp(state: State) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        endpoint = MetricsEndpoint(Metrics(state).registry, ("127.0.0.1", port))
        await endpoint.start()
        assert (await ask(port, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"\r\n\r\n")
        await endpoint.close()

    run(scenario())


def test_connections_that_ask_nothing_keep_nobody_out(state: State, tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"

    async def scenario() -> None:
        endpoint = MetricsEndpoint(Metrics(state).registry, str(path))
        await endpoint.start()
        silent = []
        for _ in range(2 * LIMITS.waiting):
            silent.append(await asyncio.open_unix_connection(path))
            silent[-1][1].write(b"GET /metrics HTTP/1.1\r\nHost: ")
        assert (await ask(path, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        # The oldest had to go.
        with suppress(ConnectionResetError):
            assert await silent[0][0].read() == b""
        await endpoint.close()
        for _, writer in silent:
            writer.transport.abort()

    run(scenario())


@pytest.mark.slow
def test_a_daemon_without_metrics_does_not_load_their_library() -> None:
    script = "import sys, podkeep.runtime.daemon.daemon, podkeep.cli.main; print('prometheus_client' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
