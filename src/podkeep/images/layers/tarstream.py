"""Reading tar streams: ustar, PAX and GNU headers to entries, from bytes nobody has looked at before.

Owns the format and nothing else: no file is touched here (``tree`` writes them). It exists beside the standard
library's ``tarfile`` because a layer is one pass over a pipe with tens of thousands of small entries, and this reader
costs a tenth per entry; the tests compare the two on random archives.

Where readers in the field disagree on what an archive says (two headers for one entry, names given twice, global
headers, a block of zeros in the middle), it is refused: whoever examined the layer may have seen another one. In all
else it reads what Go's ``archive/tar`` reads, with which images are built, checked and unpacked elsewhere.

Sources: POSIX.1-2017 pax, "ustar Interchange Format" and "pax Header Block"; GNU tar manual, "Basic Tar Format" and
"Storing Sparse Files".
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from functools import lru_cache

from podkeep.kernel.namespace.idmap import MAX_USER

BLOCK = 512
_MAX_HEADER_BYTES = 1 << 20
"""Bytes of one PAX header or GNU long name; a longer one is refused."""
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_ZERO = bytes(BLOCK)
_MAX_SPARSE_PARTS = 1 << 16


class TarError(Exception):
    """The stream is not a tar archive, or ends too early, or lies about itself."""


class EntryKind(Enum):
    """What an entry asks for."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"
    CHARACTER = "character device"
    BLOCK = "block device"
    FIFO = "fifo"


_KINDS = {
    b"0": EntryKind.FILE,
    b"\0": EntryKind.FILE,
    b"7": EntryKind.FILE,
    b"S": EntryKind.FILE,
    b"1": EntryKind.HARDLINK,
    b"2": EntryKind.SYMLINK,
    b"3": EntryKind.CHARACTER,
    b"4": EntryKind.BLOCK,
    b"5": EntryKind.DIRECTORY,
    b"6": EntryKind.FIFO,
}


class Entry:
    """One member. Names are bytes as in the archive; times are nanoseconds; ``size`` is the file's, holes included.

    ``parts`` is None for an ordinary file, else the sparse map: (offset in the file, bytes of data there).
    """

    __slots__ = ("gid", "kind", "link", "major", "minor", "mode", "mtime", "name", "parts", "size", "uid", "xattrs")

    def __init__(self, kind: EntryKind, name: bytes) -> None:
        self.kind = kind
        self.name = name
        self.link = b""
        self.mode = 0
        self.uid = 0
        self.gid = 0
        self.size = 0
        self.mtime = 0
        self.major = 0
        self.minor = 0
        self.parts: list[tuple[int, int]] | None = None
        self.xattrs: dict[str, bytes] = {}

    @property
    def runs(self) -> list[tuple[int, int]]:
        """What of the file is stored: (offset in the file, bytes)."""
        return [(0, self.size)] if self.parts is None else self.parts


class ByteSource:
    """Exact reads over a function that returns the next piece of the stream, empty at its end."""

    def __init__(self, pull: Callable[[], bytes]) -> None:
        self._pull = pull
        self._piece = b""
        self._at = 0
        """Bytes of the piece that are read."""
        self._before = 0
        """Bytes of the pieces before it."""
        self.ended = False

    @property
    def position(self) -> int:
        return self._before + self._at

    def some(self, most: int) -> memoryview:
        """Return between one and ``most`` bytes without copying; nothing only at the end of the stream."""
        if self._at == len(self._piece):
            self._before += self._at
            self._piece, self._at = self._pull(), 0
            self.ended = not self._piece
        result = memoryview(self._piece)[self._at : self._at + most]
        self._at += len(result)
        return result

    def exactly(self, count: int) -> bytes:
        """Return ``count`` bytes.

        :raises TarError: if the stream ends before.
        """
        end = self._at + count
        if end <= len(self._piece):
            data, self._at = self._piece[self._at : end], end
            return data
        pieces = []
        missing = count
        while missing:
            piece = self.some(missing)
            if not piece:
                raise TarError(f"the archive ends {missing} bytes too early")
            pieces.append(bytes(piece))
            missing -= len(piece)
        return b"".join(pieces)

    def skip_if_there(self, count: int) -> None:
        """Pass over ``count`` bytes, or over what is left."""
        while count and (piece := self.some(count)):
            count -= len(piece)

    def skip(self, count: int) -> None:
        """Pass over ``count`` bytes.

        :raises TarError: if the stream ends before.
        """
        while self._at + count > len(self._piece):
            piece = self.some(count)
            if not piece:
                raise TarError(f"the archive ends {count} bytes too early")
            count -= len(piece)
        self._at += count

    def drain(self) -> None:
        while self.some(1 << 20):
            pass


def is_tar(start: bytes) -> bool:
    """Tell whether something that starts like this is a tar archive: by the checksum in its first header."""
    block = start[:BLOCK]
    stored = block[148:156].partition(b"\0")[0].strip(b" ")
    if len(block) < BLOCK or not stored or stored.strip(b"01234567"):
        return False
    found, expected = int(stored, 8), _sum(block) - sum(block[148:156]) + 8 * 32
    # Old archivers added bytes as signed numbers.
    return found == expected or found == expected - 256 * sum(byte >> 7 for byte in block[:148] + block[156:])


def _sum(block: bytes) -> int:
    """Return the sum of a block's bytes: half of Adler-32 (RFC 1950, section 9) is one, of as many bytes as these."""
    return (zlib.adler32(block[:256], 0) & 0xFFFF) + (zlib.adler32(block[256:], 0) & 0xFFFF)


class TarReader:
    """Iterates over the entries of one archive.

    The content of the entry just returned is read with ``content``; what the caller leaves is passed over.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._left = 0
        self._padding = 0

    def __iter__(self) -> Iterator[Entry]:
        # What the special entries before a real one say of it, by their type.
        special: dict[bytes, bytes] = {}
        while True:
            # What the caller left of the last entry's content.
            self._source.skip(self._left)
            # What only fills the last block, umoci and others leave out at the end of an archive.
            self._source.skip_if_there(self._padding)
            self._left = self._padding = 0
            block = self._header_block()
            if block is None:
                if special:
                    raise TarError("the archive ends after an extended header")
                return
            kind = block[156:157]
            if kind == b"g":
                _check_global(_pax_records(self._special(block)))
            elif kind in _SPECIAL:
                kind = b"x" if kind == b"X" else kind
                if kind in special:
                    raise TarError("two extended headers for one entry")
                special[kind] = self._special(block)
            elif special:
                pax = _pax_records(special.get(b"x", b""))
                name, link = (special.get(which, b"").partition(b"\0")[0] for which in (b"L", b"K"))
                special.clear()
                yield self._entry(block, pax, name, link)
            else:
                yield self._entry(block, {}, b"", b"")

    def content(self) -> Iterator[memoryview]:
        """Yield the stored bytes of the current entry, piece by piece (of a sparse file: its parts in order)."""
        while self._left:
            piece = self._source.some(self._left)
            if not piece:
                raise TarError(f"the archive ends {self._left} bytes too early")
            self._left -= len(piece)
            yield piece

    def _header_block(self) -> bytes | None:
        """Return the next header, or None at the end: two blocks of zeros, or the end of the stream between
        entries."""
        first = self._source.some(BLOCK)
        if not first:
            return None
        block = bytes(first)
        if len(block) < BLOCK:
            block += self._source.exactly(BLOCK - len(block))
        if block == _ZERO:
            second = self._source.some(1)
            if second and (bytes(second) + self._source.exactly(BLOCK - 1)) != _ZERO:
                raise TarError("a block of zeros between entries, which some take for the end and others do not")
            return None
        if not is_tar(block):
            raise TarError("not a tar archive, or a damaged one: a header fails its checksum")
        return block

    def _special(self, block: bytes) -> bytes:
        size = _number(block[124:136], "size")
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise TarError(f"an extended header of {size} bytes is longer than {_MAX_HEADER_BYTES}, or of none")
        data = self._source.exactly(size)
        self._source.skip(-size % BLOCK)
        return data

    def _entry(self, block: bytes, pax: dict[str, bytes], name: bytes, link: bytes) -> Entry:
        fields = _HEADER.unpack(block)
        raw_kind = fields[7]
        kind = _KINDS.get(raw_kind)
        short = fields[0].partition(b"\0")[0]
        # GNU headers keep other things where ustar has the prefix.
        if fields[9] == b"ustar\0" and fields[15][0]:
            prefix = fields[15][:131] if block[508:] == b"tar\0" else fields[15]  # star has times behind it
            short = prefix.partition(b"\0")[0] + b"/" + short
        full = _one_name(pax.get("path", b""), name, short)
        if kind is None:
            raise TarError(f"entry {full!r} has the unknown type {raw_kind!r}")
        if raw_kind == b"\0" and full.endswith(b"/"):
            kind = EntryKind.DIRECTORY  # as archives before POSIX wrote them
        entry = Entry(kind, full)
        entry.link = _one_name(pax.get("linkpath", b""), link, fields[8].partition(b"\0")[0])
        entry.mode = _number(fields[1], "mode") & 0o7777
        entry.uid = _identity(fields[2], pax, "uid")
        if entry.uid > MAX_USER:
            entry.mode &= ~stat.S_ISUID  # who runs it could become the owner of a pod's user namespace
        entry.gid = _identity(fields[3], pax, "gid")
        size = _decimal(pax["size"], "size") if "size" in pax else _number(fields[4], "size")
        entry.mtime = _nanoseconds(pax["mtime"]) if "mtime" in pax else _number(fields[5], "mtime") * 1_000_000_000
        if kind in (EntryKind.CHARACTER, EntryKind.BLOCK):
            entry.major, entry.minor = _number(fields[13], "major"), _number(fields[14], "minor")
        if size < 0:
            raise TarError(f"entry {full!r} has the size {size}")
        # Links, directories and devices have no content, whatever size their header gives.
        if kind is EntryKind.FILE:
            self._left = size
            self._padding = -size % BLOCK
        entry.size = size if kind is EntryKind.FILE else 0
        for key, value in pax.items():
            if key.startswith("SCHILY.xattr."):
                entry.xattrs[key[13:]] = value
        if raw_kind == b"S":
            self._old_sparse(entry, block)
        elif pax.keys() & _SPARSE_KEYS:
            self._pax_sparse(entry, pax)
        return entry

    def _old_sparse(self, entry: Entry, block: bytes) -> None:
        """GNU type ``S``: four parts in the header, 21 in each block that follows."""
        parts: list[tuple[int, int]] = []
        area, count, more = block[386:482], 4, block[482]
        while True:
            for number in range(count):
                offset = area[24 * number : 24 * number + 12]
                if offset[0]:
                    length = area[24 * number + 12 : 24 * number + 24]
                    parts.append((_number(offset, "sparse offset"), _number(length, "sparse length")))
            if not more:
                break
            area = self._source.exactly(BLOCK)
            count, more = 21, area[504]
            if len(parts) > _MAX_SPARSE_PARTS:
                raise TarError(f"entry {entry.name!r} has more than {_MAX_SPARSE_PARTS} parts")
        self._set_parts(entry, parts, _number(block[483:495], "real size"))

    def _pax_sparse(self, entry: Entry, pax: dict[str, bytes]) -> None:
        """PAX sparse formats of GNU tar: 0.0 (as ``_pax_records`` puts it), 0.1 and 1.0."""
        if entry.kind is not EntryKind.FILE:
            raise TarError(f"entry {entry.name!r} is a sparse {entry.kind.value}")
        entry.name = pax.get("GNU.sparse.name") or entry.name
        version = (pax.get("GNU.sparse.major", b"0"), pax.get("GNU.sparse.minor", b"0"))
        if version == (b"1", b"0"):
            numbers = self._sparse_map_in_data()
        elif version in ((b"0", b"0"), (b"0", b"1")) and "GNU.sparse.map" in pax:
            numbers = [_decimal(text, "GNU.sparse.map") for text in pax["GNU.sparse.map"].split(b",")]
        else:
            raise TarError(f"entry {entry.name!r} is sparse in a form that cannot be read")
        real = _decimal(pax.get("GNU.sparse.size") or pax.get("GNU.sparse.realsize", b""), "GNU.sparse.size")
        if len(numbers) % 2 or len(numbers) > 2 * _MAX_SPARSE_PARTS:
            raise TarError(f"entry {entry.name!r} has a sparse map of {len(numbers)} numbers")
        self._set_parts(entry, list(zip(numbers[::2], numbers[1::2], strict=True)), real)

    def _sparse_map_in_data(self) -> list[int]:
        """Format 1.0: decimal lines before the data, a count of pairs first, padded to a block."""
        numbers: list[int] = []
        rest = b""
        wanted = 1
        while len(numbers) < wanted:
            if self._left < BLOCK:
                raise TarError("a sparse map does not end")
            lines = (rest + self._source.exactly(BLOCK)).split(b"\n")
            self._left -= BLOCK
            rest = lines.pop()
            if len(rest) > BLOCK:
                raise TarError("sparse map is not a decimal number")
            numbers += [_decimal(line, "sparse map") for line in lines[: wanted - len(numbers)]]
            if wanted == 1 and numbers:
                if not 0 <= numbers[0] <= _MAX_SPARSE_PARTS:
                    raise TarError(f"a sparse map of {numbers[0]} parts: not one of {_MAX_SPARSE_PARTS} at most")
                wanted += 2 * numbers[0]
                numbers += [_decimal(line, "sparse map") for line in lines[1:wanted]]
        return numbers[1:]

    def _set_parts(self, entry: Entry, parts: list[tuple[int, int]], real: int) -> None:
        if real < 0:
            raise TarError(f"entry {entry.name!r} has the size {real}")
        end = 0
        for offset, length in parts:
            if offset < end or length < 0 or offset + length > real:
                raise TarError(f"entry {entry.name!r} has a sparse map that is out of order or beyond its size")
            end = offset + length
        # Data that no part covers would be content that readers do not agree on.
        if sum(length for _, length in parts) != self._left:
            raise TarError(f"entry {entry.name!r} has a sparse map that does not match its data")
        entry.parts = [part for part in parts if part[1]]
        entry.size = real


_SPECIAL = (b"x", b"X", b"L", b"K")
"""PAX header (also as Solaris marks it), GNU long name, GNU long link target."""
_SPARSE_KEYS = {"GNU.sparse.map", "GNU.sparse.major", "GNU.sparse.numblocks"}
_GLOBAL_KEYS = ("path", "linkpath", "size", "uid", "gid", "mtime")


def _check_global(records: dict[str, bytes]) -> None:
    """Refuse a global header that changes what is unpacked: POSIX applies it to all entries, Go's reader to none."""
    for key in records:
        if key in _GLOBAL_KEYS or key.startswith(("SCHILY.xattr.", "GNU.sparse.")):
            raise TarError(f"a global header changes {key}, which not everybody respects")


def _one_name(pax: bytes, gnu: bytes, short: bytes) -> bytes:
    if pax and gnu and pax != gnu:
        raise TarError(f"one entry has names of two kinds, {pax[:200]!r} and {gnu[:200]!r}")
    return pax or gnu or short


def _identity(field: bytes, pax: dict[str, bytes], name: str) -> int:
    value = _decimal(pax[name], name) if name in pax else _number(field, name)
    if not 0 <= value < 0xFFFFFFFF:
        raise TarError(f"{name} {value} is out of range")
    return value


@lru_cache(maxsize=1024)  # modes, owners and times are the same in many entries
def _number(field: bytes, what: str) -> int:
    """Return an octal field, or GNU's base-256 form with the top bit set."""
    if field and field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=True)
        if not field[0] & 0x40:
            value &= (1 << (8 * len(field) - 1)) - 1
        if not -(1 << 63) <= value < 1 << 63:
            raise TarError(f"a header's {what} is too large")
        return value
    text = field.strip(b" \0").partition(b"\0")[0].rstrip(b" ")
    if not text:
        return 0
    if text.strip(b"01234567"):
        raise TarError(f"a header's {what} is not an octal number")
    return int(text, 8)


def _decimal(text: bytes, what: str) -> int:
    digits = text[1:] if text[:1] == b"-" else text
    # 19 digits are 64 bits; Python takes the square of time for longer numbers.
    if not digits.isdigit() or len(digits) > 19:
        raise TarError(f"{what} is not a decimal number")
    return int(text)


def _nanoseconds(text: bytes) -> int:
    """Return PAX seconds with an optional fraction as nanoseconds, exactly."""
    whole, _, fraction = text.partition(b".")
    if fraction and not fraction.isdigit():
        raise TarError("mtime is not a number")
    seconds = _decimal(whole, "mtime")
    nanoseconds = int((fraction + b"000000000")[:9])
    return seconds * 1_000_000_000 + (-nanoseconds if whole.startswith(b"-") else nanoseconds)


def _pax_records(data: bytes) -> dict[str, bytes]:
    """Return the records of a PAX header: ``length key=value\\n``, without those whose value is empty, which means
    that the header's own counts; the map of sparse format 0.0, which repeats keywords, as format 0.1 writes it."""
    records: dict[str, bytes] = {}
    sparse: list[bytes] = []
    position = 0
    while position < len(data):
        # Bounded: a length of more digits is beyond what a header may have, and int() of it takes long.
        space = data.find(b" ", position, position + 12)
        digits = data[position:space] if space > 0 else b""
        if not digits.isdigit():
            if not data[position:].strip(b"\0"):
                break
            raise TarError("a PAX header has a record without a length")
        end = position + int(digits)
        raw_key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end > len(data) or end <= space or data[end - 1 : end] != b"\n" or not equals or not raw_key:
            raise TarError("a PAX header has a record with a wrong length")
        position = end
        key = raw_key.decode(errors="surrogateescape")
        # Programs in C end a name at a NUL, others do not: an entry would have two names.
        if b"\0" in raw_key or (b"\0" in value and not key.startswith("SCHILY.xattr.")):
            raise TarError(f"a PAX header has a zero byte in {key[:100]!r}")
        if key in _SPARSE_PAIR:
            if key != _SPARSE_PAIR[len(sparse) % 2] or b"," in value:
                raise TarError("a PAX header has a sparse map that is out of order or beyond its size")
            sparse.append(value)
        elif value or key.startswith("SCHILY.xattr."):
            records[key] = value
        else:
            records.pop(key, None)
    if sparse:
        records["GNU.sparse.map"] = b",".join(sparse)
    return records


_SPARSE_PAIR = ("GNU.sparse.offset", "GNU.sparse.numbytes")
