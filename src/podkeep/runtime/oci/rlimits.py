"""Limits of a container's processes (``process.rlimits``). Pure: what the daemon itself may have comes in as a value.

Without an entry a container would have the limits that the daemon happens to run with, whatever its service manager
set; so the ones that programs care about are in the configuration (``runtime.default_rlimits``).
"""

from __future__ import annotations

import resource
from collections.abc import Mapping

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct

NAMES = {
    name.removeprefix("RLIMIT_").lower(): getattr(resource, name) for name in dir(resource) if name[:7] == "RLIMIT_"
}
"""``nofile`` and the others of getrlimit(2), with their numbers."""
UNLIMITED = 2**64 - 1
"""RLIM_INFINITY in the OCI configuration."""


class Rlimit(FrozenStruct, kw_only=True):
    """A limit; :data:`UNLIMITED` means none."""

    name: str
    soft: int
    hard: int


def parse(settings: Mapping[str, str]) -> tuple[Rlimit, ...]:
    """Return limits as they stand in the configuration: name to ``SOFT:HARD``, one number for both, or ``unlimited``.

    :raises InvalidArgument: naming the one that is not understood.
    """
    result = []
    for name, text in settings.items():
        soft, _, hard = text.partition(":")
        # Python's resource has RLIMIT_OFILE, an old name for NOFILE that OCI does not know.
        if name not in NAMES or name == "ofile":
            known = ", ".join(sorted(set(NAMES) - {"ofile"}))
            raise InvalidArgument(f"runtime.default_rlimits: {name!r} is no limit", hint=f"known: {known}")
        try:
            limit = Rlimit(name=name, soft=_number(soft), hard=_number(hard or soft))
        except ValueError:
            raise InvalidArgument(
                f"runtime.default_rlimits.{name}: {text!r} is not understood", hint="write it like 1024:524288"
            ) from None
        if limit.soft > limit.hard:
            raise InvalidArgument(f"runtime.default_rlimits.{name}: the soft limit of {text!r} is above the hard one")
        result.append(limit)
    return tuple(result)


def _number(text: str) -> int:
    if text == "unlimited":
        return UNLIMITED
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ValueError(text)
    return int(text)


def to_oci(limits: tuple[Rlimit, ...], *, ceilings: Mapping[str, int]) -> list[dict[str, str | int]]:
    """Return ``process.rlimits``.

    :param ceilings: the most that can be given, by name.
    """
    result: list[dict[str, str | int]] = []
    for limit in limits:
        ceiling = ceilings.get(limit.name, UNLIMITED)
        hard = min(limit.hard, ceiling)
        result.append({"type": f"RLIMIT_{limit.name.upper()}", "soft": min(limit.soft, hard), "hard": hard})
    return result


def own_ceilings() -> dict[str, int]:
    """Return this process's hard limits by name."""
    found = {name: resource.getrlimit(number)[1] for name, number in NAMES.items()}
    return {name: UNLIMITED if hard == resource.RLIM_INFINITY else hard for name, hard in found.items()}
