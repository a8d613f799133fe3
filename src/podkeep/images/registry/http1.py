"""HTTP/1.1 as a client that trusts nobody: one connection, one exchange at a time.

Owns: the socket, the pace at which an answer must arrive, and a limit for every length that a peer can choose. What is
on the wire (requests, heads, interim answers, chunks) is h11's. A body whose end needs no parsing, because its length
is known or it ends with the connection, is read from the socket itself: through h11 it costs 0.3 s of CPU more per GiB,
for copies. Does not own: which host, TLS, redirects, credentials (``dialing.py``, ``client.py``, ``registry.py``).
Runs in the worker, and in ``podkeep artifact``.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import h11

from podkeep.http.parser import Parser

PIECE = 1 << 20
"""Bytes of a body that are asked of the socket at a time."""
LEAST = 1 << 16
"""Bytes that must arrive, at least, within the timeout of a connection."""
_READ = 1 << 14
"""Bytes of what is parsed that are asked of the socket at a time."""
_MAX_HEAD = 1 << 15
"""Bytes of a head, a trailer, or a chunk's first line."""
_MAX_HEADERS = 200
_MAX_FRAMING = 1 << 20
_FIRST = b"HTTP/1."


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

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self._sock = sock
        self._timeout = timeout
        self.begin()

    def begin(self) -> None:
        """Start to measure anew, for the next answer."""
        self.received = 0
        self._waited = 0.0
        self._lately = 0

    def receive(self, most: int) -> bytes:
        """Return at least one byte and at most ``most``; none at the end."""
        left = self._timeout - self._waited
        if left <= 0:
            raise self._stalled()
        start = time.monotonic()
        try:
            # What is left of the whole time: a peer that sends a byte now and then gains nothing by it.
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

    def _stalled(self) -> Stalled:
        got = f"{self._lately} bytes" if self._lately else "nothing"
        return Stalled(f"it sent {got} in {self._timeout:g} s", hint="images.progress_timeout is how long to wait")


class Headers(Mapping[str, str]):
    """The headers of an answer: names in any case, and the first value of each."""

    def __init__(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in items:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def every(self, name: str) -> list[str]:
        """Return all values of a header, in their order."""
        return list(self._values.get(name.lower(), ()))


class Answer:
    """An answer with its status and headers; its body is still to be read."""

    def __init__(self, connection: Connection, source: _Source, parser: Parser) -> None:
        self._connection = connection
        self._source = source
        self._parser = parser
        self.origin: tuple[str, str, int] | None = None
        """Scheme, host and port of who gave it, where redirects were followed."""
        head = self._head()
        self.status, self.headers = head.status_code, Headers(head.headers)
        self._framing_start = source.received
        self._content = 0
        self._chunked = "Transfer-Encoding" in self.headers
        length = None if self._chunked else self.headers.get("Content-Length")
        self._rest = None if length is None else int(length)
        # h11 knows which answers have no body, whatever their headers say.
        event = self._parsed()
        self._early = bytes(event.data) if isinstance(event, h11.Data) else b""
        self._ended = not self._early and event is not h11.NEED_DATA
        self.delimited = self._ended or self._chunked or self._rest is not None
        """Whether the body says where it ends; else a broken connection looks like its end."""
        self._closed = False

    def piece(self) -> bytes:
        """Return the next bytes of the body; none at its end.

        :raises TransferError: if the peer closes too early, stalls, or breaks the framing.
        """
        if self._early:
            data, self._early = self._early, b""
        elif self._ended:
            return b""
        elif self._chunked:
            data = self._dechunked()
        else:
            data = self._source.receive(PIECE if self._rest is None else min(PIECE, self._rest))
        self._content += len(data)
        if self._rest is None:
            self._ended = not data
        elif not data:
            raise BrokenOff(f"the connection was closed {self._rest} bytes early")
        else:
            self._rest -= len(data)
            self._ended = not self._rest
        return data

    def close(self) -> None:
        """Let go of the connection: for the next request if this answer was read to its end, else for good."""
        if self._closed:
            return
        self._closed = True
        surplus, _ = self._parser.trailing_data
        # Done, in h11's words, is a request that was sent whole, if neither side wants the connection closed.
        # Bytes behind the answer would be taken for the beginning of the next one.
        if self._ended and self.delimited and self._parser.our_state is h11.DONE and not surplus:
            self._connection.release()
        else:
            self._connection.close()

    def _head(self) -> h11.Response:
        """Return the head; interim answers are passed over, of which the parser takes a few."""
        while not isinstance(event := self._event(), h11.Response):
            pass
        if len(event.headers) > _MAX_HEADERS:
            raise BadAnswer(f"it sends more than {_MAX_HEADERS} headers")
        return event

    def _dechunked(self) -> bytes:
        # Chunks of a byte each are allowed, a stream of framing is not.
        if self._source.received - self._framing_start - self._content > _MAX_FRAMING + 8 * self._content:
            raise BadAnswer("it sends more framing than content")
        event = self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    def _event(self) -> object:
        """Return the next event, and read what it takes for that."""
        while (event := self._parsed()) is h11.NEED_DATA:
            data = self._source.receive(_READ)
            if not data:
                raise BrokenOff(
                    "the connection was closed in the middle of an answer" if self._source.received else _CLOSED
                )
            # The first bytes show that the server speaks another protocol; h11 would report an invalid status line.
            if self._source.received == len(data) and data[: len(_FIRST)] != _FIRST[: len(data)]:
                raise BadAnswer(f"it does not speak HTTP/1: it begins with {data[:40]!r}")
            self._parser.receive_data(data)
        return event

    def _parsed(self) -> object:
        try:
            return self._parser.next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                raise BadAnswer(f"it sends headers, or a line, of more than {_MAX_HEAD} bytes") from None
            # Behind the colon it quotes what came.
            raise BadAnswer(f"it does not keep to HTTP/1.1: {str(error).partition(':')[0][:120]}") from None


_CLOSED = "the connection was closed without an answer"


class Connection:
    """A connection to one server; one exchange at a time.

    :param timeout: seconds in which at least :data:`LEAST` bytes, or the whole rest, must arrive.
    """

    def __init__(self, sock: socket.socket, *, timeout: float) -> None:
        self._sock = sock
        self._source = _Source(sock, timeout)
        self._timeout = timeout
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
        parser = Parser(h11.CLIENT, _MAX_HEAD)
        sent = dict(headers)
        if isinstance(body, bytes) and (body or method in ("POST", "PUT", "PATCH")):
            sent["Content-Length"] = str(len(body))
        try:
            head = parser.send(h11.Request(method=method, target=target, headers=list(sent.items())))
        except (h11.LocalProtocolError, UnicodeError):
            # Not "from", and not in its words: they have the value, which may be a secret.
            raise BadAnswer("a request of that would have characters that HTTP does not allow") from None
        try:
            self._sock.settimeout(self._timeout)
            if isinstance(body, bytes):
                self._sock.sendall(head + parser.send(h11.Data(data=body)))
            else:
                self._sock.sendall(head)
                for piece in body:
                    self._sock.sendall(parser.send(h11.Data(data=piece)))
            parser.send(h11.EndOfMessage())
        # To an upload that it refuses it may have answered before it closed, or stopped to read.
        except TimeoutError as error:
            if isinstance(body, bytes) or not self.dropped():
                raise Stalled(f"it takes nothing for {self._timeout:g} s") from error
        except OSError as error:
            if isinstance(body, bytes):
                raise BrokenOff(f"the connection broke: {error.strerror or error}") from error
        return Answer(self, self._source, parser)

    def dropped(self) -> bool:
        """Return whether an idle connection is of no use any more: closed, or with something nobody asked for."""
        # What TLS has decrypted has left the socket.
        pending = getattr(self._sock, "pending", None)
        if pending is not None and pending():
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def untouched(self) -> bool:
        """Whether nothing of an answer to the last request arrived."""
        return self._source.received == 0

    def release(self) -> None:
        """Give the connection back for the next exchange, or close it if it cannot be used again."""
        self.used = True
        if self.on_release is None:
            self.close()
        else:
            self.on_release()

    def close(self) -> None:
        self._sock.close()
