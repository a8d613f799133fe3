"""What was made of the newest revisions, kept for the next who asks, within a number of bytes."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
ENTRY_BYTES = 200
"""What an entry takes beside what it holds."""


class Recent(Generic[Key, Value]):
    """Values by keys; the oldest are given up for new ones.

    :param limit: bytes, counted as ``put`` is told, and ``ENTRY_BYTES`` for each entry.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.size = limit, 0
        self._values: dict[Key, tuple[Value, int]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """Return a value; None: it is not kept."""
        found = self._values.get(key)
        return None if found is None else found[0]

    def put(self, key: Key, value: Value, size: int) -> Value:
        """Keep a value of ``size`` bytes, and return it. One that is larger than the limit is not kept."""
        size += ENTRY_BYTES
        if size <= self._limit and key not in self._values:
            self._values[key] = value, size
            self.size += size
            while self.size > self._limit:
                _, freed = self._values.pop(next(iter(self._values)))
                self.size -= freed
        return value
