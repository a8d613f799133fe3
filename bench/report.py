"""The comparison as a Markdown table, on the terminal and in docs/benchmarks.md.

Owns the part of the document between its two markers; the rest is written by hand. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        ratio = "–"
        if self.containerd is not None and self.podkeep is not None and self.containerd.value > 0:
            ratio = f"**{self.podkeep.value / self.containerd.value:.2f}**"
        texts = [cell.text if cell is not None else "–" for cell in (self.containerd, self.podkeep)]
        return f"| {self.title} | {texts[0]} | {texts[1]} | {ratio} |"


def markdown(rows: Sequence[Row], facts: Sequence[str]) -> str:
    """The table, and below it a list of ``facts`` about the run."""
    table = [
        "| | containerd | podkeep | podkeep / containerd |",
        "|---|---|---|---|",
        *(row.markdown() for row in rows),
    ]
    return "\n".join([*table, "", *(f"- {fact}" for fact in facts)])


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
