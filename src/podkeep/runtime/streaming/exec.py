"""The session of Exec: a command's streams, tied to a client's.

The command is killed when the client is gone; when the command ends, what it wrote is delivered. What it left behind in
the container goes on and is not waited for, as with ExecSync.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable

from podkeep.base.concurrency.tasks import finished, ungrouped
from podkeep.base.errors import PodkeepError
from podkeep.http.budget import ClientGone
from podkeep.http.streams import Sink, Source
from podkeep.runtime.oci.exec import ExecProcess
from podkeep.runtime.streaming import status
from podkeep.runtime.streaming.command_streams import CommandStreams, ResizeDecoder, Size
from podkeep.runtime.streaming.descriptor import Descriptor

FIRST_SIZE_S = 0.5
"""How long a terminal's first size is waited for, so that a command that looks at once sees the right one.

A client sends it when it knows that the connection is there: it comes a round trip later, 0.3 s around the world, and
50 ms from kubectl on a busy machine. Some never send one (kubectl does not if its output is no terminal), and half a
second at the start of a terminal is not yet a wait.
"""
TERMINAL_DRAIN_S = 1.0
"""How long after a command's end its terminal may take to say so; what it wrote passes through a kernel thread."""
RESIZE_PAUSE_S, MAX_RESIZE_PAUSE_S = 0.05, 1.0
"""How long a terminal's size stays at least, and after that anyway: setting it takes a process
(``runtime/oci/exec.py``)."""
RESIZE_PAUSE = 9
"""How many times as long as it took to set the size no other terminal of the pod is told its size: so clients of one
pod, who may send sizes without an end, take a tenth of a processor for it."""
_DRAIN_BYTES = 64 * 1024

Start = Callable[[Size | None], ExecProcess]
"""Starts the command, with its terminal's size if that is known; blocks."""


async def run(streams: CommandStreams, start: Start, resizing: asyncio.Lock | None = None) -> bytes:
    """Run a command to its end and return the status to answer with.

    :param resizing: held while a terminal is told its size: one for all terminals of a pod.
    :raises ClientGone: if the client left; the command is dead then.
    """
    resizes = ResizeDecoder()
    first = await _first_size(streams.resize, resizes)
    process = await _start(start, first)
    try:
        await _Session(process, streams, resizes, resizing or asyncio.Lock()).run()
    finally:
        code = await _finish(process)
    try:
        return status.exit_code(await code)
    except PodkeepError as error:
        return status.failure(f"error executing command in container: {error}")


async def _first_size(resize: Source | None, decoder: ResizeDecoder) -> Size | None:
    if resize is None:
        return None
    try:
        async with asyncio.timeout(FIRST_SIZE_S):
            while data := await resize.receive():
                sizes = decoder.feed(data)
                # A client whose own terminal has no size says 0 and 0: that is its answer.
                if sizes or decoder.is_between_lines:
                    return sizes[-1] if sizes else None
    except TimeoutError:
        pass
    return None


async def _start(start: Start, size: Size | None) -> ExecProcess:
    """Start it; if its caller has gone when it has started, it is killed, and not left."""
    starting = asyncio.ensure_future(asyncio.to_thread(start, size))
    try:
        await finished(starting)
    except asyncio.CancelledError:
        if starting.exception() is None:
            await finished(asyncio.ensure_future(asyncio.to_thread(starting.result().discard)))
        raise
    return starting.result()


async def _finish(process: ExecProcess) -> asyncio.Future[int]:
    """See that the command is dead, also if the caller is cancelled, and return what will be its exit code."""

    def end() -> int:
        if process.runtime.poll() is None:
            process.kill()
        return process.finish()

    ending = asyncio.ensure_future(asyncio.to_thread(end))
    # Of a session that failed nobody asks how its command ended.
    ending.add_done_callback(lambda done: done.cancelled() or done.exception())
    await finished(ending)
    return ending


class _Nowhere:
    """A Sink for what nobody asked for."""

    async def send(self, data: bytes) -> None:
        return

    async def end(self) -> None:
        return


class _Session:
    def __init__(
        self, process: ExecProcess, streams: CommandStreams, resizes: ResizeDecoder, resizing: asyncio.Lock
    ) -> None:
        self._process, self._streams, self._resizes, self._resizing = process, streams, resizes, resizing
        self._ended = asyncio.Event()
        self._size: Size | None = None
        self._resized = asyncio.Event()
        self._outputs: list[tuple[Descriptor, Sink]] = []
        self._input: Descriptor | None = None
        self._all: list[Descriptor] = []
        if process.terminal >= 0:
            terminal = self._own(process.terminal)
            self._input = terminal
            # Somebody must read a terminal, or its command stands still.
            self._outputs.append((terminal, streams.stdout or _Nowhere()))
        else:
            for fd, sink in ((process.stdout, streams.stdout), (process.stderr, streams.stderr)):
                if fd >= 0 and sink is not None:
                    self._outputs.append((self._own(fd), sink))
            if process.stdin >= 0:
                self._input = self._own(process.stdin)

    def _own(self, fd: int) -> Descriptor:
        self._all.append(Descriptor(fd))
        return self._all[-1]

    async def run(self) -> None:
        """Pass everything on until the command has ended and its output is delivered."""
        loop = asyncio.get_running_loop()
        pidfd = -1
        try:
            # A child of this process that is reaped after the session only (_finish), so the number is its own.
            pidfd = os.pidfd_open(self._process.runtime.pid)
            loop.add_reader(pidfd, self._end, loop, pidfd)
            # They fail for one reason; the first one says it.
            await ungrouped(self._pass_all())
        finally:
            if pidfd >= 0:
                loop.remove_reader(pidfd)
                os.close(pidfd)
            for descriptor in self._all:
                descriptor.close()

    async def _pass_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._watch_client())]
            if self._streams.stdin is not None and self._input is not None:
                helpers.append(group.create_task(self._pass_input(self._streams.stdin, self._input)))
            if self._streams.resize is not None:
                helpers.append(group.create_task(self._pass_resizes(self._streams.resize)))
                helpers.append(group.create_task(self._set_sizes()))
            outputs = [group.create_task(self._pass_output(*output)) for output in self._outputs]
            if outputs:
                await asyncio.wait(outputs)
            await self._ended.wait()
            for helper in helpers:
                helper.cancel()

    def _end(self, loop: asyncio.AbstractEventLoop, pidfd: int) -> None:
        loop.remove_reader(pidfd)
        self._ended.set()
        for descriptor in self._all:
            descriptor.wake()

    async def _watch_client(self) -> None:
        await self._streams.gone.wait()
        # An error ends the TaskGroup with all that passes streams on; then the command is killed (_finish).
        raise ClientGone("the client closed the connection")

    async def _pass_output(self, source: Descriptor, sink: Sink) -> None:
        """Pass output on. What is there when the command has ended is its own, up to what a pipe holds."""
        # None while the command runs; then how many bytes may still be its own, not those of what it left behind.
        left = None
        while True:
            data = await source.read_now()
            if data is None:
                if left is not None and not await self._more(source):
                    break
                if left is None:
                    await self._readable(source)
            elif not data:
                break
            else:
                await sink.send(data)
                if left is not None:
                    left -= len(data)
                    if left <= 0:
                        break
            if left is None and self._ended.is_set():
                left = self._held(source)
        await sink.end()

    async def _readable(self, source: Descriptor) -> None:
        # _end wakes those that wait then; who began to wait later would do so for ever.
        if not self._ended.is_set():
            await source.readable()

    async def _more(self, source: Descriptor) -> bool:
        """Say whether more comes of a command that has ended: through a pipe no, through a terminal maybe soon."""
        if self._process.terminal < 0:
            return False
        try:
            async with asyncio.timeout(TERMINAL_DRAIN_S):
                await source.readable()
        except TimeoutError:
            return False
        return True

    def _held(self, source: Descriptor) -> int:
        return _DRAIN_BYTES if self._process.terminal >= 0 else fcntl.fcntl(source.fd, fcntl.F_GETPIPE_SZ)

    async def _pass_input(self, source: Source, target: Descriptor) -> None:
        try:
            while data := await source.receive():
                await target.write(data)
        except OSError:
            source.discard()  # the command does not read, or has ended
        if self._process.terminal < 0:
            # The end of the command's input. A terminal stays open: the same descriptor has its output.
            target.close()

    async def _pass_resizes(self, source: Source) -> None:
        while data := await source.receive():
            for size in self._resizes.feed(data):
                self._size = size
                self._resized.set()

    async def _set_sizes(self) -> None:
        """Set the newest size; the terminal is not closed meanwhile."""
        loop = asyncio.get_running_loop()
        while await self._resized.wait():
            async with self._resizing:
                self._resized.clear()
                assert self._size is not None
                begun = loop.time()
                setting = asyncio.to_thread(self._process.resize, self._size.width, self._size.height)
                await finished(asyncio.ensure_future(setting))
                pause = RESIZE_PAUSE * (loop.time() - begun)
                await asyncio.sleep(min(max(pause, RESIZE_PAUSE_S), MAX_RESIZE_PAUSE_S))
