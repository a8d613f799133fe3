"""Who reads a table of mounts: it has lines for each pod, so that nobody may read it for each pod."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_listening: list[list[str]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _listening and str(arguments[0]).endswith("/mountinfo"):
        _listening[-1].append(str(arguments[0]))


sys.addaudithook(_hook)


@contextmanager
def tables_read() -> Iterator[list[str]]:
    """Collect the tables that this process opens in the block."""
    found: list[str] = []
    _listening.append(found)
    try:
        yield found
    finally:
        _listening.pop()
