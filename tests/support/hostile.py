"""The hostile corpus: layers that lie, flood, or try to leave their root, each with what must come of it.

Every driver gives the same verdict: ``refused`` (a pattern of the message) or ``tree`` (in short, as
``unpacking.outline`` writes it). Generators, so that a member of a terabyte is a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from support.tarmaker import BLOCK_DEVICE as BLOCK
from support.tarmaker import (
    CHARACTER,
    DIRECTORY,
    END,
    FIFO,
    FILE,
    GNU,
    HARDLINK,
    NO_MAGIC,
    SYMLINK,
    base256,
    directory,
    entry,
    hardlink,
    header,
    long_name,
    octal,
    old_sparse,
    padded,
    pax,
    symlink,
)

ESCAPED = b"escaped"


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """One layer and its verdict."""

    archive: bytes | Callable[[], Iterator[bytes]]
    refused: str = ""
    tree: Mapping[str, str] = field(default_factory=dict)

    def pieces(self) -> Iterator[bytes]:
        """Return the archive."""
        if isinstance(self.archive, bytes):
            yield self.archive
        else:
            yield from self.archive()


def _refused(pattern: str, *parts: bytes) -> Hostile:
    return Hostile(archive=b"".join(parts) + END, refused=pattern)


def _tree(tree: Mapping[str, str], *parts: bytes) -> Hostile:
    return Hostile(archive=b"".join(parts) + END, tree=tree)


OUT = b"../../../../../../../../tmp"
X = entry(b"x", data=b"x")
CAP_V2 = b"\x01\0\0\x02" + bytes([0, 4, 0, 0]) + bytes(12)
CAP_V3 = b"\x01\0\0\x03" + bytes([0, 4, 0, 0]) + bytes(12) + (1000).to_bytes(4, "little")

NAMES = {
    "dot-dot": _refused(r"entry '\.\./escaped': its name '\.\./escaped' holds '\.\.'", entry(b"../escaped")),
    "dot-dot inside": _refused(r"holds '\.\.'", directory(b"a"), entry(b"a/../../escaped")),
    "dot-dot that stays": _refused(r"holds '\.\.'", directory(b"a"), entry(b"a/../b")),
    "dot-dot at the end": _refused(r"holds '\.\.'", directory(b"a/..")),
    "only dot-dot": _refused(r"holds '\.\.'", directory(b"..")),
    "absolute": _tree({"tmp": "d", "tmp/escaped": "f:x"}, entry(b"/tmp/escaped", data=b"x")),
    "absolute with slashes": _tree({"tmp": "d", "tmp/escaped": "f:x"}, entry(b"///tmp//escaped", data=b"x")),
    "absolute with dot-dot": _refused(r"holds '\.\.'", entry(b"/../escaped")),
    "empty name": _refused(r"an entry has no name", entry(b"")),
    "empty name of a directory": _refused(r"an entry has no name", directory(b"")),
    "empty PAX path": _tree({"x": "f:x"}, pax({b"path": b""}), X),
    "root as a file": _refused(r"the root is a file", entry(b"./")),
    "root as a symlink": _refused(r"the root is a symbolic link", symlink(b"/", b"x")),
    "root as a hard link": _refused(r"the root is a hard link", X, hardlink(b".", b"x")),
    "name of 255 bytes": _tree({"n" * 255: "f:"}, pax({b"path": b"n" * 255}), entry(b"n")),
    "name of 256 bytes": _refused(
        r"holds a name of 256 bytes, longer than the 255", pax({b"path": b"n" * 256}), entry(b"n")
    ),
    "name of 256 bytes as a parent": _refused(r"a name of 256 bytes", pax({b"path": b"n" * 256 + b"/x"}), entry(b"n")),
    "path of 4096 bytes": _refused(
        r"of 4096 bytes, longer than the 4095", pax({b"path": b"d/" * 2047 + b"dd"}), entry(b"n")
    ),
    "10,000 directories deep": _refused(
        r"of 19999 bytes, longer than the 4095", pax({b"path": b"/".join([b"d"] * 10000)}), directory(b"n")
    ),
    "deep by way of links": _refused(
        r"of \d+ bytes, longer than the 4095",
        pax({b"path": b"/".join([b"d"] * 1500)}),
        directory(b"d"),
        pax({b"linkpath": b"/".join([b"d"] * 1500)}),
        symlink(b"s", b""),
        pax({b"path": b"s/" + b"/".join([b"d"] * 1500)}),
        directory(b"d"),
    ),
    "not UTF-8": _tree({"\\xff\\xfe": "f:"}, entry(b"\xff\xfe")),
    "newlines and escapes": _tree({"a\nb\x1b[31m": "f:"}, entry(b"a\nb\x1b[31m")),
    "unknown type": _refused(r"has the unknown type b'Q'", entry(b"x", b"Q")),
    "volume label": _refused(r"has the unknown type b'V'", entry(b"x", b"V")),
    "socket": _refused(r"has the unknown type b's'", entry(b"x", b"s")),
    "V7 directory": _tree({"d": "d"}, header(b"d/", b"\0", magic=NO_MAGIC, size=1)),
    "star prefix": _tree(
        {"p": "d", "p/x": "f:"},
        header(b"x", tail=b"p".ljust(131, b"\0") + b"0" * 11 + b"\0" + b"0" * 11 + b"\0" + bytes(8) + b"tar\0"),
    ),
    "name in GNU's prefix": _tree({"x": "f:"}, header(b"x", magic=GNU, prefix=b"00000000000")),
}

PARENTS = {
    "absolute symlink parent": _refused(
        r"parent 'a' is a symbolic link that leaves", symlink(b"a", b"/tmp"), entry(b"a/escaped")
    ),
    "relative symlink parent": _refused(
        r"parent 'a' is a symbolic link that leaves", symlink(b"a", OUT), entry(b"a/escaped")
    ),
    "symlink parent that leaves and returns": _refused(
        r"parent 'd/a' is a symbolic link that leaves", directory(b"d"), symlink(b"d/a", b"../../d"), entry(b"d/a/x")
    ),
    "symlink to a symlink out": _refused(
        r"parent 'b' is a symbolic link that leaves", symlink(b"a", b".."), symlink(b"b", b"a/x"), entry(b"b/escaped")
    ),
    "chain of symlinks out": _refused(
        r"parent 'c/x' is a symbolic link that leaves",
        symlink(b"a", b"b"),
        directory(b"b"),
        symlink(b"b/x", b"../.."),
        symlink(b"c", b"a"),
        entry(b"c/x/escaped"),
    ),
    "symlink to the root": _refused(
        r"parent 'a' is a symbolic link that leaves", symlink(b"a", b"/"), entry(b"a/escaped")
    ),
    "symlink loop": _refused(
        r"parent 'a' is a symbolic link that leads in circles", symlink(b"a", b"b"), symlink(b"b", b"a"), entry(b"a/x")
    ),
    "symlink to itself": _refused(r"leads in circles", symlink(b"a", b"a"), entry(b"a/x")),
    "dangling symlink parent": _refused(
        r"parent 'a' is a symbolic link to nothing", symlink(b"a", b"nowhere"), entry(b"a/x")
    ),
    "dangling symlink above a parent": _refused(
        r"parent 'a' is a symbolic link to nothing", symlink(b"a", b"nowhere"), entry(b"a/b/x")
    ),
    "symlink parent to a file": _refused(r"parent 'a' is not a directory", X, symlink(b"a", b"x"), entry(b"a/y")),
    "symlink swapped in for a parent": _refused(
        r"parent 'a' is a symbolic link that leaves",
        directory(b"a"),
        entry(b"a/x"),
        symlink(b"a", b"/tmp"),
        entry(b"a/escaped"),
    ),
    "symlink swapped in above a parent": _refused(
        r"parent 'a/b' is a symbolic link that leaves|parent 'a' is a symbolic link that leaves",
        directory(b"a/b"),
        entry(b"a/b/x"),
        symlink(b"a", b"/tmp"),
        entry(b"a/b/escaped"),
    ),
    "hard link to a symlink as a parent": _refused(
        r"parent 'h' is a symbolic link that leaves", symlink(b"s", b"/tmp"), hardlink(b"h", b"s"), entry(b"h/escaped")
    ),
    "write through a symlink": _tree({"s": "f:x"}, symlink(b"s", b"/tmp/escaped"), entry(b"s", data=b"x")),
    "write through a hard link to a symlink": _tree(
        {"s": "l:/tmp/escaped", "h": "f:x"},
        symlink(b"s", b"/tmp/escaped"),
        hardlink(b"h", b"s"),
        entry(b"h", data=b"x"),
    ),
    "write through a hard link": _tree(
        {"a": "f:old", "b": "f:new"}, entry(b"a", data=b"old"), hardlink(b"b", b"a"), entry(b"b", data=b"new")
    ),
    "file as parent": _refused(r"parent 'a' is not a directory", entry(b"a"), entry(b"a/b")),
    "fifo as parent": _refused(r"parent 'a' is not a directory", entry(b"a", FIFO), entry(b"a/b")),
    "symlink inside the root": _tree(
        {"usr": "d", "usr/lib": "d", "usr/lib/x": "f:x", "lib": "l:usr/lib"},
        directory(b"usr/lib"),
        symlink(b"lib", b"usr/lib"),
        entry(b"lib/x", data=b"x"),
    ),
    "symlink with .. inside the root": _tree(
        {"a": "d", "a/s": "l:../b", "b": "d", "b/x": "f:x"},
        directory(b"a"),
        directory(b"b"),
        symlink(b"a/s", b"../b"),
        entry(b"a/s/x", data=b"x"),
    ),
    "file replaced by a directory and back": _tree(
        {"a": "f:x", "b": "d", "b/y": "f:y"},
        entry(b"a", data=b"x"),
        directory(b"a"),
        entry(b"a/inside"),
        entry(b"a", data=b"x"),
        directory(b"b"),
        entry(b"b/inside"),
        entry(b"b"),
        directory(b"b"),
        entry(b"b/y", data=b"y"),
    ),
    "directory replaced while its parent is in use": _tree(
        {"a": "d", "a/b": "l:c", "a/c": "d", "a/c/y": "f:y"},
        entry(b"a/b/x"),
        directory(b"a/c"),
        symlink(b"a/b", b"c"),
        entry(b"a/b/y", data=b"y"),
    ),
    "a directory is replaced through a link to what is above it": _tree(
        {"s": "l:.", "d": "f:now"}, symlink(b"s", b"."), entry(b"d/x"), entry(b"s/d", data=b"now")
    ),
    "directory over a symlink to a directory": _tree(
        {"real": "d", "link": "d", "link/x": "f:x"},
        directory(b"real"),
        symlink(b"link", b"real"),
        directory(b"link"),
        entry(b"link/x", data=b"x"),
    ),
}

LINKS = {
    "hard link out": _refused(r"its target '\.\./\.\./secret' holds '\.\.'", hardlink(b"a", b"../../secret")),
    "absolute hard link": _tree({"a": "f:x", "x": "=a"}, X, hardlink(b"a", b"/x")),
    "absolute hard link out": _refused(r"hard link to '/etc/passwd', which this layer", hardlink(b"a", b"/etc/passwd")),
    "hard link through a symlink": _refused(
        r"parent 's' is a symbolic link that leaves", symlink(b"s", b"/etc"), hardlink(b"a", b"s/passwd")
    ),
    "hard link to a symlink": _tree(
        {"a": "l:/etc/passwd", "s": "=a"}, symlink(b"s", b"/etc/passwd"), hardlink(b"a", b"s")
    ),
    "hard link to a directory": _refused(
        r"entry 'a': a hard link to the directory 'd'", directory(b"d"), hardlink(b"a", b"d")
    ),
    "hard link to the root": _refused(r"a hard link to the root", hardlink(b"a", b"./")),
    "hard link to an empty name": _refused(r"no target", hardlink(b"a", b"")),
    "hard link to a whiteout": _refused(
        r"hard link to 'w', which this layer does not have", entry(b".wh.w"), hardlink(b"a", b"w")
    ),
    "hard link to a whiteout's marker": _refused(
        r"hard link to '\.wh\.w', which this layer does not have", entry(b".wh.w"), hardlink(b"a", b".wh.w")
    ),
    "hard link to itself": _tree({"x": "f:x"}, X, hardlink(b"x", b"x")),
    "hard link to itself, missing": _refused(r"which this layer does not have", hardlink(b"x", b"x")),
    "hard link to itself by another way": _tree(
        {"x": "f:x", "s": "l:."}, X, symlink(b"s", b"."), hardlink(b"x", b"s/x")
    ),
    "hard link to missing": _refused(r"hard link to 'm', which this layer does not have", hardlink(b"a", b"m")),
    "hard link to a missing directory": _refused(r"hard link to 'no/f', which this layer", hardlink(b"a", b"no/f")),
    "hard link below a file": _refused(
        r"hard link to 'x/f', which this layer|not a directory", X, hardlink(b"a", b"x/f")
    ),
    "hard link that replaces its target's directory": _refused(
        r"which this layer does not have", entry(b"d/x"), hardlink(b"d", b"d/x")
    ),
    "hard link over a directory": _tree({"d": "f:x", "x": "=d"}, X, directory(b"d"), hardlink(b"d", b"x")),
    "hard link with content": _tree({"a": "f:x", "x": "=a"}, X, header(b"a", HARDLINK, link=b"x", size=99)),
    "symlink to nothing": _refused(
        r"a symbolic link to nothing|symbolic link with an empty target", symlink(b"s", b"")
    ),
    "symlink of 4096 bytes": _refused(
        r"target of 4096 bytes, longer than the 4095", pax({b"linkpath": b"t" * 4096}), symlink(b"s", b"")
    ),
}

WHITEOUTS = {
    "whiteout": _tree({"w": "w"}, entry(b".wh.w")),
    "whiteout twice": _tree({"w": "w"}, entry(b".wh.w"), entry(b".wh.w")),
    "whiteout of nothing": _refused(r"a whiteout of nothing", entry(b".wh.")),
    "whiteout of .": _refused(r"a whiteout of nothing", entry(b"a/.wh..")),
    "whiteout of ..": _refused(r"a whiteout of nothing", entry(b"a/.wh...")),
    "whiteout as a parent": _refused(r"'\.wh\.' is a whiteout's name", entry(b".wh./x")),
    "whiteout directory as a parent": _refused(
        r"'\.wh\.d' is a whiteout's name", directory(b".wh.d"), entry(b".wh.d/x")
    ),
    "whiteout that is a directory": _tree({"d": "w"}, directory(b".wh.d/")),
    "whiteout that is a symlink": _tree({"d": "w"}, symlink(b".wh.d", b"/etc")),
    "whiteout that is a device": _tree({"d": "w"}, entry(b".wh.d", BLOCK, device=(8, 0))),
    "AUFS's own": _tree({}, entry(b".wh..wh.x"), directory(b".wh..wh.plnk"), entry(b".wh..wh.plnk/1.2", data=b"x")),
    "whiteout through a symlink": _refused(
        r"symbolic link that leaves", symlink(b"s", b"/tmp"), entry(b"s/.wh.escaped")
    ),
    "opaque through a symlink out": _refused(
        r"symbolic link that leaves", symlink(b"s", b"/tmp"), entry(b"s/.wh..wh..opq")
    ),
    "opaque root": _tree({".": "d!", "x": "f:x"}, entry(b".wh..wh..opq"), X),
    "opaque twice": _tree({"d": "d!"}, entry(b"d/.wh..wh..opq"), entry(b"d/.wh..wh..opq")),
    "opaque after content": _tree({"d": "d!", "d/x": "f:x"}, entry(b"d/x", data=b"x"), entry(b"d/.wh..wh..opq")),
    "opaque through a symlink": _tree(
        {"d": "d!", "s": "l:d"}, directory(b"d"), symlink(b"s", b"d"), entry(b"s/.wh..wh..opq")
    ),
    "opaque, then a file": _tree({"d": "f:x"}, entry(b"d/.wh..wh..opq"), entry(b"d", data=b"x")),
    "opaque, then a symlink to another": _tree(
        {"d": "l:e", "e": "d", "e/x": "f:x"},
        entry(b"e/x", data=b"x"),
        entry(b"d/.wh..wh..opq"),
        symlink(b"d", b"e"),
    ),
    "opaque through a symlink that changes": _tree(
        {"d": "d!", "s": "l:e", "e": "d"},
        directory(b"d"),
        directory(b"e"),
        symlink(b"s", b"d"),
        entry(b"s/.wh..wh..opq"),
        symlink(b"s", b"e"),
    ),
    "opaque as a parent": _refused(r"is a whiteout's name", entry(b"d/.wh..wh..opq/x")),
    "whiteout, then a file": _tree({"x": "f:x"}, entry(b".wh.x"), X),
    "whiteout, then a directory": _tree({"d": "d!"}, entry(b".wh.d"), directory(b"d")),
    "whiteout, then a file inside": _tree({"d": "d!", "d/x": "f:x"}, entry(b".wh.d"), entry(b"d/x", data=b"x")),
    "whiteout, then deep inside": _tree(
        {"d": "d!", "d/e": "d", "d/e/x": "f:x"}, entry(b".wh.d"), entry(b"d/e/x", data=b"x")
    ),
    "whiteout, then a file and a directory": _tree({"d": "d"}, entry(b".wh.d"), entry(b"d"), directory(b"d")),
    "a file, then its whiteout": _tree({"x": "f:x"}, X, entry(b".wh.x")),
    "a directory, then its whiteout": _tree({"d": "d!", "d/x": "f:x"}, entry(b"d/x", data=b"x"), entry(b".wh.d")),
    "whiteout through a symlink, then a directory": _tree(
        {"s": "l:d", "d": "d", "d/e": "d!"}, directory(b"d"), symlink(b"s", b"d"), entry(b"s/.wh.e"), directory(b"d/e")
    ),
    "whiteout through a symlink, then a file inside": _tree(
        {"s": "l:d", "d": "d", "d/e": "d!", "d/e/x": "f:x"},
        directory(b"d"),
        symlink(b"s", b"d"),
        entry(b"d/.wh.e"),
        entry(b"s/e/x", data=b"x"),
    ),
    "whiteout of a name of 255 bytes": _refused(
        r"holds a name of 259 bytes", pax({b"path": b".wh." + b"n" * 255}), entry(b"n")
    ),
}

DEVICES = {
    "disk": _refused(r"block device 8:0 is refused", entry(b"sda", BLOCK, device=(8, 0))),
    "memory": _refused(r"character device 1:1 is refused", entry(b"mem", CHARACTER, device=(1, 1))),
    "fuse": _refused(r"character device 10:229 is refused", entry(b"fuse", CHARACTER, device=(10, 229))),
    "forged whiteout": _refused(r"character device 0:0, overlayfs's own", entry(b"w", CHARACTER)),
    "huge numbers": _refused(
        r"character device \d+:\d+ is refused|out of range",
        header(b"x", CHARACTER, device=(0o7777777, 0o7777777)),
    ),
    "fifo and null": _tree({"p": "p", "null": "c:1:3"}, entry(b"p", FIFO), entry(b"null", CHARACTER, device=(1, 3))),
    "device with content": _tree({"p": "p"}, header(b"p", FIFO, size=99)),
}


def _xattr(name: bytes, value: bytes, kind: bytes = FILE, **more: object) -> bytes:
    return pax({b"SCHILY.xattr." + name: value}) + entry(b"x", kind, **more)


XATTRS = {
    "overlay's attribute": _refused(
        r"extended attributes of the trusted namespace", _xattr(b"trusted.overlay.redirect", b"/etc", DIRECTORY)
    ),
    "overlay's escaped attribute": _refused(
        r"extended attributes of the trusted namespace", _xattr(b"trusted.overlay.overlay.opaque", b"y", DIRECTORY)
    ),
    "overlay's attribute on a whiteout": _refused(
        r"extended attributes of the trusted namespace", pax({b"SCHILY.xattr.trusted.a": b"b"}), entry(b".wh.x")
    ),
    "overlay's attribute on a hard link": _refused(
        r"extended attributes of the trusted", X, pax({b"SCHILY.xattr.trusted.a": b"b"}), hardlink(b"y", b"x")
    ),
    "unknown namespace": _refused(r"extended attribute 'odd\.x' is of no known", _xattr(b"odd.x", b"1")),
    "no namespace": _refused(r"extended attribute '' is of no known", _xattr(b"", b"1")),
    "namespace and no name": _refused(r"extended attribute 'user\.' has no name", _xattr(b"user.", b"1")),
    "name with NUL": _refused(r"zero byte", _xattr(b"user.a\0b", b"1")),
    "name of 256 bytes": _refused(r"name of 256 bytes, longer than the 255", _xattr(b"user." + b"n" * 251, b"1")),
    "value of 64 KiB and one": _refused(r"of 65537 bytes, longer than the 65536", _xattr(b"user.a", bytes(65537))),
    "many attributes": _refused(
        r"extended attributes of \d+ bytes|no space for its extended attributes",
        pax((b"SCHILY.xattr.user.%d" % number, b"v" * 90) for number in range(8000)),
        entry(b"x"),
    ),
    "security labels": _tree(
        {"x": "f:"},
        pax({b"SCHILY.xattr.security.selinux": b"system_u:object_r:shadow_t:s0", b"SCHILY.xattr.security.ima": b"x"}),
        entry(b"x"),
    ),
    "attributes of a symlink": _tree(
        {"s": "l:x"},
        pax({b"SCHILY.xattr.user.a": b"b", b"SCHILY.xattr.security.capability": CAP_V2}),
        symlink(b"s", b"x"),
    ),
    "capability of a wrong size": _refused(
        r"security\.capability.* is not valid", _xattr(b"security.capability", CAP_V2[:-1])
    ),
    "capability of a wrong version": _refused(
        r"security\.capability.* is not valid", _xattr(b"security.capability", b"\x01\0\0\x09" + CAP_V2[4:])
    ),
    "capability of version 1": _refused(
        r"security\.capability.* is not valid", _xattr(b"security.capability", b"\x01\0\0\x01" + bytes(8))
    ),
    "ACL that is none": _refused(r"cannot write it: Invalid argument", _xattr(b"system.posix_acl_access", b"x")),
}

PAX = {
    "path with NUL": _refused(r"zero byte in .path", pax({b"path": b"a\0b"}), entry(b"x")),
    "linkpath with NUL": _refused(r"zero byte in .linkpath", pax({b"linkpath": b"a\0b"}), symlink(b"x", b"y")),
    "10 MB header": _refused(r"an extended header of \d+ bytes is longer", pax({b"comment": bytes(10_000_000)}), X),
    "header that claims a terabyte": _refused(
        r"an extended header of 1099511627776 bytes is longer", header(b"x", b"x", size=base256(1 << 40, 12))
    ),
    "long name that claims a terabyte": _refused(
        r"an extended header of 1099511627776 bytes is longer", header(b"x", b"L", size=base256(1 << 40, 12))
    ),
    "header of negative size": _refused(r"an extended header of -1 bytes", header(b"x", b"x", size=base256(-1, 12))),
    "negative size": _refused(r"has the size -1", pax({b"size": b"-1"}), X),
    "huge size": _refused(r"more than \d+ bytes|ends \d+ bytes too early", pax({b"size": b"9999999999999999999"}), X),
    "size with 20 digits": _refused(r"size is not a decimal number", pax({b"size": b"9" * 20}), X),
    "negative owner": _refused(r"uid -1 is out of range", pax({b"uid": b"-1"}), X),
    "owner 2^32-1": _refused(r"uid 4294967295 is out of range", pax({b"uid": b"4294967295"}), X),
    "group 2^64": _refused(
        r"gid 18446744073709551616 is |gid is not a decimal", pax({b"gid": b"18446744073709551616"}), X
    ),
    "empty numbers": _tree(
        {"x": "f:x"}, pax({b"uid": b"", b"gid": b"", b"size": b"", b"mtime": b"", b"linkpath": b""}), X
    ),
    "not a number": _refused(r"mtime is not a", pax({b"mtime": b"nan"}), X),
    "number with an exponent": _refused(r"mtime is not a", pax({b"mtime": b"1e9"}), X),
    "number with an underscore": _refused(r"size is not a decimal number", pax({b"size": b"1_0"}), X),
    "number in other digits": _refused(r"size is not a decimal number", pax({b"size": "\u0661".encode()}), X),
    "repeated records": _tree({"last": "f:x"}, pax([(b"path", b"first"), (b"path", b"last")]), X),
    "two headers": _refused(r"two extended headers for one entry", pax({b"path": b"a"}), pax({b"size": b"1"}), X),
    "two long names": _refused(r"two extended headers for one entry", long_name(b"a"), long_name(b"b"), X),
    "chain of 100 long names": _refused(r"two extended headers for one entry", *[long_name(b"n" * 900_000)] * 100, X),
    "long name and PAX path": _refused(r"names of two kinds", pax({b"path": b"a"}), long_name(b"b"), X),
    "long name and PAX path that agree": _tree({"a": "f:x"}, pax({b"path": b"a"}), long_name(b"a"), X),
    "long link and PAX linkpath": _refused(
        r"names of two kinds", pax({b"linkpath": b"a"}), long_name(b"b", b"K"), symlink(b"s", b"c")
    ),
    "record without a length": _refused(r"a record without a length", entry(b"p", b"x", b"path=x\n"), X),
    "record longer than the header": _refused(r"a record with a wrong length", entry(b"p", b"x", b"99 path=x\n"), X),
    "record of length zero": _refused(r"a record with a wrong length", entry(b"p", b"x", b"0 path=x\n"), X),
    "record of negative length": _refused(r"a record without a length", entry(b"p", b"x", b"-9 path=x\n"), X),
    "record without an equals sign": _refused(r"a record with a wrong length", entry(b"p", b"x", b"7 path\n"), X),
    "record without a keyword": _refused(r"a record with a wrong length", entry(b"p", b"x", b"5 =x\n"), X),
    "records after zeros": _refused(
        r"a record without a length", entry(b"p", b"x", b"8 a=bcd\n"[:8] + b"\0\0" + b"9 path=y\n"), X
    ),
    "global path": _refused(r"a global header changes path", pax({b"path": b"everything"}, b"g"), X),
    "global attribute": _refused(r"a global header changes SCHILY", pax({b"SCHILY.xattr.user.a": b"b"}, b"g"), X),
    "global size": _refused(r"a global header changes size", pax({b"size": b"0"}, b"g"), X),
    "global comment": _tree({"x": "f:x"}, pax({b"comment": b"a" * 40}, b"g"), X),
    "header and no entry": _refused(r"ends after an extended header", X, pax({b"path": b"a"})),
}

NUMBERS = {
    "size beyond base-256": _refused(r"size is too large", header(b"x", size=b"\x80" + b"\x7f" * 11)),
    "negative base-256 size": _refused(r"has the size -1", header(b"x", size=base256(-1, 12))),
    "time beyond base-256": _refused(r"mtime is too large", header(b"x", mtime=b"\x80" + b"\x7f" * 11)),
    "time before 1970": _tree({"x": "f:"}, header(b"x", mtime=base256(-5_000_000_000, 12))),
    "time before 1970 of a directory": _tree({"d": "d"}, header(b"d", DIRECTORY, mtime=base256(-5, 12))),
    "time far ahead": _tree({"x": "f:"}, header(b"x", mtime=base256(1 << 40, 12))),
    "time at the end of 64 bits": _tree({"x": "f:"}, header(b"x", mtime=base256((1 << 63) - 1, 12))),
    "time at the end of 64 bits of a symlink": _tree(
        {"x": "l:y"}, header(b"x", SYMLINK, link=b"y", mtime=base256((1 << 63) - 1, 12))
    ),
    "PAX time far ahead": _tree({"x": "f:x"}, pax({b"mtime": b"9" * 19 + b".9"}), X),
    "owner in base-256": _refused(r"uid \d+ is out of range", header(b"x", uid=base256(1 << 40, 8))),
    "owner below zero": _refused(r"uid -1 is out of range", header(b"x", uid=base256(-1, 8))),
    "mode with more bits": _tree({"x": "f:"}, header(b"x", mode=octal(0o177644, 8))),
    "numbers after zeros": _tree({"x": "f:x"}, header(b"x", size=b"\0\0\0" + octal(1, 9)) + padded(b"x")),
    "not octal": _refused(r"mode is not an octal", header(b"x", mode=b"0000648\0")),
    "sign": _refused(r"size is not an octal", header(b"x", size=b"-0000000001\0")),
    "wrong checksum": _refused(r"fails its checksum", header(b"x", checksum=b"000001\0 ")),
    "signed checksum": _tree(
        {"\\xff": "f:"},
        header(b"\xff", checksum=b"%06o\0 " % (sum(header(b"\xff")) - sum(header(b"\xff")[148:156]) + 256 - 256)),
    ),
}


def _sparse_1_0(numbers: bytes, real: bytes, data: bytes = b"") -> bytes:
    content = padded(numbers) + data
    records = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": b"s"}
    return pax(records | {b"GNU.sparse.realsize": real}) + entry(b"GNUSparseFile.0/s", data=content)


EIB = 1 << 60

SPARSE = {
    "sparse": _tree({"s": "f:1000"}, old_sparse(b"s", [(0, 4), (900, 4)], 1000, b"abcdefgh")),
    "exbibyte": _refused(r"more than \d+ bytes of files", old_sparse(b"s", [], EIB, b"")),
    "exbibyte in PAX": _refused(
        r"more than \d+ bytes of files",
        pax({b"GNU.sparse.map": b"0,1", b"GNU.sparse.size": b"%d" % EIB}) + entry(b"s", data=b"x"),
    ),
    "exbibyte in many files": _refused(
        r"more than \d+ bytes of files", *[old_sparse(b"s", [], 1 << 39, b"") for _ in range(3)]
    ),
    "parts overlap": _refused(r"out of order or beyond", old_sparse(b"s", [(0, 8), (4, 8)], 100, bytes(16))),
    "parts out of order": _refused(r"out of order or beyond", old_sparse(b"s", [(50, 8), (4, 8)], 100, bytes(16))),
    "part beyond the end": _refused(r"out of order or beyond", old_sparse(b"s", [(99, 8)], 100, bytes(8))),
    "part of negative length": _refused(r"out of order or beyond", old_sparse(b"s", [(9, -8)], 100, b"")),
    "negative real size": _refused(r"out of order or beyond|has the size -5", old_sparse(b"s", [], -5, b"")),
    "no real size": _refused(r"GNU.sparse.size is not a decimal number", pax({b"GNU.sparse.map": b"0,0"}), entry(b"s")),
    "less data than parts": _refused(r"does not match its data", old_sparse(b"s", [(0, 80)], 100, bytes(8))),
    "more data than parts": _refused(r"does not match its data", old_sparse(b"s", [(0, 1)], 100, bytes(8))),
    "odd map": _refused(
        r"a sparse map of 3 numbers",
        pax({b"GNU.sparse.map": b"0,1,2", b"GNU.sparse.size": b"9"}),
        entry(b"s", data=b"x"),
    ),
    "map that does not end": _refused(r"a sparse map does not end", _sparse_1_0(b"9\n1\n", b"9")),
    "map of a negative count": _refused(r"sparse map", _sparse_1_0(b"-1\n", b"9")),
    "map of a huge count": _refused(r"not one of 65536 at most", _sparse_1_0(b"9999999\n", b"9", bytes(4096))),
    "map of one long line": _refused(r"sparse map is not a decimal number", _sparse_1_0(b"1" * 5000, b"9")),
    "sparse 0.0": _tree(
        {"s": "f:\0\0\0\0\0\0\0\0xy"},
        pax(
            [
                (b"GNU.sparse.size", b"10"),
                (b"GNU.sparse.numblocks", b"1"),
                (b"GNU.sparse.offset", b"8"),
                (b"GNU.sparse.numbytes", b"2"),
            ]
        ),
        entry(b"s", data=b"xy"),
    ),
    "sparse of no known version": _refused(r"sparse in a form", pax({b"GNU.sparse.major": b"7"}), entry(b"s")),
    "sparse directory": _refused(
        r"sparse|is a directory", pax({b"GNU.sparse.map": b"0,1", b"GNU.sparse.size": b"9"}), directory(b"d")
    ),
}

ENDS = {
    "nothing": Hostile(archive=b""),
    "no end": Hostile(archive=X, tree={"x": "f:x"}),
    "one block of zeros": Hostile(archive=X + bytes(512), tree={"x": "f:x"}),
    "one block of zeros in between": _refused(r"a block of zeros between entries", X, bytes(512), entry(b"y")),
    "two archives": Hostile(archive=X + END + entry(b"y") + END, tree={"x": "f:x"}),
    "garbage after the end": Hostile(archive=X + END + b"garbage" * 999, tree={"x": "f:x"}),
    "garbage": Hostile(archive=b"this is no archive at all" * 40, refused="not a tar archive"),
    "short": Hostile(archive=bytes(100), refused="the archive ends 412 bytes too early"),
    # umoci writes such archives, and Go's programs read them.
    "missing padding": Hostile(archive=header(b"x", size=1) + b"x", tree={"x": "f:x"}),
    "some padding": Hostile(archive=header(b"x", size=1) + b"x" + bytes(100), tree={"x": "f:x"}),
    "missing content": Hostile(archive=header(b"x", size=1), refused=r"the archive ends \d+ bytes too early"),
}


def _same_path() -> Iterator[bytes]:
    one = entry(b"a/b/c", data=b"x")
    for _ in range(25):
        yield one * 1000


def _directory_and_file() -> Iterator[bytes]:
    both = entry(b"a", data=b"x") + directory(b"a") + entry(b"a/b")
    for _ in range(4):
        yield both * 500
    yield entry(b"a", data=b"x")


def _many_sparse_maps() -> Iterator[bytes]:
    count = 60_000
    one = _sparse_1_0(b"%d\n" % count + b"".join(b"%d\n0\n" % number for number in range(count)), b"%d" % count)
    for _ in range(20):
        yield one


def _large_headers() -> Iterator[bytes]:
    one = pax({b"comment": b"c" * 1_000_000}) + X
    for _ in range(100):
        yield one


def _terabyte() -> Iterator[bytes]:
    yield header(b"x", size=base256((1 << 40) + 1, 12))
    while True:
        yield bytes(1 << 20)


_LINKS_DEEP = 37


def _maze(heads: int, pad: bytes) -> Iterator[bytes]:
    """Links that go to and fro and to the next link, and entries below links to the first of them."""
    yield directory(b"d")
    for number in range(_LINKS_DEEP):
        yield pax({b"linkpath": pad + b"l%d" % (number + 1)}) + symlink(b"l%d" % number, b"")
    yield directory(b"l%d" % _LINKS_DEEP)
    for number in range(heads):
        yield symlink(b"s%d" % number, b"l0") + entry(b"s%d/x%d" % (number, number))


FLOODS = {
    "links that go to and fro": Hostile(
        archive=lambda: _maze(10_000, b"d/../" * 800), refused=r"symbolic links above its entries lead over more than"
    ),
    "the same path 25,000 times": Hostile(archive=_same_path, tree={"a": "d", "a/b": "d", "a/b/c": "f:x"}),
    "file and directory 2,000 times": Hostile(archive=_directory_and_file, tree={"a": "f:x"}),
    "large sparse maps": Hostile(archive=_many_sparse_maps, tree={"s": "f:60000"}),
    "100 MB of headers": Hostile(archive=_large_headers, tree={"x": "f:x"}),
    "a file larger than a layer may be": Hostile(archive=_terabyte, refused=r"more than \d+ bytes of files"),
}

CORPUS: dict[str, Hostile] = {
    f"{group}: {name}": case
    for group, cases in {
        "name": NAMES,
        "parent": PARENTS,
        "link": LINKS,
        "whiteout": WHITEOUTS,
        "device": DEVICES,
        "attribute": XATTRS,
        "pax": PAX,
        "number": NUMBERS,
        "sparse": SPARSE,
        "end": ENDS,
        "flood": FLOODS,
    }.items()
    for name, case in cases.items()
}
