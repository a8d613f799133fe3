"""Rules that fields of several kinds have in common, in Kubernetes' words (apimachinery, ``pkg/apis/*/validation``).

Every function notes what is wrong in :class:`FieldErrors`; nothing is raised. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.selectors import LabelSelector
from podkeep.apiserver.patch.values import equal

NEGATIVE = "must be greater than or equal to 0"
IMMUTABLE = "field is immutable"
PROTOCOLS = ("SCTP", "TCP", "UDP")
CONDITION_STATUSES = ("False", "True", "Unknown")
_PERCENT = re.compile(r"[0-9]+%")
_NO_PERCENT = (
    "a valid percent string must be a numeric string followed by an ending '%'"
    " (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_NO_REASON = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric"
    " characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or"
    " 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is"
    " '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
)
_MAX_REASON_BYTES = 1 << 10
_MAX_MESSAGE_BYTES = 32 << 10


def not_negative(value: Mapping[str, Any], fields: Iterable[str], path: str, errors: FieldErrors) -> None:
    """Note each of an object's numbers that is below 0."""
    for name in fields:
        number = value.get(name) or 0
        if number < 0:
            errors.invalid(f"{path}.{name}", number, NEGATIVE)


def not_above(value: Mapping[str, Any], fields: Iterable[str], bound: str, why: str, errors: FieldErrors) -> None:
    """Note each of the numbers of a status that is larger than its field ``bound``."""
    limit = value.get(bound, 0)
    for name in fields:
        number = value.get(name, 0)
        if number > limit:
            errors.invalid(f"status.{name}", number, why)


def immutable(new: Any, old: Any, path: str, errors: FieldErrors) -> None:
    """Note a value that has changed and may not; None is a field that is not set.

    A value that is an object is shown as the API writes it, where kube-apiserver shows its own types.
    """
    if not equal(new, old):
        errors.invalid(path, new, IMMUTABLE)


def required(path: str, why: str, errors: FieldErrors) -> None:
    """Note a field that is not there, and why it must be."""
    errors.add(path, f"Required value: {why}")


def wrong(path: str, why: str, errors: FieldErrors) -> None:
    """Note a value that is wrong without showing it."""
    errors.add(path, f"Invalid value: {why}")


def not_supported(path: str, value: Any, known: Sequence[str], errors: FieldErrors) -> None:
    """Note a value that is none of the known ones, which are named in the order that they are given in."""
    listed = ", ".join(f'"{name}"' for name in known)
    errors.add(path, f"Unsupported value: {msgspec.json.encode(value).decode()}: supported values: {listed}")


def one_of(path: str, value: str, known: Sequence[str], errors: FieldErrors) -> None:
    """Note a value that is empty, or none of the known ones."""
    if not value:
        errors.required(path, "")
    elif value not in known:
        not_supported(path, value, known, errors)


def too_many(path: str, count: int, limit: int, errors: FieldErrors) -> None:
    """Note a list that is longer than ``limit``."""
    if count > limit:
        errors.add(path, f"Too many: {count}: must have at most {limit} items")


def too_long(path: str, text: str, limit: int, errors: FieldErrors) -> None:
    """Note a text of more than ``limit`` bytes."""
    if len(text.encode()) > limit:
        errors.add(path, f"Too long: may not be more than {limit} bytes")


def named(path: str, value: str, why: str | Iterable[str], errors: FieldErrors) -> None:
    """Note a name that breaks a rule of :mod:`podkeep.api.names`.

    :param why: what the rule says: one text, which is empty for a good name, or all that is wrong.
    """
    for problem in (why,) if isinstance(why, str) else why:
        if problem:
            errors.invalid(path, value, problem)


def port_number(path: str, port: int, errors: FieldErrors) -> None:
    """Note what is no port."""
    if not 1 <= port <= 65_535:
        errors.invalid(path, port, "must be between 1 and 65535, inclusive")


def port(path: str, value: int | str, errors: FieldErrors) -> None:
    """Note an ``IntOrString`` that is neither the number nor the name of a port."""
    if isinstance(value, str):
        for why in names.port_name_problems(value):
            errors.invalid(path, value, why)
    else:
        port_number(path, value, errors)


# numbers or percentages


def number_or_percent(path: str, value: int | str, errors: FieldErrors) -> None:
    """Note an ``IntOrString`` that is a negative number, or a text that is no percentage."""
    if isinstance(value, str):
        if not _PERCENT.fullmatch(value):
            errors.invalid(path, value, _NO_PERCENT)
    elif value < 0:
        errors.invalid(path, value, NEGATIVE)


def at_most_100_percent(path: str, value: int | str, errors: FieldErrors) -> None:
    """Note a percentage above 100."""
    if isinstance(value, str) and _PERCENT.fullmatch(value) and _number(value.removesuffix("%")) > 100:
        errors.invalid(path, value, "must not be greater than 100%")


def is_zero(value: int | str) -> bool:
    """Tell whether an ``IntOrString`` is 0, ``0%``, or no number at all."""
    return not (_number(value.removesuffix("%")) if isinstance(value, str) else value)


def _number(text: str) -> int:
    # More digits are above every bound, and int() refuses thousands of them.
    return int(text) if _INTEGER.fullmatch(text) else 0 if not text.isdecimal() else 1 << 63


# labels and selectors


def labels(value: Mapping[str, str], path: str, errors: FieldErrors) -> None:
    """Note labels whose key or value is wrong; both are noted at the path of all of them."""
    for key, content in value.items():
        named(path, key, names.label_key_problems(key), errors)
        named(path, content, names.label_value(content), errors)


def label_selector(
    selector: Mapping[str, Any] | None, path: str, errors: FieldErrors, *, any_value: bool = False
) -> None:
    """Note what is wrong with a ``LabelSelector``.

    :param any_value: do not look at the values of expressions: the old object has such that are wrong.
    """
    if selector is None:
        return
    labels(selector.get("matchLabels", {}), f"{path}.matchLabels", errors)
    for index, item in enumerate(selector.get("matchExpressions", ())):
        _requirement(item, f"{path}.matchExpressions[{index}]", errors, any_value=any_value)


def _requirement(item: Mapping[str, Any], path: str, errors: FieldErrors, *, any_value: bool) -> None:
    if not operator(item, path, errors):
        errors.invalid(f"{path}.operator", item.get("operator", ""), "not a valid selector operator")
    key_and_values(item, path, errors, any_value=any_value)


def operator(item: Mapping[str, Any], path: str, errors: FieldErrors) -> bool:
    """Note values that an operator needs or cannot have; return whether it is one of those that all selectors know."""
    name, values = item.get("operator", ""), item.get("values", ())
    if name in ("In", "NotIn"):
        if not values:
            required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'", errors)
    elif name in ("Exists", "DoesNotExist"):
        if values:
            errors.forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    else:
        return False
    return True


def key_and_values(item: Mapping[str, Any], path: str, errors: FieldErrors, *, any_value: bool) -> None:
    """Note a key that no label has, and values that none has unless ``any_value``."""
    named(f"{path}.key", item.get("key", ""), names.label_key_problems(item.get("key", "")), errors)
    if not any_value:
        for index, value in enumerate(item.get("values", ())):
            named(f"{path}.values[{index}]", value, names.label_value(value), errors)


def is_selector(selector: Mapping[str, Any] | None, *, any_value: bool = False) -> bool:
    """Tell whether a ``LabelSelector`` has no error."""
    found = FieldErrors()
    label_selector(selector, "", found, any_value=any_value)
    return not found.found


def has_wrong_values(selector: Mapping[str, Any] | None) -> bool:
    """Tell whether expressions of a ``LabelSelector`` have values that no label can have."""
    return any(
        names.label_value(value)
        for item in (selector or {}).get("matchExpressions", ())
        for value in item.get("values", ())
    )


def parsed(selector: Mapping[str, Any] | None) -> LabelSelector | None:
    """Return what a ``LabelSelector`` means; None if it has errors or is not there, so that it selects nothing."""
    return selectors.of_object(selector) if is_selector(selector) else None


def shown(selector: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a ``LabelSelector`` as messages show it: labels before expressions, both in order."""
    if selector is None:
        return None
    found: dict[str, Any] = {}
    if given := selector.get("matchLabels"):
        found["matchLabels"] = in_order(given)
    if expressions := selector.get("matchExpressions"):
        found["matchExpressions"] = [
            {"key": item.get("key", ""), "operator": item.get("operator", "")}
            | ({"values": item["values"]} if item.get("values") else {})
            for item in expressions
        ]
    return found


def in_order(value: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return labels as messages show them."""
    return None if value is None else dict(sorted(value.items()))


def is_empty(selector: Mapping[str, Any]) -> bool:
    """Tell whether a ``LabelSelector`` selects everything."""
    return not selector.get("matchLabels") and not selector.get("matchExpressions")


# conditions


def conditions(found: Sequence[Mapping[str, Any]], path: str, errors: FieldErrors) -> None:
    """Note what is wrong with conditions of ``meta/v1``."""
    seen: set[str] = set()
    for index, condition in enumerate(found):
        where, kind = f"{path}[{index}]", condition.get("type", "")
        if kind in seen:
            errors.duplicate(f"{where}.type", kind)
        seen.add(kind)
        named(f"{where}.type", kind, names.label_key_problems(kind), errors)
        if condition.get("status", "") not in CONDITION_STATUSES:
            errors.unsupported(f"{where}.status", condition.get("status", ""), CONDITION_STATUSES)
        if condition.get("observedGeneration", 0) < 0:
            errors.invalid(
                f"{where}.observedGeneration",
                condition["observedGeneration"],
                "must be greater than or equal to zero",
            )
        errors.required(f"{where}.lastTransitionTime", condition.get("lastTransitionTime"))
        reason = condition.get("reason", "")
        if errors.required(f"{where}.reason", reason):
            if not _REASON.fullmatch(reason):
                errors.invalid(f"{where}.reason", reason, _NO_REASON)
            too_long(f"{where}.reason", reason, _MAX_REASON_BYTES, errors)
        too_long(f"{where}.message", condition.get("message", ""), _MAX_MESSAGE_BYTES, errors)
