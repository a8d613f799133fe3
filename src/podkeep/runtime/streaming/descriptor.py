"""A file descriptor of ours (pipe, terminal, socket) on the event loop, read and written without blocking it."""

from __future__ import annotations

import asyncio
import errno
import os

READ_BYTES = 64 * 1024


class Descriptor:
    """Owns ``fd``: one task may read and one write at a time; :meth:`close` closes it."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None

    async def read_now(self) -> bytes | None:
        """Return what is there: nothing at the end, None if there is nothing yet.

        Everybody else has a turn of the event loop before. Where a container writes as fast as its client takes it,
        nothing else is ever waited for.
        """
        await asyncio.sleep(0)
        try:
            return os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            # A terminal whose other side is closed says EIO where a pipe says that it has ended (pty(7)).
            if error.errno in {errno.EIO, errno.ECONNRESET}:
                return b""
            raise

    async def read(self) -> bytes:
        """Return the next bytes; nothing at the end."""
        while (data := await self.read_now()) is None:
            await self.readable()
        return data

    async def readable(self) -> None:
        """Wait until there is something to read, or :meth:`wake` is called."""
        self._reading = self._loop.create_future()
        self._loop.add_reader(self.fd, self.wake)
        try:
            await self._reading
        finally:
            self._reading = None
            # It may have been closed meanwhile, and its number may be another file's by now.
            if self.fd >= 0:
                self._loop.remove_reader(self.fd)

    def wake(self) -> None:
        """End the waiting of :meth:`readable`."""
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    async def write(self, data: bytes) -> None:
        """Write all bytes, waiting while the other side takes none.

        :raises OSError: if the other side is closed.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:
                await self._writable()

    async def _writable(self) -> None:
        self._writing = self._loop.create_future()
        self._loop.add_writer(self.fd, self._wake_writer)
        try:
            await self._writing
        finally:
            self._writing = None
            if self.fd >= 0:
                self._loop.remove_writer(self.fd)

    def _wake_writer(self) -> None:
        if self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        if self.fd < 0:
            return
        self._loop.remove_reader(self.fd)
        self._loop.remove_writer(self.fd)
        fd, self.fd = self.fd, -1
        os.close(fd)
