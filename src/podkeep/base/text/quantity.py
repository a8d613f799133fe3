"""Kubernetes quantities: ``500m``, ``1.5Gi``, ``2e3``.

Exact arithmetic (Decimal); rounding is always up, as Kubernetes does when it needs whole units.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_UP, Decimal, localcontext
from functools import lru_cache

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
_QUANTITY = re.compile(
    # Bounded: arithmetic with the digits of a text of any length would take as long as a client likes.
    r"([+-]?(?:[0-9]{1,60}\.?[0-9]{0,60}|\.[0-9]{1,60}))"
    r"(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
_MAX = Decimal(2**63 - 1)
_NANO = Decimal("1e-9")
_DECIMAL_SUFFIXES = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@lru_cache(maxsize=1024)  # the same few are in most pods
def parse(text: str) -> Decimal:
    """Return the number that ``text`` stands for.

    :raises ValueError: if it is not a quantity, or does not fit into 63 bits.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 500m, 1.5Gi or 2")
    number, suffix, exponent = match.groups()
    value = Decimal(number) * (Decimal(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""])
    if abs(value) > _MAX:
        raise ValueError(f"{text!r} is larger than a quantity can be")
    return value


def units(text: str) -> int:
    """Return the quantity in whole units (bytes, CPUs), rounded up."""
    return int(parse(text).to_integral_value(rounding=ROUND_CEILING))


def milli(text: str) -> int:
    """Return the quantity in thousandths (millicores), rounded up."""
    return int((parse(text) * 1000).to_integral_value(rounding=ROUND_CEILING))


def canonical(text: str) -> str:
    """Return the quantity as Kubernetes writes it: no fraction, the largest suffix that allows that, the kind of
    suffix that was given (``1000m`` is ``1``, ``1.5Gi`` is ``1536Mi``, ``1500e0`` is ``1500``, ``0.5`` is ``500m``).

    :raises ValueError: as :func:`parse`.
    """
    value = parse(text)
    with localcontext() as context:
        context.prec = 150  # of what the pattern takes nothing is rounded but what is smaller than a nano
        value = value.quantize(_NANO, rounding=ROUND_UP)
        if value == 0:
            return "0"
        if text.endswith("i") and abs(value) >= 1024:
            whole = int(value.to_integral_value(rounding=ROUND_UP))
            power = 0
            while whole % 1024 == 0 and power < len(_BINARY_SUFFIXES) - 1:
                whole, power = whole // 1024, power + 1
            return f"{whole}{_BINARY_SUFFIXES[power]}"
        whole, thousands = int(value.scaleb(9)), -3
        while whole % 1000 == 0 and thousands < 6:
            whole, thousands = whole // 1000, thousands + 1
    if re.search("[eE][+-]?[0-9]", text):
        return f"{whole}e{3 * thousands}" if thousands else str(whole)
    return f"{whole}{_DECIMAL_SUFFIXES[thousands + 3]}"
