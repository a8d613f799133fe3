"""What overlayfs does not do by itself when the layers of an image are merged.

A layer may hold ``tmp/x`` and no entry for ``tmp``. Its tree has a directory there nevertheless, and overlayfs shows
the topmost directory's owner and mode: not those that a lower layer gave it. (containerd unpacks a layer with its
parents in view and copies them; a tree that images share cannot have them.) So there is one more tree on top, with
nothing in it but those directories, as the layers beneath have them. And overlayfs pays no heed to a layer's root being
opaque: the layers beneath are left out.

Owns ``<root>/implied/``, which says what directories of a layer no entry came for, and ``<root>/parents/``, the trees
on top, made when they are first used. Used by the store, under its lock.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from podkeep.base.ids import Digest
from podkeep.images.snapshots.layer_directories import file_name
from podkeep.kernel import mounts, tree_size
from podkeep.kernel.removal import remove_tree

SUFFIX = ".implied"
"""Of the list's name, beside the staged tree's."""
_LISTS = "implied"
_OPAQUE = "trusted.overlay.opaque"
_BLOCK_BYTES = 512  # st_blocks, whatever the file system's block size is (inode(7))
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STRANGE = ("trusted.", "security.")
"""Beginnings of attributes that are the host's, not the image's."""


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """Of a directory; ``mtime`` in nanoseconds."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: int = field(default=0, compare=False)
    xattrs: tuple[tuple[str, bytes], ...] = ()


IMPLIED = Attributes()
"""Of a directory that no entry came for."""


class LayerView(msgspec.Struct, frozen=True, kw_only=True):
    """A layer to look at: a descriptor of its root, and its directories that no entry came for."""

    root: int
    implied: Collection[bytes]


def write_list(beside: Path, implied: Iterable[bytes]) -> str:
    """Write the list of a staged layer; return its digest."""
    content = b"\0".join(implied)
    # Exclusively: what is made of a layer may be a trap in the place of a file of ours.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(f"{beside}{SUFFIX}", flags, 0o600), "wb") as made:
        made.write(content)
    return _digest(content)


def list_digest(root: Path, layer: Digest) -> str:
    """Return the digest of a layer's list in the store below ``root``; empty if it has none.

    :raises OSError: if it cannot be read.
    """
    try:
        return _digest(_list(root, layer).read_bytes())
    except FileNotFoundError:
        return ""


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _list(root: Path, layer: Digest) -> Path:
    return root / _LISTS / file_name(layer)


def mended(views: Sequence[LayerView]) -> dict[bytes, Attributes]:
    """Return the directories that the top tree needs, those above them included; empty if it needs none.

    :param views: top layer first.
    """
    needed: dict[bytes, Attributes] = {}
    settled: dict[bytes, Attributes | None] = {}
    # Of what a layer made below a directory that none beneath has, none beneath can have anything.
    for path in sorted({path for view in views for path in view.implied}):
        above = path.rpartition(b"/")[0]
        if above and settled.get(above, IMPLIED) is None:
            settled[path] = None
            continue
        settled[path] = _settle(path, views)
        found = settled[path]
        if found is not None and found != IMPLIED:
            needed[path] = found
    for path in tuple(needed):
        above = path
        while above:
            above = above.rpartition(b"/")[0]
            if above not in needed:
                needed[above] = _settle(above, views) or IMPLIED
    return needed


def _settle(path: bytes, views: Sequence[LayerView]) -> Attributes | None:
    """Return what the topmost layer that says something of ``path`` says; None if none does, or it is gone."""
    for view in views:
        found, ends = _look(path, view)
        if found is not None and path not in view.implied:
            return found
        if ends:
            return None
    return None


def _look(path: bytes, view: LayerView) -> tuple[Attributes | None, bool]:
    """Return the directory in this layer, and whether this layer hides those beneath there."""
    fd = os.open(b".", _LOOK, dir_fd=view.root)
    try:
        hides = _is_opaque(fd)
        for part in path.split(b"/") if path else ():
            try:
                there = os.stat(part, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                return None, hides
            if not stat.S_ISDIR(there.st_mode):
                return None, True  # a whiteout, or something else that hides what is beneath
            inner = os.open(part, _LOOK, dir_fd=fd)
            os.close(fd)
            fd = inner
            hides = hides or _is_opaque(fd)
        return _attributes(fd), hides
    finally:
        os.close(fd)


def _attributes(fd: int) -> Attributes:
    about, name = os.fstat(fd), f"/proc/self/fd/{fd}"  # of a descriptor with O_PATH attributes are had by name only
    keys = (key for key in os.listxattr(name) if not key.startswith(_STRANGE))
    return Attributes(
        mode=stat.S_IMODE(about.st_mode),
        uid=about.st_uid,
        gid=about.st_gid,
        mtime=about.st_mtime_ns,
        xattrs=tuple((key, os.getxattr(name, key)) for key in sorted(keys)),
    )


def _is_opaque(fd: int) -> bool:
    try:
        return os.getxattr(f"/proc/self/fd/{fd}", _OPAQUE) == b"y"
    except OSError:
        return False


def visible(lowers: list[int]) -> list[int]:
    """Return the layers down to the first whose root is opaque, top first, and close the others."""
    for number, fd in enumerate(lowers):
        if _is_opaque(fd):
            for hidden in lowers[number + 1 :]:
                os.close(hidden)
            return lowers[: number + 1]
    return lowers


class Merging:
    """The lists and the top trees of one store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lists = root / _LISTS
        self._trees = root / "parents"
        for directory in (self._lists, self._trees):
            directory.mkdir(mode=0o700, exist_ok=True)

    def commit(self, staged: Path, layer: Digest) -> None:
        """Take over the list beside a staged layer, if there is one."""
        with suppress(FileNotFoundError):
            os.rename(f"{staged}{SUFFIX}", self._list(layer))

    def forget(self, layer: Digest) -> None:
        """Remove the list of a layer."""
        self._list(layer).unlink(missing_ok=True)

    def keep_lists(self, layers: Iterable[Digest]) -> None:
        """Remove the lists of all but these layers."""
        _keep(self._lists, {self._list(layer).name for layer in layers})

    def keep_trees(self, images: Iterable[tuple[Digest, ...]]) -> None:
        """Remove the trees of all but these images, each given by its layers. Containers keep what they have."""
        _keep(self._trees, {self._tree(layers).name for layers in images})

    def used_bytes(self, layers: Iterable[Digest], images: Iterable[tuple[Digest, ...]]) -> int:
        """Return what the lists of these layers and the trees of these images take on disk, in whole blocks."""
        used = 0
        for path in (*map(self._list, layers), *map(self._tree, images)):
            if size := tree_size.measure(str(path)):
                used += size.used_bytes
                continue
            with suppress(FileNotFoundError):
                used += path.lstat().st_blocks * _BLOCK_BYTES
        return used

    def top(self, layers: tuple[Digest, ...], lowers: Callable[[], list[int]], userns: int | None) -> list[int]:
        """Return a mount of the tree that goes on top of these layers, base first; nothing if there need not be one.

        :param lowers: returns descriptors of the layers as they are stored, top layer first.
        """
        if not any(self._list(layer).exists() for layer in layers):
            return []
        tree = self._tree(layers)
        if not tree.exists():
            self._make(tree, layers, lowers)
        return [mounts.clone_tree(tree, recursive=False, idmap_userns=userns)] if tree.is_dir() else []

    def _make(self, tree: Path, layers: tuple[Digest, ...], lowers: Callable[[], list[int]]) -> None:
        fds = lowers()
        try:
            ordered = dict.fromkeys(reversed(layers))
            views = [LayerView(root=fd, implied=self._implied(layer)) for fd, layer in zip(fds, ordered, strict=False)]
            needed = mended(views)
        finally:
            for fd in fds:
                os.close(fd)
        half = tree.with_name(tree.name + ".new")
        remove_tree(half)
        if needed:
            _write(half, needed)
        else:
            half.touch(mode=0o600)  # a file says that there need not be one
        os.rename(half, tree)

    def _implied(self, layer: Digest) -> frozenset[bytes]:
        try:
            return frozenset(self._list(layer).read_bytes().split(b"\0"))
        except FileNotFoundError:
            return frozenset()

    def _list(self, layer: Digest) -> Path:
        return _list(self._root, layer)

    def _tree(self, layers: tuple[Digest, ...]) -> Path:
        return self._trees / hashlib.sha256("\n".join(layers).encode()).hexdigest()


def _keep(directory: Path, names: Collection[str]) -> None:
    for entry in directory.iterdir():
        if entry.name not in names:
            remove_tree(entry)


def _write(top: Path, needed: dict[bytes, Attributes]) -> None:
    """Make the directories; ``needed`` has those above each, too."""
    root = os.fsencode(top)
    for path in sorted(needed):
        os.mkdir(os.path.join(root, path), 0o700)
    # From the bottom up: making directories changes the times of those above.
    for path in sorted(needed, reverse=True):
        where, about = os.path.join(root, path), needed[path]
        os.chown(where, about.uid, about.gid)
        os.chmod(where, about.mode)
        for key, value in about.xattrs:
            os.setxattr(where, key, value)
        os.utime(where, ns=(about.mtime, about.mtime))
