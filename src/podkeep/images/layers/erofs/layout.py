"""The bytes of an EROFS image as far as layers need them: superblock, device slot, inodes, directory blocks. Pure.

Source: the kernel's on-disk format (Documentation/filesystems/erofs.rst and fs/erofs/erofs_fs.h). Everything is little
endian. What is chosen here of what the format allows:

- blocks of 512 bytes, because that is how tar aligns content;
- extended inodes of 64 bytes only: the compact ones have no time of their own;
- one further device, the stored tar, in one address space with the metadata: a file's content is a run of blocks from
  ``DATA_BLOCK`` plus its place in the tar, so an ordinary file needs nothing but its inode. Sparse files have chunks,
  which name the device.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

BLOCK = 512
_BLOCK_BITS = 9
UNIT = 32
"""Bytes per node ID: an inode's number is its place in the metadata area, in these."""
INODE = 64
DATA_BLOCK = 1 << 30
"""Where the further device begins, in blocks: 512 GiB are left for metadata, 1.5 TiB for data."""
MAX_DATA_BLOCKS = (1 << 32) - 1 - DATA_BLOCK
DATA_DEVICE = 1
FIRST_INODE_OFFSET = 3 * BLOCK
"""After the 1024 bytes that EROFS leaves to boot loaders, the superblock and the device slot."""
MAX_XATTR_VALUE = 0xFFFF
MAX_XATTR_BYTES = 12 + 4 * (0xFFFF - 1)
"""Extended attributes of one inode with their header: a 16-bit count of 4-byte words."""

_FLAT, _INLINE, _CHUNKS = 0, 2, 4
_MAGIC = 0xE0F5E1E2
_COMPAT_MTIME = 0x2
_INCOMPAT_CHUNKED_FILE, _INCOMPAT_DEVICE_TABLE = 0x4, 0x8
_SUPERBLOCK = struct.Struct("<IIIBBHQQIIII16s16sIHHHBBIQ24x")
_SUPERBLOCK_OFFSET = 1024
_DEVICE_SLOT = struct.Struct("<64sIIHH52x")
_DIRENT = struct.Struct("<QHBx")
DIRENT_BYTES = 12
_INODE = struct.Struct("<HHHHQIIIIQII16x")
_CHUNK_INDEXES = 0x20
_CHUNK = struct.Struct("<HHI")
_NO_CHUNK = _CHUNK.pack(0xFFFF, 0, 0xFFFFFFFF)

DIRECTORY_TYPE, FILE_TYPE = 2, 1
FILE_TYPES = {0o100000: 1, 0o040000: 2, 0o020000: 3, 0o060000: 4, 0o010000: 5, 0o140000: 6, 0o120000: 7}
"""``EROFS_FT_*`` by the file type bits of a mode."""

MODE = struct.Struct("<H")
MODE_OFFSET = 4
DEVICE_OFFSET = 16
LINKS = struct.Struct("<I")
LINKS_OFFSET = 44


def superblock(*, root: int, inodes: int, blocks: int, metadata_block: int, data_bytes: int) -> bytes:
    """Return the image's first ``FIRST_INODE_OFFSET`` bytes.

    :param root: node ID of the root directory, less than 65536.
    :param blocks: of the metadata image.
    :param metadata_block: where node ID 0 is.
    :param data_bytes: size of the further device without what fills its last block, of which the volume's name is the
        number of bytes: archives of some tools do not end with a whole block.
    """
    fields = _SUPERBLOCK.pack(
        _MAGIC,
        0,  # no checksum: the digests of the layer say more
        _COMPAT_MTIME,
        _BLOCK_BITS,
        0,
        root,
        inodes,
        0,
        0,
        blocks,
        metadata_block,
        0,
        bytes(16),
        str(-data_bytes % BLOCK).encode() if data_bytes % BLOCK else b"",
        _INCOMPAT_CHUNKED_FILE | _INCOMPAT_DEVICE_TABLE,
        0,
        1,
        (_SUPERBLOCK_OFFSET + _SUPERBLOCK.size) // _DEVICE_SLOT.size,
        0,
        0,
        0,
        0,
    )
    slot = _DEVICE_SLOT.pack(b"", -(-data_bytes // BLOCK), DATA_BLOCK, 0, 0)
    return (bytes(_SUPERBLOCK_OFFSET) + fields + slot).ljust(FIRST_INODE_OFFSET, b"\0")


def filler_of(superblock: bytes) -> int:
    """Return the bytes that fill the last block of the further device, from the first of :data:`FIRST_INODE_OFFSET`."""
    name = _SUPERBLOCK.unpack_from(superblock, _SUPERBLOCK_OFFSET)[13]
    return int(name.rstrip(b"\0") or b"0")


def check_superblock(head: bytes, *, image_bytes: int, data_bytes: int) -> None:
    """Check that ``head``, an image's first :data:`FIRST_INODE_OFFSET` bytes, is what :func:`superblock` writes: no
    other features, devices or places.

    :param image_bytes: size of the image.
    :param data_bytes: size of the further device.
    :raises ValueError: if it is something else.
    """
    if len(head) != FIRST_INODE_OFFSET or image_bytes % BLOCK or data_bytes % BLOCK:
        raise ValueError(f"an image of {image_bytes} bytes with {data_bytes} bytes of data")
    fields = _SUPERBLOCK.unpack_from(head, _SUPERBLOCK_OFFSET)
    filler = filler_of(head)
    wanted = superblock(
        root=fields[5],
        inodes=fields[6],
        blocks=image_bytes // BLOCK,
        metadata_block=FIRST_INODE_OFFSET // BLOCK,
        data_bytes=data_bytes - filler,
    )
    # Byte for byte: whatever else the format allows would reach the kernel's driver as root.
    if head != wanted or not 0 <= filler < BLOCK:
        raise ValueError("its superblock is not one that this program writes")


def file_inode(mode: int, uid: int, gid: int, seconds: int, nanoseconds: int, size: int, where: int) -> bytes:
    """Return :func:`inode` of an ordinary file without extended attributes, in less time."""
    return _INODE.pack(1 | _FLAT << 1, 0, mode, 0, size, where, 0, uid, gid, seconds, nanoseconds, 1)


def inode(
    mode: int,
    owner: tuple[int, int],
    mtime: tuple[int, int],
    *,
    size: int = 0,
    where: int | None = 0,
    links: int = 1,
    xattrs: int = 0,
) -> bytes:
    """Return an inode whose content is a run of blocks, or follows it, or that has none.

    :param mtime: seconds, which may be negative, and nanoseconds.
    :param where: first block of the content, None if it follows; of a device its number.
    :param xattrs: bytes of the encoded extended attributes that follow it.
    """
    data_layout = _INLINE if where is None else _FLAT
    count = (xattrs - 12) // 4 + 1 if xattrs else 0
    seconds, nanoseconds = mtime
    return _INODE.pack(
        # Bit 0: an extended inode.
        1 | data_layout << 1,
        count,
        mode,
        0,
        size,
        where or 0,
        0,
        *owner,
        seconds & 0xFFFFFFFFFFFFFFFF,
        nanoseconds,
        links,
    )


def size_of(inode_bytes: bytes | bytearray) -> int:
    return int.from_bytes(inode_bytes[8:16], "little")


def device_of(inode_bytes: bytes | bytearray) -> int:
    """Return the number in a device's inode (:func:`device_number`)."""
    return int.from_bytes(inode_bytes[DEVICE_OFFSET : DEVICE_OFFSET + 4], "little")


def chunked_inode(
    mode: int, owner: tuple[int, int], mtime: tuple[int, int], *, size: int, chunk_bits: int, xattrs: int
) -> bytes:
    """Return an inode whose content is what the :func:`chunks` that follow it say."""
    plain = inode(mode, owner, mtime, size=size, where=_CHUNK_INDEXES | (chunk_bits - _BLOCK_BITS), xattrs=xattrs)
    return MODE.pack(1 | _CHUNKS << 1) + plain[2:]


def chunks(blocks: Sequence[int | None]) -> bytes:
    """Return chunk indexes: a block of the further device each, or None for a hole."""
    return b"".join(_NO_CHUNK if block is None else _CHUNK.pack(0, DATA_DEVICE, block) for block in blocks)


def device_number(major: int, minor: int) -> int:
    """Return a device's number as ``new_encode_dev`` of the kernel writes it."""
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


def directory_blocks(entries: Sequence[tuple[bytes, int, int]]) -> Iterator[bytes]:
    """Yield the blocks of a directory; all but the last are :data:`BLOCK` long.

    :param entries: names in the order of their bytes, node IDs and file types; ``.`` and ``..`` are among them.
    """
    first = used = 0
    for index, (name, _, _) in enumerate(entries):
        need = _DIRENT.size + len(name)
        if used + need > BLOCK:
            yield _directory_block(entries[first:index]).ljust(BLOCK, b"\0")
            first, used = index, 0
        used += need
    yield _directory_block(entries[first:])


def _directory_block(entries: Sequence[tuple[bytes, int, int]]) -> bytes:
    heads = []
    offset = _DIRENT.size * len(entries)
    for name, node, file_type in entries:
        heads.append(_DIRENT.pack(node, offset, file_type))
        offset += len(name)
    return b"".join(heads) + b"".join([name for name, _, _ in entries])
