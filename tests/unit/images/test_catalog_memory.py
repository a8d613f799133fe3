"""What images say of themselves takes no memory of the server while no container is made of them."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeep.base.config import ImagesConfig
from podkeep.images.store.store import ImageStore
from support.images import OCI_INDEX, LayoutBuilder

MIB = 1 << 20
IMAGES = 4
PORTS: dict[str, dict[str, str]] = {str(number): {} for number in range(180_000)}
"""Keys of two mebibytes, and twelve as Python's strings."""


def _open(root: Path) -> ImageStore:
    return ImageStore.open(root, config=ImagesConfig(snapshot_driver="directories"), registries={})


def _archive(path: Path) -> Path:
    """Write images with as much to say as they may, each something else."""
    builder = LayoutBuilder(path)
    images = [
        builder.image([], config={"User": f"user{number}", "StopSignal": "SIGUSR1", "ExposedPorts": PORTS})
        for number in range(IMAGES)
    ]
    for number, image in enumerate(images):
        image["annotations"] = {"org.opencontainers.image.ref.name": f"localhost/large:{number}"}
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": images}))
    return path


@contextmanager
def _traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_what_an_image_says_is_read_when_it_is_needed(tmp_path: Path) -> None:
    """A pod may have any number of images pulled, which takes little of the disk."""
    store = _open(tmp_path / "images")
    loaded = asyncio.run(store.load(_archive(tmp_path / "layout")))
    assert len(loaded) == IMAGES
    store.close()
    with _traced():
        store = _open(tmp_path / "images")
        store.untag("localhost/large:0")
        kept, most = tracemalloc.get_traced_memory()
        assert kept < MIB, f"{kept >> 20} MiB are kept of {IMAGES} images"
        assert most < 2 * MIB, f"{most >> 20} MiB are taken when the records are read"
    for number, image in enumerate(loaded):
        assert (image.user, image.stop_signal) == (f"user{number}", "SIGUSR1")
        assert store.find(image.id) == image
        assert len(store.run_config(image).exposed_ports) == len(PORTS)
    store.close()
