"""Tables as the API makes them (meta.k8s.io/v1, Table): the rows that a person sees. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from podkeep.base.text.printable import printable

MEDIA_TYPE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
_GAP = "   "


class Printer:
    """Turns Tables into lines, with the columns of the first one; what follows (a watch) is aligned likewise.

    :param wide: with the columns of lower priority, too.
    :param namespaces: with a column of the namespace in front.
    :param prefix: what stands before names, such as ``pod/``.
    """

    def __init__(self, *, wide: bool, namespaces: bool, prefix: str = "") -> None:
        self._wide, self._namespaces, self._prefix = wide, namespaces, prefix
        self._columns: list[tuple[int, str]] = []
        self._widths: list[int] = []

    def lines(self, table: dict[str, Any]) -> list[str]:
        """Return the lines of a Table; those of the header with the first one."""
        rows: list[list[str]] = []
        if not self._columns:
            self._columns = self._chosen(table.get("columnDefinitions") or ())
            rows.append([*(["NAMESPACE"] if self._namespaces else []), *(name.upper() for _, name in self._columns)])
            self._widths = [len(cell) for cell in rows[0]]
        rows += [self._row(row) for row in table.get("rows") or ()]
        for row in rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        return [
            _GAP.join(cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)).rstrip() for row in rows
        ]

    def _chosen(self, columns: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
        return [
            (index, str(column.get("name", "")))
            for index, column in enumerate(columns)
            if self._wide or not column.get("priority")
        ]

    def _row(self, row: dict[str, Any]) -> list[str]:
        cells = row.get("cells") or []
        metadata = (row.get("object") or {}).get("metadata") or {}
        shown = [_cell(cells[index]) if index < len(cells) else "" for index, _ in self._columns]
        if shown and self._prefix:
            shown[0] = f"{self._prefix}{shown[0]}"
        return [*([printable(str(metadata.get("namespace", "")))] if self._namespaces else []), *shown]


def _cell(value: Any) -> str:
    if value is None:
        return "<none>"
    if isinstance(value, bool):
        return "true" if value else "false"
    # As kubectl: of several lines only the first one.
    first, newline, _ = str(value).partition("\n")
    return printable(first + ("..." if newline else ""))
