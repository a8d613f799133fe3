"""A layer's tree in memory, without a file being made.

The back end of ``images.layers.tree`` for layers that are kept as EROFS images. Inodes of everything but directories
are written at once, in their final form, into one growing area; what stays as objects is a dictionary of names per
directory. That is some two hundred bytes per entry; a layer that would need more memory than it may have raises
:class:`TooLarge`. ``image`` makes the finished image of it.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator

from podkeep.images.layers import rules, tree
from podkeep.images.layers.erofs import attributes, layout
from podkeep.images.layers.rules import shown
from podkeep.images.layers.tarstream import Entry, EntryKind
from podkeep.images.layers.tree import LayerTree, Leaf

_MAX_CHUNKS = 1 << 16
_EASY_BYTES = 1 << 39
"""Content before that ends within the addresses that there are."""
_ENTRY_BYTES = 160
"""What a name costs beside its bytes: objects and the dictionary's slot, measured."""
_DIRECTORY_BYTES = 720
_TYPES = {EntryKind.CHARACTER: stat.S_IFCHR, EntryKind.FIFO: stat.S_IFIFO}
_S_IFREG = stat.S_IFREG


class TooLarge(Exception):
    """The layer cannot be kept as an image within the limits; as a directory it can."""


class Directory(tree.Directory):
    """A directory. ``entries`` are directories, and of everything else the place of its inode in the area, in units.

    ``place`` is its inode's own, once it has one. ``implied`` says that no entry came for it.
    """

    __slots__ = ("entries", "implied", "mode", "mtime", "owner", "parent", "place", "xattrs")

    def __init__(self, parent: Directory | None, name: bytes = b"") -> None:
        super().__init__(parent.length + len(name) + 1 if parent else 0)
        self.entries: dict[bytes, int | Directory] = {}
        self.parent = parent or self
        self.implied = True
        self.mode = 0o755
        self.owner = (0, 0)
        self.mtime = (0, 0)
        self.xattrs: dict[str, bytes] = {}
        self.place = 0


class Tree(LayerTree[Directory, int]):
    """The tree of one layer. The content of an entry is its place in the tar, in bytes.

    ``area`` holds the inodes of all but directories; the content of
    symbolic links too long for it is in ``long_links``.

    :param max_memory: bytes this tree may take, before it is written.
    """

    def __init__(self, *, max_inodes: int, max_memory: int, max_bytes: int = rules.NO_LIMIT) -> None:
        super().__init__(Directory(None), max_inodes=max_inodes, max_bytes=max_bytes)
        self._max_memory = max_memory
        self._names = 0
        self.area = bytearray()
        self.long_links: dict[int, bytes] = {}

    def apply(self, entry: Entry, content: int) -> None:
        """Add one entry.

        :raises TreeError: naming the entry, if it breaks a rule or no file system would take it.
        :raises TooLarge: if it does not fit.
        """
        super().apply(entry, content)
        # An estimate by measured costs: asking the allocator for each entry would cost more than the entry.
        if self._names + len(self.area) > self._max_memory:
            raise TooLarge(f"{self._budget.entries} entries need more than {self._max_memory} bytes of memory")

    def mode(self, place: int) -> int:
        """Return the mode of the inode at ``place``, its type included."""
        mode: int = layout.MODE.unpack_from(self.area, place * layout.UNIT + layout.MODE_OFFSET)[0]
        return mode

    def _look(self, parent: Directory, name: bytes) -> Directory | Leaf | None:
        there = parent.entries.get(name)
        if not isinstance(there, int):
            return there
        start = there * layout.UNIT
        inode = self.area[start : start + layout.INODE]
        return Leaf(there, self.mode(there), layout.device_of(inode), layout.size_of(inode))

    def _above(self, directory: Directory) -> Directory:
        return directory.parent

    def _target(self, parent: Directory, name: bytes, link: Leaf) -> bytes:
        if link.inode in self.long_links:
            return self.long_links[link.inode]
        start = link.inode * layout.UNIT + layout.INODE
        return bytes(self.area[start : start + link.size])

    def _make_directory(self, parent: Directory, name: bytes, *, implied: bool) -> Directory:
        directory = Directory(parent, name)
        parent.entries[name] = directory
        self._names += _DIRECTORY_BYTES + len(name)
        return directory

    def _describe(self, directory: Directory, entry: Entry, *, fresh: bool) -> None:
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

    def _set_opaque(self, directory: Directory) -> None:
        directory.xattrs |= attributes.OPAQUE

    def _make(self, entry: Entry, parent: Directory, name: bytes, content: int) -> None:
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, "")
        if entry.kind is EntryKind.FILE:
            place = self._file(entry, content)
        elif entry.kind is EntryKind.SYMLINK:
            place = self._symlink(entry)
        else:
            place = self._node(entry)
        parent.entries[name] = place
        self._names += _ENTRY_BYTES + len(name)

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
        # Most inodes: 64 bytes at a multiple of 64 never cross a block of 512.
        if not position % layout.INODE and together == layout.INODE:
            area += record
            return position // layout.UNIT
        position += -position % layout.UNIT
        if position % layout.BLOCK + together > layout.BLOCK:
            position += -position % layout.BLOCK
        area += bytes(position - len(area))
        area += record
        return position // layout.UNIT

    def _link(self, source: Directory, last: bytes, there: Leaf, parent: Directory, name: bytes) -> None:
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, "")
        self._change_links(there.inode, 1)
        parent.entries[name] = there.inode
        self._names += _ENTRY_BYTES + len(name)

    def _whiteout(self, parent: Directory, name: bytes) -> None:
        parent.entries[name] = self._store(layout.inode(stat.S_IFCHR, (0, 0), (0, 0)))
        self._names += _ENTRY_BYTES + len(name)

    def _remove(self, parent: Directory, name: bytes, there: Directory | Leaf) -> None:
        # Not recursive: a layer may be deeper than Python's stack.
        doomed = [parent.entries.pop(name)]
        while doomed:
            one = doomed.pop()
            if isinstance(one, Directory):
                doomed.extend(one.entries.values())
            else:
                self._change_links(one, -1)

    def _change_links(self, place: int, change: int) -> None:
        where = place * layout.UNIT + layout.LINKS_OFFSET
        (links,) = layout.LINKS.unpack_from(self.area, where)
        layout.LINKS.pack_into(self.area, where, links + change)

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
        # A chunk names a block of the tar: a part of the file can begin and end only where blocks do.
        if offset % size or position % layout.BLOCK or (end % size and end != entry.size):
            raise TooLarge(f"{shown(entry.name)} is sparse at odd places")
        for number in range(offset // size, -(-end // size)):
            blocks[number] = (position + number * size - offset) // layout.BLOCK
        position += length
    return bits, blocks
