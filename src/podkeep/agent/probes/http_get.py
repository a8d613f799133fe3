"""HTTP GET of probes and hooks (k8s.io/kubernetes/pkg/probe/http): one request for each connection, over h11.

The server is hostile: what it sends is parsed by ``http/parser.py``, its body is read up to
10 kB, and the caller's timeout holds for everything, redirects included. Certificates are not verified, as upstream.
"""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urljoin, urlsplit

import h11
from msgspec import structs

from podkeep.agent.probes import dialing, ports
from podkeep.agent.probes.model import VERSION, Outcome, Target, Verdict
from podkeep.api.containers import HTTPGetAction
from podkeep.base.errors import InvalidArgument, PodkeepError, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import netloc
from podkeep.http.parser import Parser
from podkeep.http.transport import abort

_MAX_BODY = 10 * 1024
_MAX_HEAD = 64 * 1024
_MAX_REDIRECTS = 10
_READ_BYTES = 16 * 1024
_MAX_INTERIM = 16
"""Answers 1xx before the real one."""
_FOLLOWED = frozenset({301, 302, 303, 307, 308})
_IN_PATH = "/%:@!$&'()*+,;=~-._"
_IN_QUERY = _IN_PATH + '?[]"<>^`{|}\\'
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# OpenSSL's reasons for a first record that is no TLS; which of them depends on the first bytes of the answer.
_NOT_TLS = frozenset({"HTTP_REQUEST", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})


class TooLate(Unavailable):
    """The answer was not complete when the probe's timeout was over."""


class PlainAnswer(Unavailable):
    """A server that was asked over TLS answered without."""


class Request(FrozenStruct, kw_only=True):
    """A GET request. ``host`` and ``port`` are where it goes, ``target`` is what the first line has."""

    scheme: str
    host: str
    port: int
    target: str
    headers: tuple[tuple[str, str], ...]

    @property
    def url(self) -> str:
        """Return the URL as messages have it."""
        return f"{self.scheme}://{netloc.join(self.host, self.port)}{self.target}"


class Answer(FrozenStruct, kw_only=True):
    """A response; ``body``: its first 10 kB."""

    status: int
    location: str
    body: bytes


def request(action: HTTPGetAction, target: Target, purpose: str) -> Request:
    """Return the request for ``action``.

    :param purpose: what the header User-Agent says: ``probe`` or ``lifecycle``.
    :raises InvalidArgument: if the port is none, or a header cannot be sent.
    """
    return Request(
        scheme=(action.scheme or "HTTP").lower(),
        host=action.host or target.host,
        port=ports.resolve(action.port, target.container),
        target=_target(action.path),
        headers=_headers(action, purpose),
    )


def _target(path: str) -> str:
    """Return what the first line of a request has for ``path``: escaped, without a fragment or a host.

    A path with a broken escape is taken as it is, a question mark included (Go, ``url.Parse``; kubelet, ``formatURL``).
    """
    if _BROKEN_ESCAPE.search(path) or any(character < " " or character == "\x7f" for character in path):
        return "/" + quote(path, safe=_IN_PATH.replace("%", "")).lstrip("/")
    try:
        parts = urlsplit(path)
    except ValueError:
        return "/" + quote(path, safe=_IN_PATH.replace("%", "")).lstrip("/")
    place = quote(parts.path, safe=_IN_PATH)
    query = "?" + quote(parts.query, safe=_IN_QUERY) if parts.query else ""
    return (place if place.startswith("/") else "/" + place) + query


def _headers(action: HTTPGetAction, purpose: str) -> tuple[tuple[str, str], ...]:
    headers = [(header.name, header.value) for header in action.http_headers]
    names = {name.lower() for name, _ in headers}
    if "user-agent" not in names:
        headers.append(("User-Agent", f"kube-{purpose}/{VERSION}"))
    if "accept" not in names:
        headers.append(("Accept", "*/*"))
    # An empty one of these is how a manifest says that there is to be none.
    return tuple((name, value) for name, value in headers if value or name.lower() not in {"accept", "user-agent"})


async def probe(first: Request, timeout: float) -> Outcome:
    """Ask and judge the answer: 200 to 399 is success, with a warning where a redirect leads to another host.

    :param timeout: seconds for all of it.
    """
    try:
        answer = await get(first, timeout)
    except (TooLate, PlainAnswer, dialing.DialFailed) as error:
        return Outcome(verdict=Verdict.FAILURE, text=error.message)
    if not 200 <= answer.status < 400:
        # Without the body: it may have in it what those who see events are not to know (k8s.io issue 99425).
        return Outcome(verdict=Verdict.FAILURE, text=f"HTTP probe failed with statuscode: {answer.status}")
    body = answer.body.decode(errors="replace")
    if answer.status >= 300:
        return Outcome(verdict=Verdict.WARNING, text=f"Probe terminated redirects, Response body: {body}")
    return Outcome(verdict=Verdict.SUCCESS, text=body)


async def get(first: Request, timeout: float | None) -> Answer:
    """Return the answer, following redirects that stay on the host.

    :param timeout: seconds for all of it; ``None``: the caller limits it.
    :raises DialFailed: if there is no answer; the message is as Go's client words it.
    :raises TooLate: after ``timeout``.
    :raises PlainAnswer: if the server was asked over TLS and speaks HTTP.
    """
    asked, count = first, 0
    try:
        async with asyncio.timeout(timeout):
            while True:
                count += 1
                answer = await _ask(asked)
                following = _redirect(asked, answer)
                # A container must not have the node ask other machines for it.
                if following is None or following.host != first.host:
                    return answer
                if count >= _MAX_REDIRECTS:
                    raise dialing.DialFailed(f"stopped after {_MAX_REDIRECTS} redirects")
                asked = following
    except TimeoutError as error:
        text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        raise TooLate(_words(asked, text)) from error
    except PlainAnswer as error:
        raise PlainAnswer(_words(asked, error.message)) from error
    except PodkeepError as error:
        raise dialing.DialFailed(_words(asked, error.message)) from error


def _words(asked: Request, text: str) -> str:
    return f'Get "{asked.url}": {text}'


def _redirect(asked: Request, answer: Answer) -> Request | None:
    """Return the request that a redirect asks for; ``None`` if the answer is no redirect, or has no usable URL."""
    if answer.status not in _FOLLOWED or not answer.location:
        return None
    try:
        is_elsewhere = bool(urlsplit(answer.location).scheme)
        parts = urlsplit(urljoin(asked.url, answer.location))
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return None
    return structs.replace(
        asked,
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or (443 if parts.scheme == "https" else 80),
        target=_target(parts.path + (f"?{parts.query}" if parts.query else "")),
        # A header Host of the manifest holds for the server that it was sent to (Go, Client.do).
        headers=tuple(item for item in asked.headers if item[0].lower() != "host" or not is_elsewhere),
    )


async def _ask(asked: Request) -> Answer:
    """Send one request on a connection of its own and return what comes.

    :raises PodkeepError: if nothing comes that is HTTP.
    """
    connection = Parser(h11.CLIENT, _MAX_HEAD)
    data = _encoded(connection, asked)
    async with _connected(asked) as (reader, writer):
        writer.write(data)
        try:
            return await _Reading(connection, reader).answer()
        except h11.RemoteProtocolError as error:
            text = f"net/http: HTTP/1.x transport connection broken: malformed HTTP response: {error}"
            raise Unavailable(text[:256]) from error


def _encoded(connection: Parser, asked: Request) -> bytes:
    given = [value for name, value in asked.headers if name.lower() == "host"]
    host = given[0] if given and given[0] else netloc.join(asked.host, asked.port)
    headers = [("Host", host), *((name, value) for name, value in asked.headers if name.lower() != "host")]
    try:
        event = h11.Request(method="GET", target=asked.target, headers=[*headers, ("Connection", "close")])
        return (connection.send(event) or b"") + (connection.send(h11.EndOfMessage()) or b"")
    except (h11.LocalProtocolError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"the request cannot be sent: {error}") from error


@asynccontextmanager
async def _connected(asked: Request) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect, translate what breaks meanwhile, and close the connection without waiting for the peer."""
    tls = _any_certificate() if asked.scheme == "https" else None
    writer = None
    try:
        reader, writer = await dialing.connect(asked.host, asked.port, tls)
        yield reader, writer
    except ssl.SSLError as error:
        if error.reason in _NOT_TLS:
            raise PlainAnswer("http: server gave HTTP response to HTTPS client") from error
        raise Unavailable(f"tls: {error.reason or error}") from error
    except ConnectionResetError as error:
        raise Unavailable(f"read tcp {netloc.join(asked.host, asked.port)}: read: connection reset by peer") from error
    except OSError as error:
        raise Unavailable(dialing.why(error)) from error
    finally:
        if writer is not None:
            abort(writer.transport)


class _Reading:
    """Reads the response to one request, up to a limit of bytes."""

    def __init__(self, connection: Parser, reader: asyncio.StreamReader) -> None:
        self._connection = connection
        self._reader = reader

    async def answer(self) -> Answer:
        """Return the response, its body up to the limit.

        :raises Unavailable: if the server closes the connection before it.
        """
        response, body = None, b""
        while len(body) < _MAX_BODY:
            event = await self._event()
            if isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            else:
                break
        if response is None:
            raise Unavailable("EOF")
        location = next((value for name, value in response.headers if name == b"location"), b"")
        return Answer(status=response.status_code, location=location.decode("latin-1"), body=body[:_MAX_BODY])

    async def _event(self) -> object:
        """Return the next event that is no interim response."""
        for _ in range(_MAX_INTERIM):
            event = self._connection.next_event()
            while event is h11.NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                if not data and self._connection.their_state is h11.SEND_RESPONSE:
                    raise Unavailable("EOF")
                self._connection.receive_data(data)
                event = self._connection.next_event()
            if not isinstance(event, h11.InformationalResponse):
                return event
        raise Unavailable("net/http: too many 1xx informational responses")


@functools.cache
def _any_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
