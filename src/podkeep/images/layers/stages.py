"""Two ends of a stream on threads of their own: pieces made ahead of who asks for them, and pieces taken care of beside
who goes on.

What takes long with a piece (reading, decompressing, hashing, writing) leaves the interpreter to the other threads
meanwhile, so a layer's entries are looked at while its next bytes are decompressed and its last ones are written.
Memory is bounded by the number of pieces on the way. Used by the confined unpack process.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable

_PIECES = 8
"""Pieces that wait in one place, at most; each has at most ``decompress.CHUNK`` bytes."""
_SWITCH_SECONDS = 0.0005
"""How long a thread may go on while another waits to hand over a piece; the interpreter's 5 ms are longer than most
pieces take."""


def set_switch_interval() -> None:
    """Have threads of this process hand over to each other sooner."""
    sys.setswitchinterval(_SWITCH_SECONDS)


class Ahead:
    """Calls ``pull`` on a thread, some pieces ahead. ``pull`` returns an empty piece at the end."""

    def __init__(self, pull: Callable[[], bytes]) -> None:
        self._pull = pull
        self._pieces: queue.Queue[bytes | BaseException] = queue.Queue(_PIECES)
        self._ended = False
        threading.Thread(target=self._run, name="ahead", daemon=True).start()

    def pull(self) -> bytes:
        """Return the next piece, empty at the end; raises what the function raised instead."""
        if self._ended:
            return b""
        piece = self._pieces.get()
        self._ended = not piece
        if isinstance(piece, BaseException):
            self._ended = True
            raise piece
        return piece

    def _run(self) -> None:
        piece: bytes | BaseException = b"."
        while piece and not isinstance(piece, BaseException):
            try:
                piece = self._pull()
            except BaseException as error:  # noqa: BLE001 - raised again by pull, on its thread
                piece = error
            self._pieces.put(piece)


class Aside:
    """Calls ``take`` with each piece on a thread, in order."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._pieces: queue.Queue[bytes] = queue.Queue(_PIECES)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="aside", daemon=True)
        self._thread.start()

    def passing(self, pull: Callable[[], bytes]) -> Callable[[], bytes]:
        """Return a function that returns what ``pull`` returns, and hands it over."""

        def pull_passing() -> bytes:
            piece = pull()
            if piece:
                self.put(piece)
            return piece

        return pull_passing

    def put(self, piece: bytes) -> None:
        """Hand over a piece, which is not empty; raises what the function raised for an earlier one."""
        if self._error is not None:
            raise self._error
        self._pieces.put(piece)

    def finish(self) -> None:
        """Return when every piece is taken care of; raises what the function raised."""
        self._pieces.put(b"")
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while piece := self._pieces.get():
            # After an error pieces are still taken, and dropped: whoever hands over the next one must not wait for
            # ever.
            if self._error is None:
                try:
                    self._take(piece)
                except BaseException as error:  # noqa: BLE001 - raised again by put or finish, on their thread
                    self._error = error
