"""Pulling takes the same memory whatever the size of a layer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tarfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from bench import bulk, memory
from conftest import OpenStore, children, workers

from podkeep.base.errors import NotFound
from support.images import OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, LayoutBuilder
from support.registry import Answer, HostileRegistry, Registry

MIB = 1 << 20
LARGE = 256 * MIB
"""More than a pull may take, so that one that keeps a layer in memory is found."""
MOST = 100 * MIB
"""Of all processes of a pull together, each with its whole interpreter. With the server that is below 150 MB."""


class Watch:
    """The highest ``VmHWM`` in bytes (proc(5)) of each process below this one, by its ID."""

    def __init__(self) -> None:
        self.peaks: dict[int, int] = {}
        self._before: set[int] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._before = children()  # not in the thread, which may begin after what is to be watched
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.02):
            for child in children() - self._before:
                for pid in memory.tree(child):
                    with suppress(FileNotFoundError, ProcessLookupError, IndexError):
                        status = Path(f"/proc/{pid}/status").read_text()
                        self.peaks[pid] = int(status.split("VmHWM:")[1].split()[0]) << 10


@pytest.fixture(scope="module")
def model(registry: Registry) -> str:
    """An image with a large layer."""
    return bulk.push_image(bulk.model(LARGE), registry.host, "memory/model", level=0)


@pytest.fixture(scope="module")
def artifact(registry: Registry) -> str:
    """An artifact with a large file."""
    return bulk.push_artifact(bulk.noise(LARGE), registry.host, "memory/artifact", "model.bin")


@pytest.fixture(scope="module")
def many(registry: Registry) -> str:
    """An image with 20 000 files."""
    return bulk.push_image(bulk.many_files(20_000, content=False), registry.host, "memory/many")


@pytest.mark.requirement("V62", "V103")
@pytest.mark.parametrize(
    ("what", "snapshot_driver"),
    [("model", "directories"), ("model", "erofs"), ("artifact", "erofs"), ("many", "directories"), ("many", "erofs")],
)
def test_a_pull_takes_no_more_memory_than_its_pieces(
    what: str, request: pytest.FixtureRequest, open_store: OpenStore
) -> None:
    name = request.getfixturevalue(what)
    store = open_store()

    with Watch() as watch:
        image = asyncio.run(store.pull(name))

    assert image.layers
    assert len(watch.peaks) == 1 + (what != "artifact")  # the worker, and an unpack process for a layer that is a tar
    assert sum(watch.peaks.values()) <= MOST, watch.peaks


def _resident(pid: int) -> int:
    """Return what a process has in memory, in bytes, but for files (proc(5), ``RssAnon``)."""
    return int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0]) << 10


@pytest.mark.parametrize("value", [b"[]", b'{"a":0}'])
def test_documents_take_no_memory_while_layers_come(value: bytes, tmp_path: Path, open_store: OpenStore) -> None:
    """A registry may send layers for as long as it likes, and documents of millions of values that nobody reads."""
    builder = LayoutBuilder(tmp_path / "layout")
    image = builder.image([b"never sent"])
    sent = json.loads((tmp_path / "layout/blobs" / image["digest"].replace(":", "/")).read_bytes())
    values = b",".join([value] * (3 * MIB // (len(value) + 1)))
    whole = json.dumps(sent).encode()[:-1] + b',"ours":[' + values + b"]}"
    layout = builder.finish(builder.blob(whole, OCI_MANIFEST))
    taken: list[int] = []

    def decide(path: str, _headers: Mapping[str, str]) -> Answer | None:
        if not path.endswith(sent["layers"][0]["digest"]):
            return None
        taken.extend(map(_resident, workers(before)))
        return Answer(status=404)

    with HostileRegistry(layout, decide) as registry:
        store = open_store(registry.host)
        before = children()
        with pytest.raises(NotFound):
            asyncio.run(store.pull(f"{registry.host}/app:v1"))
    assert len(taken) == 1
    assert taken[0] < 64 * MIB


def _wide(name: str) -> tuple[bytes, str]:
    """Return a layer as zstd with a window of 128 MiB, which it fills with zeros, and the digest of its tar."""
    size = 136 * MIB
    info = tarfile.TarInfo(name)
    info.size = size
    blocks = [
        (info.tobuf(tarfile.PAX_FORMAT), 0),
        *((b"\0", MIB // 8) for _ in range(8 * size // MIB)),
        (bytes(1024), 0),
    ]
    # RFC 8878: a frame without checksum, whose window has 2^(10+17) bytes; raw blocks, and such of one repeated byte.
    frame = b"\x28\xb5\x2f\xfd\0" + bytes([17 << 3])
    plain = hashlib.sha256()
    for number, (content, repeated) in enumerate(blocks):
        kind = (repeated or len(content)) << 3 | bool(repeated) << 1 | (number + 1 == len(blocks))
        frame += kind.to_bytes(3, "little") + content
        plain.update(content * (repeated or 1))
    return frame, f"sha256:{plain.hexdigest()}"


@pytest.mark.slow
def test_layers_that_need_much_memory_take_turns(tmp_path: Path, open_store: OpenStore) -> None:
    """Each would have it for as long as the registry takes to send its last byte."""
    builder = LayoutBuilder(tmp_path / "layout")
    layers = [_wide(f"file{number}") for number in range(3)]
    descriptors = [builder.blob(data, f"{OCI_LAYER}+zstd") for data, _ in layers]
    config = {"rootfs": {"type": "layers", "diff_ids": [diff_id for _, diff_id in layers]}}
    image = {"schemaVersion": 2, "config": builder.json(config, OCI_CONFIG), "layers": descriptors}
    layout = builder.finish(builder.json(image, OCI_MANIFEST))
    most, end, before = 0, threading.Event(), children()

    def look() -> None:
        nonlocal most
        while not end.wait(0.01):
            now = 0
            for child in children() - before:
                for pid in memory.tree(child):
                    with suppress(FileNotFoundError, ProcessLookupError, IndexError):
                        now += _resident(pid)
            most = max(most, now)

    with HostileRegistry(layout) as registry:
        store = open_store(registry.host, max_unpack_ratio=1_000_000)
        looking = threading.Thread(target=look)
        looking.start()
        try:
            found = asyncio.run(store.pull(f"{registry.host}/app:v1"))
        finally:
            end.set()
            looking.join()
    assert len(found.layers) == 3
    assert 128 * MIB < most < 250 * MIB
