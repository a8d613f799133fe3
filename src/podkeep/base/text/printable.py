"""Showing text that others wrote: names, titles, messages of registries and containers.

What goes to a terminal or a log as it is could move the cursor, recolour or retitle the terminal, hide what was
printed before, look like another line, or fill it. Pure; used wherever text is written for people.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence

_quoting = reprlib.Repr()
_quoting.maxstring = 200
quoted = _quoting.repr
"""How a caller's text is shown in an error: quoted, and cut in the middle if it is long."""
_ESCAPES = {'"': '\\"', "\\": "\\\\"} | dict(zip("\a\b\f\n\r\t\v", map("\\{}".format, "abfnrtv"), strict=True))


def printable(text: str) -> str:
    r"""Return ``text`` with every character that is not printable written as an escape such as ``\x1b`` or ``\u202e``.

    Unicode's control, format, surrogate, private and unassigned characters and all separators but the space are not
    printable (str.isprintable).
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def shortened(text: str, most: int) -> str:
    """Return ``text``, or of one that has more than ``most`` characters these and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"


def quote(text: str) -> str:
    """Return a text as Go's ``%q`` writes it: what is not printable is escaped."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'  # it may be long
    shown = (
        _ESCAPES.get(character) or (character if character.isprintable() else _escaped(ord(character)))
        for character in text
    )
    return '"' + "".join(shown) + '"'


def _escaped(code: int) -> str:
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def aggregated(errors: Iterable[str]) -> str:
    """Return several errors as one text, each once, as Kubernetes' ``utilerrors.NewAggregate`` writes them."""
    different = list(dict.fromkeys(errors))
    return different[0] if len(different) == 1 else f"[{', '.join(different)}]" if different else ""


def listed(names: Sequence[str], most: int) -> str:
    """Return names in one line: ``a, b``, or of more than ``most`` the first ones, ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
