"""What TLS connections take of memory while they wait."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

from podkeep.client.connection import Connection, server_address
from podkeep.client.credentials import Credentials
from podkeep.client.settings import Pem, Settings
from podkeep.http import self_signed
from podkeep.http.tls import server_context
from support.timeout import TIMEOUT_S

CONNECTIONS = 10
MOST_BYTES = 100 << 10
"""Of one end of a connection; asyncio alone would take 256 KiB for it."""


def test_a_connection_that_waits_takes_little(tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    self_signed.ensure(certificate, key, "localhost", ["localhost"], ["127.0.0.1"])

    async def steps() -> int:
        arrived: asyncio.Queue[None] = asyncio.Queue()
        done = asyncio.Event()

        async def wait(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived.put_nowait(None)
            await done.wait()
            writer.close()

        tls = server_context("the server", str(certificate), str(key))
        server = await asyncio.start_server(wait, "127.0.0.1", 0, ssl=tls)
        where = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        context = await Credentials(Settings(server=where, authority=Pem(path=str(certificate)))).context()
        async with server:
            opened = [await Connection.open(server_address(where), context)]  # whatever is made once
            await arrived.get()
            tracemalloc.start()
            for _ in range(CONNECTIONS):
                opened.append(await Connection.open(server_address(where), context))
                await arrived.get()
            taken, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            done.set()
            for connection in opened:
                await connection.close()
        return taken

    taken = asyncio.run(asyncio.wait_for(steps(), TIMEOUT_S))
    assert taken / (2 * CONNECTIONS) < MOST_BYTES
