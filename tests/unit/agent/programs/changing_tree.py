"""Changes a tree as often as it can, for as long as its parent lives: links, pipes and a directory come and go.

changing_tree.py ROOT VICTIM

What it has of symbolic links leads to VICTIM. ROOT has a directory ``tree`` with a file ``0``. Prints ``!`` when it is
about to begin.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress


def steps(number: int, victim: str) -> tuple[Callable[[], None], ...]:
    new, old = number % 50, (number + 25) % 50
    return (
        lambda: os.symlink(victim, f"link-{new}"),
        lambda: os.unlink(f"link-{old}"),
        lambda: os.mkfifo(f"pipe-{new}"),
        lambda: os.unlink(f"pipe-{old}"),
        lambda: os.rename("tree", "moved"),
        lambda: os.symlink(victim, "tree"),
        lambda: os.unlink("tree"),
        lambda: os.rename("moved", "tree"),
        lambda: os.link("tree/0", f"hard-{new}"),
        lambda: os.unlink(f"hard-{old}"),
    )


root, victim = sys.argv[1:]
parent = os.getppid()
os.chdir(root)
os.write(1, b"!")
number = 0
while os.getppid() == parent:
    number += 1
    for step in steps(number, victim):
        with suppress(OSError):
            step()
