"""Where the agent connects for a stream: to what the runtime named, if that can be a server at all."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from podkeep.agent.server.streams import passed_on
from podkeep.http.budget import Account, Pool
from podkeep.http.messages import Body, Peer, Refused, Request, Response, Upgrade


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
