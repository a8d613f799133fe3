"""The server side over a real socket: errors, logs, cancellation, limits, listening."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cri_endpoint import run, serving, talking

from podkeep.base import errors, log
from podkeep.base.concurrency.singleflight import SingleFlight
from podkeep.base.errors import (
    AlreadyExists,
    CommandFailed,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    KernelCallError,
    NotFound,
    PodkeepError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from podkeep.cri import server as cri_server
from podkeep.cri.transport import MAX_MESSAGE_BYTES
from podkeep.cri.v1 import api_pb2, api_pb2_grpc, podkeep_pb2

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and cls.__base__ is PodkeepError]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cri.sock"


async def failure(call: Any) -> PodkeepError:
    """Return the error that awaiting ``call`` raises."""
    with pytest.raises(PodkeepError) as caught:
        await call
    return caught.value


async def version(_request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
    return api_pb2.VersionResponse(runtime_name="podkeep")


def test_a_request_reaches_its_handler_and_the_answer_comes_back(path: Path) -> None:
    async def echo(request: api_pb2.ExecSyncRequest) -> api_pb2.ExecSyncResponse:
        return api_pb2.ExecSyncResponse(stdout=" ".join(request.cmd).encode(), exit_code=3)

    async def main() -> api_pb2.ExecSyncResponse:
        async with talking(path, runtime={"ExecSync": echo}) as client:
            return await client.runtime.ExecSync(api_pb2.ExecSyncRequest(cmd=["echo", "hi"]))

    assert run(main()) == api_pb2.ExecSyncResponse(stdout=b"echo hi", exit_code=3)


def test_the_generated_synchronous_stub_talks_to_us(path: Path) -> None:
    def ask() -> str:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            return api_pb2_grpc.RuntimeServiceStub(channel).Version(api_pb2.VersionRequest(), timeout=30).runtime_name

    async def main() -> str:
        async with serving(path, runtime={"Version": version}):
            return await asyncio.to_thread(ask)

    assert run(main()) == "podkeep"


@pytest.mark.parametrize("cls", CLASSES)
def test_each_error_class_crosses_the_socket(path: Path, cls: type[PodkeepError]) -> None:
    sent = cls(f"{cls.__name__}: container é: 100% of\nnothing", hint="ask again")

    async def refuse(_request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
        raise sent

    async def main() -> PodkeepError:
        async with talking(path, runtime={"Version": refuse}) as client:
            return await failure(client.runtime.Version(api_pb2.VersionRequest()))

    received = run(main())
    assert type(received) is cls
    assert (received.message, received.hint) == (sent.message, sent.hint)
    assert isinstance(received.__cause__, grpc.aio.AioRpcError)


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 100_000, "\n" * 100_000])
def test_an_error_longer_than_a_trailer_still_arrives(path: Path, text: str) -> None:
    async def refuse(_request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
        raise CommandFailed("crun create", 1, text + "why")

    async def main() -> PodkeepError:
        async with talking(path, runtime={"Version": refuse}) as client:
            return await failure(client.runtime.Version(api_pb2.VersionRequest()))

    received = run(main())
    assert type(received) is Internal
    assert str(received).startswith("`crun create` exited with 1: ")
    assert str(received).endswith("why")


def test_a_failed_rpc_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(_request: api_pb2.ContainerStatusRequest) -> api_pb2.ContainerStatusResponse:
        raise NotFound("container abc does not exist")

    async def main() -> None:
        async with talking(path, runtime={"ContainerStatus": refuse, "Version": version}) as client:
            await client.runtime.Version(api_pb2.VersionRequest())
            await failure(client.runtime.ContainerStatus(api_pb2.ContainerStatusRequest()))

    with caplog.at_level(logging.INFO, logger="podkeep"):
        run(main())
    (record,) = [record for record in caplog.records if record.name.startswith("podkeep")]
    assert re.fullmatch(
        r"runtime\.v1\.RuntimeService/ContainerStatus failed with NotFound after \d+ ms: container abc does not exist",
        record.getMessage(),
    )


def test_an_unexpected_exception_answers_with_the_id_that_the_log_has(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def broken(_request: api_pb2.StatusRequest) -> api_pb2.StatusResponse:
        seen.append(await asyncio.to_thread(log.request_id))
        raise KeyError("secret detail")

    async def main() -> PodkeepError:
        async with talking(path, runtime={"Status": broken}) as client:
            return await failure(client.runtime.Status(api_pb2.StatusRequest()))

    error = run(main())
    assert type(error) is Internal
    assert error.message == "runtime.v1.RuntimeService/Status failed unexpectedly (KeyError)"
    assert error.hint == f"the runtime's log has the traceback under request {seen[0]}"
    (record,) = [record for record in caplog.records if record.name.startswith("podkeep")]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENAMETOOLONG, InvalidArgument),
        (errno.ELOOP, InvalidArgument),
        (errno.ENOTDIR, InvalidArgument),
        (errno.E2BIG, InvalidArgument),
        (errno.ERANGE, InvalidArgument),
        (errno.ENOSPC, ResourceExhausted),
        (errno.EMFILE, ResourceExhausted),
        (errno.EIO, Internal),
        (errno.EPERM, Internal),
    ],
)
def test_an_error_of_the_system_that_stems_from_a_request_is_the_requests(
    path: Path, number: int, kind: type[PodkeepError], kernel: bool
) -> None:
    async def fails(_request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
        raise KernelCallError("open('/way')", number) if kernel else OSError(number, os.strerror(number), "/way")

    async def main() -> PodkeepError:
        async with talking(path, runtime={"Version": fails}) as client:
            return await failure(client.runtime.Version(api_pb2.VersionRequest()))

    error = run(main())
    assert type(error) is kind
    if kind is not Internal:
        assert "/way" in error.message
        assert os.strerror(number) in error.message
        assert "Errno" not in error.message


def test_each_request_has_an_id_of_its_own(path: Path) -> None:
    seen: list[str] = []

    async def note(_request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
        seen.append(log.request_id())
        return api_pb2.VersionResponse()

    async def main() -> None:
        async with talking(path, runtime={"Version": note}) as client:
            await asyncio.gather(*(client.runtime.Version(api_pb2.VersionRequest()) for _ in range(20)))

    run(main())
    assert len(set(seen)) == 20
    assert "" not in seen


def test_an_rpc_without_handler_says_so(path: Path) -> None:
    async def main() -> tuple[PodkeepError, PodkeepError]:
        async with talking(path, runtime={}) as client:
            unary = await failure(client.runtime.CheckpointContainer(api_pb2.CheckpointContainerRequest()))
            stream = await failure(anext(aiter(client.runtime.GetContainerEvents(api_pb2.GetEventsRequest()))))
            return unary, stream

    unary, stream = run(main())
    assert (type(unary), type(stream)) == (Unimplemented, Unimplemented)
    assert "RuntimeService/CheckpointContainer is not implemented" in str(unary)
    assert "RuntimeService/GetContainerEvents is not implemented" in str(stream)


def test_every_rpc_of_every_service_can_be_bound() -> None:
    async def coroutine(request: Any) -> Any:
        return request

    async def generator(request: Any) -> AsyncIterator[Any]:
        yield request

    own = podkeep_pb2.DESCRIPTOR.services_by_name["Node"].methods

    async def main() -> int:
        server, bound = cri_server.create_server(), 0
        for module, name in ((api_pb2, "RuntimeService"), (api_pb2, "ImageService"), (podkeep_pb2, "Node")):
            service = module.DESCRIPTOR.services_by_name[name]
            handlers = {rpc.name: generator if rpc.server_streaming else coroutine for rpc in service.methods}
            cri_server.bind(server, service.full_name, handlers)
            bound += len(handlers)
        return bound

    assert run(main()) == 42 + len(own)


def test_a_handler_that_fits_no_rpc_is_refused() -> None:
    async def main() -> None:
        server = cri_server.create_server()
        with pytest.raises(InvalidArgument, match="has no RPC named RunPod"):
            cri_server.bind(server, cri_server.RUNTIME_SERVICE, {"RunPod": version})
        with pytest.raises(InvalidArgument, match="GetContainerEvents must be an asynchronous generator function"):
            cri_server.bind(server, cri_server.RUNTIME_SERVICE, {"GetContainerEvents": version})
        with pytest.raises(InvalidArgument, match="Version must be a coroutine function"):
            cri_server.bind(server, cri_server.RUNTIME_SERVICE, {"Version": count_to_three})

    run(main())


async def count_to_three(_request: Any) -> AsyncIterator[podkeep_pb2.PullProgress]:
    for done in (1, 2, 3):
        yield podkeep_pb2.PullProgress(done=done)


def test_an_answer_of_the_wrong_type_is_not_sent(path: Path) -> None:
    async def main() -> PodkeepError:
        async with talking(path, runtime={"RemoveContainer": version}) as client:
            return await failure(client.runtime.RemoveContainer(api_pb2.RemoveContainerRequest()))

    assert str(run(main())).startswith("runtime.v1.RuntimeService/RemoveContainer failed unexpectedly (TypeError)")


def test_bytes_that_are_no_message_are_the_callers_mistake(path: Path) -> None:
    async def main() -> grpc.aio.AioRpcError:
        async with serving(path, runtime={"Version": version}), grpc.aio.insecure_channel(f"unix:{path}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"\x0a\xff")
            return caught.value

    error = run(main())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "is not a VersionRequest" in (error.details() or "")


def test_a_stream_ends_with_its_handler(path: Path) -> None:
    async def main() -> list[int]:
        async with talking(path, node={"WatchPulls": count_to_three}) as client:
            return [item.done async for item in client.node.WatchPulls(podkeep_pb2.WatchPullsRequest())]

    assert run(main()) == [1, 2, 3]


def test_a_stream_that_fails_delivers_what_came_before(path: Path) -> None:
    async def breaks(_request: Any) -> AsyncIterator[podkeep_pb2.PullProgress]:
        yield podkeep_pb2.PullProgress(done=1)
        raise AlreadyExists("enough", hint="stop")

    async def main() -> list[int]:
        got = []
        async with talking(path, node={"WatchPulls": breaks}) as client:
            stream = aiter(client.node.WatchPulls(podkeep_pb2.WatchPullsRequest()))
            got.append((await anext(stream)).done)
            with pytest.raises(AlreadyExists, match="enough; hint: stop"):
                await anext(stream)
        return got

    assert run(main()) == [1]


def test_leaving_a_stream_closes_its_handler(path: Path) -> None:
    async def main() -> None:
        closed = asyncio.Event()

        async def endless(_request: Any) -> AsyncIterator[podkeep_pb2.PullProgress]:
            try:
                yield podkeep_pb2.PullProgress(done=1)
                await asyncio.Event().wait()
            finally:
                closed.set()

        async with talking(path, node={"WatchPulls": endless}) as client:
            async with aclosing(client.node.WatchPulls(podkeep_pb2.WatchPullsRequest())) as stream:
                async for item in stream:
                    assert item.done == 1
                    assert not closed.is_set()
                    break
            await closed.wait()

    run(main())


READER = Path(__file__).with_name("programs") / "watching_pulls.py"


@pytest.mark.slow
def test_a_reader_that_is_killed_is_no_error(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The connection is gone before the event loop hears of it: it is the next message that cannot be sent."""

    async def main() -> int:
        closed = 0

        async def endless(_request: Any) -> AsyncIterator[podkeep_pb2.PullProgress]:
            nonlocal closed
            try:
                yield podkeep_pb2.PullProgress(done=1)
                assert await asyncio.to_thread(reader.stdout.readline) == b"heard\n"
                reader.kill()
                reader.wait()  # the event loop waits, too
                while True:
                    yield podkeep_pb2.PullProgress(phase="x" * 1000)
            finally:
                closed += 1
                done.set()

        async with serving(path, node={"WatchPulls": endless}):
            for _ in range(10):
                done = asyncio.Event()
                argv = [sys.executable, READER, path]
                with subprocess.Popen(argv, stdout=subprocess.PIPE) as reader:  # noqa: ASYNC220 - see reader.wait()
                    await done.wait()
        return closed

    with caplog.at_level(logging.DEBUG):
        assert run(main()) == 10
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert len([record for record in caplog.records if "was given up by its caller" in record.message]) == 10


class Left:
    """The context of a call whose connection broke: gRPC can send its status no more, and has yet to cancel the call.

    It comes to that once in ten thousand calls, whose callers leave while gRPC writes.
    """

    async def abort(self, _code: grpc.StatusCode, _details: str) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")


@pytest.mark.parametrize("rpc", ["Version", "StreamPodSandboxes", "Status"])
def test_a_caller_that_left_before_its_error_could_be_sent_is_no_error_of_the_server(rpc: str) -> None:
    async def fails(_request: Any) -> Any:
        raise NotFound("there is none")

    async def breaks_off(_request: Any) -> AsyncIterator[Any]:
        raise NotFound("there is none")
        yield

    handler: Any = {"Version": fails, "StreamPodSandboxes": breaks_off}.get(rpc)
    method = api_pb2.DESCRIPTOR.services_by_name["RuntimeService"].methods_by_name[rpc]
    bound: Any = cri_server._bind_rpc(method, handler)
    # gRPC takes what else a handler raises for a defect of it, and logs it with a traceback.
    with pytest.raises(asyncio.CancelledError):
        run((bound.unary_unary or bound.unary_stream)(b"", Left()))


@pytest.mark.slow
def test_work_in_a_single_flight_is_not_left_half_done(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The caller's deadline passes; the operation goes on, and the retry joins it."""

    async def main() -> tuple[PodkeepError, str, list[str]]:
        flights: SingleFlight[str] = SingleFlight()
        go_on, retried = asyncio.Event(), asyncio.Event()
        steps: list[str] = []

        async def make() -> str:
            steps.append("begun")
            await go_on.wait()
            steps.append("done")
            return "sandbox-1"

        async def run_sandbox(_request: api_pb2.RunPodSandboxRequest) -> api_pb2.RunPodSandboxResponse:
            if flights.keys():
                retried.set()
            return api_pb2.RunPodSandboxResponse(pod_sandbox_id=await flights.do("pod", make))

        async with talking(path, runtime={"RunPodSandbox": run_sandbox}) as client:
            request = api_pb2.RunPodSandboxRequest()
            late = await failure(client.runtime.RunPodSandbox(request, timeout=0.2))
            retry = asyncio.ensure_future(client.runtime.RunPodSandbox(request))
            await retried.wait()
            assert steps == ["begun"]
            go_on.set()
            return late, (await retry).pod_sandbox_id, steps

    with caplog.at_level(logging.INFO, logger="podkeep"):
        late, sandbox, steps = run(main())
    assert type(late) is DeadlineExceeded
    assert "RunPodSandbox" in str(late)
    assert "did not answer within 0.2 s" in str(late)
    assert (sandbox, steps) == ("sandbox-1", ["begun", "done"])
    assert [record for record in caplog.records if "was given up by its caller" in record.getMessage()]


def test_a_caller_that_goes_away_cancels_the_handler(path: Path) -> None:
    async def main() -> None:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def wait(_request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

        async with talking(path, runtime={"Version": wait}) as client:
            call = asyncio.ensure_future(client.runtime.Version(api_pb2.VersionRequest()))
            await begun.wait()
            assert not cancelled.is_set()
            call.cancel()
            await cancelled.wait()
            with pytest.raises(asyncio.CancelledError):
                await call

    run(main())


def test_work_cancelled_under_its_handler_is_answered(path: Path) -> None:
    async def wait(_request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task
        return api_pb2.VersionResponse()

    async def main() -> PodkeepError:
        async with talking(path, runtime={"Version": wait}) as client:
            return await failure(client.runtime.Version(api_pb2.VersionRequest()))

    error = run(main())
    assert type(error) is Unavailable
    assert "was cancelled in the runtime" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("size", [MAX_MESSAGE_BYTES - 1024, MAX_MESSAGE_BYTES + 1])
def test_messages_have_a_limit_both_ways(path: Path, size: int) -> None:
    async def swallow(request: api_pb2.ExecSyncRequest) -> api_pb2.ExecSyncResponse:
        return api_pb2.ExecSyncResponse(exit_code=len(request.cmd[0]) % 1000)

    async def shout(_request: api_pb2.ExecRequest) -> api_pb2.ExecResponse:
        return api_pb2.ExecResponse(url="x" * size)

    async def main() -> list[int | type[PodkeepError]]:
        results: list[int | type[PodkeepError]] = []
        async with talking(path, runtime={"ExecSync": swallow, "Exec": shout}) as client:
            for call in (
                client.runtime.ExecSync(api_pb2.ExecSyncRequest(cmd=["x" * size])),
                client.runtime.Exec(api_pb2.ExecRequest()),
            ):
                try:
                    answer = await call
                    results.append(len(answer.url) if isinstance(answer, api_pb2.ExecResponse) else answer.exit_code)
                except PodkeepError as error:
                    results.append(type(error))
        return results

    fits = size < MAX_MESSAGE_BYTES
    assert run(main()) == ([size % 1000, size] if fits else [ResourceExhausted, ResourceExhausted])


def test_the_socket_is_for_root_alone_and_a_dead_ones_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def main() -> int:
        async with talking(path, runtime={"Version": version}) as client:
            await client.runtime.Version(api_pb2.VersionRequest())
            return stat.S_IMODE(path.stat().st_mode)

    assert run(main()) == 0o600


def test_a_socket_that_is_served_is_not_taken_over(path: Path) -> None:
    async def main() -> str:
        async with talking(path, runtime={"Version": version}) as client:
            with pytest.raises(FailedPrecondition, match="another process serves"):
                cri_server.listen(cri_server.create_server(), str(path))
            return (await client.runtime.Version(api_pb2.VersionRequest())).runtime_name

    assert run(main()) == "podkeep"


@pytest.mark.parametrize(
    ("name", "message"), [("x" * 120, "the kernel takes 107"), ("file", "is not a socket"), ("", "is not a socket")]
)
def test_a_path_that_cannot_be_a_socket_is_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("precious")

    async def main() -> None:
        with pytest.raises(InvalidArgument, match=message):
            cri_server.listen(cri_server.create_server(), f"{tmp_path}/{name}")

    run(main())
    assert (tmp_path / "file").read_text() == "precious"


def test_a_relative_path_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgument, match="is not an absolute path"):
            cri_server.listen(cri_server.create_server(), "run/cri.sock")

    run(main())


def test_servers_and_clients_leave_no_descriptor_open(tmp_path: Path) -> None:
    async def once(name: str) -> None:
        async with talking(tmp_path / name, runtime={"Version": version}) as client:
            await client.runtime.Version(api_pb2.VersionRequest())

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def main() -> tuple[int, int]:
        await once("warm-up")
        await asyncio.to_thread(descriptors)
        before = descriptors()
        for number in range(10):
            await once(f"{number}.sock")
        # gRPC closes its sockets on threads of its own shortly after the server is gone.
        deadline = asyncio.get_running_loop().time() + 10
        while descriptors() > before and asyncio.get_running_loop().time() < deadline:
            await asyncio.to_thread(descriptors)
        return before, descriptors()

    before, after = run(main())
    assert after <= before
