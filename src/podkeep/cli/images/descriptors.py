"""Handing what this process has open to the runtime, which opens it a second time by process and descriptor.

Sockets cannot be opened so, and a second opening of a file starts at its beginning: what is that way is copied through
a pipe, on a thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec import structs

from podkeep.cri.v1 import podkeep_pb2
from podkeep.images.formats import openfile
from podkeep.kernel.files.openat import write_all

_PIECE = 1 << 18


def message(descriptor: int, name: str) -> podkeep_pb2.OpenFile:
    """Describe a descriptor, which must stay open until the request is answered; ``name`` is for messages."""
    described = openfile.describe(descriptor, name)
    return podkeep_pb2.OpenFile(**structs.asdict(described))


@contextmanager
def piped_in(source: int) -> Iterator[int]:
    """Yield the end of a pipe from which the runtime reads what comes from ``source``."""
    reading, writing = os.pipe()
    # A daemon: the runtime may give up while the source says nothing for hours.
    threading.Thread(target=_copy, args=(source, writing), daemon=True).start()
    try:
        yield reading
    finally:
        os.close(reading)


@contextmanager
def piped_out(target: int) -> Iterator[int]:
    """Yield the end of a pipe into which the runtime writes what goes to ``target``; all of it is there at the end.

    :raises OSError: if ``target`` could not be written.
    """
    reading, writing = os.pipe()
    failures: list[OSError] = []

    def run() -> None:
        try:
            _copy(reading, target, close=False)
        except OSError as error:
            failures.append(error)
        finally:
            os.close(reading)  # the runtime's next write fails

    # A daemon: when the runtime is given up it may be a while until the other end of the pipe is closed.
    copier = threading.Thread(target=run, daemon=True)
    copier.start()
    try:
        yield writing
    except BaseException:
        os.close(writing)
        if failures:  # that is why the runtime could not write
            raise failures[0] from None
        raise
    os.close(writing)
    copier.join()
    if failures:
        raise failures[0]


def _copy(source: int, target: int, *, close: bool = True) -> None:
    try:
        while piece := os.read(source, _PIECE):
            write_all(target, piece)
    except BrokenPipeError:
        if not close:
            raise
    finally:
        if close:
            with suppress(OSError):
                os.close(target)
