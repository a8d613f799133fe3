"""What msgspec knows of the classes that it decodes, so that threads may decode the same one.

It finds out what a class is made of when one is decoded for the first time, and shows other threads what it has of that
by then, as a class may refer to itself. A thread that decodes the class meanwhile ends the process (SIGSEGV, msgspec
0.22): rarely, as Python must pass from one thread to the other in these milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from podkeep.base.frozen import FrozenStruct


def complete() -> None:
    """Have everything found out of all classes that are there by now; for a process that has one thread."""
    for struct in _below(msgspec.Struct):
        # One that is only written may have types that are imported for type checkers alone, or that nothing decodes.
        with suppress(NameError, AttributeError, TypeError):
            msgspec.json.Decoder(struct)


def _below(struct: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    # One of FrozenStruct's is decoded as a field of another at most, and found out with it.
    for subclass in struct.__subclasses__():
        if subclass is FrozenStruct:
            continue
        yield subclass
        yield from _below(subclass)
