"""HTTP/1.1 as a client that trusts nobody: one connection, one exchange at a time.

Owns: writing a request, reading the head and the framing of its answer (RFC 9112), and the pace at which it must
arrive. Every length a peer can choose has a limit. Does not own: which host, TLS, redirects, credentials
(``dialing.py``, ``client.py``, ``registry.py``). Runs in the worker only.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

PIECE = 1 << 20
"""Bytes of a body that are asked of the socket at a time."""
LEAST = 1 << 16
"""Bytes that must arrive, at least, within the patience of a connection."""
_READ_HEAD = 1 << 14
_MAX_HEAD = 1 << 16
_MAX_HEADERS = 200
_MAX_INTERIM = 8
_MAX_FRAMING = 1 << 20
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_BODY = (204, 304)


class TransferError(Exception):
    """A connection could not be made or used; the text says what happened, without the host."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class BrokenOff(TransferError):
    """The peer closed or reset the connection."""


class Stalled(TransferError):
    """The peer sends nothing, or too little."""


class BadAnswer(TransferError):
    """The peer does not keep to HTTP."""


class _Source:
    """The bytes of a connection as they arrive. Only the time spent waiting for the peer counts."""

    def __init__(self, sock: socket.socket, patience: float) -> None:
        self._sock = sock
        self._patience = patience
        self._buffer = b""
        self._at = 0
        self.begin()

    def begin(self) -> None:
        """Start to measure anew, for the next answer."""
        self.received = 0
        self._waited = 0.0
        self._lately = 0

    def receive(self, most: int) -> bytes:
        """Return at least one byte and at most ``most``; none at the end."""
        if self._at < len(self._buffer):
            data = self._buffer[self._at : self._at + most]
            self._at += len(data)
            return data
        left = self._patience - self._waited
        if left <= 0:
            raise self._stalled()
        start = time.monotonic()
        try:
            self._sock.settimeout(left)
            data = self._sock.recv(most)
        except TimeoutError as error:
            raise self._stalled() from error
        except OSError as error:
            raise BrokenOff(f"the connection broke: {error.strerror or error}") from error
        self._waited += time.monotonic() - start
        self._lately += len(data)
        self.received += len(data)
        if self._lately >= LEAST:
            self._waited, self._lately = 0.0, 0
        return data

    def line(self, most: int) -> bytes:
        """Return a line without its end; ``most``: bytes it may have."""
        data = b""
        while True:
            end = self._buffer.find(b"\n", self._at)
            if end < 0:
                data += self._buffer[self._at :]
                self._buffer, self._at = b"", 0
            else:
                data += self._buffer[self._at : end]
                self._at = end + 1
            if len(data) > most + 1:
                raise BadAnswer(f"it sends a line of more than {most} bytes")
            if end >= 0:
                return data.removesuffix(b"\r")
            self._buffer = self.receive(_READ_HEAD)
            if not self._buffer:
                raise BrokenOff("the connection was closed in the middle of an answer" if self.received else _CLOSED)

    def _stalled(self) -> Stalled:
        got = f"{self._lately} bytes" if self._lately else "nothing"
        return Stalled(f"it sent {got} in {self._patience:g} s", hint="images.progress_timeout is how long to wait")

    @property
    def surplus(self) -> bool:
        """Whether more arrived than belongs to the answer."""
        return self._at < len(self._buffer)


_CLOSED = "the connection was closed without an answer"


class Headers(Mapping[str, str]):
    """The headers of an answer: names in any case, and the first value of each."""

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = {}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, name: str, value: str) -> None:
        """Add a value after those of the same name."""
        self._values.setdefault(name.lower(), []).append(value)

    def every(self, name: str) -> list[str]:
        """Return all values of a header, in their order."""
        return list(self._values.get(name.lower(), ()))


class Answer:
    """An answer with its status and headers; its body is still to be read."""

    def __init__(self, connection: Connection, source: _Source, method: str) -> None:
        self._connection = connection
        self._source = source
        self.origin: tuple[str, str, int] | None = None
        """Scheme, host and port of who gave it, where redirects were followed."""
        self.status, self.headers, persistent = _head(source)
        self._chunked = False
        self._rest: int | None = 0
        self._content = 0
        if method != "HEAD" and self.status not in _NO_BODY:
            self._frame()
        self.delimited = self._rest is not None
        """Whether the body says where it ends; else a broken connection looks like its end."""
        self._persistent = persistent and self.delimited
        self._ended = self._rest == 0 and not self._chunked
        self._framing_start = source.received
        self._closed = False

    def piece(self, most: int = PIECE) -> bytes:
        """Return the next bytes of the body; none at its end.

        :raises TransferError: if the peer closes too early, stalls, or breaks the framing.
        """
        if self._rest == 0 and self._chunked:
            self._next_chunk()
        if self._ended:
            return b""
        data = self._source.receive(most if self._rest is None else min(most, self._rest))
        self._content += len(data)
        if self._rest is None:
            self._ended = not data
        elif not data:
            raise BrokenOff(f"the connection was closed {self._rest} bytes early")
        else:
            self._rest -= len(data)
            self._ended = not self._rest and not self._chunked
        return data

    def close(self) -> None:
        """Let go of the connection: for the next request if this answer was read to its end, else for good."""
        if self._closed:
            return
        self._closed = True
        if self._ended and self._persistent and not self._source.surplus:
            self._connection.release()
        else:
            self._connection.close()

    def _frame(self) -> None:
        """Find out how the end of the body is told (RFC 9112, 6.3)."""
        coding = ", ".join(self.headers.every("Transfer-Encoding")).strip().lower()
        lengths = set(self.headers.every("Content-Length"))
        if coding:
            if coding != "chunked":
                raise BadAnswer(f"it uses the transfer coding {coding[:40]!r}")
            self._chunked = True
        elif not lengths:
            self._rest = None
        else:
            (text, *more) = lengths
            if more or not text.isascii() or not text.isdecimal() or len(text) > 18:
                raise BadAnswer(f"its Content-Length is {', '.join(sorted(lengths))[:60]!r}")
            self._rest = int(text)

    def _next_chunk(self) -> None:
        if self._content:
            self._end_of_chunk()
        size, _, _ = self._source.line(4096).partition(b";")
        try:
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size.strip()):
                raise ValueError
            self._rest = int(size, 16)
        except ValueError as error:
            raise BadAnswer(f"it sends {size[:20]!r} as the size of a chunk") from error
        if not self._rest:
            self._ended = True
            for _ in range(_MAX_HEADERS):
                if not self._source.line(_MAX_HEAD):
                    return
            raise BadAnswer("its trailer has no end")
        # Chunks of a byte each are allowed, a stream of framing is not.
        framing = self._source.received - self._framing_start - self._content
        if framing > _MAX_FRAMING + 8 * self._content:
            raise BadAnswer("it sends more framing than content")

    def _end_of_chunk(self) -> None:
        if self._source.line(2):
            raise BadAnswer("it sends a chunk that is longer than it says")


def _head(source: _Source) -> tuple[int, Headers, bool]:
    """Return status, headers, and whether the connection stays; interim answers are passed over."""
    left = _MAX_HEAD
    for _ in range(_MAX_INTERIM):
        first = source.line(left)
        match = _STATUS.fullmatch(first)
        if match is None:
            raise BadAnswer(f"it does not speak HTTP/1: it begins with {first[:40]!r}")
        left -= len(first)
        headers = Headers()
        for _ in range(_MAX_HEADERS):
            line = source.line(max(left, 0))
            left -= len(line) + 2
            if not line:
                break
            name, colon, value = line.partition(b":")
            if not colon or not _TOKEN.fullmatch(name):
                raise BadAnswer(f"it sends {line[:40]!r} as a header")
            headers.add(name.decode(), value.strip(b" \t").decode("latin-1"))
        else:
            raise BadAnswer(f"it sends more than {_MAX_HEADERS} headers")
        status = int(match[2])
        if status >= 200:
            options = ",".join(headers.every("Connection")).lower()
            return status, headers, match[1] == b"1" and "close" not in options
    raise BadAnswer("it sends interim answers without end")


class Connection:
    """A connection to one server; one exchange at a time.

    :param patience: seconds in which at least :data:`LEAST` bytes, or the whole rest, must arrive.
    """

    def __init__(self, sock: socket.socket, *, patience: float) -> None:
        self._sock = sock
        self._source = _Source(sock, patience)
        self._patience = patience
        self.used = False
        """Whether it served an exchange before: the peer may have closed it meanwhile."""
        self.on_release: Callable[[], None] | None = None
        """Called when an answer was read to its end and the connection can take the next request."""

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | Iterable[bytes] = b""
    ) -> Answer:
        """Send a request and return the answer, its body unread. ``headers`` has all there is but Content-Length.

        :param body: what is sent; of an iterable, ``headers`` must have the Content-Length.
        :raises TransferError: if it cannot be sent, or no good head comes back.
        """
        self._source.begin()
        sent = dict(headers)
        if isinstance(body, bytes) and (body or method in ("POST", "PUT", "PATCH")):
            sent["Content-Length"] = str(len(body))
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        if re.search(r"[^\t -~]", head.replace("\r\n", "")) or head.count("\n") != len(sent) + 1:
            raise BadAnswer("a request of that would have characters that HTTP does not allow")
        try:
            self._sock.settimeout(self._patience)
            if isinstance(body, bytes):
                self._sock.sendall(f"{head}\r\n".encode("ascii") + body)
            else:
                self._sock.sendall(f"{head}\r\n".encode("ascii"))
                for piece in body:
                    self._sock.sendall(piece)
        except TimeoutError as error:
            raise Stalled(f"it takes nothing for {self._patience:g} s") from error
        except OSError as error:
            # It may have answered before it closed: to an upload it refuses.
            if isinstance(body, bytes):
                raise BrokenOff(f"the connection broke: {error.strerror or error}") from error
        return Answer(self, self._source, method)

    def dropped(self) -> bool:
        """Return whether an idle connection is of no use any more: closed, or with something nobody asked for."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def untouched(self) -> bool:
        """Whether nothing of an answer to the last request arrived."""
        return self._source.received == 0

    def release(self) -> None:
        """Give the connection back for the next exchange, or close it if nobody wants it."""
        self.used = True
        if self.on_release is None:
            self.close()
        else:
            self.on_release()

    def close(self) -> None:
        """Close it."""
        self._sock.close()
