"""What is decoded is completed before a daemon has threads, which ``FrozenStruct`` is left out of."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import podkeep
from podkeep.base.frozen import FrozenStruct

SOURCE = Path(podkeep.__file__).parent
DECODERS = {"Decoder": 0, "convert": 1, "decode": 1}
"""Functions of msgspec, and at which place they take a type, if not as ``type``."""


def decoded() -> Iterator[tuple[str, Any]]:
    """Yield where a type is decoded, and the type, of all that is written as a name of its module."""
    for path in sorted(SOURCE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in DECODERS):
                continue
            given = [item.value for item in call.keywords if item.arg == "type"]
            given += call.args[DECODERS[call.func.attr] :][:1]
            name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
            for item in given if "msgspec" in ast.unparse(call.func) else ():
                try:
                    yield f"{name}:{call.lineno}", eval(ast.unparse(item), vars(importlib.import_module(name)))
                except NameError:
                    continue  # an argument of a function


def of(kind: Any) -> Iterator[Any]:
    yield kind
    for item in get_args(kind):
        yield from of(item)


@pytest.mark.slow
def test_no_frozen_struct_is_decoded_but_as_a_field_of_another() -> None:
    found = list(decoded())
    assert len(found) > 40
    frozen = [
        (where, item)
        for where, kind in found
        for item in of(kind)
        if isinstance(item, type) and issubclass(item, FrozenStruct)
    ]
    assert frozen == []
