"""Words that a mistyped one may stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_RATIO = 0.7
"""How alike they must be (``difflib.SequenceMatcher.ratio``)."""


def similar(word: str, known: Iterable[str]) -> list[str]:
    """Return the two known words that are most like ``word``, the closest first, if any are like it at all."""
    return difflib.get_close_matches(word, list(known), n=2, cutoff=_RATIO)
