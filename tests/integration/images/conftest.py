"""Fixtures of the image tests: nothing may leak, a store, and a real registry."""

from __future__ import annotations

import gc
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.config import ImagesConfig, RegistryConfig
from podkeep.images.store.store import ImageStore
from podkeep.images.store.workers import FORK_SERVER
from podkeep.kernel.process.forkserver import ForkServer
from support import erofs, forked, processes
from support.images import Layout, busybox_layout
from support.registry import Registry

OpenStore = Callable[..., ImageStore]
_BLOCK_BYTES = 4096


def children() -> set[int]:
    """Return this process's children and theirs: image workers and unpack processes are a fork server's."""
    found = processes.children(os.getpid())
    for child in tuple(found):
        with suppress(FileNotFoundError):  # it ended meanwhile
            found |= processes.children(child)
    return found


def workers(before: set[int]) -> set[int]:
    """Return the image workers among the children since then: unpack processes have PID namespaces of their own."""
    found = set()
    for pid in children() - before:
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            status = Path(f"/proc/{pid}/status").read_text()
            found |= {pid} if len(status.partition("NSpid:")[2].partition("\n")[0].split()) == 1 else set()
    return found


def _resources() -> dict[str, object]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "children": children(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }


def _forget_grpc() -> None:
    """Let go of what clients of other directories' tests left: gRPC's thread ends when their channels are collected.

    What a test that failed holds on to does not end during the next one either.
    """
    deadline = time.monotonic() + 1
    while any("_poll_wrapper" in thread.name for thread in threading.enumerate()) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A docker-registry over plain HTTP."""
    with Registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """The busybox image."""
    return busybox_layout(tmp_path_factory.mktemp("busybox") / "layout")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    where = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    extra = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", where / "key.pem", "-out", where / "cert.pem"]
    subprocess.run([*command.split(), *extra], check=True, capture_output=True)
    return where / "cert.pem", where / "key.pem"


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """What the workers of all stores are copies of."""
    server = ForkServer(FORK_SERVER)
    yield server
    server.let_go()()


@pytest.fixture(autouse=True)
def nothing_leaks(registry: Registry, busybox: Layout, fork_server: ForkServer) -> Iterator[None]:
    """Fail a test that leaves a descriptor, mount, child process or thread behind."""
    _forget_grpc()
    forked.begin()
    fork_server.begin()
    before = _resources()
    yield
    deadline = time.monotonic() + 5  # threads that wait for a child end a moment after it
    while _resources() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    if _resources() != before:
        # An event loop that has ended leaves pipes to its transports, whose other ends a process held for longer. The
        # loop of a daemon goes on, and closes them.
        gc.collect()
    assert _resources() == before


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the test's store keeps its things."""
    return tmp_path / "images"


@pytest.fixture
def snapshot_driver() -> str:
    """How layers are kept: by default so that a test can look at their files. Modules may say something else."""
    return "directories"


@pytest.fixture
def open_store(
    root: Path, registry: Registry, snapshot_driver: str, fork_server: ForkServer, nothing_leaks: None
) -> Iterator[OpenStore]:
    """Open the store below ``root``; what is opened is closed at the end, and no staging directory may be left then."""
    opened: list[ImageStore] = []

    def open_(*hosts: str, registries: dict[str, RegistryConfig] | None = None, **config: Any) -> ImageStore:
        insecure = {host: RegistryConfig(insecure=True) for host in (registry.host, *hosts)}
        if config.get("snapshot_driver") == "erofs":
            erofs.needed()
        store = ImageStore.open(
            root,
            config=ImagesConfig(**{"snapshot_driver": snapshot_driver} | config),
            registries=insecure | (registries or {}),
            mounted=root.parent / "mounted",
            fork_server=fork_server,
        )
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()
    assert leftovers(root) == []


def du(root: Path) -> tuple[int, int]:
    """Return what ``du`` says of a tree: bytes in whole blocks, and inodes."""
    asked = (["du", "-s", "--block-size=1"], ["du", "-s", "--inodes"])
    said = [subprocess.run([*command, root], check=True, capture_output=True, text=True).stdout for command in asked]
    return int(said[0].split()[0]), int(said[1].split()[0])


def require_du(store: ImageStore, root: Path) -> None:
    """Check that the store says of itself what ``du`` says.

    A layer is measured before the kernel has written it: then ext4 may take a block more, or less, for where a file is.
    """
    usage, (used, inodes) = store.usage(), du(root)
    assert usage.inodes_used == inodes
    assert abs(usage.used_bytes - used) <= _BLOCK_BYTES


def layers_bytes(store: ImageStore) -> int:
    """Return what the layers of a store take, without its records."""
    empty = [entry.lstat() for entry in (Path(store.usage().mountpoint), *Path(store.usage().mountpoint).iterdir())]
    return store.usage().used_bytes - sum(status.st_blocks for status in empty) * 512


def leftovers(root: Path) -> list[str]:
    """Return what is in the staging and trash directories of a store."""
    return [str(path) for name in ("staging", "trash") for path in sorted((root / name).glob("*"))]


def layer_directory(root: Path, diff_id: str) -> Path:
    """Return the directory of a layer."""
    return root / "layers" / diff_id.replace(":", "-")
