"""Write the tables of packages in ARCHITECTURE.md.

The order comes from import-linter's contracts in pyproject.toml, which ``lint-imports`` holds the code to, and what a
package is for from the first line of its docstring. A test compares the page with what this prints, so neither can
change without the other.

    python tools/packages.py [--write]
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN = "<!-- packages: written by `make packages` -->"
END = "<!-- packages: end -->"


def source_of(package: str) -> Path:
    """Return the file with the docstring of ``package``, a dotted name, which may be a single module."""
    path = ROOT / "src" / package.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def purpose(package: str) -> str:
    """Return the first line of the docstring of ``package``; empty if it has none."""
    source = source_of(package).read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].replace("``", "`")


def table(contract: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of one table: a row for each package, a floor of the contract after the other."""
    (container,) = contract.get("containers", [""])
    yield "| floor | package | what it is |"
    yield "|---|---|---|"
    for floor, layer in zip(range(len(contract["layers"]), 0, -1), contract["layers"], strict=True):
        for name in layer.split(" | "):
            full = f"{container}.{name}" if container else name
            path = full.removeprefix("podkeep.").replace(".", "/")
            end = "/" if source_of(full).name == "__init__.py" else ".py"
            yield f"| {floor} | `{path}{end}` | {purpose(full)} |"


def section() -> str:
    """Return what stands between the two marks of ARCHITECTURE.md."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    lines = [BEGIN]
    for contract in settings["contracts"]:
        if contract["type"] == "layers":
            lines += ["", f"**{contract['name']}.**", "", *table(contract)]
    return "\n".join([*lines, "", END])


def written(page: str) -> str:
    """Return ``page`` with the section in its place.

    :raises ValueError: if the marks are not there.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} does not have the lines {BEGIN!r} and {END!r}")
    return before + section() + after


def main() -> int:
    """Print the section, or write it; the exit status."""
    parser = argparse.ArgumentParser(description="The tables of packages in ARCHITECTURE.md.")
    parser.add_argument("--write", action="store_true", help="write them into the page")
    if parser.parse_args().write:
        PAGE.write_text(written(PAGE.read_text()))
    else:
        print(section())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
