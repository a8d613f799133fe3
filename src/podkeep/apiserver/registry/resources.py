"""Resources: what is served under which name, and in what kinds differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.schema.table import Kind, kubernetes
from podkeep.apiserver.schema.types import Struct
from podkeep.apiserver.storage.records import Key


def _nothing(*_: Any) -> None:
    return None


def _no_fields(_: Mapping[str, Any]) -> dict[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """In what a kind differs from others. Functions get objects that are theirs to change, and old ones that are not.

    ``default`` fills in what a client left out; ``prepare_create``, ``prepare_update`` and ``prepare_status`` (new,
    old) drop what it may not set; ``validate``, ``validate_update`` and ``validate_status`` (new, old) note errors.
    ``status`` tells that there is a ``status``, which only its subresource changes. ``generation`` is counted when a
    field outside of metadata and status changes. ``grace_period`` returns the seconds that a deletion waits for an
    agent, given the object and those that the client asks for; None: it does not wait. ``selectable`` returns the
    values that field selectors may ask for, beside ``metadata.name`` and ``metadata.namespace``.
    """

    default: Callable[[Object], None] = _nothing
    prepare_create: Callable[[Object], None] = _nothing
    prepare_update: Callable[[Object, Object], None] = _nothing
    prepare_status: Callable[[Object, Object], None] = _nothing
    validate: Callable[[Object, FieldErrors], None] = _nothing
    validate_update: Callable[[Object, Object, FieldErrors], None] = _nothing
    validate_status: Callable[[Object, Object, FieldErrors], None] = _nothing
    name_rule: Callable[[str], str] = names.dns_subdomain
    status: bool = False
    generation: bool = False
    create_on_update: bool = False
    unconditional_update: bool = True
    grace_period: Callable[[Object, int | None], int | None] = _nothing
    returns_deleted: bool = False
    selectable: Callable[[Mapping[str, Any]], dict[str, str]] = _no_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource: ``plural`` is its name in paths, ``short_names`` and ``categories`` are for ``kubectl get``."""

    kind: Kind
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    strategy: Strategy = field(default_factory=Strategy)

    @property
    def group(self) -> str:
        """The group; empty for the core group."""
        return self.kind.group

    @property
    def singular(self) -> str:
        """The name of one."""
        return self.kind.kind.lower()

    @property
    def struct(self) -> Struct:
        """The type of its objects."""
        return kubernetes().kind(self.kind)

    @property
    def storage_name(self) -> str:
        """The resource as the store names it."""
        return f"{self.group}/{self.plural}" if self.group else self.plural

    def key(self, namespace: str, name: str) -> Key:
        """Return the place of an object in the store."""
        return Key(self.storage_name, namespace if self.namespaced else "", name)
