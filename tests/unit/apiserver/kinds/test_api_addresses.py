"""Addresses, networks, spans of time and sets of indexes in fields and cells."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import since
from podkeep.apiserver.kinds.services import addresses
from podkeep.apiserver.kinds.workloads import index_sets


@pytest.mark.parametrize(
    ("text", "expected", "warnings"),
    [
        ("10.9.8.7", "", []),
        ("2001:db8::1", "", []),
        ("x", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)", []),
        ("fe80::1%eth0", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)", []),
        ("1.2.3", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)", []),
        (
            "010.001.0.1",
            "must not have leading 0s",
            ['f: non-standard IP address "010.001.0.1" is invalid: use "10.1.0.1"'],
        ),
        (
            "::ffff:1.2.3.4",
            "must not be an IPv4-mapped IPv6 address",
            ['f: non-standard IP address "::ffff:1.2.3.4" is invalid: use "1.2.3.4"'],
        ),
        (
            "2001:DB8:0::1",
            "",
            ['f: IPv6 address "2001:DB8:0::1" should be in RFC 5952 canonical format ("2001:db8::1")'],
        ),
    ],
)
def test_addresses(text: str, expected: str, warnings: list[str]) -> None:
    errors = FieldErrors()
    assert addresses.validate("f", text, errors) is not bool(expected)
    assert list(map(str, errors.found)) == ([f'f: Invalid value: "{text}": {expected}'] if expected else [])
    assert addresses.warnings("f", text) == warnings
    assert addresses.validate("f", text, errors, old=[text])


def test_an_address_in_canonical_form() -> None:
    errors = FieldErrors()
    addresses.validate("f", "FD00::1", errors, canonical=True)
    assert list(map(str, errors.found)) == ['f: Invalid value: "FD00::1": must be in canonical form ("fd00::1")']


@pytest.mark.parametrize(
    ("text", "expected", "warnings"),
    [
        ("10.0.0.0/8", "", []),
        ("fd00::/64", "", []),
        ("10.0.0.0", "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)", []),
        ("10.0.0.0/33", "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)", []),
        (
            "10.0.0.0/08",
            "must not have leading 0s in IP or prefix length",
            ['f: non-standard CIDR value "10.0.0.0/08" is invalid: use "10.0.0.0/8"'],
        ),
        (
            "10.0.0.1/8",
            "must not have bits set beyond the prefix length",
            [
                'f: CIDR value "10.0.0.1/8" is ambiguous in this context (should be "10.0.0.0/8" or "10.0.0.1/32"?)',
            ],
        ),
        (
            "FD00::/64",
            "",
            ['f: IPv6 CIDR value "FD00::/64" should be in RFC 5952 canonical format ("fd00::/64")'],
        ),
    ],
)
def test_networks(text: str, expected: str, warnings: list[str]) -> None:
    errors = FieldErrors()
    addresses.validate_network("f", text, errors)
    assert list(map(str, errors.found)) == ([f'f: Invalid value: "{text}": {expected}'] if expected else [])
    assert addresses.network_warnings("f", text) == warnings
    errors = FieldErrors()
    addresses.validate_network("f", text, errors, old=[text])
    assert errors.found == []


def test_an_object_without_a_time_is_of_unknown_age() -> None:
    assert since(None, datetime.now(UTC)) == "<unknown>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("0", 1), ("1,3-5", 4), ("0-9", 10)],
)
def test_sets_of_indexes(text: str, expected: int) -> None:
    assert index_sets.count(text, 10) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", 'cannot convert string to integer for index: "x"'),
        ("1-", 'cannot convert string to integer for index: ""'),
        ("10", 'too large index: "10"'),
        ("2-2", "non-increasing order, previous: 2, current: 2"),
        ("3,3", "non-increasing order, previous: 3, current: 3"),
        (
            "1-2-3",
            'the fragment "1-2-3" violates the requirement that an index interval can have at most two parts separated'
            " by '-'",
        ),
    ],
)
def test_sets_of_indexes_that_are_none(text: str, expected: str) -> None:
    with pytest.raises(index_sets.IndexesError) as caught:
        index_sets.count(text, 10)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("completed", "failed", "expected"),
    [("0-2", "3", None), ("0-2", "2", 2), ("0,4-6", "1-3,5", 5), ("x,7", "7", 7), ("1", "", None), ("1-3", "0-9", 1)],
)
def test_sets_of_indexes_that_overlap(completed: str, failed: str, expected: int | None) -> None:
    assert index_sets.overlap(completed, failed, 10) == expected
