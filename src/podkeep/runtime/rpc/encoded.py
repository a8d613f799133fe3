"""Messages of records, encoded once: a record never changes, so neither does what is said of it.

A list of 110 pods is mostly labels and annotations that were the same a second ago. What is kept is bounded, and
belongs to the record it was made of: a changed record is another object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import Message

MAX_KEPT = 1024
"""Records whose messages are kept; beyond that all are made anew."""


class HasId(Protocol):
    """A sandbox or container."""

    @property
    def id(self) -> str: ...


Record = TypeVar("Record", bound=HasId)


class Encoded(Generic[Record]):
    """What ``make`` returns of records, as bytes. Any thread may use it."""

    def __init__(self, make: Callable[[Record], Message]) -> None:
        self._make = make
        self._kept: dict[str, tuple[Record, bytes]] = {}

    def of(self, record: Record) -> bytes:
        """Return the encoded message of a record."""
        kept = self._kept.get(record.id)
        if kept is not None and kept[0] is record:
            return kept[1]
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        data = self._make(record).SerializeToString()
        self._kept[record.id] = (record, data)
        return data

    def repeated(self, records: Iterable[Record]) -> bytes:
        """Return the messages of records as the repeated field number 1 of a message (protobuf's wire format)."""
        parts: list[bytes] = []
        for record in records:
            data = self.of(record)
            parts += (b"\x0a", _varint(len(data)), data)
        return b"".join(parts)

    def __len__(self) -> int:
        return len(self._kept)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
