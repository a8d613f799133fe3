"""The tables of packages in ARCHITECTURE.md are those of the contracts and the packages' docstrings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packages_tool", ROOT / "tools" / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_page_has_the_tables_of_the_contracts(tool: ModuleType) -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    assert tool.written(page) == page, "run: make packages"


def test_every_package_says_what_it_is(tool: ModuleType) -> None:
    names = [".".join(path.relative_to(ROOT / "src").parent.parts) for path in (ROOT / "src").rglob("__init__.py")]
    assert [name for name in names if name != "podkeep" and not tool.purpose(name)] == []


def test_a_page_without_the_marks_is_refused(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="does not have the lines"):
        tool.written("# Architecture\n")
