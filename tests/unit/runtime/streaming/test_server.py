"""The streaming server's doors: connections that say nothing do not keep out those that have a URL."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from podkeep.base.config import StreamingConfig
from podkeep.runtime.streaming.channels import CommandStreams
from podkeep.runtime.streaming.remote_command import CommandRequest
from podkeep.runtime.streaming.server import StreamingServer
from support.streams import SpdyCommand, collect

PATIENCE_S = 30.0


async def _session(streams: CommandStreams) -> bytes:
    assert streams.stdout is not None
    await streams.stdout.send(b"served")
    return b'{"status": "Success"}'


def _request() -> CommandRequest:
    return CommandRequest(session=_session, stdin=False, stdout=True, stderr=False, tty=False)


def test_who_says_nothing_makes_room() -> None:
    async def scenario() -> None:
        server = StreamingServer(StreamingConfig(), max_connections=4)
        await server.start()
        port = urlsplit(server.url("exec", _request())).port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        async with asyncio.timeout(PATIENCE_S):
            client = await SpdyCommand.connect(server.url("exec", _request()), ("stdout",))
            assert (await collect(client))[0] == b"served"
            assert client.exit_code() == 0
            # The oldest had to go.
            assert await silent[0][0].read() == b""
        await server.close()
        for _, writer in silent:
            writer.close()

    asyncio.run(scenario())
