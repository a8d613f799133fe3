"""What is noted of a container that ended."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from runtime_values import container

from podkeep.runtime.lifecycle.containers import ended_status
from podkeep.runtime.model.layout import Layout


@pytest.mark.parametrize(("noted", "expected"), [(3_000, 5_000), (5_000, 5_000), (7_000, 7_000)])
def test_no_container_ends_before_it_starts(noted: int, expected: int, tmp_path: Path) -> None:
    """conmon's file has the time of the kernel's last tick."""
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    ended = container()
    ended = msgspec.structs.replace(ended, status=msgspec.structs.replace(ended.status, started_at=5_000))
    file = layout.exit_file(ended.id)
    file.parent.mkdir(parents=True)
    file.write_text("0")
    os.utime(file, ns=(noted, noted))
    assert ended_status(ended, layout).finished_at == expected
