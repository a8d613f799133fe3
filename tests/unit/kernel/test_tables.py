"""Lines of the kernel's tables."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import podkeep.kernel
from podkeep.kernel import tables

MODULES = sorted(Path(podkeep.kernel.__file__).parent.rglob("*.py"))
"""Those that read what the kernel says."""


def test_only_a_newline_ends_a_line() -> None:
    assert tables.lines("a\rb\x1c\x85\u2028\nc\n") == ["a\rb\x1c\x85\u2028", "c"]
    assert tables.lines(b"a\rb\n\nc") == [b"a\rb", b"", b"c"]
    assert tables.lines("") == tables.lines(b"") == []


@pytest.mark.slow
@pytest.mark.parametrize("path", MODULES, ids=lambda path: "/".join(path.parts[-2:]))
def test_nothing_else_takes_tables_of_the_kernel_apart(path: Path) -> None:
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
    assert [call.lineno for call in calls if call.attr == "splitlines"] == [], "use podkeep.kernel.tables.lines"


def test_a_name_may_be_any_bytes(tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.write_bytes(b"fuse.a\xffb\r\n")
    assert tables.read_text(table) == "fuse.a\udcffb\r\n"


@pytest.mark.slow
@pytest.mark.parametrize("path", MODULES, ids=lambda path: "/".join(path.parts[-2:]))
def test_nothing_else_decodes_texts_of_the_kernel(path: Path) -> None:
    """One name that is no UTF-8 would make all of the table unreadable."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    strict = [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in {"read_text", "decode"}
        and "errors" not in {keyword.arg for keyword in call.keywords}
    ]
    assert strict == [], "use podkeep.kernel.tables.read_text, or os.fsdecode"
