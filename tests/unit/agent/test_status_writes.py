"""The order in which statuses of pods are written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from podkeep.agent.manager.status_manager import WRITERS, StatusManager
from podkeep.agent.metrics import AgentMetrics
from podkeep.api import manifest
from podkeep.api.status import PodStatus
from podkeep.client.client import Client
from podkeep.client.settings import Settings

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: u1}
spec: {containers: [{name: main, image: i}]}
"""
LOOPS = 500
"""Turns of the event loop in which a request would come, if there was one."""


class Server:
    """Takes patches of a status; answers the first only when it is told to."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.both = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.partition("content-length:")[2].partition("\r\n")[0])
                patch = json.loads(await reader.readexactly(size))
                self.phases.append(patch["status"]["phase"])
                self.asked.set()
                if len(self.phases) == 1:
                    await self.go.wait()
                else:
                    self.both.set()
                body = json.dumps({"status": patch["status"]}).encode()
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()


@asynccontextmanager
async def writing(
    directory: Path, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[StatusManager]:
    """Write statuses to an API that ``serve`` answers for, for a minute at most."""
    server = await asyncio.start_unix_server(serve, directory / "s")
    client = Client(Settings(server=f"unix://{directory}/s"))
    statuses = StatusManager(client, AgentMetrics())
    running = asyncio.create_task(statuses.run())
    try:
        async with asyncio.timeout(60):
            yield statuses
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()
        server.close()


def test_a_status_is_not_overtaken_by_a_newer_one(tmp_path: Path) -> None:
    """The API would take the older one for the present: that a container runs which has ended."""

    async def main() -> tuple[list[str], list[str]]:
        answering = Server()
        async with writing(tmp_path, answering.serve) as statuses:
            pod = manifest.parse(MANIFEST, source="f").pods[0]
            statuses.known(pod, {})
            statuses.set(pod, msgspec.structs.replace(PodStatus(), phase="Running"))
            await answering.asked.wait()
            statuses.set(pod, msgspec.structs.replace(PodStatus(), phase="Succeeded"))
            for _ in range(LOOPS):
                await asyncio.sleep(0)
            early = list(answering.phases)
            answering.go.set()
            await answering.both.wait()
        return early, answering.phases

    assert asyncio.run(main()) == (["Running"], ["Running", "Succeeded"])


def test_statuses_that_cannot_be_written_leave_writers_for_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a runtime makes of a pod's status, and as many pods as there are writers."""

    async def main() -> list[str]:
        answering = Server()
        async with writing(tmp_path, answering.serve) as statuses:
            for number in range(WRITERS + 1):
                text = MANIFEST.replace("web", f"web-{number}").replace("u1", f"u{number}")
                pod = manifest.parse(text, source="f").pods[0]
                statuses.known(pod, {})
                phase = "Running" if number == WRITERS else object()
                statuses.set(pod, msgspec.structs.replace(PodStatus(), phase=phase))
            await answering.asked.wait()
            answering.go.set()
        return answering.phases

    assert asyncio.run(main()) == ["Running"]
    assert "status of pod default/web-0 failed unexpectedly; trying again" in caplog.text


@pytest.mark.parametrize("code", [413, 422])
def test_a_status_that_is_never_taken_keeps_no_pod_from_being_deleted(tmp_path: Path, code: int) -> None:
    """As that of hundreds of containers: the pod, and so its namespace, could not be deleted."""
    asked: list[str] = []
    deleted = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await reader.readexactly(int(head.lower().partition("content-length:")[2].partition("\r\n")[0]))
                method = head.partition(" ")[0]
                asked.append(method)
                if method == "DELETE":
                    deleted.set()
                answer = "200 OK" if method == "DELETE" else f"{code} No"
                writer.write(f"HTTP/1.1 {answer}\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def main() -> None:
        async with writing(tmp_path, serve) as statuses:
            pod = manifest.parse(MANIFEST, source="f").pods[0]
            statuses.known(pod, {})
            statuses.set(pod, msgspec.structs.replace(PodStatus(), phase="Failed"))
            statuses.finish(pod)
            await deleted.wait()

    asyncio.run(main())
    assert asked == ["PATCH", "DELETE"]
