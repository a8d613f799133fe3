"""What selectors ask of stored objects, read once of each revision while it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from podkeep.apiserver.endpoints.options import ListOptions
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.storage.records import Stored

KEPT = 20_000
"""Revisions of which labels are kept, and as many of which fields are; the oldest are given up for others."""


_Key = TypeVar("_Key")


class _Metadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}


class _Labelled(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


_labelled = msgspec.json.Decoder(_Labelled)


class Facts:
    """Labels and selectable fields of revisions."""

    def __init__(self) -> None:
        self._labels: dict[int, Mapping[str, str]] = {}
        self._fields: dict[tuple[int, str], Mapping[str, str]] = {}

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
            _keep(self._labels, stored.revision, found)
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
            _keep(self._fields, key, found)
        return found


def _keep(kept: dict[_Key, Mapping[str, str]], key: _Key, found: Mapping[str, str]) -> None:
    kept[key] = found
    if len(kept) > KEPT:
        del kept[next(iter(kept))]
