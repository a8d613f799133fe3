"""The session of Attach: a container's own streams, through the socket of its conmon.

conmon sends packets whose first byte says the stream and takes what is written as the container's input. It passes on
what the container writes from now on; what it wrote before is in the log. Going away only detaches; of a container with
``stdin_once`` conmon then closes the input, which is what that means.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from podkeep.base.concurrency.tasks import ungrouped
from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.http.budget import ClientGone
from podkeep.http.streams import Sink, Source
from podkeep.runtime.streaming import status
from podkeep.runtime.streaming.command_streams import CommandStreams, ResizeDecoder, Size
from podkeep.runtime.streaming.descriptor import Descriptor

STDOUT, STDERR = 2, 3
"""conmon's numbers of the streams (src/utils.h)."""
PACKET_BYTES = 8192
"""What conmon reads at once; it drops the rest of a longer packet."""
CONNECT_TIMEOUT_S = 10
RESIZE_TIMEOUT_S = 1.0
"""How long what a client sends waits at most until conmon has set the sizes before it."""
_RESIZE_POLL_S, _MAX_RESIZE_POLL_S = 0.005, 0.2
_RESIZE = 1
"""conmon's number of a resize on its control pipe (src/ctrl.c)."""


class Attachment(FrozenStruct, kw_only=True):
    """The container: ``bundle`` has conmon's socket and control pipe."""

    bundle: Path
    tty: bool


async def run(streams: CommandStreams, container: Attachment) -> bytes:
    """Stay attached until the container ends, and return the status to answer with.

    :raises ClientGone: if the client left first.
    """
    sock = await asyncio.to_thread(_connect, container.bundle)
    # Of its own, because a Descriptor closes what it has, and the socket is still needed to end the input.
    descriptor = Descriptor(os.dup(sock.fileno()))
    sizes = _Sizes(container.bundle)

    async def pass_all() -> None:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(_watch_client(streams))]
            # Before input, so that what came first is passed on first.
            if streams.resize is not None and container.tty:
                helpers.append(group.create_task(_pass_resizes(streams.resize, sizes)))
                helpers.append(group.create_task(sizes.set_all()))
            if streams.stdin is not None:
                helpers.append(group.create_task(_pass_input(streams.stdin, descriptor, sock, sizes)))
            await group.create_task(_pass_output(descriptor, streams))
            for helper in helpers:
                helper.cancel()

    try:
        await ungrouped(pass_all())
    finally:
        descriptor.close()
        sock.close()
    return status.success()


def _connect(bundle: Path) -> socket.socket:
    """Connect to conmon; by way of a descriptor, because the path may be longer than a socket's may be (unix(7)).

    :raises FailedPrecondition: if conmon does not answer.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    directory = -1
    try:
        # conmon's queue is short. A socket that does not block would be refused at a full one; this one waits, and
        # a timeout of Python's own would make it one of the former.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", CONNECT_TIMEOUT_S, 0))
        directory = os.open(bundle, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        sock.connect(f"/proc/self/fd/{directory}/attach")
    except OSError as error:
        sock.close()
        raise FailedPrecondition(f"conmon of the container in {bundle} takes no connection: {error}") from error
    finally:
        if directory >= 0:
            os.close(directory)
    return sock


async def _watch_client(streams: CommandStreams) -> None:
    await streams.gone.wait()
    raise ClientGone("the client closed the connection")


async def _pass_output(source: Descriptor, streams: CommandStreams) -> None:
    sinks: dict[int, Sink | None] = {STDOUT: streams.stdout, STDERR: streams.stderr}
    while packet := await source.read():
        sink = sinks.get(packet[0])
        if sink is not None:
            await sink.send(packet[1:])


async def _pass_input(source: Source, target: Descriptor, sock: socket.socket, sizes: _Sizes) -> None:
    try:
        while data := await source.receive():
            # Whoever resizes a terminal and then types meant the new size.
            await sizes.settled()
            for start in range(0, len(data), PACKET_BYTES):
                await target.write(data[start : start + PACKET_BYTES])
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        source.discard()


async def _pass_resizes(source: Source, sizes: _Sizes) -> None:
    decoder = ResizeDecoder()
    while data := await source.receive():
        sizes.add(decoder.feed(data))


class _Sizes:
    """Sets the sizes of a container's terminal through conmon, one after the other.

    conmon passes what it reads from its control pipe on to a pipe of its own, and of lines that it reads from either at
    once, it takes the first for each (up to 2.1.13). ``kubectl attach`` sends two sizes, a wrong one first.
    """

    def __init__(self, bundle: Path) -> None:
        self._control, self._own = bundle / "ctl", bundle / "winsz"
        # Two, because a program draws anew only if the size before the last one was another.
        self._waiting: deque[Size] = deque(maxlen=2)
        self._added, self._settled = asyncio.Event(), asyncio.Event()
        self._settled.set()

    def add(self, sizes: Sequence[Size]) -> None:
        """Have sizes set; of many the last ones."""
        if sizes:
            self._waiting.extend(sizes)
            self._added.set()
            self._settled.clear()

    async def settled(self) -> None:
        """Wait until all that were added are set, but not for long: more may come without an end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RESIZE_TIMEOUT_S):
                await self._settled.wait()

    async def set_all(self) -> None:
        """Set what is added, without an end."""
        while await self._added.wait():
            self._added.clear()
            while self._waiting:
                with suppress(OSError):  # the container ended
                    await self._set(self._waiting.popleft())
            self._settled.set()

    async def _set(self, size: Size) -> None:
        with _open(self._control) as pipe:
            os.write(pipe, f"{_RESIZE} {size.height} {size.width}\n".encode())
        await self._taken()

    async def _taken(self) -> None:
        # However long it takes: of lines that waited together conmon would take the first, and the last one be lost.
        pause, unread = _RESIZE_POLL_S, True
        while unread:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RESIZE_POLL_S)
            unread = bool(_unread(self._control) or _unread(self._own))


@contextmanager
def _open(path: Path) -> Iterator[int]:
    # O_NONBLOCK: opening a FIFO that nobody reads would keep the event loop waiting.
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _unread(path: Path) -> int:
    """Return how many bytes are in a FIFO."""
    with _open(path) as pipe:
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
