"""What the processes that pull and unpack images import: one is started for each pull and each layer."""

from __future__ import annotations

import subprocess

import pytest

from podkeep.base.spawn import own_command

PARTS = {
    "worker": "podkeep.images.worker.worker, podkeep.images.worker.pull, podkeep.images.worker.assembly",
    "unpack": "podkeep.images.layers.unpack",
}
COSTLY = {"asyncio", "logging", "typing_extensions"}
"""With these the start of a worker takes a third longer."""


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_imported_that_is_not_used(part: str) -> None:
    *words, boot = own_command("MODULE")
    shown = "print(*(name for name, module in sys.modules.items() if module is not None))"
    code = boot.replace("from MODULE import main", f"import {PARTS[part]}").replace("main()", shown)
    done = subprocess.run([*words, code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert set(PARTS[part].split(", ")) <= loaded
    assert COSTLY & loaded == set()
