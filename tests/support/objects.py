"""Objects of an API in memory, for what reads them through a lister."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from podkeep.apiserver.meta.lister import Follower, Part


class Decoded:
    """What a lister tells besides, of objects that ``list`` and ``get`` return."""

    def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        raise NotImplementedError

    def list(self, resource: str, namespace: str = "") -> Iterator[Mapping[str, Any]]:
        raise NotImplementedError

    def parts(self, resource: str, namespace: str, of: type[Part]) -> Iterator[Part]:
        return (msgspec.convert(value, of) for value in self.list(resource, namespace))

    def part(self, resource: str, namespace: str, name: str, of: type[Part]) -> Part | None:
        value = self.get(resource, namespace, name)
        return None if value is None else msgspec.convert(value, of)

    def sizes(self, resource: str, namespace: str) -> Iterator[tuple[str, int]]:
        return (
            (value["metadata"]["name"], len(msgspec.json.encode(value))) for value in self.list(resource, namespace)
        )

    def revision_of(self, resource: str, namespace: str, name: str) -> int:
        value = self.get(resource, namespace, name)
        return 0 if value is None else int(value["metadata"].get("resourceVersion", 1))


class Objects(Decoded):
    """A lister, and a changing one, over dictionaries."""

    def __init__(self, *values: Mapping[str, Any]) -> None:
        self._values: dict[tuple[str, str, str], Mapping[str, Any]] = {}
        self._log: list[tuple[str, str, str]] = []
        for value in values:
            self.put(value)

    def put(self, value: Mapping[str, Any]) -> None:
        """Create or replace an object; its resource follows from its kind."""
        key = place(value)
        self._values[key] = value
        self._log.append(key)

    def delete(self, value: Mapping[str, Any]) -> None:
        """Remove an object."""
        del self._values[place(value)]
        self._log.append(place(value))

    def forget(self) -> None:
        """Give up what is known of changes, as a store does after many."""
        self._log = [("", "", "")] * (len(self._log) + 1)

    def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self._values.get((resource, namespace, name))

    def list(self, resource: str, namespace: str = "") -> Iterator[Mapping[str, Any]]:
        for key in sorted(self._values):
            if key[0] == resource and namespace in ("", key[1]):
                yield self._values[key]

    def follow(self, follower: Follower) -> None: ...

    @property
    def revision(self) -> int:
        return len(self._log)

    def changes(self, after: int) -> Sequence[tuple[str, str, str]] | None:
        found = self._log[after:][::-1]
        return None if ("", "", "") in found else found


def place(value: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return resource, namespace and name of an object."""
    kind, fields = value["kind"], value["metadata"]
    group = value.get("apiVersion", "v1").rpartition("/")[0]
    plural = f"{kind.lower()}s"
    return f"{group}/{plural}" if group else plural, fields.get("namespace", ""), fields["name"]
