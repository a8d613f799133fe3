"""Tar archives byte by byte, right or wrong: what ``tarfile`` refuses to write is what a hostile layer is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

BLOCK = 512
END = bytes(2 * BLOCK)
"""Two blocks of zeros."""

USTAR = b"ustar\x0000"
GNU = b"ustar  \0"
NO_MAGIC = bytes(8)

FILE, HARDLINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"


def octal(number: int, width: int) -> bytes:
    """Return a number as a header field of ``width`` bytes holds it."""
    return b"%0*o\0" % (width - 1, number)


def base256(number: int, width: int) -> bytes:
    """Return a number in GNU's binary form."""
    data = bytearray(number.to_bytes(width, "big", signed=True))
    data[0] |= 0x80
    return bytes(data)


def field(number: int, width: int) -> bytes:
    """Return a number in octal where it fits, else in GNU's binary form."""
    return octal(number, width) if 0 <= number < 8 ** (width - 1) else base256(number, width)


def header(
    name: bytes,
    kind: bytes = FILE,
    *,
    size: int | bytes = 0,
    mode: int | bytes = 0o644,
    uid: int | bytes = 0,
    gid: int | bytes = 0,
    mtime: int | bytes = 1_700_000_000,
    link: bytes = b"",
    magic: bytes = USTAR,
    device: tuple[int, int] = (0, 0),
    prefix: bytes = b"",
    tail: bytes = b"",
    checksum: bytes | None = None,
) -> bytes:
    """Return one header block. Numbers given as bytes are written as they are; ``tail`` replaces what follows the
    device numbers."""

    def number(value: int | bytes, width: int) -> bytes:
        return value.ljust(width, b"\0")[:width] if isinstance(value, bytes) else field(value, width)

    block = b"".join(
        (
            name[:100].ljust(100, b"\0"),
            number(mode, 8),
            number(uid, 8),
            number(gid, 8),
            number(size, 12),
            number(mtime, 12),
            b" " * 8,
            kind,
            link[:100].ljust(100, b"\0"),
            magic,
            bytes(64),
            field(device[0], 8),
            field(device[1], 8),
            tail or prefix[:155],
        )
    ).ljust(BLOCK, b"\0")
    return block[:148] + (checksum or b"%06o\0 " % sum(block)) + block[156:]


def padded(data: bytes) -> bytes:
    """Return ``data`` filled up to whole blocks."""
    return data + bytes(-len(data) % BLOCK)


def entry(name: bytes, kind: bytes = FILE, data: bytes = b"", **more: object) -> bytes:
    """Return a member with its content."""
    return header(name, kind, **({"size": len(data)} | more)) + padded(data)  # type: ignore[arg-type]


def record(key: bytes, value: bytes) -> bytes:
    """Return one PAX record."""
    length = len(key) + len(value) + 3
    total = length + len(str(length))
    total = length + len(str(total))
    return b"%d %s=%s\n" % (total, key, value)


def pax(records: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]], kind: bytes = b"x") -> bytes:
    """Return a PAX header of ``records``; pairs may repeat a key."""
    pairs = records.items() if isinstance(records, Mapping) else records
    return entry(b"./PaxHeaders/x", kind, b"".join(record(key, value) for key, value in pairs))


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    """Return a GNU long name, or with ``K`` a long link target."""
    return entry(b"././@LongLink", kind, name + b"\0", magic=GNU)


def directory(name: bytes, mode: int = 0o755, **more: object) -> bytes:
    """Return a directory."""
    return entry(name, DIRECTORY, b"", mode=mode, **more)


def symlink(name: bytes, target: bytes, **more: object) -> bytes:
    """Return a symbolic link."""
    return entry(name, SYMLINK, b"", link=target, mode=0o777, **more)


def hardlink(name: bytes, target: bytes, **more: object) -> bytes:
    """Return a hard link."""
    return entry(name, HARDLINK, b"", link=target, **more)


def old_sparse(name: bytes, parts: list[tuple[int, int]], real: int | bytes, data: bytes) -> bytes:
    """Return a file of GNU type ``S`` with at most four parts."""
    spots = b"".join(field(offset, 12) + field(length, 12) for offset, length in parts).ljust(96, b"\0")
    size = real if isinstance(real, bytes) else field(real, 12)
    return entry(name, b"S", data, magic=GNU, tail=bytes(41) + spots + b"\0" + size)
