"""Plain values as YAML that people read and readers of either version of YAML understand alike; files of the machine's.

A text of several lines is written line by line, as it would be by hand. One that some reader takes for a number or a
boolean (``1234567e8``, ``0o17``, ``08``, ``y``) is quoted: YAML 1.1, which the library writes, and YAML 1.2 and
Kubernetes, which read, differ in what is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

_WIDTH = 1 << 30
"""Nothing is folded: who looks for a command or a message finds it on one line (as kubectl writes)."""
_MAX_DEPTH = 100
_OTHER_BREAKS = re.compile("[\x85\u2028\u2029\ufeff]")
"""Ends of lines, but for ``\\n``, and a byte order mark: readers would make something else of them."""
_NUMBER = re.compile(
    r"[-+]?(?:(?=[._]*[0-9])[0-9_]*(?:\.[0-9_]*)?(?:[eE](?:_*[-+])?[0-9_]+)?|_*0_*[oObBxX][0-9a-fA-F_]+)$"
)
"""kubectl passes over any ``_`` before it looks whether a text is a number as Go writes one."""


def to_yaml(value: Any, *, sort_keys: bool = False) -> str:
    """Return YAML of a value as JSON has them."""
    text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=sort_keys, width=_WIDTH)
    return text


def load(data: bytes) -> Any:
    """Return the value of the one document in ``data``.

    For a file of the machine's that no client can write: aliases may multiply what is in it.

    :raises yaml.YAMLError: if it is none, or more than the library takes, which it says in other ways or not at all.
    """
    if any(depth > _MAX_DEPTH for _, depth in events(data)):
        raise yaml.YAMLError(f"nested more than {_MAX_DEPTH} levels deep")
    try:
        return yaml.load(data, yaml.CSafeLoader)
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise yaml.YAMLError("it has a number with too many digits, or a time that there is not") from error


def events(data: bytes | str) -> Iterator[tuple[yaml.Event, int]]:
    """Yield the parts of YAML, each with the number of collections that are open there, one that begins among them.

    Who builds values of it looks at that first: the library's composer calls itself for each level, and the stack of C,
    and with it the process, would end.
    """
    depth = 0
    for event in yaml.parse(data, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        yield event, depth


class _Dumper(yaml.CSafeDumper):
    """Without anchors for values that are there twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if _OTHER_BREAKS.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)
# What resolves to another tag than its own is quoted; numbers themselves are floats or ints to the library already.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]$"), list("yYnN"))
