"""Looking at heads, chunks' lines and trailers of HTTP/1.1 before h11 parses them (``parser.py``).

h11 finds a line wrong in a time that grows with the square of the blanks in it, if they come before a byte that no
header may have: a head of 16 kB took it seconds, on the thread that serves everybody. It also parses whatever has come,
however long it is. So what such a byte is in, and what is folded over several lines, is told before.
"""

from __future__ import annotations

import re

_END = re.compile(rb"\n\r?\n")
_WRONG = re.compile(rb"[\0\x0b\x0c]|\r[^\n]|\n[ \t]")  # RFC 9112, 2.2 and 5.2: a server may refuse each of them
# h11 takes as many digits.
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,20})[ \t]*(?:;[^\r\n]*)?\r\n")
_AFTER_CHUNK = b"\r\n"


class Head:
    """What has come of one head, in pieces of any size; what comes behind it is not looked at."""

    wrong = "a byte that no head may have, or a folded line"

    def __init__(self) -> None:
        self._seen = b""
        self.is_whole = False
        self.size = 0
        """Bytes of it that have come."""

    def add(self, data: bytes) -> bool:
        """Look at the next piece; return whether all is well so far."""
        if self.is_whole:
            return True
        # What is looked for may have begun in the piece before.
        start = max(len(self._seen) - 3, 0)
        self._seen += data
        end = _END.search(self._seen, start)
        self.is_whole = end is not None
        self.size = end.end() if end else len(self._seen)
        return _WRONG.search(self._seen, start, self.size) is None


class Chunks:
    """What has come of a chunked body, in pieces of any size: its lines, and its trailers, which are a head's."""

    def __init__(self) -> None:
        self.wrong = ""
        self._line = b""
        self._data_left = 0
        self._after_data = False
        self._trailers: Head | None = None

    @property
    def size(self) -> int:
        """Bytes that have come of a line that is not whole, or of the trailers."""
        return len(self._line) if self._trailers is None else self._trailers.size

    def add(self, data: bytes) -> bool:
        """Look at the next piece; return whether all is well so far, else :attr:`wrong` says what is not."""
        at = 0
        while at < len(data) and self._trailers is None:
            if self._data_left:
                taken = min(self._data_left, len(data) - at)
                self._data_left -= taken
                at += taken
                continue
            end = data.find(b"\n", at) + 1
            self._line += data[at : end or len(data)]
            if not end:
                return True
            at = end
            line, self._line = self._line, b""
            if not self._add_line(line):
                return False
        if self._trailers is None or self._trailers.add(data[at:]):
            return True
        self.wrong = self._trailers.wrong
        return False

    def _add_line(self, line: bytes) -> bool:
        if self._after_data:
            self._after_data = False
            self.wrong = "" if line == _AFTER_CHUNK else "malformed chunk footer"
        elif size := _CHUNK.fullmatch(line):
            self._data_left = int(size[1], 16)
            self._after_data = self._data_left > 0
            if not self._data_left:
                self._trailers = Head()
                # The end of the last chunk's line: if there are no trailers, the empty line that ends the body follows
                # it.
                self._trailers.add(b"\n")
        else:
            self.wrong = "illegal chunk header"
        return not self.wrong
