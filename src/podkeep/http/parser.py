"""h11 for peers that may be hostile: whatever they send takes a time in proportion to its length.

Owns: which bytes are looked at before h11 has them, and how. Does not own: what is wrong with them (``heads.py``), or
HTTP/1.1, which is h11's. Whoever speaks HTTP/1.1, as a server or as a client, parses with this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11

from podkeep.http.heads import Chunks, Head

if TYPE_CHECKING:
    # The worker that pulls images, which reads no stream, takes a fifth longer to start with it.
    import asyncio

MAX_INTERIM_ANSWERS = 5
"""Of one request, 101 not counted (Go: ``max1xxResponses``): a server could send them for ever, and each takes work."""
_SWITCHING_PROTOCOLS = 101
_READ_BYTES = 64 * 1024
_Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class Parser(h11.Connection):
    """:class:`h11.Connection`; heads, lines of chunks and trailers that are wrong or too long raise as others do, and
    so do interim answers that are too many.

    :param limit: bytes of a head, of the trailers, or of a chunk's first line.
    """

    def __init__(self, role: type[h11.CLIENT] | type[h11.SERVER], limit: int) -> None:
        super().__init__(role, max_incomplete_event_size=limit)
        self._limit = limit
        self._looking: Head | Chunks | None = Head()
        self._refusal: h11.RemoteProtocolError | None = None
        self._interim_answers = 0

    def receive_data(self, data: bytes) -> None:
        """See :class:`h11.Connection`."""
        self._look_at(data)
        if self._refusal is None:
            super().receive_data(data)

    def next_event(self) -> _Event:
        """See :class:`h11.Connection`."""
        if self._refusal is not None:
            raise self._refusal
        event = super().next_event()
        if isinstance(event, h11.InformationalResponse) and event.status_code != _SWITCHING_PROTOCOLS:
            self._interim_answers += 1
            if self._interim_answers > MAX_INTERIM_ANSWERS:
                self._refusal = h11.RemoteProtocolError("too many 1xx informational responses")
                raise self._refusal
        # What came behind the head is with h11 already: it is looked at now, before h11 is asked for the next event.
        if isinstance(event, h11.Request | h11.Response | h11.InformationalResponse):
            self._looking = self._next_to_look_at(event)
            self._look_at(bytes(self.trailing_data[0]))
        return event

    async def event_of(self, reader: asyncio.StreamReader) -> _Event:
        """Return the next event, which is never ``NEED_DATA``, reading what it takes."""
        while (event := self.next_event()) is h11.NEED_DATA:
            self.receive_data(await reader.read(_READ_BYTES))
        return event

    def start_next_cycle(self) -> None:
        """See :class:`h11.Connection`."""
        super().start_next_cycle()
        self._interim_answers = 0
        self._looking = Head()
        self._look_at(bytes(self.trailing_data[0]))

    def _next_to_look_at(self, event: h11.Request | h11.Response | h11.InformationalResponse) -> Head | Chunks | None:
        # After an interim answer another head follows.
        if self.their_state is h11.SEND_RESPONSE:
            return Head()
        is_chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
        return Chunks() if is_chunked and self.their_state is h11.SEND_BODY else None

    def _look_at(self, data: bytes) -> None:
        looking = self._looking
        if looking is None or self._refusal is not None:
            return
        if not looking.add(data):
            self._refusal = h11.RemoteProtocolError(looking.wrong)
        elif looking.size > self._limit:
            words = f"a head, a line or trailers of more than {self._limit} bytes"
            self._refusal = h11.RemoteProtocolError(words, error_status_hint=431)
