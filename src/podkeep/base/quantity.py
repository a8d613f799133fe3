"""Kubernetes quantities: ``500m``, ``1.5Gi``, ``2e3``.

Exact arithmetic (Decimal); rounding is always up, as Kubernetes does when it needs whole units.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

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
    r"([+-]?(?:[0-9]{1,60}\.?[0-9]{0,60}|\.[0-9]{1,60}))"
    r"(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
_MAX = Decimal(2**63 - 1)


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
