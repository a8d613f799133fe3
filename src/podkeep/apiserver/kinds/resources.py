"""Resources: what is served under which name, and in what kinds differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from podkeep.api import names
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import StatusError, conflict, not_found
from podkeep.apiserver.schema.table import Kind, kubernetes
from podkeep.apiserver.schema.types import Struct
from podkeep.apiserver.storage.records import Key
from podkeep.base.frozen import FrozenStruct


def _nothing(*_: Any) -> None:
    return None


def _no_fields(_: Mapping[str, Any]) -> dict[str, str]:
    return {}


def _no_warnings(*_: Any) -> list[str]:
    return []


def _no_reason(_: str) -> str:
    return ""


def _yes(_: Mapping[str, Any]) -> bool:
    return True


class Column(FrozenStruct, kw_only=True):
    """A column of the table that ``kubectl get`` prints (``meta.k8s.io/v1`` ``TableColumnDefinition``).

    ``cell`` returns the value (a string, a number or a boolean) of an object at a time; ``priority`` above 0 is for
    ``-o wide``.
    """

    name: str
    cell: Callable[[Mapping[str, Any], datetime], Any]
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""


class Part(FrozenStruct, kw_only=True):
    """What a subresource changes of its object, such as ``resize`` of a pod.

    ``prepare`` (new, old) takes back every other change; ``validate`` (new, old, errors) notes errors.
    """

    prepare: Callable[[Object, Object], None]
    validate: Callable[[Object, Object, FieldErrors], None]


class Strategy(FrozenStruct, kw_only=True):
    """In what a kind differs from others. Functions get objects that are theirs to change, and old ones that are not.

    - ``default`` fills in what a client left out.
    - ``drop`` (new, old or None, gates) removes fields whose feature gate is off, unless the old object uses them; of
      subresources' writes too.
    - ``warnings`` (new, old or None) returns what a client should know of a write that is taken.
    - ``prepare_create``, ``prepare_update`` and ``prepare_status`` (new, old) drop what a client may not set.
    - ``validate``, ``validate_create``, ``validate_update`` and ``validate_status`` (new, old) note errors; a new
      object is held against the first two, an update against the first and the third.
    - ``parts`` are the subresources other than ``status`` that change a part of the object.
    - ``status`` tells that there is a ``status``, which only its subresource changes; with ``status_on_create`` the
      creation may have one too.
    - ``generation`` is counted when a field outside of metadata and status changes.
    - ``grace_period`` returns the seconds that a deletion waits for an agent, given the object and those that the
      client asks for; None: it does not wait.
    - ``begin_deletion`` changes an object whose deletion begins; ``removable`` tells whether it may be removed then,
      if it has no finalizers.
    - ``undeletable`` returns why no client may delete the object of this name; empty: one may.
    - ``selectable`` returns the values that field selectors may ask for, beside ``metadata.name`` and
      ``metadata.namespace``.
    """

    default: Callable[[Object], None] = _nothing
    drop: Callable[[Object, Object | None, FeatureGates], None] = _nothing
    warnings: Callable[[Mapping[str, Any], Mapping[str, Any] | None], list[str]] = _no_warnings
    prepare_create: Callable[[Object], None] = _nothing
    prepare_update: Callable[[Object, Object], None] = _nothing
    prepare_status: Callable[[Object, Object], None] = _nothing
    validate: Callable[[Object, FieldErrors], None] = _nothing
    validate_create: Callable[[Object, FieldErrors], None] = _nothing
    validate_update: Callable[[Object, Object, FieldErrors], None] = _nothing
    validate_status: Callable[[Object, Object, FieldErrors], None] = _nothing
    name_rule: Callable[[str], str] = names.dns_subdomain
    parts: Mapping[str, Part] = msgspec.field(default_factory=dict)
    status: bool = False
    status_on_create: bool = False
    generation: bool = False
    create_on_update: bool = False
    unconditional_update: bool = True
    grace_period: Callable[[Object, int | None], int | None] = _nothing
    begin_deletion: Callable[[Object], None] = _nothing
    removable: Callable[[Mapping[str, Any]], bool] = _yes
    undeletable: Callable[[str], str] = _no_reason
    returns_deleted: bool = False
    selectable: Callable[[Mapping[str, Any]], dict[str, str]] = _no_fields


class View(FrozenStruct, kw_only=True):
    """How a resource is stored as another one: ``read`` makes its object of what is stored, ``write`` the reverse.

    Both return a new object and change none.
    """

    storage_name: str
    read: Callable[[Mapping[str, Any]], Object]
    write: Callable[[Mapping[str, Any]], Object]


ALL_VERBS = frozenset({"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"})


class Resource(FrozenStruct, kw_only=True):
    """A resource: ``plural`` is its name in paths, ``short_names`` and ``categories`` are for ``kubectl get``.

    ``subresources`` are their names in paths: ``status``, ``scale``. ``columns`` are all of them in order, ``Name``
    included; none mean ``Name`` and ``Age``. ``verbs`` are those that the resource has. ``view`` is there if the
    objects are stored as those of another resource; whoever reads them from the store has to go through it.
    ``deprecated`` is the warning of every answer about a resource that others replace. ``unserved`` is there if nothing
    here acts on the objects: what does not happen, and without which program.
    """

    kind: Kind
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    strategy: Strategy = msgspec.field(default_factory=Strategy)
    columns: tuple[Column, ...] = ()
    verbs: frozenset[str] = ALL_VERBS
    view: View | None = None
    deprecated: str = ""
    unserved: str = ""

    @property
    def group(self) -> str:
        """The group; empty for the core group."""
        return self.kind.group

    @property
    def singular(self) -> str:
        return self.kind.kind.lower()

    @property
    def struct(self) -> Struct:
        return kubernetes().kind(self.kind)

    @property
    def storage_name(self) -> str:
        """The resource as the store names it."""
        if self.view is not None:
            return self.view.storage_name
        return f"{self.group}/{self.plural}" if self.group else self.plural

    def key(self, namespace: str, name: str) -> Key:
        """Return the place of an object in the store."""
        return Key(self.storage_name, namespace if self.namespaced else "", name)


class Target(NamedTuple):
    """What a request is about. ``name`` is empty where it is still to be found; ``subresource`` is mostly."""

    resource: Resource
    namespace: str
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        """The object's place in the store."""
        return self.resource.key(self.namespace, self.name)

    def not_found(self) -> StatusError:
        return not_found(self.resource.plural, self.resource.group, self.name)

    def conflict(self, why: str) -> StatusError:
        """The error that the object is another one by now."""
        return conflict(self.resource.plural, self.resource.group, self.name, why)
