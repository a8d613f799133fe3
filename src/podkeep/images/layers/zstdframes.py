"""Where zstd frames end (RFC 8878, section 3), told from the compressed bytes without decompressing them.

The decompression library takes the end of its input for the end of the data, also in the middle of a frame; a stream
that was cut off would pass for a whole one. Used by ``decompress`` only.
"""

from __future__ import annotations

from collections.abc import Generator

_FRAME = 0xFD2FB528
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_RLE = 1
_DICTIONARY_BYTES = (0, 1, 2, 4)
_SIZE_BYTES = (0, 2, 4, 8)


class FrameWatcher:
    """Follows a stream piece by piece. Says nothing of damage: the decompression itself does."""

    def __init__(self) -> None:
        self.window = 0
        """Bytes of history that the frames until now ask for, at most: memory that the decompression takes."""
        self._inside = False
        self._kept = b""
        self._lost = False
        self._steps = self._frames()
        self._wanted = next(self._steps)

    @property
    def between_frames(self) -> bool:
        """Whether a stream that ends here ends whole."""
        return self._lost or not (self._inside or self._kept)

    def feed(self, piece: bytes) -> None:
        """Follow the next bytes."""
        position = 0
        while not self._lost and position < len(piece):
            # A negative number asks for that many bytes to look at, a positive one passes over so many.
            if self._wanted > 0:
                step = min(self._wanted, len(piece) - position)
                position += step
                self._wanted -= step
                if not self._wanted:
                    self._go(b"")
                continue
            missing = -self._wanted - len(self._kept)
            self._kept += piece[position : position + missing]
            position += missing
            if len(self._kept) == -self._wanted:
                kept, self._kept = self._kept, b""
                self._go(kept)

    def _go(self, data: bytes) -> None:
        try:
            self._wanted = self._steps.send(data)
        except StopIteration:
            self._lost = True  # no frame: the decompression refuses it

    def _frames(self) -> Generator[int, bytes, None]:
        while True:
            self._inside = False
            magic = int.from_bytes((yield -4), "little")
            self._inside = True
            if magic in _SKIPPABLE:
                size = int.from_bytes((yield -4), "little")
                if size:
                    yield size
                continue
            if magic != _FRAME:
                return
            descriptor = (yield -1)[0]
            single = descriptor >> 5 & 1
            header = (1 - single) + _DICTIONARY_BYTES[descriptor & 3]
            header += _SIZE_BYTES[descriptor >> 6] or single
            if header:
                self.window = max(self.window, _window(descriptor, (yield -header)))
            last = 0
            while not last:
                block = int.from_bytes((yield -3), "little")
                # An RLE block holds one byte, however many it stands for.
                last, size = block & 1, 1 if block >> 1 & 3 == _RLE else block >> 3
                if size:
                    yield size
            # The checksum of the content.
            if descriptor >> 2 & 1:
                yield 4


def _window(descriptor: int, fields: bytes) -> int:
    """Return the window size of a frame (RFC 8878, section 3.1.1.1.2) from what follows its descriptor."""
    if descriptor >> 5 & 1:  # a single segment: all of its content
        size = fields[_DICTIONARY_BYTES[descriptor & 3] :]
        return int.from_bytes(size, "little") + (256 if len(size) == 2 else 0)
    exponent, mantissa = divmod(fields[0], 8)
    base = 1 << (10 + exponent)
    return base + base // 8 * mantissa
