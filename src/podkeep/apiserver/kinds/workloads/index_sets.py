"""Sets of indexes of a Job as texts, ``1,3-5``: ``completedIndexes``, ``failedIndexes``, ``succeededIndexes``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


class IndexesError(ValueError):
    """A text is no set of indexes; the text of the error is kube-apiserver's."""


def count(text: str, completions: int) -> int:
    """Return how many indexes there are.

    :raises IndexesError: if they are not in ascending order and below ``completions``.
    """
    total, last = 0, -1
    for first, end in _intervals(text, completions):
        if total and last >= first:
            raise IndexesError(f"non-increasing order, previous: {last}, current: {first}")
        total, last = total + end - first + 1, end
    return total


def overlap(completed: str, failed: str, completions: int) -> int | None:
    """Return the first index that both sets have; None if there is none. Intervals that are none do not count."""
    ones, others = _valid(completed, completions), _valid(failed, completions)
    one, other = next(ones, None), next(others, None)
    while one is not None and other is not None:
        if one[0] <= other[1] and other[0] <= one[1]:
            return max(one[0], other[0])
        if one[0] <= other[0]:
            one = next(ones, None)
        else:
            other = next(others, None)
    return None


def _intervals(text: str, completions: int) -> Iterator[tuple[int, int]]:
    for item in text.split(",") if text else ():
        yield _interval(item, completions)


def _valid(text: str, completions: int) -> Iterator[tuple[int, int]]:
    for item in text.split(",") if text else ():
        try:
            yield _interval(item, completions)
        except IndexesError:
            continue


def _interval(text: str, completions: int) -> tuple[int, int]:
    limits = text.split("-")
    if len(limits) > 2:
        raise IndexesError(
            f'the fragment "{text}" violates the requirement that an index interval can have at most two parts'
            " separated by '-'"
        )
    numbers = [_index(limit, completions) for limit in limits]
    if len(numbers) == 2 and numbers[0] >= numbers[1]:
        raise IndexesError(f"non-increasing order, previous: {numbers[0]}, current: {numbers[1]}")
    return numbers[0], numbers[-1]


def _index(text: str, completions: int) -> int:
    if not _INTEGER.fullmatch(text):
        raise IndexesError(f'cannot convert string to integer for index: "{text}"')
    if int(text) >= completions:
        raise IndexesError(f'too large index: "{text}"')
    return int(text)
