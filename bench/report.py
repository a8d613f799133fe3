"""The comparison as a Markdown table, on the terminal and in docs/benchmarks.md.

Owns the part of the document between its two markers; the rest is written by hand. Measures nothing.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.samples import Summary

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
_BEGIN = "<!-- {name}: written by `python -m bench --write` -->"
_END = "<!-- end of {name} -->"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One value with its text; the value is what ratios are made of."""

    value: float
    text: str

    @classmethod
    def milliseconds(cls, summary: Summary) -> Cell:
        return cls(value=summary.p50, text=f"{summary.p50:.1f} ms ({summary.p95:.1f})")

    @classmethod
    def rate(cls, pods_per_second: float) -> Cell:
        return cls(value=pods_per_second, text=f"{pods_per_second:.1f} pods/s")

    @classmethod
    def mebibytes(cls, kib: float) -> Cell:
        return cls(value=kib, text=f"{kib / 1024:.1f} MiB")

    @classmethod
    def count(cls, number: float) -> Cell:
        return cls(value=number, text=f"{number:,.0f}".replace(",", " "))

    @classmethod
    def rounded_milliseconds(cls, milliseconds: float) -> Cell:
        return cls(value=milliseconds, text=f"{cls.count(milliseconds).text} ms")

    @classmethod
    def exact_seconds(cls, seconds: float) -> Cell:
        return cls(value=seconds, text=f"{seconds:.2f} s")

    @classmethod
    def seconds(cls, summary: Summary) -> Cell:
        """Of times in milliseconds that are better read in seconds."""
        return cls(value=summary.p50, text=f"{summary.p50 / 1e3:.2f} s ({summary.p95 / 1e3:.2f})")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement of both; a missing cell is one that a side cannot do or has not."""

    title: str
    containerd: Cell | None
    podkeep: Cell | None

    def markdown(self) -> str:
        texts = [cell.text if cell is not None else "–" for cell in (self.containerd, self.podkeep)]
        return _line([self.title, *texts, ratio(self.containerd, self.podkeep)])


def ratio(first: Cell | None, second: Cell | None) -> str:
    """``second`` divided by ``first``, where that makes sense."""
    if first is None or second is None or first.value <= 0:
        return "–"
    return f"**{second.value / first.value:.2f}**"


def markdown(rows: Sequence[Row], facts: Sequence[str]) -> str:
    """The table, and below it a list of ``facts`` about the run."""
    header = ("", "containerd", "podkeep", "podkeep / containerd")
    return "\n".join([*_head(header), *(row.markdown() for row in rows), "", facts_list(facts)])


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    return "\n".join([*_head(header), *(_line(row) for row in rows)])


def facts_list(facts: Sequence[str]) -> str:
    """What goes below a table."""
    return "\n".join(f"- {fact}" for fact in facts)


def machine() -> str:
    """When and where, as the first of the facts."""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, kernel {platform.release()}, {os.cpu_count()} CPUs,"
        f" Python {platform.python_version()}"
    )


def _head(header: Sequence[str]) -> list[str]:
    return [_line(header).replace("|  |", "| |"), "|" + "---|" * len(header)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write(name: str, text: str, document: Path = DOCUMENT) -> None:
    """Put ``text`` between the markers called ``name`` of ``document``.

    :raises ValueError: if the markers are not there, once and in order.
    """
    first, last = _BEGIN.format(name=name), _END.format(name=name)
    before, begin, rest = document.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{document}: the markers {first} and {last} are missing")
    document.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
