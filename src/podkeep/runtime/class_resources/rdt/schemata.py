"""The text of resctrl's ``schemata`` files: from lines to numbers, back, and what differs.

Pure. Does not own: reading and writing the files (``kernel/cgroup/resctrl.py``), or what a class gets
(``allocation.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

BANDWIDTH = ("MB", "SMBA")
"""Resources whose values are decimal numbers; those of every other one are hexadecimal masks."""


def parse(text: str) -> dict[str, dict[int, int]]:
    """Return resource to cache ID to value: ``{"L3": {0: 0xff}, "MB": {0: 50}}``.

    :param text: as the kernel shows it, with its blanks and leading zeros, or as :func:`lines` writes it.
    :raises ValueError: naming the line, if it is not understood.
    """
    found: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        name, colon, rest = (part.strip() for part in line.partition(":"))
        if not name:
            continue
        base = 10 if name in BANDWIDTH else 16
        values: dict[int, int] = {}
        for entry in rest.split(";"):
            cache, equals, value = entry.partition("=")
            if not colon or not equals:
                raise ValueError(f"schemata: {line.strip()!r} is not RESOURCE:ID=VALUE;...")
            try:
                values[int(cache)] = int(value, base)
            except ValueError as error:
                raise ValueError(f"schemata: {line.strip()!r}: {entry.strip()!r} is not ID=VALUE") from error
        found[name] = values
    return found


def lines(values: Mapping[str, Mapping[int, int]]) -> tuple[str, ...]:
    """Return one line per resource, as the kernel takes it, without newlines; resources and IDs rise."""
    return tuple(
        f"{name}:{';'.join(f'{cache}={_value(name, value)}' for cache, value in sorted(values[name].items()))}"
        for name in sorted(values)
    )


def differences(wanted: tuple[str, ...], text: str, *, step: int = 1) -> list[str]:
    """Return where a group's schemata file says something else than ``wanted``; empty if all of it is in force.

    Resources and caches that ``wanted`` does not name may have any value; a cache whose processors are offline is not
    in the file, and not missed.

    :param step: ``bandwidth_gran``. Bandwidth that differs by less is the same: where the hardware keeps it in a form
        of its own, as Arm's MPAM does, the kernel shows the nearest percentage.
    :raises ValueError: if ``text`` is not understood.
    """
    have = parse(text)
    found: list[str] = []
    for name, values in parse("\n".join(wanted)).items():
        if name not in have:
            found.append(f"there is no {name}")
        for cache, value in values.items():
            is_now = have.get(name, {}).get(cache, value)
            if abs(is_now - value) >= (step if name in BANDWIDTH else 1):
                found.append(f"{name} of cache {cache} is {_value(name, is_now)} instead of {_value(name, value)}")
    return found


def _value(name: str, value: int) -> str:
    return str(value) if name in BANDWIDTH else f"{value:x}"
