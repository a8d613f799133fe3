"""Output of verbs: aligned columns for people, JSON for programs.

What others wrote (names, titles, messages) reaches a terminal only as printable characters; JSON has its own escapes.

Pure but for :func:`echo_json` and :func:`echo_table`, which print. Plain text: nothing here imports a drawing library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from podkeep.base.errors import PodkeepError
from podkeep.base.printable import printable
from podkeep.base.redaction import redacted

Function = TypeVar("Function", bound=Callable[..., Any])

_GAP = "   "


def output_option(function: Function) -> Function:
    """Add ``-o table|json`` to a verb, passed to it as ``output``."""
    option = click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Form of the output.",
    )
    return option(function)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return ``rows`` under ``header`` in aligned columns; every row has as many cells as the header."""
    lines = [[printable(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def echo_line(text: str, *, err: bool = False) -> None:
    """Print one line for people, to standard error if told to."""
    click.echo(printable(text), err=err)


def echo_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    click.echo(table(header, rows))


def echo_json(value: object) -> None:
    """Print ``value``, made of dictionaries, lists, strings, numbers and ``None``, as indented JSON."""
    click.echo(json.dumps(value, indent=2))


def rfc3339(nanoseconds: int) -> str | None:
    """Return a time, in nanoseconds since 1970, as ``2024-05-01T12:00:00Z``; ``None`` for 0, which is not known."""
    if not nanoseconds:
        return None
    return datetime.fromtimestamp(nanoseconds // 10**9, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(seconds: float) -> str:
    """Return a duration in the short form of ``kubectl get``: two units at most, fewer the longer it is."""
    seconds = max(int(seconds), 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    return f"{days}d"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def number_of(count: int, what: str) -> str:
    """Return ``1 image``, ``2 images``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def size(count: int) -> str:
    """Return a number of bytes with a binary unit and three significant digits, ``12.3 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1000:
            return f"{value:.3g} {unit}" if unit != "B" else f"{count} B"
        value /= 1024
    return f"{value:.3g} TiB"


def error_text(error: PodkeepError) -> str:
    """Return the lines that tell a person what failed (one per problem) and what to do next."""
    lines = [f"podkeep: {printable(line)}" for line in redacted(error.message).split("\n")]
    if error.hint:
        lines.append(f"hint: {printable(redacted(error.hint))}")
    return "\n".join(lines)


class Failures:
    """What went wrong for some of ``count`` objects. The failure of a single one is the verb's own."""

    def __init__(self, count: int) -> None:
        self._single = count == 1
        self.status = 0
        """The exit status: 1 once something has failed."""

    def add(self, error: PodkeepError) -> None:
        """Tell what failed.

        :raises PodkeepError: if there is nothing else to do.
        """
        if self._single:
            raise error
        self.status = 1
        click.echo(error_text(error), err=True)
