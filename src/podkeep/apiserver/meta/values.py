"""How many values objects may have: validation, defaults and field managers take work for each, and nothing else is
served meanwhile.
"""

from __future__ import annotations

from typing import Any

from podkeep.apiserver.meta.status import StatusError, too_large
from podkeep.apiserver.patch.values import count

MAX_VALUES = 10_000
"""JSON values of an object but its managedFields. Validation takes some 15 to 30 µs for each of the smallest. An
Endpoints of the most addresses that it may have (1,000, each with what it is the address of) has 8,000."""
MAX_MANAGED_VALUES = 20_000
"""JSON values of an object's managedFields."""


def has_more(value: Any, limit: int) -> bool:
    """Tell whether there are more than ``limit`` values in a JSON value, itself included; looks at no more of them."""
    return count(value, limit) > limit


def managed_fields(value: Any) -> Any:
    """Return the ``managedFields`` of what may be an object; None if it has none."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    return metadata.get("managedFields") if isinstance(metadata, dict) else None


def without_managed_fields(value: Any) -> Any:
    """Return what may be an object without its ``managedFields``."""
    if managed_fields(value) is None:
        return value
    metadata = {name: item for name, item in value["metadata"].items() if name != "managedFields"}
    return {**value, "metadata": metadata}


def require_few(value: Any) -> None:
    """Refuse what has too many values.

    :raises StatusError: 413.
    """
    if has_more(without_managed_fields(value), MAX_VALUES):
        raise too_many(MAX_VALUES)
    if has_more(managed_fields(value), MAX_MANAGED_VALUES):
        raise too_many_managed()


def require_no_more(new: Any, old: Any) -> None:
    """Refuse what has too many values, unless it has no more than what is there, which older rules let in.

    :raises StatusError: 413.
    """
    if has_more(bare := without_managed_fields(new), MAX_VALUES):
        known = _count(without_managed_fields(old))
        if known <= MAX_VALUES or has_more(bare, known):
            raise too_many(MAX_VALUES)


def _count(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, inner))


def too_many(limit: int) -> StatusError:
    """Return the error that there are more than ``limit`` values."""
    return too_large(f"limit is {limit} values")


def too_many_managed() -> StatusError:
    """Return the error that managedFields have too many values."""
    return too_large(f"limit is {MAX_MANAGED_VALUES} values of managedFields")
