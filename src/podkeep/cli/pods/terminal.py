"""This process's terminal and standard streams, tied to a command in a container.

Owns: raw mode, window sizes, reading standard input without blocking. Does not own: the connection
(``stream_client.py``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

from podkeep.base.errors import Unavailable
from podkeep.cli.pods.stream_client import CommandClient
from podkeep.http.websocket import STDOUT

_READ_BYTES = 32 * 1024
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


async def converse(client: CommandClient, *, stdin: bool, terminal: bool) -> int:
    """Pass everything on between this process and a command until its end, and return its exit code.

    :param terminal: the command has a terminal; this process's, if it has one, only passes keys on meanwhile.
    :raises PodkeepError: if the session fails.
    """
    loop = asyncio.get_running_loop()
    helpers: set[asyncio.Task[None]] = set()

    def resize() -> None:
        task = loop.create_task(_send_size(client))
        helpers.add(task)
        task.add_done_callback(helpers.discard)

    with _raw_mode(terminal and stdin):
        if terminal:
            await _send_size(client)
            loop.add_signal_handler(signal.SIGWINCH, resize)
        if stdin:
            helpers.add(loop.create_task(_send_input(client)))
        try:
            async for channel, data in client.outputs():
                if (stream := sys.stdout if channel == STDOUT else sys.stderr) is not None:
                    stream.buffer.write(data)
                    stream.buffer.flush()
        finally:
            if terminal:
                loop.remove_signal_handler(signal.SIGWINCH)
            for helper in list(helpers):
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
    return client.exit_code()


@contextmanager
def _raw_mode(wanted: bool) -> Iterator[None]:
    if not wanted or sys.stdin is None or not os.isatty(fd := sys.stdin.fileno()):
        yield
        return
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()
    for number in _ENDING:
        # These would end this process at once and leave the terminal raw. An interruption ends it in good order.
        loop.add_signal_handler(number, signal.raise_signal, signal.SIGINT)
    try:
        tty.setraw(fd)
        yield
    finally:
        for number in _ENDING:
            loop.remove_signal_handler(number)
        with suppress(termios.error):  # the terminal went away
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


async def _send_size(client: CommandClient) -> None:
    for stream in (sys.stdout, sys.stdin):
        with suppress(OSError, AttributeError):  # None: it was closed before this process began
            size = os.get_terminal_size(stream.fileno())
            with suppress(Unavailable):
                await client.resize(size.columns, size.lines)
            return


async def _send_input(client: CommandClient) -> None:
    with suppress(Unavailable):  # its end is seen by reading
        async for data in _standard_input():
            await client.send_input(data)
        await client.end_input()


async def _standard_input() -> AsyncIterator[bytes]:
    """Yield what comes. The descriptor stays as it is: a terminal shares its mode with whoever has it open."""
    if sys.stdin is None:
        return  # it was closed before this process began
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    while True:
        ready = loop.create_future()
        try:
            loop.add_reader(fd, ready.set_result, None)
        except PermissionError:
            pass  # a file: always ready, so epoll takes none
        else:
            try:
                await ready
            finally:
                loop.remove_reader(fd)
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            continue
        except OSError:
            return  # the terminal went away
        if not data:
            return
        yield data
