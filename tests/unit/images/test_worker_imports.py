"""What the process imports that those which pull and unpack images are copies of."""

from __future__ import annotations

import subprocess

import pytest

from podkeep.base.spawn import own_command
from podkeep.images.store.workers import FORK_SERVER

COSTLY = {"asyncio", "logging", "typing_extensions"}
"""With these its start takes a third longer."""


@pytest.mark.slow
def test_the_fork_server_of_image_workers_imports_what_they_need_and_no_more() -> None:
    *words, boot = own_command(FORK_SERVER)
    shown = "print(*(name for name, module in sys.modules.items() if module is not None))"
    done = subprocess.run([*words, boot.replace(" main()", f" {shown}")], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert {"podkeep.images.worker.pull", "podkeep.images.worker.archive", "podkeep.images.layers.unpack"} <= loaded
    assert COSTLY & loaded == set()
