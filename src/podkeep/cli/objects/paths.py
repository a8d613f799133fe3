"""JSON paths as ``kubectl wait`` takes them: ``{.status.conditions[?(@.type=="Ready")].status}``. Pure.

Fields, indices, ``[*]`` and one comparison with ``==`` in a filter; that is what waiting needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from podkeep.base.errors import InvalidArgument

Step = Callable[[Any], Iterable[Any]]

_TOKEN = re.compile(
    r"""\.(?P<field>(?:[\w-]|\\.)+)"""
    r"""|\[(?P<index>-?\d{1,9})\]"""
    r"""|\[(?P<all>\*)\]|\.(?P<wild>\*)"""
    r"""|\[(?P<quote>['"])(?P<key>[^'"]*)(?P=quote)\]"""
    r"""|\[\?\(\s*@(?P<path>(?:\.[\w-]+)+)\s*==\s*(?P<mark>['"])(?P<value>[^'"]*)(?P=mark)\s*\)\]"""
)


def parse(text: str) -> list[Step]:
    """Return the steps of a path.

    :raises InvalidArgument: if it is not of this kind.
    """
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1].strip()
    inner = inner.removeprefix("$")
    if inner and inner[0] not in ".[":
        inner = f".{inner}"
    steps: list[Step] = []
    position = 0
    while position < len(inner):
        found = _TOKEN.match(inner, position)
        if found is None:
            raise InvalidArgument(
                f"the JSON path {text!r} cannot be read at {inner[position:]!r}", hint="write it as {.status.phase}"
            )
        steps.append(_step(found))
        position = found.end()
    if not steps:
        raise InvalidArgument(f"the JSON path {text!r} is empty", hint="write it as {.status.phase}")
    return steps


def _step(found: re.Match[str]) -> Step:
    if found["field"] is not None:
        return _field(re.sub(r"\\(.)", r"\1", found["field"]))
    if found["quote"] is not None:
        return _field(found["key"])
    if found["index"] is not None:
        return _index(int(found["index"]))
    if found["path"] is not None:
        return _filter([_field(name) for name in found["path"][1:].split(".")], found["value"])
    return _each


def _field(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _index(number: int) -> Step:
    def step(value: Any) -> Iterable[Any]:
        return [value[number]] if isinstance(value, list) and -len(value) <= number < len(value) else []

    return step


def _filter(path: list[Step], wanted: str) -> Step:
    def step(value: Any) -> Iterable[Any]:
        items = value if isinstance(value, list) else []
        return [item for item in items if wanted in map(shown, values(item, path))]

    return step


def _each(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def values(value: Any, steps: Iterable[Step]) -> list[Any]:
    found = [value]
    for step in steps:
        found = [inner for item in found for inner in step(item)]
    return found


def shown(value: Any) -> str:
    """Return a value as kubectl prints and compares it."""
    if value is None:
        return "<none>"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def texts(value: Any, steps: Iterable[Step]) -> Iterator[str]:
    return map(shown, values(value, steps))
