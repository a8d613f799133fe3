"""Patterns of paths as Go's path/filepath.Match reads them, which files for goresctrl are written for.

Owns: their meaning and their expansion. ``*`` and ``?`` stay within one name and match a leading dot, too; ``[^x]`` is
"not x" and ``!`` in brackets is itself; a backslash takes the next character as it is. Used by ``configuration.py`` and
``devices.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache

_MAGIC = frozenset("*?[\\")


def check(pattern: str) -> None:
    """Check a pattern of absolute paths.

    :raises ValueError: saying what is wrong with it.
    """
    if not pattern.startswith("/"):
        raise ValueError("not an absolute path")
    if "\0" in pattern:
        raise ValueError("a path has no NUL")
    for part in _parts(pattern):
        if part in {".", ".."}:
            raise ValueError("a path with . or ..")
        _expression(part)


def is_plain(pattern: str) -> bool:
    """Say whether the pattern can only match the path that it reads."""
    return _MAGIC.isdisjoint(pattern)


def expand(pattern: str, visit: Callable[[str], None]) -> list[str]:
    """Return the paths that exist and match a checked pattern, sorted; symbolic links are followed on the way.

    :param visit: told of every directory on which the answer depends.
    """
    found = [""]
    for part in _parts(pattern):
        found = [below for directory in found for below in _matching(directory, part, visit)]
    return found


def _parts(pattern: str) -> list[str]:
    return [part for part in pattern.split("/") if part]


def _matching(directory: str, part: str, visit: Callable[[str], None]) -> list[str]:
    visit(directory or "/")
    if is_plain(part):
        path = f"{directory}/{part}"
        return [path] if os.path.lexists(path) else []
    expression = _expression(part)
    try:
        names = os.listdir(directory or "/")
    except OSError:
        return []
    return [f"{directory}/{name}" for name in sorted(names) if expression.fullmatch(name)]


@lru_cache(maxsize=1024)
def _expression(part: str) -> re.Pattern[str]:
    """Return what a name must match.

    :raises ValueError: if brackets are not closed or empty, or a range or backslash is incomplete.
    """
    text, at = [], 0
    while at < len(part):
        character = part[at]
        at += 1
        if character == "*":
            text.append(".*")
        elif character == "?":
            text.append(".")
        elif character == "[":
            characters, at = _bracket(part, at)
            text.append(characters)
        else:
            if character == "\\":
                character, at = _escaped(part, at)
            text.append(re.escape(character))
    return re.compile("".join(text), re.DOTALL)


def _bracket(part: str, at: int) -> tuple[str, int]:
    negated = part[at : at + 1] == "^"
    at += negated
    ranges: list[str] = []
    while part[at : at + 1] != "]" or not ranges:
        low, at = _of_range(part, at)
        high = low
        if part[at : at + 1] == "-":
            high, at = _of_range(part, at + 1)
        if low > high:
            raise ValueError(f"the range {low}-{high} is empty")
        ranges.append(f"{re.escape(low)}-{re.escape(high)}")
    return f"[{'^' if negated else ''}{''.join(ranges)}]", at + 1


def _of_range(part: str, at: int) -> tuple[str, int]:
    character = part[at : at + 1]
    if not character:
        raise ValueError("a [ without its ]")
    if character in {"-", "]"}:
        raise ValueError(f"a {character} inside [] needs a backslash")
    return _escaped(part, at + 1) if character == "\\" else (character, at + 1)


def _escaped(part: str, at: int) -> tuple[str, int]:
    if at >= len(part):
        raise ValueError("a backslash at its end")
    return part[at], at + 1
