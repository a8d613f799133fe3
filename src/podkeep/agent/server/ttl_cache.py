"""Answers that count for a while, no more of them than fit."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
MAX_ENTRIES = 4096


class TtlCache(Generic[_Key, _Value]):
    """Keeps values for a time; the one that was used longest ago goes first when there are too many."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._limit = limit
        self._entries: OrderedDict[_Key, tuple[float, _Value]] = OrderedDict()

    def get(self, key: _Key) -> tuple[_Value] | None:
        """Return the value, alone in a tuple; None if there is none that still counts."""
        found = self._entries.get(key)
        if found is None:
            return None
        if found[0] <= time.monotonic():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return (found[1],)

    def put(self, key: _Key, value: _Value, ttl: float) -> None:
        """Keep a value for ``ttl`` seconds; for none if that is not positive."""
        if ttl <= 0:
            return
        self._entries[key] = (time.monotonic() + ttl, value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)
