"""The client side: deadlines, a runtime that is absent, restarts or is not podkeep."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cri_endpoint import run, serving

from podkeep.base.errors import FailedPrecondition, Internal, InvalidArgument, Unavailable, Unimplemented
from podkeep.cri.client import DEFAULT_TIMEOUT, CriClient
from podkeep.cri.v1 import api_pb2, podkeep_pb2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cri.sock"


async def version(_request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
    return api_pb2.VersionResponse(runtime_name="podkeep")


def test_a_socket_that_is_not_there(path: Path) -> None:
    async def main() -> None:
        async with CriClient(str(path)) as client:
            with pytest.raises(Unavailable) as caught:
                await client.runtime.Version(api_pb2.VersionRequest())
            assert str(caught.value) == (
                f"no runtime answers on {path}: No such file or directory; "
                "hint: a node starts its own again (`podkeep status`); without a node, start one with `podkeep runtime`"
            )

    run(main())


def test_a_runtime_that_is_unavailable_itself_is_not_called_absent(path: Path) -> None:
    async def pull(_request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        raise Unavailable("registry.example:5000 does not answer")

    async def main() -> str:
        async with serving(path, images={"PullImage": pull}), CriClient(str(path)) as client:
            with pytest.raises(Unavailable) as caught:
                await client.images.PullImage(api_pb2.PullImageRequest())
            return str(caught.value)

    assert run(main()) == "registry.example:5000 does not answer"


PROGRAM = Path(__file__).with_name("programs") / "hanging.py"


@pytest.mark.slow
def test_a_runtime_that_is_killed_while_it_is_asked(path: Path) -> None:
    with subprocess.Popen([sys.executable, PROGRAM, path], stdout=subprocess.PIPE) as server:
        said = server.stdout
        assert said is not None
        assert said.readline() == b"serving\n"

        async def main() -> None:
            async with CriClient(str(path)) as client:
                asking = asyncio.ensure_future(client.images.PullImage(api_pb2.PullImageRequest()))
                assert await asyncio.to_thread(said.readline) == b"asked\n"
                server.kill()
                with pytest.raises(
                    Unavailable, match=r"ended before it answered runtime\.v1\.ImageService/PullImage"
                ) as told:
                    await asking
                assert "start one with `podkeep runtime`" in told.value.hint

        run(main())


@pytest.mark.slow
def test_a_runtime_that_starts_and_starts_again_is_found(path: Path) -> None:
    async def main() -> list[str]:
        names = []
        async with CriClient(f"unix://{path}") as client:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await client.runtime.Version(api_pb2.VersionRequest())
                async with serving(path, runtime={"Version": version}), asyncio.timeout(30):
                    while True:
                        with suppress(Unavailable):
                            names.append((await client.runtime.Version(api_pb2.VersionRequest())).runtime_name)
                            break
        return names

    assert run(main()) == ["podkeep"] * 3


def test_a_path_with_characters_that_mean_something_in_a_uri(tmp_path: Path) -> None:
    path = tmp_path / "a b%20?#é.sock"

    async def main() -> str:
        async with serving(path, runtime={"Version": version}), CriClient(str(path)) as client:
            return (await client.runtime.Version(api_pb2.VersionRequest())).runtime_name

    assert run(main()) == "podkeep"


@pytest.mark.parametrize("socket", ["", "run/cri.sock", "tcp://127.0.0.1:1", "/" + "x" * 107])
def test_an_address_that_is_no_unix_socket(socket: str) -> None:
    with pytest.raises(InvalidArgument, match="CRI socket"):
        CriClient(socket)


def test_a_client_that_is_not_open_says_so(path: Path) -> None:
    client = CriClient(str(path))
    with pytest.raises(FailedPrecondition, match="is not open"):
        _ = client.runtime

    async def main() -> None:
        async with client:
            pass
        with pytest.raises(FailedPrecondition, match="is not open"):
            _ = client.images

    run(main())


def test_a_runtime_that_is_not_podkeep_has_no_node_service(path: Path) -> None:
    async def main() -> None:
        async with serving(path, runtime={}), CriClient(str(path)) as client:
            with pytest.raises(Unimplemented) as caught:
                await client.node.Shutdown(podkeep_pb2.ShutdownRequest())
            assert str(caught.value) == f"the runtime on {path} does not know podkeep.v1.Node/Shutdown"

    run(main())


class _Deadlines(grpc.GenericRpcHandler):
    """Answers every unary RPC with nothing and notes the seconds that its caller gave it."""

    def __init__(self) -> None:
        self.seen: list[float | None] = []

    def service(self, _details: Any) -> Any:
        async def note(_data: bytes, context: Any) -> bytes:
            self.seen.append(context.time_remaining())
            return b""

        return grpc.unary_unary_rpc_method_handler(note)


def test_each_call_has_the_deadline_that_its_work_needs(path: Path) -> None:
    async def main() -> list[float | None]:
        deadlines = _Deadlines()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((deadlines,))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        async with CriClient(str(path)) as client:
            await client.runtime.Version(api_pb2.VersionRequest())
            await client.runtime.Version(api_pb2.VersionRequest(), timeout=500)
            await client.runtime.StopContainer(api_pb2.StopContainerRequest(timeout=1000))
            await client.runtime.StopContainer(api_pb2.StopContainerRequest())
            await client.runtime.ExecSync(api_pb2.ExecSyncRequest(timeout=2000))
            await client.runtime.ExecSync(api_pb2.ExecSyncRequest())
            await client.images.PullImage(api_pb2.PullImageRequest())
            await client.node.LoadImage(podkeep_pb2.LoadImageRequest())
        await server.stop(None)
        return deadlines.seen

    limits = [DEFAULT_TIMEOUT, 500, DEFAULT_TIMEOUT + 1000, DEFAULT_TIMEOUT, DEFAULT_TIMEOUT + 2000]
    seen = run(main())
    assert seen[len(limits) :] == [None] * 3
    for limit, value in zip(limits, seen, strict=False):
        # The server sees what is left of it; gRPC rounds it up by a hundredth at most.
        assert value is not None
        assert limit - DEFAULT_TIMEOUT < value <= limit * 1.01


class _Bytes(grpc.GenericRpcHandler):
    """Answers every RPC with bytes that are no message."""

    def service(self, details: Any) -> Any:
        async def answer(_data: bytes, _context: Any) -> bytes:
            return b"\x0a\xff"

        async def stream(_data: bytes, context: Any) -> None:
            await context.write(b"\x0a\xff")

        if details.method.endswith("/GetContainerEvents"):
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(answer)


def test_an_answer_that_is_no_message_is_an_error_of_the_call(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[str]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Bytes(),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        told: list[str] = []
        try:
            async with CriClient(str(path)) as client:
                client.observe = lambda rpc, _request, _seconds, error: told.append(f"{rpc}: {type(error).__name__}")
                with pytest.raises(Internal) as caught:
                    await client.runtime.Version(api_pb2.VersionRequest())
                told.append(caught.value.message)
                with pytest.raises(Internal) as caught:
                    async for _ in client.runtime.GetContainerEvents(api_pb2.GetEventsRequest()):
                        pass
                told.append(caught.value.message)
        finally:
            await server.stop(None)
        return told

    observed, version, events = run(main())
    assert observed == "Version: Internal"
    said = f"the runtime on {path} answered runtime.v1.RuntimeService/%s with what cannot be read: "
    assert version.startswith(said % "Version")
    assert events.startswith(said % "GetContainerEvents")
    assert caplog.records == []


@pytest.mark.parametrize("grace", [None, 0.01])
def test_a_call_that_the_runtime_gives_up_as_it_ends_has_no_answer(path: Path, grace: float | None) -> None:
    """Whoever waits for a runtime that is away waits on: a run would end, and its pod with it."""

    async def main() -> tuple[str, int]:
        began = asyncio.Event()

        async def wait(_request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
            began.set()
            await asyncio.Event().wait()
            raise AssertionError

        async with CriClient(str(path)) as client:
            async with serving(path, runtime={"Version": wait}, grace=grace):
                call = asyncio.ensure_future(client.runtime.Version(api_pb2.VersionRequest()))
                await began.wait()
            with pytest.raises(Unavailable) as caught:
                await call
            return caught.value.message, client.lost

    assert run(main()) == (f"the runtime on {path} ended before it answered runtime.v1.RuntimeService/Version", 1)


@pytest.mark.slow
def test_a_runtime_that_is_slow_to_say_hello(path: Path, tmp_path: Path) -> None:
    """On a busy machine HTTP/2's first frame takes longer than the pause between two attempts to connect."""
    real = tmp_path / "real.sock"

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        upstream_reader, upstream_writer = await asyncio.open_unix_connection(real)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        await asyncio.gather(copy(reader, upstream_writer), copy(upstream_reader, writer))

    async def main() -> str:
        async with serving(real, runtime={"Version": version}):
            slow = await asyncio.start_unix_server(relay, path)
            async with CriClient(str(path)) as client:
                answer = await client.runtime.Version(api_pb2.VersionRequest())
            slow.close()
            return answer.runtime_name

    assert run(main()) == "podkeep"
