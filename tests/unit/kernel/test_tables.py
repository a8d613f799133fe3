"""Lines of the kernel's tables."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import podkeep.kernel
from podkeep.kernel import tables

MODULES = sorted(Path(podkeep.kernel.__file__).parent.glob("*.py"))


def test_only_a_newline_ends_a_line() -> None:
    assert tables.lines("a\rb\x1c\x85\u2028\nc\n") == ["a\rb\x1c\x85\u2028", "c"]
    assert tables.lines(b"a\rb\n\nc") == [b"a\rb", b"", b"c"]
    assert tables.lines("") == tables.lines(b"") == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_nothing_else_takes_tables_of_the_kernel_apart(path: Path) -> None:
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
    assert [call.lineno for call in calls if call.attr == "splitlines"] == [], "use podkeep.kernel.tables.lines"
