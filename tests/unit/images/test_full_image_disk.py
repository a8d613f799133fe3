"""An image store on a disk that runs full: what came is given back, and the next image is taken."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.config import ImagesConfig
from podkeep.base.errors import ResourceExhausted
from podkeep.base.ids import Digest
from podkeep.images.messages import NewLayer
from podkeep.images.snapshots import merging
from podkeep.images.store.store import ImageStore
from podkeep.images.worker import assembly
from podkeep.images.worker.layers import LayerJob
from support.images import file, layers_layout
from support.waiting import wait_for


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one."""
    root = tmp_path / "disk"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=20000", "tmpfs", root], check=True)
    yield root
    subprocess.run(["umount", "--lazy", root], check=True)


def _free(disk: Path) -> tuple[int, int]:
    """Return the blocks and the inodes that are free."""
    found = os.statvfs(disk)
    return found.f_bfree, found.f_ffree


@pytest.mark.slow
def test_a_disk_that_runs_full_is_as_empty_as_before_and_takes_the_next_image(tmp_path: Path, disk: Path) -> None:
    archive = layers_layout(tmp_path / "archive", [[file(name, bytes(1 << 20)) for name in "abc"]]).path
    store = ImageStore.open(disk / "images", config=ImagesConfig(snapshot_driver="directories"), registries={})
    before = _free(disk)
    with pytest.raises(ResourceExhausted, match="No space left on device"):
        asyncio.run(store.load(archive))
    # The process that unpacked it has its directory for a root until it is gone.
    wait_for(lambda: _free(disk) == before, lambda: f"{before}: {_free(disk)}")
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    assert len(asyncio.run(store.load(archive))) == 1
    store.close()


@pytest.mark.slow
def test_a_disk_that_runs_full_with_directories_is_told_as_that(tmp_path: Path, disk: Path) -> None:
    """What is noted of directories is written at the end."""
    subprocess.run(["mount", "-o", "remount,size=700k", disk], check=True)
    archive = layers_layout(tmp_path / "archive", [[file(f"{number:0200}/f") for number in range(3_200)]]).path
    store = ImageStore.open(disk / "images", config=ImagesConfig(snapshot_driver="directories"), registries={})
    with pytest.raises(ResourceExhausted, match="No space left on device"):
        asyncio.run(store.load(archive))
    store.close()


def test_a_disk_that_runs_full_after_a_layer_was_unpacked_is_told_as_that(disk: Path) -> None:
    """The list of directories without an entry is written then."""
    job = LayerJob(digest=Digest(f"sha256:{'a' * 64}"), size=1, kind="tar", compression="none", layer=None)
    task = assembly._Task(job=job, source=0, root=disk)

    def write() -> NewLayer:
        merging.write_list(disk / "1", [bytes(2 << 20)])
        raise AssertionError

    outcome = assembly._outcome(task, write)
    assert isinstance(outcome, ResourceExhausted)
    assert "No space left on device" in outcome.message
