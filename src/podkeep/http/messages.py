"""What a server and its handler say to each other: a request, and the response or the upgrade that answers it.

A handler is called once for each request. It returns a :class:`Response`, or an :class:`Upgrade` if the client asked
for another protocol, or raises :class:`Refused`. Any other exception is answered with 500.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NewType, Protocol, TypeAlias, TypeVar

import msgspec

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.http.budget import Account
from podkeep.http.transport import Transport

Headers: TypeAlias = Sequence[tuple[str, str]]
Chunk = NewType("Chunk", bytes)
"""Data as a chunk of a body: see :func:`framed`."""
WriteNow: TypeAlias = Callable[[Chunk], bool]
_Result = TypeVar("_Result")


def framed(data: bytes) -> Chunk:
    """Return data, which must not be empty, as a chunk of a body (RFC 9112, section 7.1)."""
    return Chunk(b"%x\r\n%b\r\n" % (len(data), data))


def encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return headers as they are sent. What a peer sent was decoded so, too: any byte of it can be passed on."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


class Refused(InvalidArgument):
    """The request is answered with an HTTP error; ``status`` is its code, ``headers`` go with it."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Head(FrozenStruct, kw_only=True):
    """``headers`` with names in lower case; a name that comes several times has its values in order."""

    method: str
    target: str
    """As the client sent it: neither decoded nor normalised."""
    headers: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)

    @property
    def path(self) -> str:
        """The target without its query, still percent-encoded."""
        return self.target.partition("?")[0]

    def tokens(self, name: str) -> list[str]:
        """Return the members of a header that is a list, over all its lines."""
        return [token for line in self.headers.get(name, ()) for item in line.split(",") if (token := item.strip())]

    @property
    def upgrade(self) -> str:
        """What the client wants to change to, in lower case; empty if it does not."""
        if "upgrade" not in {token.lower() for token in self.tokens("connection")}:
            return ""
        return ", ".join(self.headers.get("upgrade", ())).lower()


class Credentials(FrozenStruct, kw_only=True):
    """The process that connected to a unix socket, when it did (SO_PEERCRED, unix(7))."""

    pid: int
    uid: int
    gid: int


class Peer(FrozenStruct, kw_only=True):
    """Who is at the other end, as far as the connection itself proves it."""

    address: str = ""
    """IP address; empty on a unix socket."""
    certificate: Mapping[str, Any] | None = None
    """The client's certificate, verified against the server's client CA (form: ``ssl.SSLSocket.getpeercert``); None if
    it showed none."""
    fingerprint: str = ""
    """SHA-256 of that certificate (DER), as hexadecimal digits."""
    credentials: Credentials | None = None
    """On a unix socket only."""


class Body:
    """A request's body: its pieces as they come (``async for``), or the whole (:meth:`read`); once.

    What a handler does not read is not kept. The connection is closed after the response unless the rest has come.

    :param receive: returns the next piece; nothing at the end.
    :param length: what the client announced; None: it sends chunks.
    :param account: what is read whole is counted there.
    :param timeout: seconds that the next piece may take, and the whole.
    """

    def __init__(
        self, receive: Callable[[], Awaitable[bytes]], length: int | None, account: Account, timeout: float
    ) -> None:
        self._receive, self._length, self._account, self._timeout = receive, length, account, timeout

    @property
    def length(self) -> int | None:
        """How many bytes the client announced; None: it sends chunks."""
        return self._length

    @property
    def is_empty(self) -> bool:
        """Whether the client announced that there is none."""
        return self._length == 0

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        try:
            async with asyncio.timeout(self._timeout):
                piece = await self._receive()
        except TimeoutError as error:
            raise Refused(408, "the request's body did not come in time") from error
        if not piece:
            raise StopAsyncIteration
        return piece

    async def read(self, limit: int) -> bytes:
        """Return the whole body.

        :param limit: in bytes; a longer one is refused, if it is announced before anything is read.
        :raises Refused: if it is longer, takes too long, or all bodies together are more than the server keeps.
        """
        if self._length is not None and self._length > limit:
            raise Refused(413, f"the request's body has {self._length} bytes; at most {limit} are taken")
        data = bytearray()
        try:
            # Over all pieces: one byte now and then would keep each single piece in time.
            async with asyncio.timeout(self._timeout):
                async for piece in self:
                    data += piece
                    if len(data) > limit:
                        raise Refused(413, f"the request's body has more than {limit} bytes")
                    self._account.keep(len(piece))
                    if self._account.is_above_share:
                        raise Refused(503, "too many requests with large bodies at a time", [("Retry-After", "1")])
        except TimeoutError as error:
            raise Refused(408, "the request's body did not come in time") from error
        return bytes(data)


class WhileThere(Protocol):
    """See :attr:`Request.while_there`."""

    async def __call__(self, work: Coroutine[Any, Any, _Result], /) -> _Result:
        """Return what ``work`` does."""
        ...


class Admit(Protocol):
    """Called when the client has shown that it is entitled."""

    def __call__(self, owner: str = "") -> None:
        """Keep the connection from being closed to make room for strangers, until the response is complete.

        :param owner: for whom it is. Where there are too many, whoever has the most of them loses the newest.
        :raises Refused: if there are too many, and no owner has more.
        """
        ...


async def _in_any_case(work: Coroutine[Any, Any, _Result], /) -> _Result:
    return await work


class Request(Head, kw_only=True):
    """A request whose head has come."""

    body: Body
    peer: Peer
    stopping: asyncio.Event
    """Set when the server is being stopped: what would go on for long ends by itself then, as a watch does."""
    at_end: ExitStack
    """Closed when the request has been answered, or cannot be. A response's generator that was never started runs none
    of its ``finally``: what must be given back is registered here."""
    admit: Admit
    """See :class:`Admit`."""
    write_now: WriteNow = lambda _: False
    """Writes a chunk of the response that is being sent, while the next one of its generator is waited for, without
    waking who waits: with many connections that costs as much as the write. False: nothing was written, since the
    client has not taken all there was before, or the response is not sent in chunks."""
    while_there: WhileThere = _in_any_case
    """Awaits something that may take as long as it likes, before there is an answer: it is cancelled, and
    :class:`~podkeep.http.budget.ClientGone` raised, when the client leaves."""


class Response(FrozenStruct, kw_only=True):
    """An answer with a whole body, or with one that is made while it is sent, chunk by chunk.

    The next chunk is asked for when the client has taken enough of those before; each is held whole, so 64 KiB are
    plenty. The generator is closed when the client leaves, or takes nothing for the server's ``write_timeout``.
    """

    status: int = 200
    headers: Headers = ()
    """Without those that frame the body, which the server adds."""
    body: bytes | AsyncGenerator[bytes, None] = b""


class Upgrade(FrozenStruct, kw_only=True):
    """``101 Switching Protocols``, and then a session on the connection, with what the client sent early."""

    headers: Headers
    """With ``connection`` and ``upgrade``."""
    session: Callable[[Transport], Awaitable[None]]
    """The connection is closed when it returns."""
    idle_timeout: float
    """Seconds without a byte in either direction after which the connection is closed."""
    owner: str = ""
    """Whose session it is: sessions of one owner take turns (``budget.py``)."""


Handler: TypeAlias = Callable[[Request], Awaitable[Response | Upgrade]]
