"""An HTTP/1.1 server: listening sockets, a handler, and limits.

Owns: the life of a server. Does not own: connections (``listener.py``), HTTP on one of them (``connection.py``), or
what is served, which is the handler's. What a client sees if that raises:

| raised | the client sees |
|---|---|
| ``Refused`` | its status, headers and message as plain text; the connection is closed |
| anything else before a response | 500, with the ID under which the log has the exception |
| anything in a response's generator | the connection is broken off, so that the client sees that it has not all |
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence

from podkeep.base.concurrency.tasks import Tasks
from podkeep.http.budget import Pool
from podkeep.http.connection import HttpConnection, Limits
from podkeep.http.listener import Connection, Listener
from podkeep.http.messages import Handler
from podkeep.http.transport import LINGER_S
from podkeep.kernel.process import allocator


class Server:
    """Start it and close it on one event loop.

    :param name: what it is called in the log.
    :param pool: what all connections together keep of their clients' bytes.
    """

    def __init__(self, name: str, handler: Handler, limits: Limits, pool: Pool | None = None) -> None:
        self._name, self._handler, self._limits = name, handler, limits
        self._tasks = Tasks("giving memory back")
        self.pool = pool or Pool(on_shrunk=self._give_back)
        self._stopping = asyncio.Event()
        self._serving: dict[asyncio.Task[None], HttpConnection] = {}
        self._listener = Listener(
            self._serve,
            limit=limits.waiting,
            admitted=limits.admitted,
            handshake_timeout=limits.head_timeout,
            hold=self.pool.hold,
        )

    def __len__(self) -> int:
        return len(self._listener)

    def start(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Listen on ``sockets``, which are bound; the server closes them, and removes unix sockets."""
        self._listener.start(sockets, tls)

    def renew(self, tls: ssl.SSLContext) -> None:
        """Take other TLS settings for new connections.

        Clients who showed a certificate come again, as it may not be one that is trusted now: their connections end
        when no request is being answered.
        """
        self._listener.renew(tls)
        for task, connection in self._serving.items():
            if connection.settings is not None:
                connection.end_soon()
                if connection.is_idle:
                    task.cancel()

    async def close(self, grace: float = 0.0) -> None:
        """Stop listening, end every connection and wait for that.

        :param grace: seconds that requests may take to be answered. ``Request.stopping`` is set; no connection has
            another request.
        """
        self._stopping.set()
        await self._listener.stop_accepting()
        for task, connection in self._serving.items():
            # Others end by themselves: their answer says that the connection is closed after it.
            if connection.is_idle:
                task.cancel()
        if grace and self._serving:
            await asyncio.wait(list(self._serving), timeout=grace)
        await self._listener.close()
        await self._tasks.close()

    def _give_back(self) -> None:
        if not len(self._tasks):
            self._tasks.start(self._give_back_soon())

    async def _give_back_soon(self) -> None:
        # Connections that have ended are there for as long as their clients may take to see it.
        await asyncio.sleep(LINGER_S)
        # malloc(3) keeps what lies below anything that is still used: 80 of 84 MiB, after 60 connections had been full.
        await asyncio.to_thread(allocator.give_back)

    async def _serve(self, connection: Connection) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving = HttpConnection(
            self._name, connection, self._handler, limits=self._limits, pool=self.pool, stopping=self._stopping
        )
        if serving.settings not in (None, self._listener.tls):
            return  # others are in force since it began its handshake
        self._serving[task] = serving
        try:
            await serving.serve()
        finally:
            del self._serving[task]
