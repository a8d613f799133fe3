"""The worker's side of the pipe to the store: JSON lines, requests in, events out, one answer per question.

The end of standard input means that the store is gone: the worker and all it started then end at once.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time

from podkeep.images import messages
from podkeep.images.messages import Available, Event, Progress, Request, Retrying, Wanted
from podkeep.kernel.files.openat import write_all

_PROGRESS_INTERVAL = 0.1
"""Seconds between two progress lines of one layer."""
_CONTINUAL = frozenset({"downloading", "saving", "verifying"})
"""Phases that report with every piece."""


class Channel:
    """The pipe pair of this process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[Available] = queue.SimpleQueue()
        self._told: dict[str, float] = {}

    def start(self) -> Request:
        """Read the request, then watch for answers and for the end of the store in a thread."""
        request = messages.decode_request(sys.stdin.buffer.readline())
        threading.Thread(target=self._listen, name="store", daemon=True).start()
        return request

    def emit(self, event: Event) -> None:
        line = messages.encode(event)
        # Each layer has a thread: lines must not mix.
        with self._lock:
            write_all(1, line)

    def ask(self, question: Wanted) -> Available:
        """Send one line and return the store's answer to it."""
        # One question at a time: answers have no number.
        with self._asking:
            self.emit(question)
            return self._answers.get()

    def progress(self, digest: str, phase: str, done: int, total: int) -> None:
        """Report progress of a layer, dropping reports that follow too soon on the one before."""
        now = time.monotonic()
        # The first and the last report of a phase always go out.
        if phase in _CONTINUAL and 0 < done != total and now - self._told.get(digest, 0.0) < _PROGRESS_INTERVAL:
            return
        self._told[digest] = now
        self.emit(Progress(digest=digest, phase=phase, done=done, total=total))

    def retrying(self, what: str, status: int, seconds: float) -> None:
        """Report that a registry is asked again: an :data:`podkeep.images.registry.retry.OnWait`."""
        self.emit(Retrying(what=what, status=status, seconds=seconds))

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self._answers.put(messages.decode_answer(line))
        # The worker leads its own process group; nothing in it may outlive the store.
        os.killpg(0, signal.SIGKILL)
