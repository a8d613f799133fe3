"""What selectors ask of stored objects, read once of each revision while it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.list_watch.recent import Recent
from podkeep.apiserver.requests.options import ListOptions
from podkeep.apiserver.storage.records import Stored

KEPT_BYTES = 16 << 20
"""Of labels, and as many of fields."""


class _Metadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}


class _Labelled(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


_PAIR_BYTES = 150
"""What Python takes for two strings and their place in a dictionary."""
_labelled = msgspec.json.Decoder(_Labelled)


class Facts:
    """Labels and selectable fields of revisions."""

    def __init__(self) -> None:
        self._labels: Recent[int, Mapping[str, str]] = Recent(KEPT_BYTES)
        self._fields: Recent[tuple[int, str], Mapping[str, str]] = Recent(KEPT_BYTES)

    def selects(self, options: ListOptions, resource: Resource, stored: Stored) -> bool:
        """Tell whether the selectors of a request take an object."""
        if options.labels.requirements and not options.labels.matches(self._labels_of(stored)):
            return False
        fields = options.fields
        if not fields.equal and not fields.unequal:
            return True
        return fields.matches(self._fields_of(resource, stored, {name for name, _ in (*fields.equal, *fields.unequal)}))

    def _labels_of(self, stored: Stored) -> Mapping[str, str]:
        found = self._labels.get(stored.revision)
        if found is None:
            found = _labelled.decode(stored.value).metadata.labels
            self._labels.put(stored.revision, found, _size(found))
        return found

    def _fields_of(self, resource: Resource, stored: Stored, asked: set[str]) -> Mapping[str, str]:
        always = {"metadata.name": stored.key.name, "metadata.namespace": stored.key.namespace}
        if asked <= always.keys():
            return always
        key = stored.revision, resource.group
        found = self._fields.get(key)
        if found is None:
            value = msgspec.json.decode(stored.value)
            view = resource.view
            found = resource.strategy.selectable(value if view is None else view.read(value)) | always
            self._fields.put(key, found, _size(found))
        return found


def _size(found: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) + _PAIR_BYTES for name, value in found.items())
