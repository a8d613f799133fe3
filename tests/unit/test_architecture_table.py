"""The table "Where do I change …" in ARCHITECTURE.md names what there is: modules, what is in them, tests, settings.

Modules that other pages name are there, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ROOT / "src" / "podkeep"
TESTS = ROOT / "tests"
HEADING = "## Where do I change …"

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
SECTION = PAGE.partition(HEADING)[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SECTION.splitlines()
    if line.startswith("|") and not line.startswith(("| … |", "|---"))
]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def is_path(name: str) -> bool:
    return "/" in name or name.endswith(".py")


def found(names: Sequence[str], root: Path) -> Iterator[Path]:
    """Yield the files and directories of ``names``; one without a directory is beside the one before it."""
    beside = root
    for name in names:
        pattern = re.sub("<[a-z]+>", "*", name)
        paths = sorted(root.glob(pattern)) if "/" in name else [path for path in [beside / name] if path.is_file()]
        assert paths, f"{name} is not there"
        beside = paths[0] if paths[0].is_dir() else paths[0].parent
        yield from paths


def text_of(paths: Sequence[Path]) -> str:
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return "\n".join(file.read_text() for file in files)


def test_it_is_at_the_front_of_the_page() -> None:
    assert re.findall("^## .*", PAGE, re.MULTILINE)[0] == HEADING
    assert PAGE[: PAGE.index(HEADING)].count("\n") < 40, "a paragraph and the picture, no more"
    assert len(ROWS) > 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_a_row_names_what_there_is(row: list[str]) -> None:
    _, there, tests = row
    names = quoted(there)
    paths = list(found([name for name in names if is_path(name)], CODE))
    code, makefile = text_of(paths), (ROOT / "Makefile").read_text()
    settings = (CODE / "base" / "config.py").read_text()
    for name in names:
        if name.startswith("make "):
            assert f"\n{name.removeprefix('make ')}:" in makefile, f"no {name}"
        elif name.startswith("["):
            missing = [key for key in name[1:-1].split(".") if key != "NAME" and f"    {key}: " not in settings]
            assert missing == [], f"base/config.py has no such keys of {name}"
        elif not is_path(name):
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", code), f"{name} is in none of the modules of its row"
    for page in re.findall(r"docs/[\w-]+\.md", there):
        assert (ROOT / page).is_file(), page

    files = list(found([name for name in quoted(tests) if is_path(name)], TESTS))
    assert files, "a row names the test file to start from"
    assert [file for file in files if not file.name.startswith("test_")] == []
    for name in quoted(tests):
        if not is_path(name):
            assert f"def {name}(" in text_of(files), f"{name} is in none of the files of its row"


def test_modules_that_the_pages_name_are_there() -> None:
    files = [f"/{file}" for name in ("src", "tests", "tools", "bench") for file in (ROOT / name).rglob("*.py")]
    missing = [
        f"{page.name}: {name}"
        for page in (ROOT / "docs").glob("*.md")
        for name in sorted(set(re.findall(r"`([a-z_0-9/]+\.py)`", page.read_text())))
        if not any(file.endswith(f"/{name}") for file in files)
    ]
    assert missing == []
