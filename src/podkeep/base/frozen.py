"""Classes of fields that do not change once made: values, plans, settings."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class FrozenStruct(msgspec.Struct, frozen=True):
    """Compared and hashed by its fields; ``msgspec.structs.replace`` makes a changed copy.

    In place of a frozen dataclass: making the class takes a thirtieth of the time, as no Python is written and compiled
    for it; that was a third of a daemon's start. What must not be printed (a password) or compared needs a dataclass
    still, and what is decoded a ``msgspec.Struct``, which :mod:`podkeep.base.concurrency.structs` completes.
    """
