"""Killing the worker, and the process that owns the store, at bad moments."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import OpenStore, children, leftovers, workers

from podkeep.base.config import ImagesConfig
from podkeep.base.errors import DataLoss, FailedPrecondition, Internal
from podkeep.images.formats.image import Image, PullProgress
from podkeep.images.store import store as image_store
from podkeep.images.store.store import ImageStore
from podkeep.kernel.mount import mountinfo
from support.images import BUSYBOX, Layout, busybox_layout, file
from support.registry import Registry, held
from support.waiting import wait_for

PROGRAM = Path(__file__).with_name("programs") / "image_owner.py"


def owner_of(root: Path, host: str, driver: str, then: str = "ends") -> list[str]:
    """Return the command line of a process that opens the store and pulls ``app:v1``; ``then`` it ends, or uses it."""
    return [sys.executable, str(PROGRAM), str(root), str(root.parent / "mounted"), driver, f"{host}/app:v1", then]


@pytest.fixture(params=["directories", "erofs"])
def snapshot_driver(request: pytest.FixtureRequest) -> str:
    """Both ways to keep layers."""
    return str(request.param)


def _layer(root: Path, driver: str, layer: str) -> Path:
    return root / {"directories": "layers", "erofs": "erofs"}[driver] / layer.replace(":", "-")


def test_a_killed_worker_fails_its_pull_and_the_next_one_works(
    root: Path, busybox: Layout, open_store: OpenStore
) -> None:
    gate = threading.Event()
    with held(busybox, gate) as registry:
        store = open_store(registry.host)
        before = children()

        async def kill_in_the_middle() -> None:
            pull = asyncio.ensure_future(store.pull(f"{registry.host}/app:v1"))
            assert await asyncio.to_thread(registry.paused.wait, 30)
            assert leftovers(root) != []
            (worker,) = workers(before)
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(Internal, match="the image worker was killed by SIGKILL: the machine may"):
                await pull

        asyncio.run(kill_in_the_middle())
        wait_for(lambda: children() == before, "the end of what unpacked for it")
        assert leftovers(root) == []
        gate.set()
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id


def test_a_cancelled_load_leaves_nothing(root: Path, busybox: Layout, open_store: OpenStore) -> None:
    store = open_store()
    staged: list[bool] = []

    async def cancel_in_the_middle() -> None:
        def end(_step: PullProgress) -> None:  # called by the load itself, which ends at its next await
            staged.append(leftovers(root) != [])
            load.cancel()

        load = asyncio.ensure_future(store.load(busybox.path, progress=end))
        with pytest.raises(asyncio.CancelledError):
            await load

    asyncio.run(cancel_in_the_middle())
    assert staged[0]
    assert leftovers(root) == []
    assert store.images() == []


def test_a_killed_owner_takes_its_workers_along_and_the_next_store_cleans_up(
    root: Path, busybox: Layout, snapshot_driver: str, open_store: OpenStore
) -> None:
    gate = threading.Event()
    with held(busybox, gate) as registry:
        owner = subprocess.Popen(owner_of(root, registry.host, snapshot_driver))
        assert registry.paused.wait(30)
        assert leftovers(root) != []
        owner.kill()
        owner.wait()
        store = open_store(registry.host)  # which waits for the last process that holds the store's lock
        assert leftovers(root) == []
        assert store.images() == []
        gate.set()
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id


@pytest.mark.parametrize("point", ["images-before-commit", "images-before-record"])
def test_an_owner_killed_between_its_steps_leaves_nothing(
    point: str, root: Path, registry: Registry, busybox: Layout, snapshot_driver: str, open_store: OpenStore
) -> None:
    name = registry.push(busybox, "app:v1")
    environment = os.environ | {"PODKEEP_FAILPOINTS": f"{point}=kill"}
    command = owner_of(root, registry.host, snapshot_driver)
    owner = subprocess.run(command, env=environment, check=False, timeout=60)
    assert owner.returncode == -signal.SIGKILL
    assert leftovers(root) != []
    store = open_store()
    left = [path for name in ("layers", "erofs", "headers") for path in (root / name).iterdir()]
    assert (store.images(), leftovers(root), left) == ([], [], [])
    assert asyncio.run(store.pull(name)).id == busybox.image_id


def test_an_image_outlives_its_owner(
    root: Path, registry: Registry, busybox: Layout, snapshot_driver: str, open_store: OpenStore
) -> None:
    registry.push(busybox, "app:v1")
    subprocess.run(owner_of(root, registry.host, snapshot_driver), check=True, timeout=60)
    store = open_store()
    image = store.find(f"{registry.host}/app:v1")
    assert image is not None
    assert _read(store, image, "bin/busybox") == BUSYBOX.read_bytes()


def _read(store: ImageStore, image: Image, name: str) -> bytes:
    """Return a file of the image's top layer."""
    lowers = store.lowers(image, userns=None)
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=lowers[0])
        with os.fdopen(file, "rb") as content:
            return content.read()
    finally:
        for fd in lowers:
            os.close(fd)


def test_mounts_of_a_killed_owner_are_gone(
    root: Path, registry: Registry, busybox: Layout, snapshot_driver: str, open_store: OpenStore
) -> None:
    registry.push(busybox, "app:v1")
    command = owner_of(root, registry.host, snapshot_driver, "uses")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"mounted\n"
        owner.kill()
    left = mountinfo.under(root.parent / "mounted")
    assert bool(left) == (snapshot_driver == "erofs")
    store = open_store()
    assert mountinfo.under(root.parent / "mounted") == []
    image = store.find(f"{registry.host}/app:v1")
    assert image is not None
    assert _read(store, image, "bin/busybox") == BUSYBOX.read_bytes()


def test_a_mounted_layer_outlives_its_image_and_its_store(
    root: Path, registry: Registry, busybox: Layout, snapshot_driver: str, open_store: OpenStore
) -> None:
    store = open_store()
    image = asyncio.run(store.pull(registry.push(busybox, "app:v1")))
    first, second = (store.lowers(image, userns=None)[0] for _ in range(2))
    try:
        store.unmount_unused([image.id])
        store.unmount_unused([])
        assert mountinfo.under(root.parent / "mounted") == []
        if snapshot_driver == "erofs":  # of a directory the files would go
            store.remove(image.id)
        store.close()
        for fd in (first, second):
            file = os.open("bin/busybox", os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd)
            with os.fdopen(file, "rb") as content:
                assert content.read() == BUSYBOX.read_bytes()
        assert os.fstat(first).st_dev == os.fstat(second).st_dev
    finally:
        os.close(first)
        os.close(second)


def test_a_layer_that_is_gone_takes_its_images_along(
    tmp_path: Path, root: Path, registry: Registry, busybox: Layout, snapshot_driver: str, open_store: OpenStore
) -> None:
    more = busybox_layout(tmp_path / "more", layers=[[file("more")]])
    names = [registry.push(busybox, "gone/one:v1"), registry.push(more, "gone/two:v1")]
    store = open_store()
    for name in names:
        asyncio.run(store.pull(name))
    store.close()
    shutil.rmtree(_layer(root, snapshot_driver, more.diff_ids[1]))
    store = open_store()
    assert [image.repo_tags for image in store.images()] == [(names[0],)]
    assert asyncio.run(store.pull(names[1])).id == more.image_id


def test_layers_never_seen_on_the_disk_do_not_outlive_the_boot(
    root: Path, registry: Registry, busybox: Layout, open_store: OpenStore
) -> None:
    name = registry.push(busybox, "power/loss:v1")
    store = open_store()
    asyncio.run(store.pull(name))
    store.close()
    _another_boot(root)
    store = open_store()
    assert store.images() == []
    asyncio.run(store.pull(name))
    store.sync()
    store.close()
    _another_boot(root)
    assert [image.repo_tags for image in open_store().images()] == [(name,)]


def test_what_was_loaded_is_on_the_disk(root: Path, busybox: Layout, open_store: OpenStore) -> None:
    store = open_store()
    (image,) = asyncio.run(store.load(busybox.path))
    store.close()
    _another_boot(root)
    assert [found.id for found in open_store().images()] == [image.id]


def _another_boot(root: Path) -> None:
    """Have a store, which is closed, find itself in another boot."""
    database = sqlite3.connect(root / "images.db")
    with database:
        database.execute("UPDATE layers SET boot_id = 'another' WHERE boot_id <> ''")
    database.close()


def test_a_damaged_database_is_an_error_that_says_what_to_do(root: Path, open_store: OpenStore) -> None:
    open_store().close()
    (root / "images.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(DataLoss, match=r"images\.db: file is not a database") as failure:
        open_store()
    assert f"move {root} away" in failure.value.hint


def test_a_store_has_one_owner(root: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store()
    monkeypatch.setattr(image_store, "LOCK_TIMEOUT_S", 0.1)
    with pytest.raises(FailedPrecondition, match="is in use by another process"):
        ImageStore.open(root, config=ImagesConfig(), registries={})
