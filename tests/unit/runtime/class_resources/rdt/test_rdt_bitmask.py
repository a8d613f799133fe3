"""Masks of cache bits: their text, parts of them, and what the kernel takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.runtime.class_resources.rdt import bitmask

_MASKS = st.integers(min_value=1, max_value=(1 << bitmask.MAX_BITS) - 1)


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (0x0, ""),
        (0x1, "0"),
        (0x2, "1"),
        (0xF, "0-3"),
        (0x1D1A, "1,3-4,8,10-12"),
        (0xFFFFFFFFFFFFFFFF, "0-63"),
    ],
)
def test_text(mask: int, text: str) -> None:
    assert bitmask.text(mask) == text


@pytest.mark.parametrize(
    ("text", "mask"),
    [("0xff0", 0xFF0), ("0XF", 0xF), ("0", 1), ("2,3", 0xC), ("7-8, 0", 0x181), ("3-5,6,7,8", 0x1F8), ("63", 1 << 63)],
)
def test_parse(text: str, mask: int) -> None:
    assert bitmask.parse(text) == mask


@pytest.mark.parametrize(
    "text",
    [
        *["", ",", "-", "1,", ",12", "-4", "0-", "13-13", "14-13", "a-2", "b", "3-c", "64", "1,2,,3", "1,2,3-", "1 2"],
        *["0x", "0xg", "0x0", "0x1_0", "0x-1", "0x10000000000000000", "½", "1" * 5000, "0b11", "+1"],
    ],
)
def test_what_is_no_mask(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S+"):
        bitmask.parse(text)


@pytest.mark.parametrize(
    ("base", "low", "high", "least", "mask"),
    [
        (0xFF00, 0, 100, 4, 0xFF00),
        (0xFF00, 99, 100, 4, 0xF000),  # too small: grows downwards
        (0xFF00, 0, 1, 4, 0x0F00),  # and upwards where there is nothing below
        (0x3FF00, 20, 30, 4, 0x0F00),
        (0xF00, 30, 60, 4, 0xF00),
        (0xFFFFF, 0, 10, 1, 0x3),
        (0xFFFFF, 50, 60, 1, 0x00E00),
        (0xF0F, 51, 100, 1, 0xF00),  # of a mask with gaps, the upper half of its bits
    ],
)
def test_part(base: int, low: int, high: int, least: int, mask: int) -> None:
    assert bitmask.part(base, low=low, high=high, least=least) == mask


def test_part_of_too_little() -> None:
    with pytest.raises(ValueError, match="1 bits are fewer than the 2"):
        bitmask.part(0x10, low=0, high=100, least=2)


def test_within() -> None:
    assert bitmask.within(0xF00, 0x7) == 0x700
    with pytest.raises(ValueError, match=r"0x1ff is bits 8-16 here, and only 8-15 are its own"):
        bitmask.within(0xFF00, 0x1FF)


@pytest.mark.parametrize(
    ("mask", "least", "sparse", "problem"),
    [
        (0xFF0, 1, False, ""),
        (0xF0F, 1, True, ""),
        (0, 1, True, "has no bit"),
        (0x1F000, 1, False, "has bits 16, and this cache has 0-15 alone"),
        (0xF0F, 1, False, "is 2 blocks of bits (0-3,8-11), and this cache takes one block alone (sparse_masks is 0)"),
        (0x8, 2, False, "has fewer than 2 neighbouring bits, the least that this cache takes (min_cbm_bits)"),
        (0xF1, 2, True, "has fewer than 2 neighbouring bits, the least that this cache takes (min_cbm_bits)"),
    ],
)
def test_problem(mask: int, least: int, sparse: bool, problem: str) -> None:
    assert bitmask.problem(mask, supported=0xFFFF, least=least, sparse=sparse) == problem


@given(_MASKS)
def test_text_can_be_read_back(mask: int) -> None:
    assert bitmask.parse(bitmask.text(mask)) == bitmask.parse(f"{mask:#x}") == bitmask.of(bitmask.bits(mask)) == mask


@given(_MASKS, st.integers(0, 100), st.integers(1, 100), st.integers(1, 4))
def test_a_part_is_inside_and_large_enough(base: int, low: int, high: int, least: int) -> None:
    if low > high or base.bit_count() < least:
        return
    mask = bitmask.part(base, low=low, high=high, least=least)
    assert mask & ~base == 0
    assert mask.bit_count() >= least
    assert len(bitmask.runs(bitmask.bits(mask))) <= len(bitmask.runs(bitmask.bits(base)))
