"""Messages of records, encoded once: a record never changes, so neither does what is said of it.

A list of 110 pods is mostly labels and annotations that were the same a second ago. What is kept is bounded, and
belongs to the record it was made of: a changed record is another object, and a message goes with its record.

A list that would be more than one message holds is told with less of the largest items: some pods with as many
annotations as the Kubernetes API takes must not keep a kubelet from seeing the others.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from podkeep.runtime.rpc.chunks import FRAME, LIST_BYTES

log = logging.getLogger(__name__)

OF_KUBELETS = "io.kubernetes."
"""What begins the labels and annotations that a kubelet finds its pods and containers by."""
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
        self._kept: dict[str, tuple[weakref.ref[Record], bytes]] = {}
        self._logged = False

    def of(self, record: Record) -> bytes:
        """Return the encoded message of a record."""
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
            if (found := kept.get(record_id)) is not None and found[0] is reference:
                kept.pop(record_id, None)

        return gone

    def repeated(self, records: Sequence[Record], *, most: int = LIST_BYTES) -> bytes:
        """Return the messages of records as the repeated field number 1 of a message (protobuf's wire format).

        :param most: bytes; if it is more, those that have more than their share are told without labels and annotations
            but the kubelet's.
        """
        messages = [self.of(record) for record in records]
        if sum(len(data) + FRAME for data in messages) > most:
            messages = self._shortened(records, messages, most // len(messages) - FRAME)
        parts: list[bytes] = []
        for data in messages:
            parts += (b"\x0a", _varint(len(data)), data)
        return b"".join(parts)

    def _shortened(self, records: Iterable[Record], messages: Sequence[bytes], share: int) -> list[bytes]:
        result, short = [], []
        for record, data in zip(records, messages, strict=True):
            if len(data) > share:
                message: Any = self._make(record)
                for texts in (message.annotations, message.labels):
                    for key in [key for key in texts if not key.startswith(OF_KUBELETS)]:
                        del texts[key]
                short.append(record.id)
                data = message.SerializeToString()
            result.append(data)
        if not self._logged:
            self._logged = True
            log.warning(
                "a list is more than a message holds: %d items are told without labels and annotations, such as %s",
                len(short),
                short[0],
            )
        return result

    def __len__(self) -> int:
        return len(self._kept)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
