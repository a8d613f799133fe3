"""Which host IDs /etc/subuid and /etc/subgid give to users (subuid(5), subgid(5)).

Whoever has a range may map it into a user namespace of his own (newuidmap(1)) and is every ID in it there: a pod with
one of these IDs is his. Owns: what the two files mean. Does not own: other sources of such ranges, which
nsswitch.conf(5) may name (``subid``); the range of user ``kubelet`` (``getsubids``); which blocks pods get
(``blocks``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import listed, printable
from podkeep.kernel.process import users

FILES = ("/etc/subuid", "/etc/subgid")
KUBELET = "kubelet"
"""The user whose ranges are meant for pods (KEP-127, configuration of ranges)."""
MAX_BYTES = 1 << 20
"""Of each file; 40,000 ranges take as much, more than there are blocks."""
# shadow reads numbers with strtoul(3) and base 0: `0x10000` and `-1` are ranges to newuidmap(1), so they are here.
_NUMBER = re.compile(r"[ \t\v\f\r]*([-+]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))")
_ULONG_BITS = 64
_SHOWN = 5


class Granted(FrozenStruct, kw_only=True):
    """``count`` host IDs from ``first`` on that ``file`` gives to ``user``, a name or a number."""

    file: str
    user: str
    first: int
    count: int

    def overlaps(self, first: int, count: int) -> bool:
        """Say whether one of ``count`` IDs from ``first`` on is among them."""
        return self.first < first + count and first < self.first + self.count


def parse(text: str, file: str, own: Collection[str] = (KUBELET,)) -> list[Granted]:
    """Return the ranges in the text of a file that others than the kubelet's user have. Pure.

    Lines are read as shadow's programs read them, which pass over those that they do not understand.

    :param own: what the kubelet's user is called in the file: by name, and by number.
    """
    found = []
    for line in text.split("\n"):
        user, *numbers = line.split(":")
        if not user or user.startswith("#") or user in own or len(numbers) < 2:
            continue
        first, count = map(_number, numbers[:2])
        if first is not None and count:
            found.append(Granted(file=file, user=user, first=first, count=count))
    return found


def read(files: Sequence[str] = FILES) -> tuple[Granted, ...]:
    """Return the ranges that ``files`` give to others than the kubelet's user; a file that is missing gives none.

    :raises FailedPrecondition: if a file is larger than :data:`MAX_BYTES`.
    :raises OSError: if one is there and cannot be read, or it cannot be told who user ``kubelet`` is.
    """
    found = []
    own = None
    for file in files:
        try:
            with Path(file).open("rb") as opened:
                data = opened.read(MAX_BYTES + 1)
        except FileNotFoundError:
            continue
        if len(data) > MAX_BYTES:
            raise FailedPrecondition(
                f"{file} has more than {MAX_BYTES} bytes: it cannot be told which IDs it gives to users",
                hint="take out the lines of users that are gone",
            )
        # Only where a file has something: asking who user kubelet is may ask a central directory.
        own = own or _own_names()
        found += parse(data.decode(errors="replace"), file, own)
    return tuple(found)


def _own_names() -> tuple[str, ...]:
    uid = users.user_id(KUBELET)
    return (KUBELET,) if uid is None else (KUBELET, str(uid))


def holders(granted: Sequence[Granted]) -> str:
    """Return which files give IDs to whom, for a message: ``/etc/subuid gives IDs to alice, bob``."""
    files = " and ".join(dict.fromkeys(item.file for item in granted))
    users = list(dict.fromkeys(printable(item.user) for item in granted))
    return f"{files} {'give' if ' and ' in files else 'gives'} IDs to {listed(users, _SHOWN)}"


def _number(text: str) -> int | None:
    """Return what strtoul(3) makes of ``text``, in any of its bases; ``None`` if it is no such number."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, hexadecimal, octal, decimal = match.groups()
    digits, base = (hexadecimal, 16) if hexadecimal else (decimal, 10) if decimal else (octal, 8)
    digits = digits.lstrip("0") or "0"
    # Python takes long for thousands of digits, or refuses them; no number of 64 bits has as many as bits.
    if len(digits) > _ULONG_BITS or (value := int(digits, base)) >> _ULONG_BITS:
        return None
    return -value % (1 << _ULONG_BITS) if sign == "-" else value
