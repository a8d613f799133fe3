"""Looks at files, or reads one, as a user of the machine without privileges.

as_a_user.py USER look DIRECTORY_DESCRIPTOR PATH...: prints those that it can look at, a line each.
as_a_user.py USER read FILE: prints how many bytes of the first 512 it gets, or the text of the error.
"""

from __future__ import annotations

import os
import sys


def look(directory: int, paths: list[str]) -> None:
    for path in paths:
        try:
            os.stat(path, dir_fd=directory)
        except PermissionError:
            continue
        print(path)


def read(path: str) -> None:
    try:
        print(len(os.read(os.open(path, os.O_RDONLY), 512)))
    except OSError as error:
        print(error.strerror)


user, what, first, *more = sys.argv[1:]
os.setgroups([])
os.setresgid(*[int(user)] * 3)
os.setresuid(*[int(user)] * 3)
if what == "look":
    look(int(first), more)
else:
    read(first)
