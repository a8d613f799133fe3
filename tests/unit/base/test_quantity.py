"""Quantities: exact, and rounded up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.base.text import quantity


@pytest.mark.parametrize(
    ("text", "units", "milli"),
    [
        ("1", 1, 1000),
        ("500m", 1, 500),
        ("0.1", 1, 100),
        ("1n", 1, 1),
        ("64Mi", 64 << 20, 64000 << 20),
        ("1.5Gi", 3 << 29, 3000 << 29),
        ("2e3", 2000, 2_000_000),
        ("1E", 10**18, 10**21),
        (".5k", 500, 500_000),
        ("-1", -1, -1000),
    ],
)
def test_known_values(text: str, units: int, milli: int) -> None:
    assert (quantity.units(text), quantity.milli(text)) == (units, milli)


@pytest.mark.parametrize("text", ["", "1 Gi", "1GiB", "Gi", "1e", "one", "0x10", "1..2", "9223372036854775808", "1e99"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        quantity.parse(text)


@given(st.integers(0, 10**9))
def test_thousandths_are_exact(amount: int) -> None:
    assert quantity.milli(f"{amount}m") == amount


@pytest.mark.parametrize("text", ["\u0663", "1\u0663", "\u00b2", "1e\u0663", "9" * 5000, "1e" + "9" * 5000])
def test_only_ascii_digits_and_not_thousands_of_them(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0Ki", "0"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1500", "1500"),
        ("12000", "12k"),
        ("1.5Gi", "1536Mi"),
        ("1024Mi", "1Gi"),
        ("1Ei", "1Ei"),
        ("1000Ki", "1000Ki"),
        ("0.5Ki", "512"),
        ("2e3", "2e3"),
        ("2000e0", "2e3"),
        ("1e-3", "1e-3"),
        ("0.0000000001", "1n"),
        ("-1500m", "-1500m"),
        ("-2048Ki", "-2Mi"),
        ("9223372036854775807", "9223372036854775807"),
    ],
)
def test_canonical(text: str, canonical: str) -> None:
    assert quantity.canonical(text) == canonical
    assert quantity.parse(quantity.canonical(canonical)) == quantity.parse(canonical)
