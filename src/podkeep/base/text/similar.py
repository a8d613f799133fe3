"""Words that a mistyped one may stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_RATIO = 0.7
"""How alike they must be (``difflib.SequenceMatcher.ratio``)."""


def similar(word: str, known: Iterable[str]) -> list[str]:
    """Return the two known words that are most like ``word``, the closest first, if any are like it at all.

    In small letters or capitals is all the same.
    """
    by_letters = {name.lower(): name for name in known}
    return [by_letters[match] for match in difflib.get_close_matches(word.lower(), by_letters, n=2, cutoff=_RATIO)]
