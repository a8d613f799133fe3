"""Standard error for a verb whose event loop must go on whether it is read or not: a thread writes what is said.

A pipe or a terminal that is not read keeps who writes to it. An event loop that is kept looks at no signal.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stderr, suppress
from typing import TextIO

from podkeep.cli.core.output import number_of

_MAX_WAITING = 256 * 1024
"""Bytes that wait to be written; what is said beyond is left out, and that is told. One text may be longer."""
_HURRY_S = 1.0
"""How long the end waits for a reader, once somebody has interrupted the verb."""


class Unhindered(io.TextIOBase):
    """A text stream whose writes return at once. What one call of :meth:`write` gets is written or left out whole."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: deque[bytes] = deque()
        self._size = self._left_out = 0
        self._closing = self._hurried = False
        self._changed = threading.Condition()
        self.failure: Future[None] = Future()
        """Has the OSError of the first text that could not be written, unless the end was hurried before."""
        self.failure.set_running_or_notify_cancel()  # who waits for it cannot cancel it
        # A daemon: who ends this process does not wait for a pipe that is not read.
        self._thread = threading.Thread(target=self._work, name="errors", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        data = text.encode(self.encoding, self.errors or "strict")
        with self._changed:
            if self._size and self._size + len(data) > _MAX_WAITING:
                self._left_out += 1
            elif data:  # click tries a stream out with an empty text
                self._waiting.append(data)
                self._size += len(data)
            self._changed.notify_all()
        return len(text)

    def hurry(self) -> None:
        """Let the end wait only shortly for a reader, and take it as no failure that there is none."""
        self._hurried = True

    def finish(self) -> None:
        """Return when everything is written, or the end is hurried.

        :raises OSError: if something could not be written.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_HURRY_S if self._hurried else None)
        if self.failure.done():
            self.failure.result()

    def _work(self) -> None:
        try:
            while data := self._next():
                self._write_all(data)
                with self._changed:
                    self._size -= len(data)
        except OSError as error:
            if not self._hurried:
                self.failure.set_exception(error)

    def _next(self) -> bytes:
        """Return what is to be written next; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._left_out or self._closing)
            if self._waiting:
                return self._waiting.popleft()
            left_out, self._left_out = self._left_out, 0
            note = b""
            if left_out:
                note = f"podkeep: left out, as nothing was read: {number_of(left_out, 'message')}\n".encode()
            self._size += len(note)
            return note

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                # By its number: a lock of the stream would keep the interpreter's end.
                left = left[os.write(self.fileno(), left) :]
            except BlockingIOError:  # somebody who shares it has made it so
                select.select([], [self.fileno()], [])


@contextmanager
def standard_error() -> Iterator[Unhindered]:
    """Have standard error be unhindered, also for what logs to it; at the end wait until everything is written.

    :raises OSError: if something could not be written, and nothing else went wrong.
    """
    before = sys.stderr
    before.flush()
    stream = Unhindered(before)
    logging_to_it = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is before
    ]
    for handler in logging_to_it:
        handler.setStream(stream)
    try:
        with redirect_stderr(stream):
            yield stream
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            stream.hurry()
        with suppress(OSError):
            stream.finish()
        raise
    finally:
        for handler in logging_to_it:
            handler.setStream(before)
    stream.finish()
