"""Masks of cache bits: how they are written, what may be picked from one, and what the kernel takes.

Pure; a mask is an int, bit 0 the lowest way of the cache. Does not own: which mask anybody gets (``partitioning.py``,
``allocation.py``).
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_BITS = 64
"""resctrl keeps a mask in an unsigned long; goresctrl takes no bit above 63."""
MAX_NUMBERS = 1 << 12
"""In one list: more caches than any machine has."""


def bits(mask: int) -> list[int]:
    """Return the numbers of the bits of ``mask``, rising."""
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def of(numbers: Iterable[int]) -> int:
    """Return the mask with the bits ``numbers``."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def text(mask: int) -> str:
    """Return the bits as a list: ``0-3,5``; nothing for an empty mask."""
    return listed(bits(mask))


def listed(numbers: Iterable[int]) -> str:
    """Return rising numbers as a list: ``0-3,5``."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs(numbers))


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the blocks of neighbours among rising numbers: the first and the last of each."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def parse(text: str) -> int:
    """Return the mask that is written in hexadecimal (``0xff0``) or as a list of bits (``0,2,4-7``).

    :raises ValueError: saying what is wrong with it.
    """
    if text[:2] in {"0x", "0X"}:
        if not text[2:] or not all(digit in "0123456789abcdefABCDEF" for digit in text[2:]):
            raise ValueError(f"{text!r} is no hexadecimal mask")
        mask = int(text, 16)
        if mask.bit_length() > MAX_BITS:
            raise ValueError(f"{text!r} has more than {MAX_BITS} bits")
    else:
        mask = of(numbers(text, below=MAX_BITS))
    if not mask:
        raise ValueError(f"{text!r} has no bit")
    return mask


def numbers(text: str, *, below: int) -> list[int]:
    """Return the numbers of a list such as ``0,2,4-7``, rising; each once.

    :raises ValueError: saying what is wrong with it: no number, a range that does not rise, one of ``below`` or
        more, very many.
    """
    found: set[int] = set()
    for entry in text.split(","):
        first, dash, last = (piece.strip() for piece in entry.partition("-"))
        if not is_number(first) or (dash and not is_number(last)):
            raise ValueError(f"{text!r} is no list of numbers and ranges such as 0,2,4-7")
        low, high = int(first), int(last) if dash else int(first)
        if dash and high <= low:
            raise ValueError(f"the range {entry.strip()} in {text!r} does not rise")
        if high >= below:
            raise ValueError(f"{high} in {text!r} is more than {below - 1}")
        if high - low >= MAX_NUMBERS or len(found) > MAX_NUMBERS:
            raise ValueError(f"{text!r} has more than {MAX_NUMBERS} numbers")
        found.update(range(low, high + 1))
    return sorted(found)


def part(base: int, *, low: int, high: int, least: int) -> int:
    """Return the bits of ``base`` from ``low`` to ``high`` percent of it, widened to at least ``least`` bits.

    Percentages are turned into bits as goresctrl does it, so that a file means the same: the range is of 1 to 100
    percent, fractions are cut, a mask that is too small grows downwards first.

    :param base: not empty.
    :param low: 0 (the same as 1) to ``high``.
    :param high: 1 to 100.
    :raises ValueError: if ``base`` has fewer than ``least`` bits.
    """
    available = bits(base)
    if len(available) < least:
        raise ValueError(f"{len(available)} bits are fewer than the {least} that a mask needs")
    first = (max(low, 1) - 1) * len(available) // 100
    last = (high - 1) * len(available) // 100
    missing = least - (last - first + 1)
    if missing > 0:
        down = min(missing, first)
        first, last = first - down, last + missing - down
    return of(available[first : last + 1])


def within(base: int, mask: int) -> int:
    """Return ``mask``, which counts from the lowest bit of ``base``, as bits of the cache (goresctrl, for classes).

    :raises ValueError: if it is not inside ``base``.
    """
    shift = bits(base)[0]
    shifted = mask << shift
    if shifted & ~base:
        raise ValueError(f"{mask:#x} is bits {text(shifted)} here, and only {text(base)} are its own")
    return shifted


def problem(mask: int, *, supported: int, least: int, sparse: bool) -> str:
    """Return why the kernel would refuse ``mask``; empty if it takes it (resctrl's ``cbm_validate``).

    :param supported: bits that the cache has.
    :param least: ``min_cbm_bits``; 0 counts as 1, because a class without cache is not what anybody means.
    :param sparse: bits need not be neighbours.
    """
    if not mask:
        return "has no bit"
    if mask & ~supported:
        return f"has bits {text(mask & ~supported)}, and this cache has {text(supported)} alone"
    blocks = runs(bits(mask))
    if len(blocks) > 1 and not sparse:
        return (
            f"is {len(blocks)} blocks of bits ({text(mask)}), and this cache takes one block alone (sparse_masks is 0)"
        )
    if blocks[0][1] - blocks[0][0] + 1 < least:
        return f"has fewer than {least} neighbouring bits, the least that this cache takes (min_cbm_bits)"
    return ""


def is_number(text: str) -> bool:
    """Say whether a text is a decimal number, of no more digits than one of 64 bits can have."""
    return text.isascii() and text.isdecimal() and len(text) < 20
