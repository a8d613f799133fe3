"""Clients of the kubelet's endpoints that ask for much and read nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from podkeep.agent.metrics import AgentMetrics
from podkeep.agent.server.authentication import Authenticator
from podkeep.agent.server.authorization import Authorizer
from podkeep.agent.server.endpoints import Endpoints
from podkeep.agent.server.server import LIMITS
from podkeep.api.meta import ObjectMeta
from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus
from podkeep.http.listener import unix_socket
from podkeep.http.server import Server
from support.waiting import TIMEOUT_S


class LargePods:
    """A node with 5 MB of pods."""

    def pods(self) -> Iterable[tuple[Pod, PodStatus]]:
        for index in range(20):
            yield Pod(metadata=ObjectMeta(name=f"p{index}", annotations={"a": "x" * 250_000})), PodStatus()

    def find(self, namespace: str, name: str) -> None:
        return None


async def reviewed(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"authenticated": True, "user": {"username": spec["token"]}}


def test_answers_that_a_user_does_not_read_do_not_take_the_agents_memory(tmp_path: Path) -> None:
    """150 such connections had it take 740 MB."""
    unused: Any = None
    endpoints = Endpoints(
        client=unused,
        pods=LargePods(),
        metrics=AgentMetrics(),
        collector=unused,
        authenticator=Authenticator(reviewed, ttl=60, anonymous=False),
        authorizer=Authorizer("n1", "AlwaysAllow", None, allowed_ttl=60, denied_ttl=60),
        configuration=dict,
    )

    async def main() -> None:
        server = Server("kubelet", endpoints.answer, LIMITS)
        server.start([unix_socket(tmp_path / "s")])
        async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
            stack.push_async_callback(server.close, 1.0)
            writers: list[asyncio.StreamWriter] = []

            async def status(user: str) -> int:
                """Ask for the pods, and return the status; nothing else is read."""
                reader, writer = await asyncio.open_unix_connection(tmp_path / "s", limit=1024)
                writers.append(writer)
                writer.write(f"GET /pods HTTP/1.1\r\nHost: n1\r\nAuthorization: Bearer {user}\r\n\r\n".encode())
                return int((await reader.readline()).split()[1])

            assert [await status("eve") for _ in range(5)] == [200, 200, 200, 429, 429]
            # Others have theirs, and she has once they are read or given up.
            assert await status("ann") == 200
            for writer in writers:
                writer.transport.abort()
            while await status("eve") == 429:
                writers[-1].transport.abort()

    asyncio.run(main())
