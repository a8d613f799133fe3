"""The tree that the entries of a layer's tar make: names, links on the way, what replaces what, whiteouts.

``rules`` decides what a layer may hold, this module where each entry goes and what it does there. What a tree is made
of is up to two back ends: files below a directory (``files.tree``) and inodes in memory (``erofs.tree``). Both make the
same tree of the same tar and refuse the same tars with the same words; tests compare them on random archives.

No symbolic link is ever followed by the kernel: those on the way to a directory are read here, part by part.
"""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar, final

from podkeep.base.errors import KernelCallError
from podkeep.images.layers import rules
from podkeep.images.layers.rules import TreeError, shown
from podkeep.images.layers.tarstream import Entry, EntryKind

_MAX_LINKS = 40
"""Symbolic links followed on the way to one directory (path_resolution(7))."""
_KNOWN_PARENTS = 1024


class Directory:
    """A directory of the tree. ``length`` is that of its path and a slash, in bytes; of the root it is 0."""

    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length


@final
class Leaf(NamedTuple):
    """What is not a directory: equal for two names of one inode. ``size`` in bytes is of a regular file only."""

    inode: int
    mode: int
    device: int
    size: int

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def is_whiteout(self) -> bool:
        """Whether it is a whiteout: no entry may bring a character device 0:0."""
        return stat.S_ISCHR(self.mode) and self.device == 0


D = TypeVar("D", bound=Directory)
C = TypeVar("C")


class LayerTree(ABC, Generic[D, C]):
    """The tree of one layer, empty at first: directories of the type ``D``, made of entries with content ``C``.

    :param max_bytes: of all files together, holes included.
    """

    def __init__(self, root: D, *, max_inodes: int, max_bytes: int) -> None:
        self.root = root
        self._budget = rules.Budget(max_entries=max_inodes, max_bytes=max_bytes)
        self._parents: dict[bytes, D] = {}
        """Directories by the names that entries were below, as they were written."""

    def apply(self, entry: Entry, content: C) -> None:
        """Add one entry.

        :raises TreeError: naming the entry, if it breaks a rule, or a file system does not take it or would not.
        """
        try:
            self._apply(entry, content)
        except (OSError, KernelCallError, ValueError) as error:
            number = None if isinstance(error, ValueError) else error.errno
            reason = os.strerror(number) if number else str(error)
            raise TreeError(f"entry {shown(entry.name)}: cannot write it: {reason}") from error

    @abstractmethod
    def implied(self) -> list[bytes]:
        """Return the paths of the directories that no entry came for, sorted; empty for the root."""

    @abstractmethod
    def _look(self, parent: D, name: bytes) -> D | Leaf | None:
        """Return what has a name in a directory."""

    @abstractmethod
    def _above(self, directory: D) -> D:
        """Return what a directory other than the root is in."""

    @abstractmethod
    def _target(self, parent: D, name: bytes, link: Leaf) -> bytes:
        """Return the target of a symbolic link."""

    @abstractmethod
    def _make_directory(self, parent: D, name: bytes, *, implied: bool) -> D:
        """Make a directory, root's and mode 0755; ``implied``: no entry came for it."""

    @abstractmethod
    def _describe(self, directory: D, entry: Entry, *, fresh: bool) -> None:
        """Give a directory the attributes of its entry; ``fresh``: it was made for it."""

    @abstractmethod
    def _set_opaque(self, directory: D) -> None:
        """Have a directory hide what lower layers have in it."""

    @abstractmethod
    def _make(self, entry: Entry, parent: D, name: bytes, content: C) -> None:
        """Make what is neither a directory nor a hard link.

        :raises FileExistsError: if the name is not free; nothing was done, and ``content`` was not looked at.
        """

    @abstractmethod
    def _link(self, source: D, last: bytes, there: Leaf, parent: D, name: bytes) -> None:
        """Make a hard link to ``there``, which is named ``last`` in ``source``.

        :raises FileExistsError: if the name is not free.
        """

    @abstractmethod
    def _whiteout(self, parent: D, name: bytes) -> None:
        """Make a whiteout of a name that is free (kernel, overlayfs.rst, "whiteouts and opaque directories")."""

    @abstractmethod
    def _remove(self, parent: D, name: bytes, there: D | Leaf) -> None:
        """Remove what is there, with all that is in it."""

    def _apply(self, entry: Entry, content: C) -> None:
        if entry.xattrs:
            rules.refuse_trusted(entry)
        # Most entries are in a directory that was found, under this very name, for an entry before.
        above, _, name = entry.name.rpartition(b"/")
        parent = self._parents.get(above)
        if parent is None or not name or len(name) > rules.MAX_NAME or name[:1] == b"." or b"\0" in name:
            found = self._find(entry)
            if found is None:
                return
            parent, name = found
        # Before it is made: what is beyond a limit never comes to the disk.
        self._budget.entry(entry.size)
        if parent.length + len(name) > rules.MAX_PATH:
            rules.check_path(parent.length + len(name), entry)
        if entry.kind is EntryKind.DIRECTORY:
            self._directory(entry, parent, name)
        elif entry.kind is EntryKind.HARDLINK:
            self._hard_link(entry, parent, name)
        else:
            if entry.kind is not EntryKind.FILE:
                rules.check_node(entry)
            try:
                self._make(entry, parent, name, content)
            except FileExistsError:
                self._replace(parent, name)
                self._make(entry, parent, name, content)

    def _find(self, entry: Entry) -> tuple[D, bytes] | None:
        """Return the directory that an entry goes into and its name there; None if nothing is left to do."""
        path = rules.checked_name(entry.name, "its name", entry)
        if b"\0" in path:
            raise ValueError("embedded null byte")
        if not path:
            if entry.kind is not EntryKind.DIRECTORY:
                raise TreeError(f"entry {shown(entry.name)}: the root is a {entry.kind.value}")
            self._describe(self.root, entry, fresh=False)
            return None
        if rules.is_ignored(path, entry):
            return None
        above, _, name = path.rpartition(b"/")
        parent = self._parent(above, entry)
        written, _, last = entry.name.rpartition(b"/")
        if last == name and len(written) <= rules.MAX_PATH:  # and not empty, as after a slash at the end
            # Under the name as it is written, so that the next entry beside this one needs no look at its path.
            self._remember(written, parent)
        if name.startswith(rules.WHITEOUT):
            self._hide(entry, parent, name)
            return None
        return parent, name

    def _directory(self, entry: Entry, parent: D, name: bytes) -> None:
        there = self._look(parent, name)
        if there is None:
            directory = self._make_directory(parent, name, implied=False)
        elif isinstance(there, Leaf):
            self._replace(parent, name)
            directory = self._make_directory(parent, name, implied=False)
            if there.is_whiteout:
                self._hide_below(directory)
        else:
            directory = there
        self._describe(directory, entry, fresh=directory is not there)

    def _hard_link(self, entry: Entry, parent: D, name: bytes) -> None:
        target = rules.checked_name(entry.link, "its target", entry)
        above, _, last = target.rpartition(b"/")
        if not last:
            raise TreeError(f"entry {shown(entry.name)}: a hard link to the root")
        source, there = self._linked(entry, above, last)
        try:
            self._link(source, last, there, parent, name)
        except FileExistsError:
            if self._look(parent, name) == there:
                return
            self._replace(parent, name)
            source, there = self._linked(entry, above, last)  # it may have been in what was replaced
            self._link(source, last, there, parent, name)

    def _linked(self, entry: Entry, above: bytes, last: bytes) -> tuple[D, Leaf]:
        source = self._parent(above, entry, create=False)
        there = self._look(source, last)
        if there is None or (isinstance(there, Leaf) and there.is_whiteout):
            raise _missing(entry)
        if not isinstance(there, Leaf):
            raise TreeError(f"entry {shown(entry.name)}: a hard link to the directory {shown(entry.link)}")
        return source, there

    def _hide(self, entry: Entry, parent: D, name: bytes) -> None:
        """Do what a whiteout says (OCI image-spec, layer.md, "Whiteouts")."""
        if name == rules.OPAQUE:
            self._hide_below(parent)
            return
        hidden = rules.hidden_name(name, entry)
        if hidden is None:
            return
        self._budget.entry()
        rules.check_path(parent.length + len(hidden), entry)
        there = self._look(parent, hidden)
        if there is None:
            self._whiteout(parent, hidden)
        elif not isinstance(there, Leaf):
            # A whiteout hides lower layers only, never its own layer, in whichever order the two come.
            self._hide_below(there)

    def _hide_below(self, directory: D) -> None:
        self._budget.opaque()
        self._set_opaque(directory)

    def _replace(self, parent: D, name: bytes) -> None:
        """Remove what an earlier entry put there: in a tar the last one wins."""
        there = self._look(parent, name)
        if there is None:
            return
        if not isinstance(there, Leaf) or there.is_link:
            # Remembered names may lead into the directory, or over the link.
            self._parents.clear()
        self._remove(parent, name, there)

    def _parent(self, path: bytes, entry: Entry, *, create: bool = True) -> D:
        """Return the directory ``path``; missing directories are made."""
        if not path:
            return self.root
        known = self._parents.get(path)
        if known is not None:
            return known
        directory, done, reason = self._walk(path)
        if reason:
            directory = self._make_parents(path, directory, done, reason, entry, create=create)
        self._remember(path, directory)
        return directory

    def _remember(self, name: bytes, directory: D) -> None:
        if len(self._parents) >= _KNOWN_PARENTS:
            self._parents.clear()
        self._parents[name] = directory

    def _make_parents(self, path: bytes, directory: D, done: int, reason: int, entry: Entry, *, create: bool) -> D:
        """Make the directories of a path that are missing after the first ``done`` parts, which lead to ``directory``.

        :param reason: why the path leads no further (errno).
        """
        who = f"entry {shown(entry.name)}: its parent"
        parts = path.split(b"/")
        if reason in (errno.EXDEV, errno.ELOOP):
            how = "leads in circles" if reason == errno.ELOOP else "leaves the layer"
            raise TreeError(f"{who} {shown(path)} is a symbolic link that {how}")
        if reason not in (errno.ENOENT, errno.ENOTDIR):
            raise OSError(reason, os.strerror(reason))
        there = self._look(directory, parts[done])
        hidden = isinstance(there, Leaf) and there.is_whiteout
        if not create and (hidden or reason == errno.ENOENT):
            raise _missing(entry)
        if reason == errno.ENOTDIR and not hidden:
            raise TreeError(f"{who} {shown(path)} is not a directory")
        if there is not None and not hidden:
            raise TreeError(f"{who} {shown(b'/'.join(parts[: done + 1]))} is a symbolic link to nothing")
        for part in parts[done:]:
            rules.check_path(directory.length + len(part), entry)
            self._budget.implied(directory.length + len(part))
            if hidden:
                self._replace(directory, part)
            directory = self._make_directory(directory, part, implied=True)
            if hidden:
                self._hide_below(directory)
            hidden = False
        return directory

    def _walk(self, path: bytes) -> tuple[D, int, int]:
        """Go along a path of plain parts, over symbolic links or not.

        Return the directory that was reached, by how many parts of the path, and why no further (errno; 0: it is all).
        """
        directory = self.root
        links = 0
        parts = path.split(b"/")
        for number, part in enumerate(parts):
            there = self._look(directory, part)
            if there is None:
                return directory, number, errno.ENOENT
            if not isinstance(there, Leaf):
                directory = there
                continue
            # The parts of the path itself count from its first link on: that walk is what a link makes necessary.
            if not links:
                self._budget.link(len(parts))
            try:
                directory, links = self._follow(directory, part, there, links)
            except OSError as error:
                return directory, number, error.errno or errno.EIO
        return directory, len(parts), 0

    def _follow(self, directory: D, name: bytes, link: Leaf, links: int) -> tuple[D, int]:
        """Return the directory that a symbolic link leads to, and how many links were followed by now.

        :param links: how many were on the way to this one.
        :raises OSError: EXDEV, if it leads out of the layer; as open(2).
        """
        waiting: list[bytes] = []
        there: D | Leaf | None = link
        while True:
            if there is None:
                raise OSError(errno.ENOENT, "")
            if not isinstance(there, Leaf):
                directory = there
            elif not there.is_link:
                raise OSError(errno.ENOTDIR, "")
            else:
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, "")
                target = self._target(directory, name, there)
                # A target from the root leads out of the layer, which docs/images-internals.md refuses.
                if target.startswith(b"/"):
                    raise OSError(errno.EXDEV, "")
                further = target.split(b"/")
                # Before they are walked: forty links of 4095 bytes each would be 80,000 look-ups for one name.
                self._budget.link(len(further))
                waiting.extend(reversed(further))
            name = b""
            while waiting and name in (b"", b"."):
                name = waiting.pop()
            if name in (b"", b"."):
                return directory, links
            if name != b"..":
                if len(name) > rules.MAX_NAME:
                    raise OSError(errno.ENAMETOOLONG, "")
                there = self._look(directory, name)
            elif not directory.length:
                raise OSError(errno.EXDEV, "")
            else:
                there = self._above(directory)


def _missing(entry: Entry) -> TreeError:
    return TreeError(f"entry {shown(entry.name)}: hard link to {shown(entry.link)}, which this layer does not have")
