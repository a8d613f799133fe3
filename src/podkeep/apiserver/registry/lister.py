"""Reading the store's objects as decoded JSON, each decoded once while it stays the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from podkeep.apiserver.meta.lister import Follower, Part
from podkeep.apiserver.storage.records import Key, Stored
from podkeep.apiserver.storage.store import Store

MAX_DECODED_BYTES = 8 << 20
"""Of the objects that are kept decoded, encoded; those that were decoded first are given up for others."""


class StoreLister:
    """A :class:`podkeep.apiserver.meta.lister.NewestLister` over a store.

    :param read_once: resources whose objects are decoded each time: there are many, and nobody reads one again.
    """

    def __init__(self, store: Store, read_once: Collection[str] = ()) -> None:
        self._store, self._read_once = store, frozenset(read_once)
        self._decoded: dict[Key, tuple[Stored, Mapping[str, Any]]] = {}
        self._bytes = 0

    def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        stored = self._store.get(Key(resource, namespace, name))
        return None if stored is None else self._decode(stored)

    def size(self, resource: str, namespace: str, name: str) -> int:
        """Return the bytes of an object, encoded: what :meth:`get` takes its time for; 0 if there is none."""
        stored = self._store.get(Key(resource, namespace, name))
        return 0 if stored is None else len(stored.value)

    def list(self, resource: str, namespace: str = "") -> Iterator[Mapping[str, Any]]:
        return map(self._decode, self._store.snapshot(resource, namespace).items)

    def parts(self, resource: str, namespace: str, of: type[Part]) -> Iterator[Part]:
        decode = msgspec.json.Decoder(of).decode
        return (decode(stored.value) for stored in self._store.snapshot(resource, namespace).items)

    def part(self, resource: str, namespace: str, name: str, of: type[Part]) -> Part | None:
        stored = self._store.get(Key(resource, namespace, name))
        return None if stored is None else msgspec.json.decode(stored.value, type=of)

    def sizes(self, resource: str, namespace: str) -> Iterator[tuple[str, int]]:
        items = self._store.snapshot(resource, namespace).items
        return ((stored.key.name, len(stored.value)) for stored in items)

    def revision_of(self, resource: str, namespace: str, name: str) -> int:
        stored = self._store.get(Key(resource, namespace, name))
        return 0 if stored is None else stored.revision

    def follow(self, follower: Follower) -> None:
        self._store.followers.add(follower)

    @property
    def revision(self) -> int:
        """The newest revision that is acknowledged."""
        return self._store.revision

    def changes(self, after: int) -> Sequence[Key] | None:
        """Return what writes after a revision were about, newest first; None if it is not known any more."""
        return self._store.changes(after)

    def newest(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return an object as the next write to it finds it; None if there is none."""
        stored = self._store.newest(Key(resource, namespace, name))
        return None if stored is None else self._decode(stored)

    def pending(self) -> Collection[Key]:
        """Return what writes are about that are not acknowledged yet."""
        return self._store.pending()

    def _decode(self, stored: Stored) -> Mapping[str, Any]:
        kept = self._decoded.get(stored.key)
        if kept is not None and kept[0] is stored:
            return kept[1]
        value: Mapping[str, Any] = msgspec.json.decode(stored.value)
        if stored.key.resource in self._read_once:
            return value
        if kept is not None:
            self._forget(stored.key)
        self._decoded[stored.key] = stored, value
        self._bytes += len(stored.value)
        while self._bytes > MAX_DECODED_BYTES:
            self._forget(next(iter(self._decoded)))
        return value

    def _forget(self, key: Key) -> None:
        stored, _ = self._decoded.pop(key)
        self._bytes -= len(stored.value)
