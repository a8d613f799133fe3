"""Decompression of layer streams in bounded memory: ``DECOMPRESSORS`` has every compression that podkeep knows.

Called by the confined unpack process, and by the image worker for an archive that is compressed itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from podkeep.images.layers.zstdframes import FrameWatcher

CHUNK = 1 << 18
"""Bytes handed on at a time, at most."""
_MAX_WINDOW = 128 << 20
"""Bytes of history a zstd frame may ask for (RFC 8878, section 3.1.1.1.2 leaves the limit to the decoder)."""
_USUAL_WINDOW = 8 << 20
"""What decoders are to take (the same); builders of images ask for no more unless they are told to."""


class CompressionError(Exception):
    """The stream is damaged, ends too early, or asks for too much memory."""


def decompressor(
    kind: str, read: Callable[[int], bytes], before_much_memory: Callable[[], None] = lambda: None
) -> Callable[[], bytes]:
    """Return a function that yields the next piece of plain data, empty at the end.

    :param kind: one of :data:`DECOMPRESSORS`.
    :param read: returns up to n bytes of the compressed stream, empty at its end.
    :param before_much_memory: called once, before history of more than is usual is kept.
    """
    return DECOMPRESSORS[kind](read, before_much_memory)


def reader(fd: int, start: bytes) -> Callable[[int], bytes]:
    """Return a function that returns up to n bytes of ``start``, and when these are gone of what ``fd`` has."""
    ahead = start

    def read(count: int) -> bytes:
        nonlocal ahead
        if ahead:
            piece, ahead = ahead[:count], ahead[count:]
            return piece
        return os.read(fd, count)

    return read


def _none(read: Callable[[int], bytes], _: Callable[[], None]) -> Callable[[], bytes]:
    return lambda: read(CHUNK)


def _gzip(read: Callable[[int], bytes], _: Callable[[], None]) -> Callable[[], bytes]:
    from isal import igzip_lib  # imported only where a layer is gzip: start-up time counts

    def new() -> igzip_lib.IgzipDecompressor:
        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)

    current = new()
    pending = b""
    fresh = True

    def pull() -> bytes:
        nonlocal current, pending, fresh
        while True:
            if not pending and current.needs_input and not current.eof:
                pending = read(CHUNK)
                if not pending:
                    # An empty stream is no member at all, and yields nothing.
                    if fresh:
                        return b""
                    raise CompressionError("the gzip stream ends too early")
            if current.eof:  # another member may follow (RFC 1952, section 2.2)
                pending = current.unused_data + pending or read(CHUNK)
                if not pending:
                    return b""
                current = new()
            data, pending = pending, b""
            fresh = False
            try:
                piece = current.decompress(data, CHUNK)
            except igzip_lib.error as error:  # type: ignore[misc]
                raise CompressionError(f"the gzip stream is damaged: {error}") from error
            if piece:
                return piece

    return pull


def _zstd(read: Callable[[int], bytes], before_much_memory: Callable[[], None]) -> Callable[[], bytes]:
    import zstandard  # imported only where a layer is zstd: start-up time counts

    watcher = FrameWatcher()
    told = False

    class Source:
        """The one method zstandard asks for."""

        def read(self, count: int) -> bytes:
            data = read(min(count, CHUNK) if count > 0 else CHUNK)
            nonlocal told
            watcher.feed(data)
            # The library takes the memory when it has the frame's header, which is in this piece.
            if watcher.window > _USUAL_WINDOW and not told:
                told = True
                before_much_memory()
            return data

    factory = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    # Frames may follow each other in one layer; without this flag the first one would be all.
    reader = factory.stream_reader(Source(), read_across_frames=True)  # type: ignore[arg-type]

    def pull() -> bytes:
        try:
            piece = reader.read(CHUNK)
        except zstandard.ZstdError as error:
            raise CompressionError(f"the zstd stream is damaged: {error}") from error
        # The library takes the end of its input for the end of the data, also within a frame.
        if not piece and not watcher.between_frames:
            raise CompressionError("the zstd stream ends too early")
        return piece

    return pull


DECOMPRESSORS = {"none": _none, "gzip": _gzip, "zstd": _zstd}
"""By the name that the table of media types has for a compression (``formats/media_types.py``)."""


def preload(kind: str) -> None:
    """Import what ``kind`` needs; afterwards the process may lose sight of its libraries."""
    decompressor(kind, lambda _: b"")
