"""Trees of images with a pod's own owners, for where layers cannot be idmapped: shared, and removed with the last user.

Owns: ``<root>/changed``, the trees below it, and who uses them. A tree is kept under the layers, the mapping and the
way it was made; a user is a container, which has a file of its name beside the tree for as long as it may have it
mounted. So the next daemon finds the users of a killed one; a reboot ends all of them. Does not own: how a tree is
copied (``copy_up.py``), which way is taken (``rootfs_variants.py``), or the container's own mount. Methods block, are
safe to call from any thread, and may be repeated.

    <root>/changed/<boot ID>/<key>/tree           what is mounted as a layer
    <root>/changed/<boot ID>/<key>/users/<ID>     empty
    <root>/changed/<boot ID>/making-<number>/     one that is not whole yet, or not any more
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from podkeep.base import failpoints
from podkeep.base.errors import Cancelled
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID
from podkeep.images.formats.image import Image
from podkeep.images.store.store import ImageStore
from podkeep.kernel.files import openat, tree_size
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.files.tree_size import TreeSize
from podkeep.kernel.mount import mounts, overlay
from podkeep.kernel.mount.mounts import MountAttr
from podkeep.kernel.namespace.idmap import IdMap, proc_text
from podkeep.runtime.bundle.copy_up import Purpose, copy_directory
from podkeep.runtime.bundle.leftovers import Remove
from podkeep.runtime.bundle.owners import Owners
from podkeep.runtime.bundle.rootfs_variants import Costs, Variant

log = logging.getLogger(__name__)

_LOOK_S = 0.2
"""How often who waits for a tree of somebody else looks whether it is still wanted."""
_ATTRIBUTES = MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC


@dataclass
class _Tree:
    path: Path
    users: set[ContainerID] = field(default_factory=set)
    size: TreeSize | None = None


class Request(FrozenStruct, kw_only=True):
    """A tree of ``image`` for ``container``, whose pod has the mapping ``idmap``.

    ``at``: a private empty directory, at which the image is mounted meanwhile; what a killed daemon
    leaves there goes with the container. ``given_up``: set when the tree is not wanted any more.
    """

    image: Image
    variant: Variant
    idmap: IdMap
    container: ContainerID
    at: Path
    given_up: threading.Event

    @property
    def key(self) -> str:
        """What decides how the tree looks, in a form that is a name."""
        parts = (self.variant.value, proc_text(self.idmap.uids), proc_text(self.idmap.gids), *self.image.layers)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class ChangedTrees:
    """The trees of one daemon."""

    def __init__(
        self,
        root: Path,
        images: ImageStore,
        *,
        boot_id: str,
        costs: Costs,
    ) -> None:
        """Find the trees below ``root``, a directory that only root passes; :meth:`recover` says which are kept.

        :param boot_id: of the machine now.
        :param costs: told of each tree that was made or waited for.
        """
        self._root, self._here, self._images, self._costs = root, root / boot_id, images, costs
        self._lock = threading.Lock()
        self._making: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._numbers = itertools.count()
        self._trees: dict[str, _Tree] = {}
        if self._here.is_dir():
            for path in self._here.iterdir():
                users = path / "users"
                if users.is_dir() and not path.name.startswith("making-"):
                    self._trees[path.name] = _Tree(path, {ContainerID(user) for user in os.listdir(users)})

    def recover(self, containers: Collection[ContainerID], *, remove: Remove = remove_tree) -> None:
        """Remove what a killed daemon left, and trees that none of ``containers`` uses; call it before any other.

        :raises OSError: if something cannot be removed.
        """
        if not self._root.is_dir():
            return
        for gone in {user for tree in self._trees.values() for user in tree.users} - set(containers):
            self.release(gone, remove=remove)
        for key, tree in list(self._trees.items()):
            if not tree.users:
                del self._trees[key]
        for boot in self._root.iterdir():
            if boot != self._here:
                remove(boot)
        if self._here.is_dir():
            for path in self._here.iterdir():
                if path.name not in self._trees:
                    remove(path)
        self._remove_if_empty()

    def lowers(self, request: Request, *, at_least: int = 1) -> tuple[list[int], float]:
        """Return detached mounts of the tree and of what is beneath it, top first, and the seconds until it was there.

        They are the caller's to close. The container uses the tree until :meth:`release`.

        :param at_least: 1 or 2; with an empty tree beneath if need be.
        :raises Cancelled: if it was given up; nothing is left of it then.
        :raises PodkeepError: if the tree cannot be made, as ``copy_up.copy_directory``; likewise.
        """
        path, seconds = self._use(request)
        fds = [mounts.clone_tree(path / "tree")]
        try:
            if request.variant is Variant.METACOPY:
                # The tree has metadata alone: overlayfs finds the data of a file in the layers beneath.
                fds += self._images.lowers(request.image, userns=None)
            elif at_least > 1:
                fds.append(mounts.clone_tree(path / "empty"))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return fds, seconds

    def _use(self, request: Request) -> tuple[Path, float]:
        began = time.monotonic()
        with self._alone(request):
            started = time.monotonic()
            with self._lock:
                tree = self._trees.get(request.key)
                if tree is not None:
                    # The file comes before the set and before the tree is used: a daemon that starts later knows the
                    # users by it.
                    (tree.path / "users" / request.container).touch()
                    tree.users.add(request.container)
                    self._costs.waited(started - began)
                    return tree.path, started - began
            with self._lock:
                # Until it is whole it has a name under which nobody looks for a tree, and which recover() removes.
                place = self._here / f"making-{next(self._numbers)}"
                place.mkdir(mode=0o700, parents=True)
            try:
                # Without the lock, for this may take minutes; _alone keeps others with the same key from doing it as
                # well.
                entries = self._make(request, place)
                failpoints.reach("rootfs.made")
                with self._lock:
                    tree = _Tree(self._here / request.key, {request.container})
                    os.rename(place, tree.path)
                    self._trees[request.key] = tree
            except BaseException:
                remove_tree(place)
                self._remove_if_empty()
                raise
            took = time.monotonic() - started
            self._note(request, entries, took)
            self._costs.waited(started - began)
            return tree.path, time.monotonic() - began

    @contextmanager
    def _alone(self, request: Request) -> Iterator[None]:
        """Keep others that want the same tree waiting: when it is there, they use it."""
        with self._lock:
            making = self._making.setdefault(request.key, threading.Lock())
        # Again and again, for a thread cannot wait for a lock and for given_up at once.
        while not making.acquire(timeout=_LOOK_S):
            if request.given_up.is_set():
                raise Cancelled("the creation was given up while another container's made the root file system")
        try:
            yield
        finally:
            making.release()

    def _make(self, request: Request, place: Path) -> int:
        """Make a tree with its first user, and return how many entries it has."""
        for name in ("tree", "empty", "users"):
            (place / name).mkdir()
        (place / "empty").chmod(0o755)
        (place / "users" / request.container).touch()
        with ExitStack() as closing:
            lowers = self._images.lowers(request.image, userns=None, at_least=2)
            for fd in lowers:
                closing.callback(os.close, fd)
            overlay.overlay_readonly(lowers, request.at, attrs=_ATTRIBUTES)
            closing.callback(mounts.unmount, request.at, lazy=True)
            source = closing.enter_context(openat.closing(openat.open_directory(request.at)))
            target = closing.enter_context(openat.closing(openat.open_directory(place / "tree")))
            return copy_directory(
                source,
                target,
                request.given_up,
                owners=Owners(request.idmap),
                data=request.variant is Variant.COPY,
                purpose=Purpose(
                    what=f"the image {request.image.id} with the owners of a user namespace",
                    failpoint="rootfs.directory",
                ),
            )

    def _note(self, request: Request, entries: int, took: float) -> None:
        log.info(
            "root file system of image %s for a user namespace: %s, %d entries in %.3f s",
            request.image.id,
            request.variant.value,
            entries,
            took,
        )
        self._costs.made(request.variant, took, entries=entries)

    def release(self, container: ContainerID, *, remove: Remove = remove_tree) -> None:
        """Let a container, which has nothing of them mounted any more, use no tree; those without a user go.

        :raises OSError: if the file system refuses.
        """
        doomed = []
        with self._lock:
            for key, tree in list(self._trees.items()):
                if container not in tree.users:
                    continue
                if len(tree.users) == 1:
                    away = self._here / f"making-{next(self._numbers)}"
                    # Under the lock it only loses its name, so that nobody begins to use it; the removal, which may
                    # take long, comes after.
                    os.rename(tree.path, away)
                    del self._trees[key]
                    doomed.append(away)
                else:
                    (tree.path / "users" / container).unlink(missing_ok=True)
                    tree.users.discard(container)
        for path in doomed:
            remove(path)
        if doomed:
            self._remove_if_empty()

    def _remove_if_empty(self) -> None:
        with self._lock:
            for directory in (self._here, self._root):
                try:
                    directory.rmdir()
                except OSError:
                    return

    def usage(self) -> TreeSize:
        """Return what all trees take on disk; each is measured once, for it does not change."""
        with self._lock:
            trees = list(self._trees.values())
        used = inodes = 0
        for tree in trees:
            # One that goes meanwhile counts as far as it was still there.
            size = tree.size or tree_size.measure(str(tree.path))
            if size is not None:
                tree.size = size
                used, inodes = used + size.used_bytes, inodes + size.inodes
        return TreeSize(used_bytes=used, inodes=inodes)
