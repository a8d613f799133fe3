"""Output of verbs: JSON for programs, aligned columns and lines for people, and how errors look.

What others wrote (names, titles, messages) reaches a terminal only as printable characters; JSON has its own escapes.
Plain text: nothing here imports a drawing library.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import click
import msgspec

from podkeep.base.errors import PodkeepError
from podkeep.base.text import durations
from podkeep.base.text.printable import printable
from podkeep.base.text.redaction import redacted

EXIT_CONFIGURATION = 78
"""The exit status when the configuration is refused (sysexits.h: EX_CONFIG); units of systemd name it."""
EXIT_INTERRUPTED = 130
"""A verb's exit status after Ctrl-C."""

Function = TypeVar("Function", bound=Callable[..., Any])
Row = TypeVar("Row")
Columns = Mapping[str, Callable[[Row], str]]
"""A table: the header of each column, and what makes a row's cell."""


def form_option(*forms: str) -> Callable[[Function], Function]:
    """Add ``-o FORM`` to a verb, passed to it as ``output``; the first of ``forms`` is the default."""
    return click.option(
        "-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True, help="Form of the output."
    )


output_option = form_option("table", "json")


def show(form: str, value: object, lines: Iterable[str]) -> None:
    """Print a result in the form that a person asked for.

    :param value: for ``json``; see :func:`echo_json`.
    :param lines: for any other form.
    """
    if form == "json":
        echo_json(value)
        return
    for line in lines:
        echo_line(line)


def echo_line(text: str, *, err: bool = False) -> None:
    """Print one line for people, to standard error if told to."""
    click.echo(printable(text), err=err)


def echo_json(value: object) -> None:
    """Print ``value`` as indented JSON: also dataclasses and structs by their fields, paths, and fields of messages."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> object:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, PurePath):
        return str(value)
    return dict(value) if isinstance(value, Mapping) else list(value)


def fields(message: object, *names: str) -> dict[str, Any]:
    """Return the fields ``names`` of a message or an object, for JSON."""
    return {name: getattr(message, name) for name in names}


def table(columns: Columns[Row], rows: Iterable[Row]) -> list[str]:
    return aligned([tuple(columns), *(cells(columns, row) for row in rows)])


def cells(columns: Columns[Row], row: Row) -> tuple[str, ...]:
    return tuple(cell(row) for cell in columns.values())


def aligned(rows: Iterable[Sequence[str]], gap: int = 3) -> list[str]:
    """Return a line for each of ``rows``, which have equally many cells, with its cells under each other."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        (" " * gap).join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown
    ]


def since(nanoseconds: int) -> str:
    """Return how long ago a time was, in nanoseconds since 1970, as :func:`age` does."""
    return age(time.time() - nanoseconds / 1e9)


def age(seconds: float) -> str:
    """Return a duration in the short form of ``kubectl get``; one below 0 is shown as none."""
    return durations.short(max(seconds, 0))


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


def short(digest: str) -> str:
    """Return the twelve hex digits by which people know a digest."""
    return digest.partition(":")[2][:12] or digest[:12]


def error_text(error: PodkeepError) -> str:
    """Return the lines that tell a person what failed (one per problem) and what to do next."""
    lines = [f"podkeep: {printable(line)}" for line in redacted(error.message).split("\n")]
    if error.hint:
        lines.append(f"hint: {printable(redacted(error.hint))}")
    return "\n".join(lines)


def told_error(lines: Iterable[str]) -> tuple[str, str]:
    """Return the last error that lines tell in the form of :func:`error_text`, and its hint; empty: they tell none."""
    message = hint = ""
    for line in lines:
        if line.startswith("podkeep: "):
            message, hint = line.removeprefix("podkeep: "), ""
        elif message and line.startswith("hint: "):
            hint = line.removeprefix("hint: ")
    return message, hint


def echo_error(error: PodkeepError) -> None:
    """Tell what failed, on standard error."""
    click.echo(error_text(error), err=True)


def raise_last(errors: Sequence[PodkeepError]) -> None:
    """Tell all errors but the last, and raise that, if there are any: ``main`` tells it and ends with status 1.

    :raises PodkeepError: the last one.
    """
    for error in errors[:-1]:
        echo_error(error)
    if errors:
        raise errors[-1]
