from __future__ import annotations

import pytest

from podkeep.api.fields import MAX_CHARACTERS, MAX_ERRORS, FieldErrors


def test_what_a_large_object_has_wrong_is_told_up_to_a_bound() -> None:
    errors = FieldErrors()
    for index in range(MAX_ERRORS + 5):
        errors.required(f"spec[{index}]", "")
    assert len(errors.found) == MAX_ERRORS
    assert str(errors.found[-1]) == f"spec[{MAX_ERRORS - 1}]: Required value"


def test_large_values_are_not_told_again_and_again() -> None:
    errors = FieldErrors()
    for index in range(10):
        errors.invalid(f"spec[{index}]", "x" * (MAX_CHARACTERS // 2), "no")
    assert len(errors.found) == 2


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a", '"a"'),
        (True, "true"),
        (None, "null"),
        (7, "7"),
        ([1], "[1]"),
        ({"a": "b"}, '{"a":"b"}'),
        ("a\nb", '"a\\nb"'),
        ('a"b\\', '"a\\"b\\\\"'),  # as Go's %q
    ],
)
def test_values_are_shown_as_json(value: object, shown: str) -> None:
    errors = FieldErrors()
    errors.invalid("spec", value, "no")
    assert str(errors.found[0]) == f"spec: Invalid value: {shown}: no"
