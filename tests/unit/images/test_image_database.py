"""The records of images on a file system that is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROLOGUE = """
import os, sys, threading
from pathlib import Path
from podkeep.base.config import ImagesConfig
from podkeep.base.errors import ResourceExhausted
from podkeep.base.ids import Digest
from podkeep.images.store import durability, store as stores
from podkeep.images.store.database import ImageDatabase, LayerRecord

root = Path(sys.argv[1])

def layers(count, boot_id):
    return [LayerRecord(id=Digest(f"sha256:{i:064x}"), bytes=1, inodes=1, boot_id=boot_id) for i in range(count)]

def fill():
    with open(root / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.strerror == "No space left on device", error
"""
_RECORDS = """
database = ImageDatabase(root / "images.db")
database.add([], layers(1, "b"))
fill()
for _ in range(2):
    try:
        database.add([], layers(5000, "b"))
    except ResourceExhausted as error:
        assert str(root) in error.message and "free space" in error.hint and "move" not in error.hint, error
    else:
        sys.exit("the disk was not full")
    assert len(database.layers()) == 1
os.unlink(root / "filler")
database.add([], layers(2000, "b"))
assert len(database.layers()) == 2000
"""
_SYNC = """
durability._DELAY = 0.0
boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
records = layers(300, boot_id)
store = stores.ImageStore.open(root, config=ImagesConfig(), registries={})
for record in records:
    store._layers.driver.path(record.id).mkdir()
    store._layers._leases[record.id] += 1
store._catalog.database.add([], records)
store._catalog.refresh()
fill()
store._durability.sync_later()
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
assert store._durability._timer is None
assert all(layer.boot_id for layer in store._catalog.layers.values())
os.unlink(root / "filler")
store.sync()
assert not any(layer.boot_id for layer in store._catalog.layers.values())
store.close()
"""

_REMOVAL = """
from podkeep.base.ids import ImageID
from podkeep.images.store.database import NewImage
store = stores.ImageStore.open(root, config=ImagesConfig(snapshot_driver="directories"), registries={})
(record,) = layers(1, "")
kept = store._layers.driver.path(record.id)
kept.mkdir()
(kept / "file").write_bytes(bytes(4 << 20))
image = NewImage(id=ImageID("sha256:" + "1" * 64), kind="artifact", config=bytes(4000), manifests=(),
                 layers=(record.id,), tags=("docker.io/library/a:1", "docker.io/library/a:2"), digests=())
store._catalog.database.add([image], [record])
store._catalog.refresh()
reserve = root / "images.db-reserve"
assert reserve.stat().st_blocks * 512 == 512 << 10
store._catalog.database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # a journal with room would do
fill()
store.forget("a:1")
assert not reserve.exists()
assert [image.repo_tags for image in store.images()] == [("docker.io/library/a:2",)]
store.remove("a:2")
assert not kept.exists() and not store.images()
assert reserve.stat().st_blocks * 512 == 512 << 10
store.close()
"""


def on_a_small_disk(directory: Path, body: str, *, size: str = "1m") -> subprocess.CompletedProcess[str]:
    """Run ``body`` with a small file system on ``directory``, in a mount namespace of its own."""
    script = f'mount -t tmpfs -o size={size} small "$0" && exec "$@" "$0"'
    command = ["unshare", "--mount", "sh", "-c", script, str(directory), sys.executable, "-c", _PROLOGUE + body]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_full_disk_is_no_damage_and_passes(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, _RECORDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_logged_by_the_thread_that_syncs(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, _SYNC)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"layers may not outlive a loss of power: {tmp_path}: no space is left")
    assert "Traceback" not in done.stderr


def test_images_are_removed_from_a_full_disk(tmp_path: Path) -> None:
    """A kubelet does that to have space again."""
    done = on_a_small_disk(tmp_path, _REMOVAL, size="8m")
    assert (done.returncode, done.stderr) == (0, "")
