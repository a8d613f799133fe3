"""``make watch``: which tests belong to a change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import watch  # noqa: E402 - the import path is set just above

IMPORTS = {
    "src/podkeep/base/undo.py": frozenset[str](),
    "src/podkeep/kernel/mount/mounts.py": frozenset({"podkeep.kernel", "podkeep.kernel.libc"}),
    "src/podkeep/kernel/libc.py": frozenset[str](),
    "tests/unit/kernel/test_mounts.py": frozenset({"podkeep.kernel", "podkeep.kernel.mount.mounts"}),
    "tests/unit/base/test_undo.py": frozenset({"podkeep.base.undo"}),
    "tests/unit/images/test_tar.py": frozenset({"support.tarmaker"}),
    "tests/integration/runtime/test_pods.py": frozenset({"podkeep.kernel.mount.mounts"}),
}


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("src/podkeep/kernel/mount/mounts.py", ["tests/unit/kernel/test_mounts.py"]),
        ("src/podkeep/kernel/libc.py", ["tests/unit/kernel/test_mounts.py"]),
        ("tests/unit/base/test_undo.py", ["tests/unit/base/test_undo.py"]),
        ("tests/support/tarmaker.py", ["tests/unit/images/test_tar.py"]),
        ("tests/unit/base/test_removed.py", []),
        ("tests/integration/runtime/test_pods.py", []),
    ],
)
def test_tests_that_belong_to_a_change(changed: str, tests: list[str]) -> None:
    assert watch.belonging([changed], IMPORTS) == tests


def test_imports_in_all_their_forms() -> None:
    text = "import a.b\nfrom c import d as e\n\ndef later():\n    from f.g import h\n"
    assert watch.imports_of(text) == {"a.b", "c", "c.d", "f.g", "f.g.h"}
    assert watch.imports_of("def half") == frozenset()


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("src/podkeep/base/undo.py", "podkeep.base.undo"),
        ("src/podkeep/base/__init__.py", "podkeep.base"),
        ("tests/support/cri.py", "support.cri"),
        ("tests/unit/base/test_undo.py", ""),
    ],
)
def test_names_of_modules(path: str, module: str) -> None:
    assert watch.module_of(path) == module


@pytest.mark.slow
def test_every_test_of_the_tree_is_found_by_the_module_it_imports() -> None:
    imports = watch.read(watch.look())
    assert "tests/unit/images/test_media_types.py" in watch.belonging(
        ["src/podkeep/images/formats/media_types.py"], imports
    )
