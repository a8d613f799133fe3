"""Unpacking the layers of one image at the same time: which layer goes next, from which source, and when to give up.

A layer that one source cannot deliver whole is asked of the next source (mirrors first, the registry itself last). A
layer that breaks a rule is refused at once: no other source has a different one under the same digest.
"""

from __future__ import annotations

import fcntl
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import msgspec

from podkeep.base.errors import Internal, PodkeepError
from podkeep.base.ids import Digest
from podkeep.images.layers.forms import form_of
from podkeep.images.layers.messages import UnpackRequest, is_full
from podkeep.images.layers.names import RECORD_SUFFIX
from podkeep.images.messages import LayerSettings, NewLayer, StagedLayer
from podkeep.images.registry.fallback import ELSEWHERE, together
from podkeep.images.snapshots import merging
from podkeep.images.worker import file_layers
from podkeep.images.worker.channel import Channel
from podkeep.images.worker.layers import TURN, LayerJob, Made, UnpackProcess, mark_opaque, no_space
from podkeep.kernel.files import tree_size
from podkeep.kernel.process import forkserver

WHOLE = 150_000_000
"""Bytes of memory that a pull takes at most with all its processes."""
_WORKER = 32_000_000
_PROCESS = 32_000_000
"""Of an unpack process without a tree: the interpreter, and pieces on their way."""
_LEAST = 16_000_000


class BlobSource(Protocol):
    """A place blobs come from; used by several threads at once."""

    def blob(self, digest: Digest, size: int) -> Iterator[bytes]:
        """Yield a blob, at most ``size`` bytes and one; the caller verifies them.

        :raises PodkeepError: if it cannot be had, also between two pieces.
        """
        ...


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    job: LayerJob
    source: int
    root: Path


def _outcome(task: _Task, make: Callable[[], NewLayer]) -> NewLayer | PodkeepError:
    try:
        return make()
    except PodkeepError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the coordinator waits for an outcome and raises it
        if is_full(error):
            return no_space(task.job, str(error))
        return Internal(f"layer {task.job.shown}: {type(error).__name__}: {error}")


class Assembly:
    """Unpacks layers as ``settings`` say; one per worker process."""

    def __init__(self, settings: LayerSettings, channel: Channel) -> None:
        self.settings = settings
        self._channel = channel
        self._sources: Sequence[BlobSource] = ()
        self._tree_memory: dict[LayerJob, int] = {}
        self._attempts = 0
        # A layer of zstd may need 128 MiB of history, for as long as the registry takes to send it: one at a time does.
        self._turn = _file_to_lock()
        self._server = socket.socket(fileno=forkserver.CHANNEL)
        self.outcomes: queue.SimpleQueue[tuple[_Task, NewLayer | PodkeepError]] = queue.SimpleQueue()

    def run(self, jobs: Sequence[LayerJob], sources: Sequence[BlobSource]) -> dict[LayerJob, NewLayer]:
        """Unpack ``jobs`` and return what became of each.

        :raises PodkeepError: the first error no other source could fix; the process is expected to end then.
        """
        self._sources = sources
        # All of them at once: whoever shows a sum needs every layer from the start.
        for job in dict.fromkeys(jobs):
            self._channel.progress(job.shown, "waiting", 0, job.size)
        waiting = [(job, 0) for job in reversed(dict.fromkeys(jobs))]
        shares = tree_shares([job.size for job, _ in waiting], self.settings.parallel)
        self._tree_memory = {job: share for (job, _), share in zip(waiting, shares, strict=True)}
        running = 0
        results: dict[LayerJob, NewLayer] = {}
        failures: dict[LayerJob, list[PodkeepError]] = {}
        while waiting or running:
            while waiting and running < self.settings.parallel:
                self._begin(*waiting.pop())
                running += 1
            task, outcome = self.outcomes.get()
            running -= 1
            if not isinstance(outcome, PodkeepError):
                results[task.job] = outcome
                continue
            # A layer that breaks a rule: any other source has the same bytes under this digest.
            if not isinstance(outcome, ELSEWHERE):
                raise outcome
            failures.setdefault(task.job, []).append(outcome)
            if task.source + 1 == len(sources):
                raise together(failures[task.job])
            self._channel.progress(task.job.shown, "retrying", 0, task.job.size)
            waiting.append((task.job, task.source + 1))
        return results

    def _make(self, task: _Task, ending: ExitStack) -> NewLayer:
        """Make one layer on the calling thread; ``ending`` closes what was needed for it."""
        job, blob = task.job, self._sources[task.source].blob(task.job.shown, task.job.size)
        if job.kind == "auto":
            job, blob = file_layers.told(job, blob)
        if job.kind == "file":
            return self._staged(task, file_layers.keep(job, task.root, self.settings, blob, self._channel))
        process = UnpackProcess(self._server, self._turn)
        ending.callback(process.close)
        request = self._request(job, task.root, self._tree_memory[task.job])
        return self._staged(task, process.unpack(job, request, blob, self._channel))

    def _request(self, job: LayerJob, root: Path, max_memory: int) -> UnpackRequest:
        settings = self.settings
        return UnpackRequest(
            root=str(root),
            driver=settings.driver,
            compression=job.compression,
            algorithm=(job.layer or "sha256:").partition(":")[0],
            max_bytes=settings.max_bytes,
            max_inodes=settings.max_inodes,
            max_ratio=settings.max_ratio,
            max_memory=max_memory,
            turn=TURN,
        )

    def _staged(self, task: _Task, made: Made) -> NewLayer:
        """Finish and measure what was staged."""
        path = made.path
        # Here and not in the unpack process: trusted attributes take CAP_SYS_ADMIN, which that has given up.
        mark_opaque(path, made.opaque)
        implied = merging.write_list(path, made.implied) if made.implied else ""
        size = tree_size.measure(str(path))
        if size is None:
            raise Internal(f"layer {task.job.shown}: {path} is gone")
        beside = Path(f"{path}{RECORD_SUFFIX}")
        blocks, files = (beside.lstat().st_blocks, 1) if beside.exists() else (0, 0)
        self._channel.progress(task.job.shown, "done", task.job.size, task.job.size)
        staged = StagedLayer(
            driver=made.driver,
            path=str(path),
            bytes=size.used_bytes + blocks * 512,
            inodes=size.inodes + files,
            data_bytes=made.data_bytes,
            metadata=form_of(made.driver).metadata_digest(path),
            implied=implied,
        )
        return task.job.made(made.layer, made.kind, staged)

    def _begin(self, job: LayerJob, source: int) -> None:
        # A new directory for each attempt: what a failed one left is never mixed with the next.
        self._attempts += 1
        root = Path(self.settings.staging) / str(self._attempts)
        try:
            root.mkdir(mode=0o755)
        except OSError as error:
            if is_full(error):
                raise no_space(job, str(error)) from error
            raise
        root.chmod(0o755)  # whatever the umask
        self._channel.progress(job.shown, "downloading", 0, job.size)
        task = _Task(job=job, source=source, root=root)
        threading.Thread(target=self._work, args=(task,), name="layer", daemon=True).start()

    def _work(self, task: _Task) -> None:
        # It is told before anything is closed: the kernel takes longer to tear namespaces down than to unpack a little.
        with ExitStack() as ending:
            self.outcomes.put((task, _outcome(task, lambda: self._make(task, ending))))


def _file_to_lock() -> int:
    """Return a descriptor of an empty file that stays empty, whoever has it."""
    fd = os.memfd_create("turn", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    return fd


def tree_shares(sizes: Sequence[int], parallel: int) -> list[int]:
    """Return the bytes of memory that each tree may take, of layers whose blobs are of these sizes.

    A pull stays below :data:`WHOLE` with all its processes. What they take by themselves is measured; the rest is for
    trees, and a large layer gets more of it than a small one. What needs more than its share is kept as a directory.
    Of any ``parallel`` of them the sum is within the whole (with more than three processes, which take as much by
    themselves, it is at least ``_LEAST``).
    """
    beside = min(parallel, len(sizes))
    free = max(WHOLE - _WORKER - beside * _PROCESS, _LEAST)
    largest = sum(sorted(sizes, reverse=True)[:beside])
    return [free * size // largest if largest else free // max(beside, 1) for size in sizes]
