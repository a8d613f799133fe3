"""Label and field selectors, as query parameters write them and as objects have them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from podkeep.api import names
from podkeep.apiserver.meta.status import StatusError, bad_request
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import printable

MAX_CHARACTERS = 65_536
"""Of a selector; kube-apiserver's bound is that of the request line."""
MAX_REQUIREMENTS = 500
"""Of a selector in a query. Each is held against every object of a list and every event of a watch."""
MAX_PROBLEMS = 10
"""Of the values of one requirement that are told."""
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}
_OPERATORS_OF_ONE = {"=": "in", "==": "in", "!=": "notin", ">": "gt", "<": "lt"}
_SYMBOLS = frozenset({"=", "==", "!=", "!", ",", "(", ")", "<", ">"})
_TOKEN = re.compile(r"\s*(?:(==|!=|[=!,()<>])|([^\s=!,()<>]+)|$)")
_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")
_ESCAPE = re.compile(r"\\.?", re.DOTALL)
_UNESCAPED = re.compile(r"\\(.)", re.DOTALL)


class Requirement(FrozenStruct):
    """One condition: ``operator`` is ``in``, ``notin``, ``exists``, ``!``, ``gt`` or ``lt``."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an object with these labels meets the condition."""
        value = labels.get(self.key)
        if self.operator == "!":
            return value is None
        # What has no such label is in no set of values.
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
    """Return the number that a text is, as ``strconv.ParseInt`` reads one of 64 bits; None: it is not one."""
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None


class LabelSelector(FrozenStruct):
    """All of its requirements; none: everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)


class FieldSelector(FrozenStruct):
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

    What is wrong is told in the words of apimachinery (``pkg/labels``), which reads it from left to right, too.

    :raises StatusError: 400, if it is not one.
    """
    tokens = _tokens(text)
    requirements: list[Requirement] = []
    while tokens[0]:
        if tokens[0] != "!" and not _is_word(tokens[0]):
            raise _unexpected(tokens[0], "!, identifier, or 'end of string'")
        if len(requirements) == MAX_REQUIREMENTS:
            raise _unparsable(f"there are more than {MAX_REQUIREMENTS} requirements")
        try:
            requirements.append(_requirement(tokens))
        except StatusError as error:
            raise _unparsable(error.message) from None
        if not tokens[0]:
            break
        if (token := tokens.popleft()) != ",":
            raise _unexpected(token, "',' or 'end of string'")
        if tokens[0] != "!" and not _is_word(tokens[0]):
            raise _unexpected(tokens[0], "identifier after ','")
    return LabelSelector(tuple(requirements))


def _tokens(text: str) -> deque[str]:
    """Return symbols and words; an empty one is the end."""
    if len(text) > MAX_CHARACTERS:
        raise _unparsable(f"it is longer than {MAX_CHARACTERS} characters")
    # A deque: to take 64 kB of tokens from the front of a list takes 0.9 s, since each moves all others.
    found = deque(symbol or word for symbol, word in _TOKEN.findall(text) if symbol or word)
    found.append("")
    return found


def _is_word(token: str) -> bool:
    return token != "" and token not in _SYMBOLS


def _requirement(tokens: deque[str]) -> Requirement:
    if absent := tokens[0] == "!":
        tokens.popleft()
    if not _is_word(tokens[0]):
        raise _unexpected(tokens[0], "identifier")
    key = tokens.popleft()
    if problems := names.label_key_problems(key):
        raise bad_request(f'<nil>: Invalid value: "{_shown(key)}": {"; ".join(problems)}')
    if absent:
        return Requirement(key, "!")
    if tokens[0] in ("", ","):
        return Requirement(key, "exists")
    operator = tokens.popleft()
    if operator in ("in", "notin"):
        return _checked(key, operator, _values(tokens))
    if operator not in _OPERATORS_OF_ONE:
        raise _unexpected(operator, "in, notin, =, ==, !=, gt, lt")
    return _checked(key, _OPERATORS_OF_ONE[operator], [_value(tokens)])


def _value(tokens: deque[str]) -> str:
    if tokens[0] in ("", ","):
        return ""
    if not _is_word(tokens[0]):
        raise _unexpected(tokens[0], "identifier")
    return tokens.popleft()


def _values(tokens: deque[str]) -> list[str]:
    if (token := tokens.popleft()) != "(":
        raise bad_request(f"found '{_shown(token)}' expected: '('")
    if tokens[0] not in (",", ")") and not _is_word(tokens[0]):
        raise _unexpected(tokens[0], "',', ')' or identifier")
    found = [""]
    while (token := tokens.popleft()) != ")":
        if token == ",":
            found.append("")
        elif not _is_word(token):
            raise _unexpected(token, "',', or identifier")
        else:
            found[-1] = token
            if tokens[0] not in (",", ")"):
                raise _unexpected(tokens[0], "',' or ')'")
    return found


def _checked(key: str, operator: str, values: Sequence[str]) -> Requirement:
    problems = []
    for index, value in enumerate(sorted(set(values))):
        if operator in ("gt", "lt") and _integer(value) is None:
            why = "for 'Gt', 'Lt' operators, the value must be an integer"
            problems.append(f'values[{index}]: Invalid value: "{_shown(value)}": {why}')
        if why := names.label_value(value):
            problems.append(f'values[{index}][{_shown(key)}]: Invalid value: "{_shown(value)}": {why}')
        if len(problems) > MAX_PROBLEMS:
            break
    if problems:
        raise bad_request(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
    return Requirement(key, operator, frozenset(values))


def _unexpected(token: str, expected: str) -> StatusError:
    return bad_request(f"found '{_shown(token)}', expected: {expected}")


def _unparsable(why: str) -> StatusError:
    return bad_request(f"unable to parse requirement: {why}")


def _shown(text: str) -> str:
    return printable(text[:200])


def of_object(selector: Mapping[str, Any] | None) -> LabelSelector | None:
    """Return what a ``LabelSelector`` of an object means; None: the object has none, and nothing is selected."""
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
