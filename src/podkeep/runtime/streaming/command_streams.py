"""A client of a command: its streams, the sizes of its terminal, and whether it is still there.

The streams themselves are those of its connection (``http/streams.py``).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from podkeep.base.frozen import FrozenStruct
from podkeep.http.streams import Sink, Source

MAX_RESIZE_BYTES = 4096
"""Longest line that says a terminal's size."""
MAX_RESIZE_LINES = 64
"""Sizes looked at of one portion; of more the last ones count."""
MAX_SIDE = 65535
"""The kernel keeps a terminal's sides as 16 bits (ioctl_tty(2), TIOCSWINSZ)."""


class Size(FrozenStruct):
    """A terminal's size in characters."""

    width: int
    height: int


@dataclass(kw_only=True)
class CommandStreams:
    """A client of a command. What it did not ask for is None; ``status`` takes the text or JSON of the end.

    ``gone`` is set when the client has left.
    """

    status: Sink
    gone: asyncio.Event
    stdin: Source | None = None
    stdout: Sink | None = None
    stderr: Sink | None = None
    resize: Source | None = None
    json_status: bool = True
    """Whether the protocol's version has a status as JSON (v4 and newer), or a plain text in case of an error."""


@dataclass
class ResizeDecoder:
    """Finds sizes in a stream of JSON objects, ``{"Width": 80, "Height": 24}``, one per line."""

    _rest: bytes = field(default=b"", init=False)

    @property
    def is_between_lines(self) -> bool:
        """Whether all that has come was whole lines."""
        return not self._rest

    def feed(self, data: bytes) -> list[Size]:
        """Return the sizes complete with ``data``; a line that is none is passed over."""
        *lines, self._rest = (self._rest + data).rsplit(b"\n", MAX_RESIZE_LINES)
        if len(self._rest) > MAX_RESIZE_BYTES:
            self._rest = b""
        # Not every client ends the last object with a new line.
        if (size := parse_size(self._rest)) is not None:
            lines, self._rest = [*lines, self._rest], b""
            return [*filter(None, map(parse_size, lines[:-1])), size]
        return list(filter(None, map(parse_size, lines)))


def parse_size(line: bytes) -> Size | None:
    """Return the size a JSON object says, or None if it says none."""
    if len(line) > MAX_RESIZE_BYTES:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    width, height = message.get("Width"), message.get("Height")
    if type(width) is not int or type(height) is not int:
        return None
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        return None
    return Size(width=width, height=height)
