"""Patterns of paths as Go's path/filepath.Match reads them, which files for goresctrl are written for.

Owns: their meaning and their expansion. ``*`` and ``?`` stay within one name and match a leading dot, too; ``[^x]`` is
"not x" and ``!`` in brackets is itself; a backslash takes the next character as it is. Used by ``configuration.py`` and
``devices.py``.
"""

from __future__ import annotations

import os
import re
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


def expand(pattern: str) -> list[str]:
    """Return the paths that exist and match a checked pattern, sorted; symbolic links are followed on the way."""
    found = [""]
    for part in _parts(pattern):
        found = [below for directory in found for below in _matching(directory, part)]
    return found


def _parts(pattern: str) -> list[str]:
    return [part for part in pattern.split("/") if part]


def _matching(directory: str, part: str) -> list[str]:
    if is_plain(part):
        path = f"{directory}/{part}"
        return [path] if os.path.lexists(path) else []
    expression = _expression(part)
    try:
        names = os.listdir(directory or "/")
    except OSError:
        return []
    return [f"{directory}/{name}" for name in sorted(names) if expression.fullmatch(name)]


_CHARACTER = r"(?:\\.|[^\]\\-])"
_TOKEN = re.compile(
    rf"(?P<many>\*)|(?P<one>\?)|\[(?P<negated>\^?)(?P<ranges>(?:{_CHARACTER}(?:-{_CHARACTER})?)+)\]"
    r"|\\(?P<escaped>.)|(?P<plain>[^*?\[\\])",
    re.DOTALL,
)
_RANGE = re.compile(rf"({_CHARACTER})(?:-({_CHARACTER}))?", re.DOTALL)


@lru_cache(maxsize=1024)
def _expression(part: str) -> re.Pattern[str]:
    """Return what a name must match.

    :raises ValueError: if brackets are not closed or empty, or a range or backslash is incomplete.
    """
    text, at = "", 0
    while at < len(part):
        token = _TOKEN.match(part, at)
        if token is None:
            raise ValueError(
                f"{part[at:]!r}: a [ needs its ], a - or ] inside them a backslash, a backslash what it is for"
            )
        text += _translated(token)
        at = token.end()
    return re.compile(text, re.DOTALL)


def _translated(token: re.Match[str]) -> str:
    if token["many"] or token["one"]:
        return ".*" if token["many"] else "."
    if not token["ranges"]:
        return re.escape(token["escaped"] or token["plain"])
    ranges = ""
    for low, high in _RANGE.findall(token["ranges"]):
        first, last = low[-1], (high or low)[-1]
        if first > last:
            raise ValueError(f"the range {first}-{last} is empty")
        ranges += f"{re.escape(first)}-{re.escape(last)}"
    return f"[{token['negated']}{ranges}]"
