"""What the store needs from a place that keeps layers.

A driver keeps one read-only tree per layer, keyed by the layer's ID (a layer's content does not depend on the layers
below it, so images share whatever layers they have in common). The interface hands out mounts, not paths, so that a
driver may as well keep a layer as one file with a file system in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from podkeep.base.ids import Digest


class SnapshotDriver(Protocol):
    """Keeps layers. Methods block; they are safe to call from several threads for different layers.

    The life of a layer, as the store lives it::

        gone = driver.recover(known)           # at the start: what a killed store began is removed
        staging = driver.stage()               # for each pull
        ...                                    # the worker unpacks each layer into a directory of its own there
        driver.commit(unpacked, layer)         # from here on it is there, also for others
        driver.discard(staging)                # whether the pull came to its end or not

    A container of an image with two layers, in a user namespace; overlayfs wants at least one lower::

        lowers = driver.lowers([base, layer], userns=userns, at_least=1)
        ...                                    # an overlay takes them, top layer first; the caller closes them

    When no image has the layer any more, and nothing has it mounted::

        driver.release(keep)                   # the driver's own mount of it goes
        doomed = driver.retire(layer)          # at once: a pull of the same layer makes it anew
        driver.discard(doomed)                 # off the request's path
    """

    name: str

    def stage(self) -> Path:
        """Return a new, empty staging directory on the file system of the layers; the worker unpacks below it."""
        ...

    def discard(self, doomed: Path) -> None:
        """Remove what ``stage``, ``retire`` or ``take_away`` returned; takes as long as that is large."""
        ...

    def commit(self, unpacked: Path, layer: Digest) -> None:
        """Move an unpacked tree into place under its ID; a tree that is there already wins."""
        ...

    def link(self, source: Digest, title: str, staged: Path) -> str:
        """Stage at ``staged``, which is made, the file of the layer ``source`` under another name; return what
        :meth:`metadata_digest` will. Its content is on disk once, and stays when one of the two goes."""
        ...

    def has(self, layer: Digest) -> bool:
        """Tell whether the layer is kept."""
        ...

    def kept(self) -> frozenset[Digest]:
        """Return every layer that is on disk, with a record or without."""
        ...

    def retire(self, layer: Digest) -> Path:
        """Take a layer out of use at once and return what is to be discarded; a missing layer is no error.

        The caller made sure that nothing has it mounted.
        """
        ...

    def take_away(self, path: Path) -> Path:
        """Take what is at ``path`` below the root of the store out of use at once, whether the disk is full or not;
        return what is to be discarded."""
        ...

    def recover(self, known: frozenset[Digest]) -> frozenset[Digest]:
        """Remove staging directories and layers that are not in ``known``; return those of ``known`` that are
        gone."""
        ...

    def lowers(self, layers: Sequence[Digest], *, userns: int | None, at_least: int = 1) -> list[int]:
        """Return a detached mount per layer, top layer first, each idmapped when a user namespace is given.

        :param layers: IDs, base first.
        :param at_least: 1 or 2; what is missing is filled up with empty trees, at the bottom.
        :raises DataLoss: if a layer is missing on disk.
        :raises KernelCallError: if the file system of the layers cannot be idmapped.
        """
        ...

    def tar(self, layer: Digest) -> Iterator[bytes]:
        """Yield the plain tar that the layer was made of, byte for byte; of a layer that is one file, the file.

        :raises DataLoss: if it cannot be read, also between two pieces.
        :raises FailedPrecondition: if the layer was kept by a podkeep that did not keep what is needed for it.
        """
        ...

    def metadata_digest(self, layer: Digest) -> str:
        """Return the digest of what is kept beside a layer's content, as it is on disk; empty if that is nothing.

        :raises OSError: if it cannot be read.
        """
        ...

    def inodes(self, layer: Digest) -> int | None:
        """Return how many inodes a layer has on disk, as they are counted when it is made (``assembly``); None where
        digests say it all."""
        ...

    def release(self, keep: frozenset[Digest]) -> None:
        """Let go of the mounts of layers that are not in ``keep``; who has a lower of one has it still."""
        ...

    def close(self) -> None:
        """Let go of every mount."""
        ...
