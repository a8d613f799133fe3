"""``TYPE=CLASS`` as people type it (``run --class``, ``classes set``)."""

from __future__ import annotations

from collections.abc import Sequence

from podkeep.base.errors import InvalidArgument


def read(texts: Sequence[str], *, option: str = "") -> dict[str, str]:
    """Return types to classes.

    :param option: what the words were given to, for messages; empty: they stand for themselves.
    :raises InvalidArgument: if one cannot be understood, or a type has two classes.
    """
    from podkeep.api import class_resources

    where = f"{option}: " if option else ""
    found: dict[str, str] = {}
    for text in texts:
        type_name, separator, class_name = text.partition("=")
        if not separator:
            raise InvalidArgument(f"{where}{text!r} is not TYPE=CLASS", hint="write it like rdt=gold")
        if why := class_resources.type_problem(type_name):
            raise InvalidArgument(f"{where}type {type_name!r} {why}")
        if why := class_resources.class_problem(class_name):
            raise InvalidArgument(f"{where}class {class_name!r} {why}")
        if found.setdefault(type_name, class_name) != class_name:
            raise InvalidArgument(f"{where}{type_name} is given twice, as {found[type_name]} and {class_name}")
    return found
