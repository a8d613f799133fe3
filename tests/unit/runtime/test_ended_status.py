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
    assert ended_status(ended, layout, 0).finished_at == expected


@pytest.mark.parametrize(
    ("code", "is_noted", "counted", "reason"),
    [
        (137, True, 0, "OOMKilled"),
        (137, False, 1, "OOMKilled"),
        (137, False, 0, "Error"),
        (0, True, 1, "Completed"),
    ],
)
def test_an_end_for_want_of_memory(code: int, is_noted: bool, counted: int, reason: str, tmp_path: Path) -> None:
    """conmon may be told of the end first, and note nothing; the kernel counts in any case."""
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    ended = container()
    for file in (layout.exit_file(ended.id), layout.bundle(ended.id) / "oom"):
        file.parent.mkdir(parents=True, exist_ok=True)
    layout.exit_file(ended.id).write_text(str(code))
    if is_noted:
        (layout.bundle(ended.id) / "oom").touch()
    assert ended_status(ended, layout, counted).reason == reason


def test_an_end_that_conmon_did_not_note_has_no_known_code(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    ended = ended_status(container(), layout, 1)
    assert (ended.exit_code, ended.reason) == (255, "ContainerStatusUnknown")
    assert ended.message == "its conmon ended without noting the exit code"
