"""Writing a finished tree as an EROFS image: where everything goes, then the bytes in that order.

The same tree gives the same bytes. Places: the root directory's inode first (its number has 16 bits), the inodes that
the tree wrote while it grew, the inodes of directories, the blocks of directories, long symbolic links.
"""

from __future__ import annotations

import stat
from typing import IO

from podkeep.images.layers.erofs import attributes, layout
from podkeep.images.layers.erofs.tree import Directory, Tree


class _Plan:
    """Where things go. Places are in units from the first inode, blocks from the start of the image."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.inodes = 0
        self.inline: set[int] = set()
        """Places of directories whose entries follow the inode."""
        position = self._place(tree.root, layout.UNIT)  # programs pass over names whose inode number is 0
        position += -position % layout.BLOCK  # the tree placed its inodes within blocks
        self.area = position // layout.UNIT
        position += len(tree.area)
        position += -position % layout.BLOCK
        for directory in tree.directories():
            if directory is not tree.root:
                position = self._place(directory, position)
        position += -position % layout.BLOCK
        self.first_block = (layout.FIRST_INODE_OFFSET + position) // layout.BLOCK

    def _place(self, directory: Directory, position: int) -> int:
        """Put a directory's inode at or after ``position``; return where the next one may be."""
        blocks, tail = _extent(_sorted_names(directory))
        extra = len(attributes.encoded(directory.xattrs)) if directory.xattrs else 0
        need = layout.INODE + extra
        # An inode never crosses a block, nor do entries that follow it.
        together = layout.INODE
        inline = not blocks and need + tail <= layout.BLOCK
        if inline:
            together = need = need + tail
        if position % layout.BLOCK + together > layout.BLOCK:
            position += -position % layout.BLOCK
        directory.place = position // layout.UNIT
        if inline:
            self.inline.add(directory.place)
        self.inodes += 1 + len(directory.entries)
        return position + need + -need % layout.UNIT

    def entries(self, directory: Directory) -> list[tuple[bytes, int, int]]:
        """Return name, node ID and type of what is in a directory, as its blocks list them."""
        below = directory.entries
        mode, area = self.tree.mode, self.area
        listed = []
        for name in _sorted_names(directory):
            there = below.get(name)
            if isinstance(there, int):
                listed.append((name, area + there, layout.FILE_TYPES[stat.S_IFMT(mode(there))]))
            else:
                found = there or (directory.parent if name == b".." else directory)
                listed.append((name, found.place, layout.DIRECTORY_TYPE))
        return listed


def write(tree: Tree, output: IO[bytes], *, data_bytes: int) -> None:
    """Write the image of ``tree`` to ``output``, an empty file.

    :param data_bytes: size of the tar that the files' content is in.
    :raises OSError: if the file cannot be written.
    """
    plan = _Plan(tree)
    block = plan.first_block
    wide = [item for item in tree.directories() if item.place not in plan.inline]
    starts: dict[int, int] = {}
    for directory in wide:
        starts[directory.place] = block
        blocks, tail = _extent(_sorted_names(directory))
        block += blocks + bool(tail)
    for place, target in tree.long_links.items():
        layout.LINKS.pack_into(tree.area, place * layout.UNIT + layout.DEVICE_OFFSET, block)
        block += -(-len(target) // layout.BLOCK)
    output.write(
        layout.superblock(
            root=tree.root.place,
            inodes=plan.inodes,
            blocks=block,
            metadata_block=layout.FIRST_INODE_OFFSET // layout.BLOCK,
            data_bytes=data_bytes,
        )
    )
    for directory in tree.directories():
        output.write(bytes(layout.FIRST_INODE_OFFSET + directory.place * layout.UNIT - output.tell()))
        _write_inode(plan, directory, starts, output)
        if directory is tree.root:
            _pad(output)
            output.write(tree.area)
            _pad(output)
    _pad(output)
    for directory in wide:
        for piece in layout.directory_blocks(plan.entries(directory)):
            output.write(piece)
        _pad(output)
    for target in tree.long_links.values():
        output.write(target)
        _pad(output)


def _write_inode(plan: _Plan, directory: Directory, starts: dict[int, int], output: IO[bytes]) -> None:
    inline = directory.place in plan.inline
    content = b"".join(layout.directory_blocks(plan.entries(directory))) if inline else b""
    blocks, tail = _extent(_sorted_names(directory))
    xattrs = attributes.encoded(directory.xattrs)
    below = sum(1 for item in directory.entries.values() if isinstance(item, Directory))
    output.write(
        layout.inode(
            stat.S_IFDIR | directory.mode,
            directory.owner,
            directory.mtime,
            size=blocks * layout.BLOCK + tail,
            where=None if inline else starts[directory.place],
            links=2 + below,
            xattrs=len(xattrs),
        )
        + xattrs
        + content
    )


def _sorted_names(directory: Directory) -> list[bytes]:
    return sorted((*directory.entries, b".", b".."))


def _extent(names: list[bytes]) -> tuple[int, int]:
    """Return how many full blocks a directory of ``names`` has, and the bytes used of the last."""
    blocks = used = 0
    for name in names:
        need = layout.DIRENT_BYTES + len(name)
        if used + need > layout.BLOCK:
            blocks += 1
            used = 0
        used += need
    return blocks, used


def _pad(output: IO[bytes]) -> None:
    output.write(bytes(-output.tell() % layout.BLOCK))
