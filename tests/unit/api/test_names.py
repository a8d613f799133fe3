"""Names: what is wrong with them, as kube-apiserver tells it."""

from __future__ import annotations

import pytest

from podkeep.api import names

CHARACTERS = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
EMPTY = "name part must be non-empty"
LONG = "name part must be no more than 63 bytes"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a", []),
        ("example.com/a", []),
        ("", [EMPTY, CHARACTERS]),
        ("example.com/", [EMPTY, CHARACTERS]),
        ("/a", ["prefix part must be non-empty"]),
        ("/", ["prefix part must be non-empty", EMPTY, CHARACTERS]),
        ("a" * 64, [LONG]),
        ("-" * 64, [LONG, CHARACTERS]),
        ("-", [CHARACTERS]),
    ],
)
def test_every_problem_of_a_label_key_is_told(key: str, expected: list[str]) -> None:
    assert names.label_key_problems(key) == expected
    assert names.label_key(key) == (expected[0] if expected else "")
