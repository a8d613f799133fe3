"""Where the agent connects for a stream: to what the runtime named, if that can be a server at all."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.convert import names
from podkeep.agent.server.streams import passed_on, ready_sandbox, running_container
from podkeep.cri.v1 import api_pb2
from podkeep.http.budget import Account, Pool
from podkeep.http.messages import Body, Peer, Refused, Request, Response, Upgrade
from unit.cri.cri_endpoint import run, talking


def request() -> Request:
    async def nothing() -> bytes:
        return b""

    return Request(
        method="POST",
        target="/exec/default/web/main",
        headers={},
        body=Body(nothing, 0, Account(Pool()), 1.0),
        peer=Peer(),
        stopping=asyncio.Event(),
        at_end=ExitStack(),
        admit=lambda owner="": None,
    )


@pytest.mark.parametrize("url", ["", "http://[::1", "ftp://127.0.0.1/x", "http://127.0.0.1:99999/x", "URL/\u00fc"])
def test_a_url_that_no_server_can_have_is_refused(url: str) -> None:
    """Whatever a runtime answers is no error of the agent's own."""

    async def work() -> Response | Upgrade:
        # One that takes connections, so that what is wrong with a path is found after connecting.
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await passed_on(request(), url.replace("URL", address), owner="uid", idle_timeout=1.0)

    with pytest.raises(Refused, match="the runtime named no streaming server"):
        asyncio.run(work())


def test_what_a_runtime_lists_of_other_pods_is_not_connected_to(tmp_path: Path) -> None:
    """The lists hold everything, whatever was asked for, and the other pod is newer."""
    labels = [{names.POD_UID: uid, names.CONTAINER_NAME: "main"} for uid in ("u1", "u2")]

    async def containers(_: Any) -> api_pb2.ListContainersResponse:
        listed = [api_pb2.Container(id=f"c{age}", created_at=age, labels=labels[age]) for age in (0, 1)]
        return api_pb2.ListContainersResponse(containers=listed)

    async def sandboxes(_: Any) -> api_pb2.ListPodSandboxResponse:
        listed = [api_pb2.PodSandbox(id=f"s{age}", created_at=age, labels=labels[age]) for age in (0, 1)]
        return api_pb2.ListPodSandboxResponse(items=listed)

    async def work() -> list[str | None]:
        rpcs = {"ListContainers": containers, "ListPodSandbox": sandboxes}
        async with talking(tmp_path / "s", runtime=rpcs) as client:
            return [
                await running_container(client, "u1", "main"),
                await running_container(client, "u1", "other"),
                await ready_sandbox(client, "u1"),
                await ready_sandbox(client, "u3"),
            ]

    assert run(work()) == ["c0", None, "s0", None]
