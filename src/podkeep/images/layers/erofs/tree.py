"""A layer's tree in memory: tar entries applied by the rules of layers, without a file being made.

Inodes of everything but directories are written at once, in their final form, into one growing area; what stays as
objects is a dictionary of names per directory. That is some two hundred bytes per entry; a layer that would need more
memory than it may have raises :class:`TooLarge`. ``image`` makes the finished image of it.

The counterpart of ``podkeep.images.layers.tree``, which does the same with files and lets the kernel resolve names;
tests compare the two on random archives.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from podkeep.images.layers import rules
from podkeep.images.layers.erofs import attributes, layout
from podkeep.images.layers.rules import TreeError, shown
from podkeep.images.layers.tarstream import Entry, EntryKind

_MAX_LINKS = 40
"""Symbolic links followed on the way to one directory (path_resolution(7))."""
_MAX_CHUNKS = 1 << 16
_EASY_BYTES = 1 << 39
"""Content before that ends within the addresses that there are."""
_CACHED_PARENTS = 1024
_ENTRY_BYTES = 160
"""What a name costs beside its bytes: objects and the dictionary's slot, measured."""
_DIRECTORY_BYTES = 720
_TYPES = {
    EntryKind.FILE: stat.S_IFREG,
    EntryKind.SYMLINK: stat.S_IFLNK,
    EntryKind.CHARACTER: stat.S_IFCHR,
    EntryKind.FIFO: stat.S_IFIFO,
}
_S_IFREG = stat.S_IFREG


class TooLarge(Exception):
    """The layer cannot be kept as an image within the limits; as a directory it can."""


class Directory:
    """A directory. ``entries`` are directories, and of everything else the place of its inode in the area, in units.

    ``place`` is its inode's own, once it has one. ``length`` is that of its path and a slash, in bytes.
    ``implied`` says that no entry came for it.
    """

    __slots__ = ("entries", "implied", "length", "mode", "mtime", "owner", "parent", "place", "xattrs")

    def __init__(self, parent: Directory | None, name: bytes = b"") -> None:
        self.entries: dict[bytes, int | Directory] = {}
        self.parent = parent or self
        self.implied = True
        self.length: int = parent.length + len(name) + 1 if parent else 0
        self.mode = 0o755
        self.owner = (0, 0)
        self.mtime = (0, 0)
        self.xattrs: dict[str, bytes] = {}
        self.place = 0


class _Lost(Exception):
    """A name leads nowhere: ``number`` is the errno, ``directory`` the last one on the way, ``parts`` how many parts
    of the path led there."""

    def __init__(self, number: int, directory: Directory, parts: int) -> None:
        super().__init__(number)
        self.number = number
        self.directory = directory
        self.parts = parts


class Tree:
    """The tree of one layer.

    ``area`` holds the inodes of all but directories; the content of
    symbolic links too long for it is in ``long_links``.
    """

    def __init__(self, *, max_inodes: int, max_memory: int, max_bytes: int = rules.NO_LIMIT) -> None:
        """
        :param max_bytes: of all files together, holes included.
        :param max_memory: bytes this tree may take, before it is written.
        """
        self._budget = rules.Budget(max_entries=max_inodes, max_bytes=max_bytes)
        self._max_memory = max_memory
        self._names = 0
        self._parents: dict[bytes, Directory] = {}
        self.root = Directory(None)
        self.area = bytearray()
        self.long_links: dict[int, bytes] = {}

    def apply(self, entry: Entry, position: int) -> None:
        """Add one entry.

        :param position: of its content in the tar, in bytes.
        :raises TreeError: naming the entry, if it breaks a rule or no file system would take it.
        :raises TooLarge: if it does not fit.
        """
        try:
            self._apply(entry, position)
        except (OSError, ValueError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise TreeError(f"entry {shown(entry.name)}: cannot write it: {reason}") from error
        if self._names + len(self.area) > self._max_memory:
            raise TooLarge(f"{self._budget.entries} entries need more than {self._max_memory} bytes of memory")

    def _apply(self, entry: Entry, position: int) -> None:
        if entry.xattrs:
            rules.refuse_trusted(entry)
        # Most entries are in a directory that was found, under this very name, for an entry before.
        above, _, name = entry.name.rpartition(b"/")
        parent = self._parents.get(above)
        if parent is None or not name or len(name) > layout.MAX_NAME or name[:1] == b"." or b"\0" in name:
            found = self._find(entry)
            if found is None:
                return
            parent, name = found
        self._budget.entry(entry.size)
        if parent.length + len(name) > rules.MAX_PATH:
            rules.check_path(parent.length + len(name), entry)
        if entry.kind is EntryKind.FILE:
            self._put(parent, name, self._file(entry, position))
        elif entry.kind is EntryKind.DIRECTORY:
            self._directory(entry, parent, name)
        elif entry.kind is EntryKind.HARDLINK:
            self._hard_link(entry, parent, name)
        else:
            rules.refuse_devices(entry)
            if entry.kind is EntryKind.SYMLINK:
                rules.check_target(entry)
            self._put(parent, name, self._symlink(entry) if entry.kind is EntryKind.SYMLINK else self._node(entry))

    def _find(self, entry: Entry) -> tuple[Directory, bytes] | None:
        """Return the directory that an entry goes into and its name there; None if nothing is left to do."""
        path = rules.checked_name(entry.name, "its name", entry)
        if b"\0" in path:
            raise ValueError("embedded null byte")
        if not path:
            if entry.kind is not EntryKind.DIRECTORY:
                raise TreeError(f"entry {shown(entry.name)}: the root is a {entry.kind.value}")
            self._describe(self.root, entry)
            return None
        if rules.is_ignored(path, entry):
            return None
        above, _, name = path.rpartition(b"/")
        parent = self._parents.get(above) or self._parent(above, entry)
        written, _, last = entry.name.rpartition(b"/")
        if last == name and len(written) <= rules.MAX_PATH:  # and not empty, as after a slash at the end
            self._remember(written, parent)
        if name.startswith(rules.WHITEOUT):
            self._whiteout(entry, parent, name)
            return None
        return parent, name

    def _file(self, entry: Entry, position: int) -> int:
        mode = _S_IFREG | entry.mode
        if not entry.xattrs and entry.parts is None and position < _EASY_BYTES and entry.size < _EASY_BYTES:
            where = layout.DATA_BLOCK + position // layout.BLOCK if entry.size else 0
            seconds, rest = divmod(rules.modification_time(entry), 1_000_000_000)
            return self._store(layout.file_inode(mode, entry.uid, entry.gid, seconds, rest, entry.size, where))
        tail = b""
        if entry.xattrs:
            mode, kept = attributes.settled(rules.kept_xattrs(entry), mode)
            tail = attributes.encoded(kept)
        owner, mtime = (entry.uid, entry.gid), _time(rules.modification_time(entry))
        if entry.parts is None:
            block = position // layout.BLOCK
            if block + entry.size // layout.BLOCK > layout.MAX_DATA_BLOCKS:
                raise TooLarge(f"the content of {shown(entry.name)} is {position} bytes into the layer")
            where = layout.DATA_BLOCK + block if entry.size else 0
            return self._store(layout.inode(mode, owner, mtime, size=entry.size, where=where, xattrs=len(tail)) + tail)
        bits, indexes = _chunked(entry, position)
        record = layout.chunked_inode(mode, owner, mtime, size=entry.size, chunk_bits=bits, xattrs=len(tail)) + tail
        return self._store(record + bytes(-len(record) % 8) + layout.chunks(indexes))

    def _symlink(self, entry: Entry) -> int:
        size = len(entry.link)
        if b"\0" in entry.link:
            raise ValueError("embedded null byte")
        inline = layout.INODE + size <= layout.BLOCK
        owner, mtime = (entry.uid, entry.gid), _time(rules.modification_time(entry))
        record = layout.inode(stat.S_IFLNK | 0o777, owner, mtime, size=size, where=None if inline else 0)
        if inline:
            return self._store(record + entry.link, together=layout.INODE + size)
        place = self._store(record)
        self.long_links[place] = entry.link
        self._names += _ENTRY_BYTES + size
        return place

    def _node(self, entry: Entry) -> int:
        device = layout.device_number(entry.major, entry.minor) if entry.kind is EntryKind.CHARACTER else 0
        owner, mtime = (entry.uid, entry.gid), _time(rules.modification_time(entry))
        return self._store(layout.inode(_TYPES[entry.kind] | entry.mode, owner, mtime, where=device))

    def _store(self, record: bytes, *, together: int = layout.INODE) -> int:
        """Append an inode and what follows it; the first ``together`` bytes stay within a block."""
        area = self.area
        position = len(area)
        if not position % layout.INODE and together == layout.INODE:
            area += record
            return position // layout.UNIT
        position += -position % layout.UNIT
        if position % layout.BLOCK + together > layout.BLOCK:
            position += -position % layout.BLOCK
        area += bytes(position - len(area))
        area += record
        return position // layout.UNIT

    def _put(self, parent: Directory, name: bytes, place: int) -> None:
        """Give ``name`` to an inode; in a tar the last entry of a name wins."""
        if name in parent.entries:
            self._replace(parent, name)
        parent.entries[name] = place
        self._names += _ENTRY_BYTES + len(name)

    def _directory(self, entry: Entry, parent: Directory, name: bytes) -> None:
        there = parent.entries.get(name)
        if isinstance(there, Directory):
            self._describe(there, entry)
            return
        directory = self._new_directory(parent, name)
        if there is not None and self._is_whiteout(there):
            self._make_opaque(directory)
        self._describe(directory, entry)

    def _new_directory(self, parent: Directory, name: bytes) -> Directory:
        if name in parent.entries:
            self._replace(parent, name)
        directory = Directory(parent, name)
        parent.entries[name] = directory
        self._names += _DIRECTORY_BYTES + len(name)
        return directory

    def _describe(self, directory: Directory, entry: Entry) -> None:
        before = attributes.changed_mode(directory.xattrs, entry.mode) if directory.xattrs else {}
        mode = entry.mode
        if entry.xattrs:
            mode, before = attributes.settled(rules.kept_xattrs(entry), mode, before=before, directory=True)
            self._names += sum(len(key) + len(value) + 2 * _ENTRY_BYTES for key, value in entry.xattrs.items())
            rules.check_directory(before, entry)
        directory.xattrs = before
        directory.mode = mode
        directory.implied = False
        directory.owner = (entry.uid, entry.gid)
        directory.mtime = _time(rules.modification_time(entry))

    def _hard_link(self, entry: Entry, parent: Directory, name: bytes) -> None:
        target = rules.checked_name(entry.link, "its target", entry)
        above, _, last = target.rpartition(b"/")
        if not last:
            raise TreeError(f"entry {shown(entry.name)}: a hard link to the root")
        source = self._linked(entry, above, last)
        there = parent.entries.get(name)
        if there is not None:
            if there == source:
                return
            self._replace(parent, name)
            source = self._linked(entry, above, last)  # it may have been in what was replaced
        self._change_links(source, 1)
        self._put(parent, name, source)

    def _linked(self, entry: Entry, above: bytes, last: bytes) -> int:
        found = self._parent(above, entry, create=False).entries.get(last)
        if found is None or (isinstance(found, int) and self._is_whiteout(found)):
            raise TreeError(
                f"entry {shown(entry.name)}: hard link to {shown(entry.link)}, which this layer does not have"
            )
        if isinstance(found, Directory):
            raise TreeError(f"entry {shown(entry.name)}: a hard link to the directory {shown(entry.link)}")
        return found

    def _whiteout(self, entry: Entry, parent: Directory, name: bytes) -> None:
        """OCI image-spec, layer.md, "Whiteouts"; kernel, overlayfs.rst, "whiteouts and opaque directories"."""
        if name == rules.OPAQUE:
            self._make_opaque(parent)
            return
        hidden = rules.hidden_name(name, entry)
        if hidden is None:
            return
        self._budget.entry()
        rules.check_path(parent.length + len(hidden), entry)
        there = parent.entries.get(hidden)
        if there is None:
            self._put(parent, hidden, self._store(layout.inode(stat.S_IFCHR, (0, 0), (0, 0))))
        elif isinstance(there, Directory):
            # A whiteout hides lower layers only, never its own layer, in whichever order the two come.
            self._make_opaque(there)

    def _parent(self, path: bytes, entry: Entry, *, create: bool = True) -> Directory:
        """Return the directory ``path``; missing directories are made, root's and mode 0755."""
        if not path:
            return self.root
        try:
            directory = self._walk(path)
        except _Lost as lost:
            directory = self._make_parents(path, lost, entry, create=create)
        self._remember(path, directory)
        return directory

    def _remember(self, path: bytes, directory: Directory) -> None:
        if len(self._parents) >= _CACHED_PARENTS:
            self._parents.clear()
        self._parents[path] = directory

    def _make_parents(self, path: bytes, lost: _Lost, entry: Entry, *, create: bool) -> Directory:
        who = f"entry {shown(entry.name)}: "
        parts = path.split(b"/")
        directory, name = lost.directory, parts[lost.parts]
        if lost.number in (errno.EXDEV, errno.ELOOP):
            how = "leads in circles" if lost.number == errno.ELOOP else "leaves the layer"
            raise TreeError(f"{who}its parent {shown(path)} is a symbolic link that {how}")
        if lost.number not in (errno.ENOENT, errno.ENOTDIR):
            raise OSError(lost.number, "")
        there = directory.entries.get(name)
        hidden = isinstance(there, int) and self._is_whiteout(there)
        if not create and (hidden or lost.number == errno.ENOENT):
            raise TreeError(f"{who}hard link to {shown(entry.link)}, which this layer does not have")
        if lost.number == errno.ENOTDIR and not hidden:
            raise TreeError(f"{who}its parent {shown(path)} is not a directory")
        if there is not None and not hidden:
            shown_parent = shown(b"/".join(parts[: lost.parts + 1]))
            raise TreeError(f"{who}its parent {shown_parent} is a symbolic link to nothing")
        for number, part in enumerate(parts[lost.parts :]):
            rules.check_path(directory.length + len(part), entry)
            self._budget.implied(directory.length + len(part))
            directory = self._new_directory(directory, part)
            if hidden and number == 0:
                self._make_opaque(directory)
        return directory

    def _walk(self, path: bytes) -> Directory:
        directory = self.root
        links = 0
        parts = path.split(b"/")
        for number, part in enumerate(parts):
            there = directory.entries.get(part)
            if isinstance(there, Directory):
                directory = there
                continue
            if there is None:
                raise _Lost(errno.ENAMETOOLONG if len(part) > layout.MAX_NAME else errno.ENOENT, directory, number)
            if not links:
                self._budget.link(len(parts))
            try:
                directory, links = self._follow(directory, there, links)
            except OSError as error:
                raise _Lost(error.errno or 0, directory, number) from None
        return directory

    def _follow(self, directory: Directory, place: int, links: int) -> tuple[Directory, int]:
        """Return the directory a symbolic link leads to, and how many links were followed by now.

        :raises OSError: EXDEV, if it leads out of the layer; as open(2).
        """
        waiting: list[bytes] = []
        there: int | Directory | None = place
        while True:
            if isinstance(there, int):
                target = self._target(there)
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, "")
                if target.startswith(b"/"):
                    raise OSError(errno.EXDEV, "")
                further = target.split(b"/")
                self._budget.link(len(further))
                waiting.extend(reversed(further))
            elif there is None:
                raise OSError(errno.ENOENT, "")
            else:
                directory = there
            part = b""
            while waiting and part in (b"", b"."):
                part = waiting.pop()
            if part in (b"", b"."):
                return directory, links
            if part == b"..":
                if directory is self.root:
                    raise OSError(errno.EXDEV, "")
                there = directory.parent
            else:
                if len(part) > layout.MAX_NAME:
                    raise OSError(errno.ENAMETOOLONG, "")
                there = directory.entries.get(part)

    def _target(self, place: int) -> bytes:
        """Return the target of a symbolic link.

        :raises OSError: ENOTDIR, if it is something else.
        """
        if not stat.S_ISLNK(self.mode(place)):
            raise OSError(errno.ENOTDIR, "")
        if place in self.long_links:
            return self.long_links[place]
        start = place * layout.UNIT
        size = layout.size_of(self.area[start : start + layout.INODE])
        return bytes(self.area[start + layout.INODE : start + layout.INODE + size])

    def _replace(self, parent: Directory, name: bytes) -> None:
        """Remove what an earlier entry put there."""
        doomed: list[int | Directory] = [parent.entries.pop(name)]
        if isinstance(doomed[0], Directory) or stat.S_ISLNK(self.mode(doomed[0])):
            self._parents.clear()
        while doomed:
            one = doomed.pop()
            if isinstance(one, Directory):
                doomed.extend(one.entries.values())
            else:
                self._change_links(one, -1)

    def mode(self, place: int) -> int:
        """Return the mode of the inode at ``place``, its type included."""
        mode: int = layout.MODE.unpack_from(self.area, place * layout.UNIT + layout.MODE_OFFSET)[0]
        return mode

    def _is_whiteout(self, there: int | Directory) -> bool:
        """No entry may bring a character device 0:0, so one that is here is a whiteout."""
        if isinstance(there, Directory) or not stat.S_ISCHR(self.mode(there)):
            return False
        start = there * layout.UNIT + layout.DEVICE_OFFSET
        return self.area[start : start + 4] == b"\0\0\0\0"

    def _change_links(self, place: int, change: int) -> None:
        where = place * layout.UNIT + layout.LINKS_OFFSET
        (links,) = layout.LINKS.unpack_from(self.area, where)
        layout.LINKS.pack_into(self.area, where, links + change)

    def _make_opaque(self, directory: Directory) -> None:
        """Kernel, overlayfs.rst, "whiteouts and opaque directories"."""
        self._budget.opaque()
        directory.xattrs |= attributes.OPAQUE

    def implied(self) -> list[bytes]:
        """Return the paths of the directories that no entry came for, sorted; empty for the root."""
        found = [b""] if self.root.implied else []
        parts: list[bytes] = []
        # Not a list of paths yet to be looked at, which could be long and many.
        above = [iter(self.root.entries.items())]
        while above:
            for name, there in above[-1]:
                if isinstance(there, Directory):
                    parts.append(name)
                    if there.implied:
                        found.append(b"/".join(parts))
                    above.append(iter(there.entries.items()))
                    break
            else:
                above.pop()
                del parts[-1:]
        return sorted(found)

    def directories(self) -> Iterator[Directory]:
        """Yield every directory, parents before what is in them, in the order of the names."""
        waiting = [self.root]
        while waiting:
            directory = waiting.pop()
            yield directory
            below = [item for item in directory.entries.items() if isinstance(item[1], Directory)]
            waiting.extend(item[1] for item in sorted(below, reverse=True) if isinstance(item[1], Directory))


def _time(nanoseconds: int) -> tuple[int, int]:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    if not -(1 << 63) <= seconds < 1 << 63:
        raise ValueError("timestamp out of range")
    return seconds, rest


def _chunked(entry: Entry, position: int) -> tuple[int, list[int | None]]:
    """Return the size of a sparse file's chunks, as a power of two, and the block of each; None is a hole.

    :raises TooLarge: if its parts are at places that chunks cannot be at, or are too many.
    """
    parts = entry.parts or []
    bits = 9
    while entry.size > _MAX_CHUNKS << bits:
        bits += 1
    size = 1 << bits
    blocks: list[int | None] = [None] * -(-entry.size // size)
    for offset, length in parts:
        end = offset + length
        if offset % size or position % layout.BLOCK or (end % size and end != entry.size):
            raise TooLarge(f"{shown(entry.name)} is sparse at odd places")
        for number in range(offset // size, -(-end // size)):
            blocks[number] = (position + number * size - offset) // layout.BLOCK
        position += length
    return bits, blocks
