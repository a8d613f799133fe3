"""Label and field selectors, as query parameters write them and as objects have them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podkeep.api import names
from podkeep.apiserver.meta.status import StatusError, bad_request

MAX_CHARACTERS = 65_536
"""Of a selector; kube-apiserver's bound is that of the request line."""
MAX_REQUIREMENTS = 500
"""Of a selector in a query. Each is held against every object of a list and every event of a watch."""
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}
_TOKEN = re.compile(r"\s*(?:(==|!=|[=!,()<>])|([^\s=!,()<>]+)|$)")
_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")
_ESCAPE = re.compile(r"\\.?", re.DOTALL)
_UNESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition: ``operator`` is ``in``, ``notin``, ``exists``, ``!``, ``gt`` or ``lt``."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an object with these labels meets the condition."""
        value = labels.get(self.key)
        if self.operator == "!":
            return value is None
        if self.operator == "notin":
            return value is None or value not in self.values
        if value is None or self.operator == "exists":
            return value is not None
        if self.operator == "in":
            return value in self.values
        (limit,) = self.values
        number, bound = _integer(value), _integer(limit)
        if number is None or bound is None:
            return False
        return number > bound if self.operator == "gt" else number < bound


def _integer(text: str) -> int | None:
    """Return the number that a text is, as ``strconv.ParseInt`` reads one of 64 bits; None: it is none."""
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All of its requirements; none: everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Fields and the values that they have, or have not; none: everything."""

    equal: tuple[tuple[str, str], ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Tell whether an object with these values of its selectable fields is selected."""
        return all(fields.get(name, "") == value for name, value in self.equal) and all(
            fields.get(name, "") != value for name, value in self.unequal
        )

    def value(self, name: str) -> str | None:
        """Return the value that a field must have; None if it may have several."""
        return dict(self.equal).get(name)


def parse_labels(text: str) -> LabelSelector:
    """Return the selector that a query parameter ``labelSelector`` means.

    :raises StatusError: 400, if it is not one.
    """
    tokens = _tokens(text)
    requirements: list[Requirement] = []
    while tokens:
        if len(requirements) == MAX_REQUIREMENTS:
            raise _unparsable(f"there are more than {MAX_REQUIREMENTS} requirements")
        requirements.append(_requirement(tokens))
        if tokens and tokens.popleft() != ",":
            raise _unparsable("found something after a requirement, expected: ','")
        if not tokens and text.rstrip().endswith(","):
            raise _unparsable("found '', expected: identifier after ','")
    return LabelSelector(tuple(requirements))


def _tokens(text: str) -> deque[str]:
    if len(text) > MAX_CHARACTERS:
        raise _unparsable(f"it is longer than {MAX_CHARACTERS} characters")
    return deque(symbol or word for symbol, word in _TOKEN.findall(text) if symbol or word)


def _requirement(tokens: deque[str]) -> Requirement:
    absent = tokens[0] == "!"
    if absent:
        tokens.popleft()
    key = tokens.popleft() if tokens else ""
    if why := names.label_key(key):
        raise _unparsable(f"{key[:200]!r} cannot be the key of a label: {why}")
    if absent:
        return Requirement(key, "!")
    if not tokens or tokens[0] == ",":
        return Requirement(key, "exists")
    operator = tokens.popleft()
    if operator in ("=", "==", "!="):
        value = tokens.popleft() if tokens and tokens[0] not in (",", "(", ")") else ""
        return _checked(key, "notin" if operator == "!=" else "in", [value])
    if operator in ("<", ">"):
        value = tokens.popleft() if tokens else ""
        if _integer(value) is None:
            raise _unparsable(f"{value[:80]!r} is not an integer, for 'Gt' and 'Lt' operators")
        return Requirement(key, "gt" if operator == ">" else "lt", frozenset({value}))
    if operator in ("in", "notin"):
        return _checked(key, operator, _values(tokens))
    raise _unparsable(f"found {operator[:80]!r}, expected: in, notin, =, ==, !=, gt, lt")


def _values(tokens: deque[str]) -> list[str]:
    if not tokens or tokens.popleft() != "(":
        raise _unparsable("expected: '(' after in or notin")
    values, value = [], ""
    while tokens:
        token = tokens.popleft()
        if token in (",", ")"):
            values.append(value)
            value = ""
            if token == ")":
                return values
        elif value or token in ("(", "=", "==", "!=", "!", "<", ">"):
            raise _unparsable(f"found {token[:80]!r}, expected: ',' or ')'")
        else:
            value = token
    raise _unparsable("found '', expected: ',' or ')'")


def _checked(key: str, operator: str, values: Sequence[str]) -> Requirement:
    for value in values:
        if why := names.label_value(value):
            raise _unparsable(f"values[0][{key}]: Invalid value: {value[:200]!r}: {why}")
    return Requirement(key, operator, frozenset(values))


def _unparsable(why: str) -> StatusError:
    return bad_request(f"unable to parse requirement: {why}")


def of_object(selector: Mapping[str, Any] | None) -> LabelSelector | None:
    """Return what a ``LabelSelector`` of an object means; None, which selects nothing, if there is none."""
    if selector is None:
        return None
    equal = [Requirement(key, "in", frozenset({value})) for key, value in selector.get("matchLabels", {}).items()]
    return LabelSelector(
        (
            *equal,
            *(
                Requirement(item["key"], _OPERATORS[item["operator"]], frozenset(item.get("values", ())))
                for item in selector.get("matchExpressions", ())
            ),
        )
    )


def parse_fields(text: str) -> FieldSelector:
    r"""Return the selector that a query parameter ``fieldSelector`` means; ``\`` takes ``,``, ``=`` and itself out.

    :raises StatusError: 400, if it is not one.
    """
    if len(text) > MAX_CHARACTERS:
        raise bad_request(f"invalid selector: it is longer than {MAX_CHARACTERS} characters")
    equal: list[tuple[str, str]] = []
    unequal: list[tuple[str, str]] = []
    for term in filter(None, re.findall(r"(?:[^\\,]|\\.|\\\Z)+", text, re.DOTALL)):
        match = re.match(r"((?:[^\\=!]|\\.)*)(!=|==|=)(.*)", term, re.DOTALL)
        if len(equal) + len(unequal) == MAX_REQUIREMENTS:
            raise bad_request(f"invalid selector: there are more than {MAX_REQUIREMENTS} requirements")
        if match is None:
            raise bad_request(f"invalid selector: '{text[:200]}'; can't understand '{term[:200]}'")
        name, operator, value = match.groups()
        if re.search(r"(?<!\\)(?:\\\\)*=", value):
            raise bad_request(f"invalid selector: unescaped '=' in '{value[:200]}'")
        if wrong := [escape for escape in _ESCAPE.findall(value) if escape not in (r"\\", r"\,", r"\=")]:
            raise bad_request(f"invalid field selector: invalid escape sequence: {wrong[0]}")
        pair = (name, _UNESCAPED.sub(r"\1", value))
        (unequal if operator == "!=" else equal).append(pair)
    return FieldSelector(tuple(equal), tuple(unequal))
