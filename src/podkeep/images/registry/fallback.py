"""Asking several places for the same thing: mirrors first, the registry in the name last, whose word counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from podkeep.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PodkeepError,
    RegistryUnavailable,
)

ELSEWHERE = (FailedPrecondition, NotFound, PermissionDenied, RegistryUnavailable)
"""Errors after which another source may do better."""
UNREADABLE = (*ELSEWHERE, InvalidArgument)
"""The same for documents: that one is no JSON is that source's fault, as long as no digest says otherwise."""

_Place = TypeVar("_Place")
_Answer = TypeVar("_Answer")


def first(places: Iterable[_Place], ask: Callable[[_Place], _Answer], what: str) -> _Answer:
    """Return the first answer that a place gives.

    :raises PodkeepError: that of the last one; the text has those of all.
    """
    failures: list[PodkeepError] = []
    for place in places:
        try:
            return ask(place)
        except UNREADABLE as error:
            failures.append(error)
    if not failures:
        raise FailedPrecondition(f"{what}: no registry to ask")
    raise together(failures)


def together(failures: Sequence[PodkeepError]) -> PodkeepError:
    """Return one error for what failed at several places: that of the last, which counts, with the words of all."""
    last = failures[-1]
    earlier = dict.fromkeys(error.message.removeprefix("RegistryUnavailable: ") for error in failures[:-1])
    if not earlier:
        return last
    return type(last)(f"{last.message}; and before that: {'; '.join(earlier)}", hint=last.hint)
