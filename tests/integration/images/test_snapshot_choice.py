"""Which driver keeps layers, and what is said where it is not the better one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.images.snapshots.choice import choose
from podkeep.kernel.mount import mounts


@pytest.fixture
def memory(tmp_path: Path, scratch_machine: None) -> Iterator[Path]:
    """A tmpfs, of whose files no kernel mounts EROFS images."""
    mounts.mount("tmpfs", tmp_path, fstype="tmpfs")
    yield tmp_path
    mounts.unmount(tmp_path)


def test_why_layers_are_kept_as_directories_is_told_in_plain_words(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    chosen = choose(memory, "auto")
    assert chosen.driver == "directories"
    assert chosen.why_not.startswith("files as EROFS images need Linux 6.12 ")
    assert caplog.messages == [
        f"layers are kept as directories, because EROFS images cannot be mounted: {chosen.why_not}"
    ]
