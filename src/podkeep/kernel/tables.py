"""Lines of the kernel's tables, in which there are texts of pods: names of mounts, interfaces and cgroups."""

from __future__ import annotations

from typing import AnyStr


def lines(table: AnyStr) -> list[AnyStr]:
    """Return the lines of a table without their newlines.

    Unlike ``splitlines``, which also ends a line at a carriage return and at separators of Unicode: the kernel escapes
    a newline in what others have named, and none of these.
    """
    if isinstance(table, bytes):
        return table.removesuffix(b"\n").split(b"\n") if table else []
    return table.removesuffix("\n").split("\n") if table else []
