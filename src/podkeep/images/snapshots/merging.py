"""What overlayfs does not do by itself when the layers of an image are merged.

A layer may hold ``tmp/x`` and no entry for ``tmp``. Its tree has a directory there nevertheless, and overlayfs shows
the topmost directory's owner and mode: not those that a lower layer gave it. (containerd unpacks a layer with its
parents in view and copies them; a tree that images share cannot have them.) So there is one more tree on top, with
nothing in it but those directories, as the layers beneath have them. And overlayfs ignores that a layer's root being
opaque: the layers beneath are left out.

Owns ``<root>/implied/``, which says what directories of a layer no entry came for, and ``<root>/parents/``, the trees
on top, made when they are first used. Used by the store, under its lock, but for what takes its time: :meth:`check`,
:meth:`make`. Both end: what an image may have here has limits, which are checked when it is pulled.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from podkeep.base.errors import InvalidArgument
from podkeep.base.ids import Digest
from podkeep.images.snapshots.layer_directories import file_name
from podkeep.kernel.files import tree_size
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.mount import mounts

SUFFIX = ".implied"
"""Of the list's name, beside the staged tree's."""
_LISTS = "implied"
_OPAQUE = "trusted.overlay.opaque"
_BLOCK_BYTES = 512  # st_blocks, whatever the file system's block size is (inode(7))
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STRANGE = ("trusted.", "security.")
"""Beginnings of attributes that are the host's, not the image's."""

MAX_NAMES = 1 << 18
MAX_NAME_BYTES = 16 << 20
"""Directories without an entry in all layers of an image together, and the bytes of their paths: they are in memory
while a tree is made. Images of builders that write no directories have some 10^4 of them, a hundred bytes each."""
MAX_STEPS = 1 << 22
"""Directories to be looked for, those above them included, times layers to look in, at some microseconds each: 10^5 in
40 layers, or 33,000 in 127."""
_STEP_BYTES = 128
"""Of a name, that cost as much as a step."""


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


def _in_order(paths: Iterable[bytes]) -> list[bytes]:
    """Return paths as a walk through a tree meets them: each directly before what is below it."""
    return sorted(paths, key=lambda path: path.replace(b"/", b"\0"))


def check(lists: Sequence[Collection[bytes]], layers: int) -> None:
    """Check what has to be looked up to make a tree of these lists, for an image of so many ``layers``.

    :raises InvalidArgument: if it is too much, naming the limit, or if a path leads elsewhere.
    """
    hint = "build the image with an entry for each directory, or with fewer layers"
    if sum(map(len, lists)) > MAX_NAMES:
        raise InvalidArgument(f"the layers have more than {MAX_NAMES} directories without an entry together", hint=hint)
    steps = size = 0
    before: list[bytes] = []
    for path in _in_order({path for implied in lists for path in implied}):
        parts = path.split(b"/") if path else []
        # Lists are of a process that has read what is hostile.
        if not {b"", b".", b".."}.isdisjoint(parts):
            raise InvalidArgument(f"a layer has no directory {path[:200]!r}")
        common = _common(before, parts)
        before, length = parts, sum(len(part) + 1 for part in parts[:common])
        for part in parts[common:]:  # this and the directories above it that none before had above it
            length += len(part) + 1
            size += length
        steps += len(parts) - common + len(path) // _STEP_BYTES
        if size > MAX_NAME_BYTES:
            raise InvalidArgument(
                f"directories without an entry have more than {MAX_NAME_BYTES} bytes of names", hint=hint
            )
        if steps * layers > MAX_STEPS:
            raise InvalidArgument(
                f"{layers} layers with directories without an entry need more than {MAX_STEPS} steps to be merged",
                hint=hint,
            )


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Return how many parts are the same at the beginning of both."""
    count = 0
    for part, its in zip(one, other, strict=False):
        if part != its:
            break
        count += 1
    return count


def settled(paths: Sequence[bytes], views: Iterable[LayerView]) -> Iterator[tuple[bytes, Attributes]]:
    """Yield the directories that a layer has an entry for, each as the topmost of these layers has it.

    :param paths: in the order of a walk.
    :param views: top layer first.
    """
    left: Sequence[bytes] = paths
    for view in views:
        left = yield from _of_layer(left, view)


def _of_layer(paths: Sequence[bytes], view: LayerView) -> Generator[tuple[bytes, Attributes], None, list[bytes]]:
    """Yield what one layer says; return the paths of which layers beneath may say something."""
    left: list[bytes] = []
    with closing(_Walk(view.root)) as walk:
        for path in paths:
            found = walk.enter(path.split(b"/") if path else [])
            if found and path not in view.implied:
                yield path, _attributes(walk.fd)
            elif not walk.hides:
                left.append(path)
    return left


class _Walk:
    """A descriptor that goes through the tree of a layer, once: what takes time are the directories, not their depth.

    :ivar fd: the directory that was entered last.
    """

    def __init__(self, root: int) -> None:
        self.fd = os.open(b".", _LOOK, dir_fd=root)
        self._way: list[bytes] = []
        self._hiding = [_is_opaque(self.fd)]
        """Whether layers beneath are hidden: at the root, and after each part of the way."""
        self._missing: list[bytes] = []
        """The last directory that is not there; nothing below it is either."""
        self._missing_hides = False

    @property
    def hides(self) -> bool:
        """Whether the layer hides what layers beneath have at the path that was to be entered last."""
        return self._missing_hides if self._missing else self._hiding[-1]

    def enter(self, parts: list[bytes]) -> bool:
        """Enter a directory, given from the root on; return whether the layer has it."""
        if self._missing and parts[: len(self._missing)] == self._missing:
            return False
        self._missing = []
        common = _common(self._way, parts)
        for _ in self._way[common:]:
            self.fd = _moved(self.fd, b"..")
        del self._way[common:], self._hiding[common + 1 :]
        for part in parts[common:]:
            try:
                self.fd = _moved(self.fd, part)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
                # A whiteout, or something else that is no directory, hides what is beneath.
                self._missing_hides = self._hiding[-1] or error.errno != errno.ENOENT
                self._missing = parts[: len(self._way) + 1]
                return False
            self._way.append(part)
            self._hiding.append(self._hiding[-1] or _is_opaque(self.fd))
        return True

    def close(self) -> None:
        os.close(self.fd)


def _moved(fd: int, name: bytes) -> int:
    """Open a directory from where ``fd`` is, and close that."""
    there = os.open(name, _LOOK, dir_fd=fd)
    os.close(fd)
    return there


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
    # overlayfs ignores that a lower layer's root is opaque.
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
        self._list(layer).unlink(missing_ok=True)

    def keep_lists(self, layers: Iterable[Digest]) -> None:
        """Remove the lists of all but these layers."""
        _keep(self._lists, {self._list(layer).name for layer in layers})

    def keep_trees(self, images: Iterable[tuple[Digest, ...]]) -> None:
        """Remove the trees of all but these images, each given by its layers. Containers keep what they have."""
        _keep(self._trees, {self._tree(layers).name for layers in images})

    def retire_trees(self, images: Iterable[tuple[Digest, ...]], take_away: Callable[[Path], Path]) -> list[Path]:
        """Do the quick half of it (``SnapshotDriver.take_away``), and return what is to be removed."""
        names = {self._tree(layers).name for layers in images}
        return [take_away(entry) for entry in self._trees.iterdir() if entry.name not in names]

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

    def check(self, layers: Sequence[Digest], staged: Mapping[Digest, Path]) -> None:
        """Check that a tree for an image of these layers can be made.

        :param staged: where those of them are that are not in place yet.
        :raises InvalidArgument: if it would take too much, naming the limit.
        """
        lists = [Path(f"{staged[layer]}{SUFFIX}") if layer in staged else self._list(layer) for layer in set(layers)]
        check(_read_all(lists), len(lists))

    def lacks(self, layers: tuple[Digest, ...]) -> bool:
        """Tell whether an image of these layers needs a tree that has yet to be made."""
        return any(self._list(layer).exists() for layer in layers) and not self._tree(layers).exists()

    def make(self, at: Path, layers: tuple[Digest, ...], lowers: Sequence[int]) -> None:
        """Make the tree at a path of its own; :meth:`put` has it used. Blocks, for the steps that :func:`check` counts.

        :param lowers: descriptors of the layers as they are stored, top layer first.
        :raises InvalidArgument: if it would take too much.
        :raises OSError: if the file system refuses.
        """
        lists = _read_all([self._list(layer) for layer in dict.fromkeys(reversed(layers))])
        check(lists, len(lists))
        views = [LayerView(root=fd, implied=implied) for fd, implied in zip(lowers, lists, strict=False)]
        if not _write(at, views):
            at.touch(mode=0o600)  # a file says that there need not be one

    def put(self, made: Path, layers: tuple[Digest, ...]) -> None:
        os.rename(made, self._tree(layers))

    def top(self, layers: tuple[Digest, ...], userns: int | None) -> list[int]:
        """Return a mount of the tree that goes on top of these layers; nothing if there need not be one."""
        tree = self._tree(layers)
        return [mounts.clone_tree(tree, recursive=False, idmap_userns=userns)] if tree.is_dir() else []

    def _list(self, layer: Digest) -> Path:
        return _list(self._root, layer)

    def _tree(self, layers: tuple[Digest, ...]) -> Path:
        return self._trees / hashlib.sha256("\n".join(layers).encode()).hexdigest()


def _keep(directory: Path, names: Collection[str]) -> None:
    for entry in directory.iterdir():
        if entry.name not in names:
            remove_tree(entry)


def _read_all(lists: Iterable[Path]) -> list[frozenset[bytes]]:
    """Read the lists that are there; the others are empty.

    :raises InvalidArgument: if they are too long together.
    """
    found: list[frozenset[bytes]] = []
    size = 0
    for path in lists:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            found.append(frozenset())
            continue
        size += len(content)
        if size > MAX_NAME_BYTES:
            raise InvalidArgument(
                f"the layers' directories without an entry have more than {MAX_NAME_BYTES} bytes of names together",
                hint="build the image with an entry for each directory",
            )
        found.append(frozenset(content.split(b"\0")))
    return found


def _write(top: Path, views: Sequence[LayerView]) -> bool:
    """Make the directories that a tree on top of these layers needs; return whether there are any.

    Attributes go to the disk as they are found: only names and times are in memory.
    """
    times: dict[bytes, int] = {}  # of the directories made
    described: set[bytes] = set()
    root = -1

    def describe(path: bytes, about: Attributes) -> None:
        described.add(path)
        times[path] = about.mtime
        fd = os.open(path or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        try:
            os.fchown(fd, about.uid, about.gid)
            os.fchmod(fd, about.mode)
            for key, value in about.xattrs:
                os.setxattr(fd, key, value)
        finally:
            os.close(fd)

    try:
        for path, about in settled(_in_order({path for view in views for path in view.implied}), views):
            if about == IMPLIED:
                continue
            if root < 0:
                top.mkdir(mode=0o700)
                root = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                times[b""] = 0
            missing = [path]
            while missing[-1] not in times:
                missing.append(missing[-1].rpartition(b"/")[0])
            for above in reversed(missing[:-1]):
                os.mkdir(above, 0o700, dir_fd=root)
                times[above] = 0
            describe(path, about)
        # Directories above those of the lists were made here as well, and must not hide what the layers say of them.
        for path, about in settled(_in_order(times.keys() - described), views):
            describe(path, about)
        for path in times.keys() - described:
            describe(path, IMPLIED)
        # From the bottom up: making directories changes the times of those above.
        for path in sorted(times, reverse=True):
            os.utime(path or b".", ns=(times[path], times[path]), dir_fd=root)
    finally:
        if root >= 0:
            os.close(root)
    return bool(times)
