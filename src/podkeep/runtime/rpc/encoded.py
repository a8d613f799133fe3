"""Messages of records, encoded once: a record never changes, so neither does what is said of it.

A list of 110 pods is mostly labels and annotations that were the same a second ago. What is kept is bounded, and
belongs to the record it was made of: a changed record is another object, and a message goes with its record.

A list that would be more than one message holds is told with less of the largest items (``shortening.py``).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from podkeep.runtime.rpc.chunks import FRAME, LIST_BYTES
from podkeep.runtime.rpc.shortening import KEPT_CHARACTERS, Described, leave_out

log = logging.getLogger(__name__)

MAX_KEPT = 1024
"""Records whose messages are kept; beyond that all are made anew."""


class HasId(Protocol):
    """A sandbox or container."""

    @property
    def id(self) -> str: ...


Record = TypeVar("Record", bound=HasId)


class Encoded(Generic[Record]):
    """What ``make`` returns of records, as bytes. Any thread may use it."""

    def __init__(self, make: Callable[[Record], Described]) -> None:
        self._make = make
        self._kept: dict[str, tuple[weakref.ref[Record], bytes]] = {}
        self._logged = False

    def of(self, record: Record) -> bytes:
        kept = self._kept.get(record.id)
        if kept is not None and kept[0]() is record:
            return kept[1]
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        data = self._make(record).SerializeToString()
        self._kept[record.id] = (weakref.ref(record, self._gone(record.id)), data)
        return data

    def _gone(self, record_id: str) -> Callable[[weakref.ref[Record]], None]:
        kept = self._kept

        def gone(reference: weakref.ref[Record]) -> None:
            # The record's successor has the same ID, and its message may be kept by now.
            if (found := kept.get(record_id)) is not None and found[0] is reference:
                kept.pop(record_id, None)

        return gone

    def within(self, records: Sequence[Record], most: int) -> list[bytes]:
        """Return the encoded messages of records; if they have more than ``most`` bytes together, those that have more
        than their share are without labels and annotations but the kubelet's, if need be without long ones of these."""
        messages = [self.of(record) for record in records]
        if _size(messages) <= most:
            return messages
        share, short = most // len(messages) - FRAME, ""
        for kept in KEPT_CHARACTERS:
            for number, record in enumerate(records):
                if len(messages[number]) > share:
                    message = self._make(record)
                    leave_out(message, kept)
                    messages[number] = message.SerializeToString()
                    short = short or record.id
            if _size(messages) <= most:
                break
        if not self._logged:
            self._logged = True
            log.warning(
                "a list is more than a message holds: labels and annotations are left out, such as of %s", short
            )
        return messages

    def repeated(self, records: Sequence[Record], *, most: int = LIST_BYTES) -> bytes:
        """Return the messages of records as the repeated field number 1 of a message (protobuf's wire format).

        :param most: bytes; see :meth:`within`.
        """
        parts: list[bytes] = []
        for data in self.within(records, most):
            parts += (b"\x0a", _varint(len(data)), data)
        return b"".join(parts)

    def __len__(self) -> int:
        return len(self._kept)


def _size(messages: Sequence[bytes]) -> int:
    return sum(len(data) + FRAME for data in messages)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
