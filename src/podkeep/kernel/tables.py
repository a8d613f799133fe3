"""Texts of the kernel, in which there are names of others: of mounts, file systems, interfaces, cgroups, processes.

Owns: how they are decoded and taken apart, and how reading one fails whose directory was removed. Nobody says that such
a name is UTF-8, or what is in it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import AnyStr

GONE = frozenset({errno.ENOENT, errno.ENODEV})
"""kernfs (cgroups, resctrl): the directory was removed, before or while a file of it was open.

What walks of other file systems say where nothing, or something else, has a name is ``openat.NOT_THERE``."""


def read_text(path: Path | str) -> str:
    """Return what the kernel says in a file of /proc or /sys; bytes that are no UTF-8 as ``os.fsdecode`` has them.

    :raises OSError: if it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - there are dozens for each container
        return os.fsdecode(file.read())


def lines(table: AnyStr) -> list[AnyStr]:
    """Return the lines of a table without their newlines.

    Unlike ``splitlines``, which also ends a line at a carriage return and at separators of Unicode: the kernel escapes
    a newline in what others have named, and none of these.
    """
    if isinstance(table, bytes):
        return table.removesuffix(b"\n").split(b"\n") if table else []
    return table.removesuffix("\n").split("\n") if table else []
