"""The layers of an image as a container's overlay gets them: as they are, or with the owners of its user namespace.

Owns: which of the ways is taken (``rootfs_variants.py``) for one mount of an image. Called for root file systems and
image volumes. Blocks: for less than a millisecond, or until a tree was made (``changed_trees.py``).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import msgspec

from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID
from podkeep.images.formats.image import Image
from podkeep.images.store.store import ImageStore
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.mount.overlay import OverlayFlag
from podkeep.kernel.namespace.idmap import IdMap
from podkeep.runtime.bundle.changed_trees import ChangedTrees, Request
from podkeep.runtime.bundle.leftovers import Remove
from podkeep.runtime.bundle.rootfs_variants import Costs, Variant


class Wanted(FrozenStruct, kw_only=True):
    """Whose the files are to be.

    ``idmap``: the mapping; None: the machine's users. ``userns`` opens a user namespace with it. ``at``: where the
    image is going to be mounted, an empty directory. ``given_up``: set when it is not wanted any more.
    """

    container: ContainerID
    idmap: IdMap | None
    userns: Callable[[], AbstractContextManager[int | None]]
    at: Path
    given_up: threading.Event = msgspec.field(default_factory=threading.Event)


class Lowers(FrozenStruct, kw_only=True):
    """Detached mounts, top layer first; ``flags`` are for the overlay of them.

    ``seconds``: how long it took to give them other owners.
    """

    fds: Sequence[int]
    seconds: float = 0.0
    flags: OverlayFlag = OverlayFlag.NONE


class ImageLayers(FrozenStruct, kw_only=True):
    """``variant`` is None where images cannot be given other owners."""

    images: ImageStore
    trees: ChangedTrees
    variant: Variant | None = Variant.IDMAPPED
    costs: Costs = msgspec.field(default_factory=Costs)

    @contextmanager
    def lowers(self, image: Image, wanted: Wanted, *, at_least: int = 1) -> Iterator[Lowers]:
        """Open the layers of ``image``; what is made for it stays until :meth:`release`.

        :param at_least: 2: with an empty tree beneath a single layer.
        :raises FailedPrecondition: if they cannot be given the owners that are wanted.
        :raises PodkeepError: as ``ImageStore.lowers`` and ``ChangedTrees.lowers``.
        """
        with ExitStack() as closing:
            found = self._lowers(image, wanted, at_least, closing)
            for fd in found.fds:
                closing.callback(os.close, fd)
            yield found

    def _lowers(self, image: Image, wanted: Wanted, at_least: int, closing: ExitStack) -> Lowers:
        if wanted.idmap is None or self.variant is Variant.IDMAPPED:
            started = time.monotonic()
            userns = closing.enter_context(wanted.userns())
            fds = self.images.lowers(image, userns=userns, at_least=at_least)
            if wanted.idmap is None:
                return Lowers(fds=fds)
            seconds = time.monotonic() - started
            self.costs.made(Variant.IDMAPPED, seconds)
            return Lowers(fds=fds, seconds=seconds)
        if self.variant is None:
            raise FailedPrecondition(
                f"image {image.id} cannot be given the owners of a user namespace",
                hint="`podkeep doctor` says what is missing",
            )
        request = Request(
            image=image,
            variant=self.variant,
            idmap=wanted.idmap,
            container=wanted.container,
            at=wanted.at,
            given_up=wanted.given_up,
        )
        fds, seconds = self.trees.lowers(request, at_least=at_least)
        return Lowers(fds=fds, seconds=seconds, flags=self.variant.flags)

    def release(self, container: ContainerID, *, remove: Remove = remove_tree) -> None:
        """Let go of what was made for a container, which has nothing of it mounted any more; safe to repeat.

        :raises OSError: if the file system refuses.
        """
        self.trees.release(container, remove=remove)
