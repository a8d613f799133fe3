"""The processes of a pull, as they are while a layer is unpacked."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import OpenStore, children, leftovers, workers

from podkeep.base.config import ImagesConfig, RegistryConfig
from podkeep.base.errors import Internal
from podkeep.images.formats.image import Image
from podkeep.images.store.store import ImageStore
from podkeep.images.worker.layers import LOCK, TURN
from podkeep.kernel.process import procfs
from podkeep.kernel.process.forkserver import CHANNEL
from support.images import Layout
from support.registry import HostileRegistry, held
from support.waiting import TIMEOUT_S, wait_for


def _status(pid: int) -> dict[str, str]:
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


def _descriptors(pid: int) -> set[int]:
    return set(map(int, os.listdir(f"/proc/{pid}/fd")))


def _sockets(pid: int) -> set[int]:
    """Return the numbers of sockets, but for the standard ones."""
    found = set()
    for number in _descriptors(pid) - {0, 1, 2}:
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                found.add(number)
    return found


async def _held_pull(store: ImageStore, registry: HostileRegistry, before: set[int]) -> asyncio.Future[Image]:
    """Return a pull whose worker and unpack process wait for the rest of a layer."""
    pull = asyncio.ensure_future(store.pull(f"{registry.host}/app:v1"))
    assert await asyncio.to_thread(registry.paused.wait, TIMEOUT_S)
    wait_for(lambda: len(children() - before) == 2, "both processes")
    return pull


@pytest.mark.requirement("V61")
def test_an_unpack_process_has_nothing_of_those_that_it_is_a_copy_of(
    root: Path, open_store: OpenStore, busybox: Layout
) -> None:
    """Neither what it could ask for processes with that are not confined, nor what others talk over."""
    gate = threading.Event()
    with held(busybox, gate) as registry:
        store, before = open_store(registry.host), children()

        async def look() -> None:
            pull = await _held_pull(store, registry, before)
            (worker,) = workers(before)
            (unpack,) = children() - before - {worker}
            # What it has opened since may have any other number.
            wait_for(
                lambda: {LOCK, TURN} <= _descriptors(unpack) and not _sockets(unpack), lambda: str(_sockets(unpack))
            )
            assert CHANNEL in _sockets(worker)
            assert _status(unpack)["NSpid"].split() == [str(unpack), "1"]
            assert {os.readlink(f"/proc/{pid}/fd/{LOCK}") for pid in (worker, unpack)} == {str(root / "lock")}
            gate.set()
            assert (await pull).id == busybox.image_id

        asyncio.run(look())


def test_where_memory_runs_out_a_pull_ends_before_pods(open_store: OpenStore, busybox: Layout) -> None:
    """They do not get the score of the daemon, which a unit lets outlive all pods: images choose what they take."""
    gate = threading.Event()
    with held(busybox, gate) as registry:
        store, before = open_store(registry.host), children()

        async def look() -> None:
            pull = await _held_pull(store, registry, before)
            assert {procfs.oom_score_adj(pid) for pid in children() - before} == {1000}
            gate.set()
            await pull

        asyncio.run(look())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_pull_ends_with_the_fork_server_and_the_next_one_works(
    how: signal.Signals, root: Path, busybox: Layout
) -> None:
    gate = threading.Event()
    with held(busybox, gate) as registry:
        config, name = ImagesConfig(snapshot_driver="directories"), f"{registry.host}/app:v1"
        before = children()
        store = ImageStore.open(root, config=config, registries={registry.host: RegistryConfig(insecure=True)})

        async def kill_in_the_middle() -> None:
            pull = asyncio.ensure_future(store.pull(name))
            assert await asyncio.to_thread(registry.paused.wait, TIMEOUT_S)
            others = children() - before
            everything = [procfs.identify(pid) for pid in others]
            (forks,) = (pid for pid in others if _status(pid)["PPid"] == str(os.getpid()))
            os.kill(forks, how)
            with pytest.raises(Internal, match="the image worker was killed by SIGKILL"):
                await pull
            assert leftovers(root) == []
            wait_for(lambda: not any(map(procfs.alive, everything)), "the end of all")
            gate.set()
            assert (await store.pull(name)).id == busybox.image_id

        asyncio.run(kill_in_the_middle())
        store.close()
        assert children() == before
