"""What admission decides about, and the interface of what decides."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from podkeep.apiserver.auth.user import NOBODY, User
from podkeep.apiserver.kinds.resources import Target
from podkeep.apiserver.meta.objects import Object
from podkeep.base.frozen import FrozenStruct


class Operation(StrEnum):
    """What is done, as admission is told."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class Attributes(FrozenStruct, kw_only=True):
    """What admission decides about. ``value`` may be changed by mutating plugins; None for a deletion.

    Plugins add to ``warnings``, which the client gets, and to ``annotations`` of the request's audit record.
    """

    operation: Operation
    target: Target
    value: Object | None
    old: Object | None
    user: User = NOBODY
    dry_run: bool = False
    warnings: list[str] = msgspec.field(default_factory=list)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class Admission(Protocol):
    """What may change or refuse a write; both raise :class:`StatusError`.

    The way of a creation, in ``registry``::

        strategy.default(value)                 # the kind's
        admission.mutate(attributes)            # each plugin in its order
        strategy.prepare_create(value)          # the kind's: what clients cannot set
        strategy.validate(value, errors)
        admission.validate(attributes)          # each plugin, of what will be stored
        ...                                     # the store; nothing was awaited in between

    A deletion is only validated; what is posted to a subresource of another kind, such as ``binding``, is seen as the
    creation of that.
    """

    def mutate(self, attributes: Attributes) -> None:
        """Change the object before it is validated."""
        ...

    def validate(self, attributes: Attributes) -> None:
        """Refuse a write that is valid by itself."""
        ...


@runtime_checkable
class Waits(Protocol):
    """Admission that has something to do before a write is computed, which may take long."""

    async def ready(self, target: Target) -> None:
        """Return when a write to this target can be decided about."""
        ...


class AdmitAll:
    """No admission."""

    def mutate(self, attributes: Attributes) -> None:
        """Change nothing."""

    def validate(self, attributes: Attributes) -> None:
        """Refuse nothing."""
