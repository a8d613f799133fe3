"""Sizes of writable layers, with what else a container writes to disk: walked in the background, and remembered.

Nothing waits for a walk, but for the layers of a single pod that somebody asks for: who decides which pod is to go must
not take what it was before for what it is.

Owns: which layer is walked when. A layer is walked again after a pause that grows with how long the walk took, so that
large ones cost a bounded share of a processor; one whose container has ended is walked once more and then no more.
What takes longer than a turn is walked apart, so that one container with very many files does not make the sizes of all
others old. Thread-safe.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID
from podkeep.kernel.files import tree_size
from podkeep.kernel.files.tree_size import TreeSize
from podkeep.runtime.stats.targets import ContainerTarget

PERIOD_S = 10.0
"""Pause between two walks of a small layer, as the peers have it."""
TURN_S = 1.0
"""How long a layer may be walked while others wait."""
NOW_S = 20.0
"""How long the layers of one pod are walked that somebody asks for."""
PAUSE_FACTOR = 100
"""Pause after a walk, in times of what it took: at most a hundredth of a processor per layer."""


class LayerSize(FrozenStruct):
    """``at`` in nanoseconds since the epoch."""

    at: int
    size: TreeSize


@dataclass(slots=True)
class _Layer:
    paths: tuple[str, ...]
    """The writable layer, and what counts with it; only the first has to be there."""
    ended: bool
    """Whether nothing writes to it any more."""
    large: bool = False
    """Whether the last walk took longer than a turn."""
    due: float = 0.0
    """In seconds of the monotonic clock."""
    known: LayerSize | None = None


class Layers:
    """The writable layers of all containers, by container ID."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._layers: dict[ContainerID, _Layer] = {}
        self._stopped = threading.Event()

    def follow(self, targets: Iterable[ContainerTarget]) -> None:
        """Walk the layers of these containers from now on, and forget all others."""
        with self._lock:
            before, self._layers = self._layers, {}
            for target in targets:
                container = target.container.id
                layer = before.get(container) or _layer(target)
                if target.cgroup is None and not layer.ended:
                    # Once more, for what it has written since the last walk.
                    layer.ended, layer.due = True, 0.0
                self._layers[container] = layer

    def size(self, container: ContainerID) -> LayerSize | None:
        """Return the size of a layer as it was when it was last walked; None if that is still to come."""
        layer = self._layers.get(container)
        return None if layer is None else layer.known

    def walk_due(self, *, large: bool = False) -> None:
        """Walk every layer whose time has come, of the large ones or the others. Blocks for as long as that takes."""
        with self._lock:
            now = time.monotonic()
            due = [layer for layer in self._layers.values() if layer.large == large and layer.due <= now]
        for layer in due:
            self._walk(layer)
            if self._stopped.is_set():
                return

    def walk_now(self, targets: Iterable[ContainerTarget]) -> None:
        """Walk the layers of these containers, however lately they were; blocks for ``NOW_S`` at most, for all.

        What is not done by then is as much as was counted, or as was known if that is more. Those that came since the
        last pass are followed from now on: it may take as long as there are others that are large.
        """
        # Longer than a turn: what a container with many files wrote last would otherwise be known only after a pause
        # of a hundred times what a walk of them takes.
        late = time.monotonic() + NOW_S
        with self._lock:
            layers = [self._layers.setdefault(target.container.id, _layer(target)) for target in targets]
        asked = [layer for layer in layers if layer.due != float("inf")]  # others are what they were at their end
        # The small ones first, and each has its share of what is left: one with very many files must not hide what
        # another container of its pod wrote.
        asked.sort(key=lambda layer: layer.large)
        for index, layer in enumerate(asked):
            now = time.monotonic()
            self._walk_until(layer, now + (late - now) / (len(asked) - index))

    def _walk_until(self, layer: _Layer, late: float) -> None:
        size = _measure(layer.paths, lambda: self._stopped.is_set() or time.monotonic() > late, partly=True)
        if size is None or self._stopped.is_set():
            return
        if layer.known is not None and time.monotonic() > late:
            size = _larger(size, layer.known.size)
        layer.known = LayerSize(at=time.time_ns(), size=size)

    def _walk(self, layer: _Layer) -> None:
        started, ended, limited = time.monotonic(), layer.ended, not layer.large

        def too_long() -> bool:
            return time.monotonic() - started > TURN_S

        size = _measure(layer.paths, lambda: self._stopped.is_set() or (limited and too_long()))
        if self._stopped.is_set():
            return
        layer.large = too_long()
        if size is None and layer.large:
            return  # its turn is over, and it is walked apart
        took = time.monotonic() - started
        # A little less than the sampler's period: due a moment after a pass, it would be walked with every second one
        # only.
        layer.due = time.monotonic() + max(PERIOD_S - 0.5, took * PAUSE_FACTOR)
        if size is not None:
            layer.known = LayerSize(at=time.time_ns(), size=size)
            if ended:
                layer.due = float("inf")

    def stop(self) -> None:
        """End a walk that is going on."""
        self._stopped.set()


def _layer(target: ContainerTarget) -> _Layer:
    return _Layer(paths=target.written, ended=target.cgroup is None)


def _larger(one: TreeSize, other: TreeSize) -> TreeSize:
    return TreeSize(used_bytes=max(one.used_bytes, other.used_bytes), inodes=max(one.inodes, other.inodes))


def _measure(paths: Sequence[str], stop: Callable[[], bool], *, partly: bool = False) -> TreeSize | None:
    """Return the size of trees together; None if the first is gone, or ``stop`` said so meanwhile and not ``partly``.

    Of trees of which a walk does not take all it is the most that it can be. CRI has no word for that, and a container
    would hide from its limit.
    """
    used = inodes = 0
    for path in paths:
        size = tree_size.measure(path, stop=stop, partly=partly)
        if size is None:
            if path == paths[0] or (stop() and not partly):
                return None
            continue
        used, inodes = used + size.used_bytes, inodes + size.inodes
        if size.hidden:
            space = os.statvfs(path)
            used = max(used, (space.f_blocks - space.f_bfree) * space.f_frsize)
    return TreeSize(used_bytes=used, inodes=inodes)
