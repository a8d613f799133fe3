"""What the statistics files of cgroups say: pure parsers of their texts, of version 1 and version 2 alike.

Owns: the formats (kernel documentation, admin-guide/cgroup-v1/ and admin-guide/cgroup-v2.rst). Does not own: which file
holds what in which version, and reading (``cgroup_stats``).
"""

from __future__ import annotations

import os

import msgspec

from podkeep.base.errors import Internal
from podkeep.kernel import tables

UNLIMITED = 1 << 62
"""Version 1 writes "no limit" as the largest multiple of the page size; above this no limit is meant (cAdvisor)."""


class PsiLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of a pressure file: shares of time in percent over three windows, and the sum in nanoseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_ns: int


class Psi(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Pressure stall information: ``some`` task waited, or all of them (``full``, which old kernels lack for CPU)."""

    some: PsiLine
    full: PsiLine | None = None


class DeviceIo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a cgroup read from and wrote to one block device."""

    major: int
    minor: int
    read_bytes: int = 0
    write_bytes: int = 0
    reads: int = 0
    writes: int = 0


def number(text: bytes) -> int:
    """Return the number that is a file's whole content.

    :raises Internal: if it is not one.
    """
    try:
        return int(text)
    except ValueError as error:
        raise Internal(f"a cgroup file holds {text[:40]!r}, not a number") from error


def limit(text: bytes) -> int | None:
    """Return a limit, or None for ``max`` and for version 1's huge number.

    :raises Internal: if it is neither.
    """
    text = text.strip()
    if text == b"max":
        return None
    value = number(text)
    return None if value < 0 or value >= UNLIMITED else value


class Table:
    """A file with a key and a number per line ("flat keyed"). Most of the lines of memory.stat are never asked for."""

    __slots__ = ("_text", "_words")

    def __init__(self, text: bytes) -> None:
        words = text.split()
        # Numbers stay texts until they are asked for: most lines of memory.stat never are.
        self._text = text
        self._words = dict(zip(words[::2], words[1::2], strict=False))

    def __getitem__(self, key: bytes) -> int:
        """Return the number of ``key``.

        :raises Internal: if the file has no such line, or no number in it.
        """
        try:
            return int(self._words[key])
        except (KeyError, ValueError) as error:
            raise Internal(f"a cgroup file has no number for {os.fsdecode(key)}: {self._text[:80]!r}") from error

    def get(self, key: bytes, default: int = 0) -> int:
        """Return the number of ``key``, or the default if there is no such line.

        :raises Internal: if it is no number.
        """
        return self[key] if key in self._words else default

    def __contains__(self, key: bytes) -> bool:
        return key in self._words


def psi(text: bytes) -> Psi | None:
    """Return what a pressure file says; None for an empty one.

    :raises Internal: if it has another shape.
    """
    lines: dict[bytes, PsiLine] = {}
    try:
        for line in tables.lines(text):
            kind, *fields = line.split()
            values = dict(field.split(b"=", 1) for field in fields)
            lines[kind] = PsiLine(
                avg10=float(values[b"avg10"]),
                avg60=float(values[b"avg60"]),
                avg300=float(values[b"avg300"]),
                total_ns=int(values[b"total"]) * 1000,
            )
    except (KeyError, ValueError) as error:
        raise Internal(f"a pressure file has an unknown shape: {text[:80]!r}") from error
    some = lines.get(b"some")
    return None if some is None else Psi(some=some, full=lines.get(b"full"))


def io_stat(text: bytes) -> tuple[DeviceIo, ...]:
    """Return the devices in version 2's ``io.stat``; a line without counters (an unused device) is left out.

    :raises Internal: if it has another shape.
    """
    found = []
    for line in tables.lines(text):
        device, *fields = line.split()
        try:
            values = dict(field.split(b"=", 1) for field in fields)
            if b"rbytes" not in values:
                continue
            major, minor = map(int, device.split(b":"))
            found.append(
                DeviceIo(
                    major=major,
                    minor=minor,
                    read_bytes=int(values[b"rbytes"]),
                    write_bytes=int(values[b"wbytes"]),
                    reads=int(values[b"rios"]),
                    writes=int(values[b"wios"]),
                )
            )
        except (KeyError, ValueError) as error:
            raise Internal(f"io.stat has an unknown line: {line[:80]!r}") from error
    return tuple(found)


def blkio(bytes_text: bytes, operations_text: bytes) -> tuple[DeviceIo, ...]:
    """Return the devices in version 1's ``blkio.*io_service_bytes*`` and ``blkio.*io_serviced*``.

    :raises Internal: if a line has another shape.
    """
    sizes, counts = _by_device(bytes_text), _by_device(operations_text)
    return tuple(
        DeviceIo(
            major=major,
            minor=minor,
            read_bytes=sizes.get((major, minor), {}).get(b"Read", 0),
            write_bytes=sizes.get((major, minor), {}).get(b"Write", 0),
            reads=counts.get((major, minor), {}).get(b"Read", 0),
            writes=counts.get((major, minor), {}).get(b"Write", 0),
        )
        for major, minor in sorted({*sizes, *counts})
    )


def _by_device(text: bytes) -> dict[tuple[int, int], dict[bytes, int]]:
    found: dict[tuple[int, int], dict[bytes, int]] = {}
    for line in tables.lines(text):
        fields = line.split()
        if len(fields) == 2:
            continue  # "Total 4096": the sum of all devices
        try:
            device, operation, value = fields
            major, minor = map(int, device.split(b":"))
            found.setdefault((major, minor), {})[operation] = int(value)
        except ValueError as error:
            raise Internal(f"a blkio file has an unknown line: {line[:80]!r}") from error
    return found
