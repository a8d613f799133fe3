"""Runs the tests that belong to what was changed, each time something is saved: ``make watch``.

Belonging is read from imports: of a changed module the unit and contract tests that import it, or, if none does, those
that import a module which imports it; of a changed test that test; of what tests support (tests/support) the tests that
import it. Files are looked at twice a second, which costs nothing on a tree of this size and needs no package.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
WATCHED = ("src/podkeep", "tests/unit", "tests/contract", "tests/support")
TESTS = ("tests/unit/", "tests/contract/")
INTERVAL_S = 0.5


def module_of(path: str) -> str:
    """Return the name under which a file, relative to the checkout, is imported; empty for a test."""
    for root in ("src/", "tests/support/"):
        if path.startswith(root):
            inside = path.removeprefix("src/") if root == "src/" else path.removeprefix("tests/")
            return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return ""


def imports_of(text: str) -> frozenset[str]:
    """Return every name that a program may mean as a module; empty while it is no valid Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def belonging(changed: Iterable[str], imports: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the test files to run, sorted.

    :param changed: paths relative to the checkout.
    :param imports: of each Python file there, what it imports.
    """
    tests: set[str] = set()
    for path in changed:
        if _is_test(path):
            tests |= {path} & imports.keys()  # it may have been removed
            continue
        direct = {file for file, names in imports.items() if module_of(path) in names}
        found = {file for file in direct if _is_test(file)}
        if not found:
            modules = {module_of(file) for file in direct} - {""}
            found = {file for file, names in imports.items() if _is_test(file) and modules & names}
        tests |= found
    return sorted(tests)


def _is_test(path: str) -> bool:
    return path.startswith(TESTS) and path.rpartition("/")[2].startswith("test_")


def look() -> dict[str, int]:
    """Return when each watched file was changed last, in nanoseconds since 1970."""
    found = {}
    for directory in WATCHED:
        for path in (ROOT / directory).rglob("*.py"):
            try:
                found[str(path.relative_to(ROOT))] = path.stat().st_mtime_ns
            except FileNotFoundError:  # an editor puts a new file in its place
                continue
    return found


def read(paths: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return what each file imports."""
    found = {}
    for path in paths:
        try:
            found[path] = imports_of((ROOT / path).read_text())
        except FileNotFoundError:
            continue
    return found


def run(tests: list[str]) -> None:
    """Run tests and show how they end."""
    print(f"\n== {' '.join(tests)}", flush=True)
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-n0", "-m", "not slow", *tests], cwd=ROOT, check=False)


def main() -> int:
    """Watch until interrupted."""
    parser = argparse.ArgumentParser(description="Run the tests that belong to what was changed.")
    parser.add_argument("--once", nargs="+", metavar="FILE", help="only print the tests that belong to these files")
    once = parser.parse_args().once
    before = look()
    imports = read(before)
    if once:
        tests = belonging((str(Path(path).resolve().relative_to(ROOT)) for path in once), imports)
        print("\n".join(tests) or "no unit or contract test imports it: see tests/integration")
        return 0
    print(f"{len(before)} files are watched; what is saved is tested", flush=True)
    try:
        while True:
            time.sleep(INTERVAL_S)
            now = look()
            changed = [path for path in now.keys() | before.keys() if now.get(path) != before.get(path)]
            before = now
            if not changed:
                continue
            imports.update(read(changed))
            for path in changed:
                if path not in now:
                    imports.pop(path, None)
            if tests := belonging(changed, imports):
                run(tests)
            else:
                print(f"\n== {' '.join(changed)}: no unit or contract test imports it", flush=True)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
