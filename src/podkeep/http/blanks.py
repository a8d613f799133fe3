"""What h11 is not given to parse: many blanks before a byte that no header may have.

h11 finds such a line wrong in a time that grows with the square of its blanks: a head of 16 kB took it seconds, on the
thread that serves everybody.
"""

from __future__ import annotations

import re

MAX_BLANKS = 50
"""Blanks in a row that may stand before such a byte; what h11 takes for so few is not noticed."""
_WRONG = re.compile(rb"(?<![ \t])[ \t]{%d,}+(?:[\0\x0b\x0c]|\r[^\n])" % MAX_BLANKS)
_OPEN = re.compile(rb"[ \t]*\r?\Z")


class Blanks:
    """Looks at what comes of one connection, in pieces of any size, before it is parsed."""

    def __init__(self) -> None:
        self._open = b""

    def found_in(self, data: bytes) -> bool:
        """Tell whether ``data``, which follows what was looked at before, has such a place."""
        joined = self._open + data
        if _WRONG.search(joined):
            return True
        end = _OPEN.search(joined, max(len(joined) - MAX_BLANKS - 1, 0))
        self._open = end[0] if end else b""
        return False
