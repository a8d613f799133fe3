"""What tests of layers kept as EROFS images need of the machine: a kernel that mounts files as such images."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from podkeep.images.snapshots import erofs


@functools.cache
def missing() -> str:
    """Return why EROFS images cannot be mounted where temporary directories are; empty if they can."""
    with tempfile.TemporaryDirectory(prefix="podkeep-probe-") as name:
        return erofs.probe(Path(name))


def needed() -> None:
    """Skip the test that runs if EROFS images cannot be mounted here, as on Linux before 6.12."""
    if reason := missing():
        pytest.skip(f"EROFS images cannot be mounted here: {reason}")
