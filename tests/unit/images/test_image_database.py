"""The records of images on a file system that is full, and on one that loses its power."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.base.ids import ImageID
from podkeep.images.store.database import ImageDatabase, NewImage
from support import powerloss

PROGRAM = Path(__file__).with_name("programs") / "full_disk.py"


def on_a_small_disk(directory: Path, what: str, *, size: str = "1m") -> subprocess.CompletedProcess[str]:
    """Run a part of the program with a small file system on ``directory``, in a mount namespace of its own."""
    script = f'mount -t tmpfs -o size={size} small "$0" && exec "$@" "$0"'
    command = ["unshare", "--mount", "sh", "-c", script, str(directory), sys.executable, str(PROGRAM), what]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_full_disk_is_no_damage_and_passes(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, "records")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_full_disk_is_logged_by_the_thread_that_syncs(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, "sync")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"layers may not outlive a loss of power: {tmp_path}: no space is left")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_images_are_removed_from_a_full_disk(tmp_path: Path) -> None:
    """A kubelet does that to have space again."""
    done = on_a_small_disk(tmp_path, "removal", size="8m")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_images_are_removed_from_a_disk_without_inodes(tmp_path: Path) -> None:
    """An image may well have used them up."""
    done = on_a_small_disk(tmp_path, "inodes", size="8m,nr_inodes=200")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_full_disk_keeps_no_newer_podkeep_from_starting(tmp_path: Path) -> None:
    """What it makes of older records takes no more of the disk than was put aside for removals."""
    done = on_a_small_disk(tmp_path, "upgrade", size="24m")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_how_an_image_wants_to_be_run_is_read_without_the_documents_of_others(tmp_path: Path) -> None:
    """Which may be megabytes of any number of images, and a container that is made waits."""
    database = ImageDatabase(tmp_path / "images.db")
    images = [ImageID(f"sha256:{number:064x}") for number in range(20)]
    new = [
        NewImage(
            id=image,
            config=bytes(1 << 20),
            run=bytes([number]) * 9000,
            manifests=(),
            layers=(),
            tags=(),
            digests=(),
        )
        for number, image in enumerate(images)
    ]
    database.add(new, [])
    database.close()
    database = ImageDatabase(tmp_path / "images.db")
    before = _read_bytes()
    assert [database.run(image) for image in images] == [bytes([number]) * 9000 for number in range(len(images))]
    assert _read_bytes() - before < 1 << 20
    database.close()


def _read_bytes() -> int:
    """Return how much this process has read from files and devices (proc(5), ``rchar``)."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.slow
def test_that_a_layer_was_synced_outlives_a_loss_of_power(tmp_path: Path, own_mounts: None) -> None:
    with powerloss.mounted(tmp_path) as disk:
        command = [sys.executable, str(PROGRAM.with_name("power_loss.py")), str(tmp_path)]
        subprocess.run(command, check=True, timeout=60)
        disk.lose_power()
        database = ImageDatabase(tmp_path / "images.db")
        assert [layer.boot_id for layer in database.layers().values()] == [""]
        database.close()
