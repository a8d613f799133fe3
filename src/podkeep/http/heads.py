"""Looking at the head of an HTTP/1.1 message before h11 parses it.

h11 finds a line wrong in a time that grows with the square of the blanks in it, if they come before a byte that no
header may have: a head of 16 kB took it seconds, on the thread that serves everybody. It also parses whatever has come,
however long it is. So what such a byte is in, and what is folded over several lines, is told before.
"""

from __future__ import annotations

import re

_END = re.compile(rb"\n\r?\n")
_WRONG = re.compile(rb"[\0\x0b\x0c]|\r[^\n]|\n[ \t]")  # RFC 9112, 2.2 and 5.2: a server may refuse each of them


class Head:
    """What has come of one head, in pieces of any size; what comes behind it is not looked at."""

    def __init__(self) -> None:
        self._seen = b""
        self.is_whole = False
        self.size = 0
        """Bytes of it that have come."""

    def add(self, data: bytes) -> bool:
        """Look at the next piece; return whether all is well so far."""
        if self.is_whole:
            return True
        start = max(len(self._seen) - 3, 0)
        self._seen += data
        end = _END.search(self._seen, start)
        self.is_whole = end is not None
        self.size = end.end() if end else len(self._seen)
        return _WRONG.search(self._seen, start, self.size) is None
