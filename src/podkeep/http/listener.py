"""Listening sockets whose clients are many and hostile: a task for each connection, and a limit that strangers share.

Owns: listening, accepting, TLS's handshake, the number of connections, the kernel's buffers for them, and their end.
Does not own: what is spoken, or who is entitled. Whoever can reach the socket may connect, and must not keep out those
who are entitled: above the limit, the oldest connection that was not admitted is closed. Nor does one of those who are
keep out others.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import stat
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path

from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.errors import FailedPrecondition
from podkeep.http.budget import HELD_BYTES
from podkeep.http.transport import abort, let_go, without_frames

log = logging.getLogger(__name__)

BACKLOG = 128
ACCEPTED_AT_ONCE = 16
"""Connections that are taken in one turn of the event loop. Whoever comes waits for all that came before: with one in
each turn, and work of others in each, for seconds."""
SOCKET_BUFFER_BYTES = 128 * 1024
"""What the kernel holds of a connection in each direction (socket(7): it doubles this). Without it the kernel lets a
buffer grow to megabytes, which are the daemon's as well."""
STREAM_BUFFER_BYTES = 32 * 1024
"""What is read ahead of who reads a connection (asyncio stops at twice that)."""
RETRY_S = 1.0
"""How long nothing is accepted after the machine had no descriptor or memory for it."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def tcp_socket(address: str, port: int) -> socket.socket:
    """Return a socket that is bound to an IP address and a port; 0: any that is free.

    :raises OSError: if the port is taken, or the address not this machine's.
    """
    return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def unix_socket(path: Path) -> socket.socket:
    """Return a socket that is bound to ``path``, for this user alone. A stale socket file is replaced.

    :raises FailedPrecondition: if something else is there, or another process serves it.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FailedPrecondition(f"{path} exists and is not a socket")
        # connect(2) tells a stale socket file from a served one: nobody listens on it, and the connection is refused.
        with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
            probe.connect(str(path))
            raise FailedPrecondition(f"another process serves {path}")
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(str(path))
        # Nobody can connect before it listens.
        path.chmod(0o600)
    except BaseException:
        sock.close()
        raise
    return sock


@dataclass(eq=False, kw_only=True)
class Connection:
    """A client's connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    admit: Callable[[str], bool] = field(repr=False)
    """Called when the client has shown what it wants, and for whom: it is not closed any more to make room for
    strangers. False: there are too many of these."""
    release: Callable[[], None] = field(repr=False)
    """Undoes ``admit``: the connection may be closed to make room, after those that have waited for longer."""


Serve = Callable[[Connection], Awaitable[None]]


class Listener:
    """Serves the connections of some sockets.

    :param limit: connections at a time that are not admitted.
    :param admitted: connections at a time that are; None: ``serve`` bounds them. For one more, whoever has the most
        loses the newest of theirs, if that leaves them as many as the other has.
    :param handshake_timeout: seconds that a TLS handshake may take.
    :param hold: counts what connections have in memory, from before their handshakes on.
    """

    def __init__(
        self,
        serve: Serve,
        *,
        limit: int,
        admitted: int | None,
        handshake_timeout: float,
        hold: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._serve, self._limit, self._admitted, self._hold = serve, limit, admitted, hold
        self._handshake_timeout = handshake_timeout
        self.tls: ssl.SSLContext | None = None
        """What new connections are taken with."""
        self._accepting = Tasks("accepting connections")
        self._connections = Tasks("a connection")
        self._strangers: dict[asyncio.Task[None], None] = {}
        """Those that are not admitted, the oldest first."""
        self._entitled: dict[asyncio.Task[None], str] = {}
        """Those that are, the oldest first, and for whom."""
        self._of_owners: Counter[str] = Counter()
        self._sockets: Sequence[socket.socket] = ()

    def __len__(self) -> int:
        return len(self._connections)

    def start(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Listen on ``sockets``, which are bound; they are closed with the listener, and unix sockets removed."""
        self._sockets, self.tls = sockets, tls
        for sock in sockets:
            # sock_accept() of asyncio takes only sockets that do not block.
            sock.setblocking(False)
            # Connections have these from the socket that accepts them.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            if sock.family != socket.AF_UNIX:
                # asyncio does so for sockets that were made with a protocol, and create_server() makes none of these.
                # Without it the kernel holds back what is short until the peer has acknowledged what came before, for
                # 40 ms.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.listen(BACKLOG)
            self._accepting.start(self._accept(sock))

    def renew(self, tls: ssl.SSLContext) -> None:
        """Take other TLS settings for new connections; those that are here keep theirs."""
        self.tls = tls

    async def stop_accepting(self) -> None:
        """Take no more connections; those that are here go on."""
        await self._accepting.close()
        for sock in self._sockets:
            if sock.family == socket.AF_UNIX:
                Path(sock.getsockname()).unlink(missing_ok=True)
            sock.close()
        self._sockets = ()

    async def close(self) -> None:
        """Stop listening, end every connection and wait for that."""
        await self.stop_accepting()
        await self._connections.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
                self._begin(sock)
                for _ in range(ACCEPTED_AT_ONCE - 1):
                    sock, _ = listening.accept()
                    self._begin(sock)
            except BlockingIOError:
                pass  # there are no more
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.warning("no connection is accepted for %g s: %s", RETRY_S, error)
                    await asyncio.sleep(RETRY_S)
                continue
            # A flood must not keep out what else there is to do, as the end of those that made room.
            await asyncio.sleep(0)

    def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._hold(HELD_BYTES)
        task = self._connections.start(self._run(sock))
        task.add_done_callback(self._ended)
        self._add_stranger(task)

    def _add_stranger(self, task: asyncio.Task[None]) -> None:
        if len(self._strangers) >= self._limit:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        self._strangers[task] = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._forget(task)
        self._hold(-HELD_BYTES)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        owner = self._entitled.pop(task, None)
        if owner is not None:
            self._of_owners[owner] -= 1
            if not self._of_owners[owner]:
                del self._of_owners[owner]

    def _admit(self, task: asyncio.Task[None], owner: str) -> bool:
        is_full = self._admitted is not None and len(self._entitled) >= self._admitted
        if is_full and not self._make_room(owner):
            return False
        self._forget(task)
        self._entitled[task] = owner
        self._of_owners[owner] += 1
        return True

    def _make_room(self, owner: str) -> bool:
        """End the newest connection of who has the most; tell whether that is fair."""
        most, count = max(self._of_owners.items(), key=itemgetter(1))
        if count <= self._of_owners[owner] + 1:
            return False
        newest = next(task for task, whose in reversed(self._entitled.items()) if whose == most)
        self._forget(newest)
        newest.cancel()
        return True

    def _release(self, task: asyncio.Task[None]) -> None:
        self._forget(task)
        self._add_stranger(task)

    async def _run(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=STREAM_BUFFER_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=self.tls,
                ssl_handshake_timeout=self._handshake_timeout if self.tls else None,
            )
        except OSError as error:
            log.debug("a connection is not taken: %s", without_frames(error))
            return
        task = asyncio.current_task()
        assert task is not None
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve(
                Connection(
                    reader=reader,
                    writer=writer,
                    admit=partial(self._admit, task),
                    release=partial(self._release, task),
                )
            )
        finally:
            # Not close(): it would wait for ever for a client that does not take what was written.
            abort(transport)
            # Of a request that was broken off, its body so far.
            let_go(reader)
