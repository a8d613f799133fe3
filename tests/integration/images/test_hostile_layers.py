"""Layers that try to leave their root, or hold what no image may: refused, with nothing changed and nothing left."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tarfile
from pathlib import Path

import pytest
from conftest import OpenStore, layer_directory, leftovers

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from support.images import (
    Layout,
    LayoutBuilder,
    Member,
    directory,
    file,
    hardlink,
    layers_layout,
    symlink,
    tar,
)

CHARACTER, BLOCK = tarfile.CHRTYPE, tarfile.BLKTYPE
OUTSIDE = "{outside}"

HOSTILE: dict[str, tuple[list[Member], str]] = {
    "dot-dot": ([file("../escaped", "x")], r"entry '\.\./escaped': its name '\.\./escaped' holds '\.\.'"),
    "dot-dot inside": ([directory("a"), file("a/../../escaped")], r"holds '\.\.'"),
    "dot-dot at the end": ([directory("a/..")], r"holds '\.\.'"),
    "absolute symlink parent": (
        [symlink("a", OUTSIDE), file("a/escaped")],
        r"parent 'a' is a symbolic link that leaves",
    ),
    "relative symlink parent": (
        [symlink("a", "../../../../../../.."), file("a/escaped")],
        r"parent 'a' is a symbolic link that leaves",
    ),
    "symlink to a symlink out": (
        [symlink("a", ".."), symlink("b", "a/x"), file("b/escaped")],
        r"parent 'b' is a symbolic link that leaves",
    ),
    "symlink to the root": ([symlink("a", "/"), file("a/escaped")], r"parent 'a' is a symbolic link that leaves"),
    "symlink loop": ([symlink("a", "b"), symlink("b", "a"), file("a/x")], r"parent 'a' is a symbolic link"),
    "dangling symlink parent": ([symlink("a", "nowhere"), file("a/x")], r"parent 'a' is a symbolic link to nothing"),
    "symlink instead of a parent": (
        [directory("a"), file("a/x"), symlink("a", OUTSIDE), file("a/escaped")],
        r"parent 'a' is a symbolic link that leaves",
    ),
    "file as parent": ([file("a"), file("a/b")], r"parent 'a' is not a directory"),
    "hard link out": ([hardlink("a", "../../secret")], r"its target '\.\./\.\./secret' holds '\.\.'"),
    "absolute hard link": ([hardlink("a", f"{OUTSIDE}/secret")], r"hard link to .*, which this layer does not have"),
    "hard link through a symlink": (
        [symlink("s", OUTSIDE), hardlink("a", "s/secret")],
        r"parent 's' is a symbolic link that leaves",
    ),
    "hard link to a missing file": (
        [hardlink("a", "missing")],
        r"hard link to 'missing', which this layer does not have",
    ),
    "hard link to a missing directory": (
        [hardlink("a", "no/file")],
        r"hard link to 'no/file', which this layer does not",
    ),
    "hard link to a directory": (
        [directory("d"), hardlink("a", "d")],
        r"a hard link to the directory 'd'",
    ),
    "hard link to the root": ([hardlink("a", "./")], r"a hard link to the root"),
    "disk": ([Member(name="sda", kind=BLOCK, device=(8, 0))], r"block device 8:0 is refused"),
    "memory": ([Member(name="mem", kind=CHARACTER, device=(1, 1))], r"character device 1:1 is refused"),
    "kmsg": ([Member(name="kmsg", kind=CHARACTER, device=(1, 11))], r"character device 1:11 is refused"),
    "fuse": ([Member(name="fuse", kind=CHARACTER, device=(10, 229))], r"character device 10:229 is refused"),
    "forged whiteout": ([Member(name="w", kind=CHARACTER, device=(0, 0))], r"character device 0:0, overlayfs's own"),
    "whiteout of nothing": ([file(".wh.")], r"a whiteout of nothing"),
    "whiteout of the directory": ([directory("a"), file("a/.wh..")], r"a whiteout of nothing"),
    "whiteout of the parent": ([directory("a"), file("a/.wh...")], r"a whiteout of nothing"),
    "whiteout through a symlink": ([symlink("s", OUTSIDE), file("s/.wh.secret")], r"symbolic link that leaves"),
    "overlay attribute": (
        [directory("a", pax={"SCHILY.xattr.trusted.overlay.redirect": "/etc"})],
        r"extended attributes of the trusted namespace are refused",
    ),
    "unknown attribute": ([file("a", pax={"SCHILY.xattr.odd.x": "1"})], r"extended attribute 'odd\.x' is of no known"),
    "root as a file": ([symlink("./", "x")], r"the root is a symbolic link"),
    "long name": ([file("n" * 256)], r"holds a name of 256 bytes, longer than the 255 of Linux"),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that no layer may touch."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_text("secret")
    return path


def _census(path: Path, without: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for entry in sorted(path.rglob("*")):
        if not entry.is_relative_to(without):
            stat = entry.lstat()
            found[str(entry)] = (stat.st_mode, stat.st_uid, stat.st_nlink, stat.st_size, stat.st_mtime_ns)
    return found


@pytest.mark.requirement("V61")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_layer_is_refused_and_leaves_nothing(
    case: str, tmp_path: Path, root: Path, outside: Path, open_store: OpenStore
) -> None:
    members, message = HOSTILE[case]
    members = [_aimed(member, outside) for member in members]
    layout = layers_layout(tmp_path / "layout", [[file("good")], members])
    store = open_store()
    before = _census(tmp_path, root)
    with pytest.raises(InvalidArgument, match=message) as failure:
        asyncio.run(store.load(layout.path))
    assert str(failure.value).startswith(f"layer {layout.layer_digests[1]}: entry ")
    assert "\n" not in str(failure.value)
    assert _census(tmp_path, root) == before
    assert leftovers(root) == []
    assert list((root / "layers").iterdir()) == []
    assert store.images() == []


def _aimed(member: Member, outside: Path) -> Member:
    fill = {"name": member.name.replace(OUTSIDE, str(outside)), "link": member.link.replace(OUTSIDE, str(outside))}
    return Member(**{**{name: getattr(member, name) for name in member.__dataclass_fields__}, **fill})


def test_what_an_ordinary_layer_holds_arrives(tmp_path: Path, root: Path, open_store: OpenStore) -> None:
    capability = b"\x01\0\0\x02" + bytes([0, 4, 0, 0]) + bytes(12)
    members = [
        directory("./", 0o711),
        directory("usr/bin", mtime=1_000_000_000.25),
        symlink("lib", "usr/lib"),
        directory("usr/lib"),
        file("lib/through-a-link", "in the root all the way"),
        file("usr/bin/su", "x", 0o4755),
        file("usr/bin/wall", "x", 0o2755, gid=5),
        file("usr/bin/ping", "x", 0o755, pax={"SCHILY.xattr.security.capability": capability.decode("latin-1")}),
        file("big-owner", uid=100_000, gid=4_000_000_000),
        file("fraction", mtime=1_600_000_000.5, pax={"SCHILY.xattr.user.note": "kept"}),
        hardlink("usr/bin/sudo", "usr/bin/su"),
        symlink("absolute", "/etc/passwd"),
        Member(name="null", kind=CHARACTER, device=(1, 3), mode=0o666),
        Member(name="pipe", kind=tarfile.FIFOTYPE, mode=0o600),
        file("twice", "first"),
        file("twice", "last"),
        directory("was-a-directory"),
        file("was-a-directory/x"),
        file("was-a-directory", "now a file"),
        directory("sticky", 0o3777, gid=7),
        file("sticky/x"),
        file("a/b/c/implied", "x"),
        file("ünï\udcff".encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")),
    ]
    layout = layers_layout(tmp_path / "layout", [members])
    asyncio.run(open_store().load(layout.path))
    top = layer_directory(root, layout.diff_ids[0])

    assert top.stat().st_mode & 0o7777 == 0o711
    assert (top / "usr/bin").stat().st_mtime_ns == 1_000_000_000_250_000_000
    assert (top / "usr/lib/through-a-link").read_text() == "in the root all the way"
    assert (top / "usr/bin/su").stat().st_mode & 0o7777 == 0o4755
    assert (top / "usr/bin/wall").stat().st_mode & 0o7777 == 0o2755
    assert os.getxattr(top / "usr/bin/ping", "security.capability") == capability
    assert ((top / "big-owner").stat().st_uid, (top / "big-owner").stat().st_gid) == (100_000, 4_000_000_000)
    assert (top / "fraction").stat().st_mtime_ns == 1_600_000_000_500_000_000
    assert os.getxattr(top / "fraction", "user.note") == b"kept"
    assert (top / "usr/bin/sudo").stat().st_ino == (top / "usr/bin/su").stat().st_ino
    assert (top / "absolute").readlink() == Path("/etc/passwd")
    assert (top / "null").is_char_device()
    assert (top / "null").stat().st_rdev == os.makedev(1, 3)
    assert (top / "pipe").is_fifo()
    assert (top / "twice").read_text() == "last"
    assert (top / "was-a-directory").read_text() == "now a file"
    assert ((top / "sticky").stat().st_mode & 0o7777, (top / "sticky/x").stat().st_gid) == (0o3777, 0)
    assert (top / "a/b").stat().st_mode & 0o7777 == 0o755
    assert os.fsencode(sorted(os.listdir(top))[-1]) == "ünï".encode() + b"\xff"


def test_absolute_names_are_below_the_root(tmp_path: Path, root: Path, outside: Path, open_store: OpenStore) -> None:
    """As builders of images write them (ko: ``/ko-app/NAME``)."""
    members = [directory("ko-app", 0o555), file("/ko-app/app", "x"), file(f"/{outside}/secret", "of the image")]
    layout = layers_layout(tmp_path / "layout", [[*members, hardlink("also", "/ko-app/app")]])
    asyncio.run(open_store().load(layout.path))
    top = layer_directory(root, layout.diff_ids[0])
    assert (top / "ko-app/app").read_text() == "x"
    assert (top / "also").stat().st_ino == (top / "ko-app/app").stat().st_ino
    assert (top / str(outside)[1:] / "secret").read_text() == "of the image"
    assert (outside / "secret").read_text() == "secret"


def test_whiteouts_become_overlayfs_ones_and_never_hide_their_own_layer(
    tmp_path: Path, root: Path, open_store: OpenStore
) -> None:
    members = [
        file("etc/.wh.gone"),
        file("opaque/.wh..wh..opq"),
        file("opaque/new", "x"),
        file(".wh.replaced"),
        file("replaced/x", "in the same layer, after"),
        file("kept", "in the same layer, before"),
        file(".wh.kept"),
        directory("kept-directory"),
        file(".wh.kept-directory"),
        file(".wh..wh.plnk"),
        file(".wh.gone-then-file"),
        file("gone-then-file", "back"),
    ]
    layout = layers_layout(tmp_path / "layout", [members])
    asyncio.run(open_store().load(layout.path))
    top = layer_directory(root, layout.diff_ids[0])

    gone = (top / "etc/gone").lstat()
    assert (gone.st_mode & 0o170000, gone.st_rdev) == (0o020000, 0)
    opaque = {name for name in os.listdir(top) if "trusted.overlay.opaque" in os.listxattr(top / name)}
    assert opaque == {"opaque", "replaced", "kept-directory"}
    assert (top / "replaced/x").read_text() == "in the same layer, after"
    assert (top / "kept").read_text() == "in the same layer, before"
    assert (top / "gone-then-file").read_text() == "back"
    assert not [path for path in top.rglob("*") if path.name.startswith(".wh.")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"this is no archive at all" * 40, "not a tar archive"),
        (tar([file("a", b"x" * 5000)])[:2000], "the archive ends .* bytes too early"),
        (b"\0" * 100, "the archive ends 412 bytes too early"),
    ],
    ids=["garbage", "truncated", "short"],
)
def test_a_layer_that_is_no_tar_is_refused(data: bytes, message: str, tmp_path: Path, open_store: OpenStore) -> None:
    builder = LayoutBuilder(tmp_path / "layout")
    layout = builder.finish(builder.image([data]))
    with pytest.raises(InvalidArgument, match=message):
        asyncio.run(open_store().load(layout.path))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_damaged_compression_is_told_from_a_wrong_digest(
    compression: str, tmp_path: Path, open_store: OpenStore
) -> None:
    layout = layers_layout(tmp_path / "layout", [[file("a", os.urandom(5000))]], compression=compression)
    blob = layout.blob_path(layout.layer_digests[0])
    blob.write_bytes(blob.read_bytes()[:-40] + bytes(40))
    with pytest.raises(FailedPrecondition, match=f"expected digest {layout.layer_digests[0]}, the content has sha256:"):
        asyncio.run(open_store().load(layout.path))


@pytest.mark.requirement("V62")
def test_limits_stop_a_layer(tmp_path: Path, open_store: OpenStore) -> None:
    bomb = layers_layout(tmp_path / "bomb", [[file("zeros", bytes(20 << 20))]])
    many = layers_layout(tmp_path / "many", [[file(f"f{number}") for number in range(200)]])
    store = open_store(max_layer_bytes=10 << 20, max_layer_inodes=100)
    with pytest.raises(InvalidArgument, match=r"more than 10485760 bytes of files \(images.max_layer_bytes\)"):
        asyncio.run(store.load(bomb.path))
    with pytest.raises(InvalidArgument, match=r"more than 100 entries \(images.max_layer_inodes\)"):
        asyncio.run(store.load(many.path))


def test_a_tree_as_deep_as_paths_can_be_is_unpacked_and_removed(
    tmp_path: Path, root: Path, open_store: OpenStore
) -> None:
    members = [directory("/".join(["d"] * 1000)), symlink("s", "/".join(["d"] * 1000)), file("s/" + "d/" * 1000 + "x")]
    layout = layers_layout(tmp_path / "layout", [members])
    store = open_store()
    image = asyncio.run(store.load(layout.path))[0]
    assert store.usage().inodes_used > 2
    store.remove(image.id)
    assert list((root / "layers").iterdir()) == []


def test_several_gzip_members_are_one_layer(tmp_path: Path, root: Path, open_store: OpenStore) -> None:
    plain = tar([file("a", b"a" * 3000), file("b", b"b" * 3000)])
    builder = LayoutBuilder(tmp_path / "layout")
    layout: Layout = builder.finish(builder.image([plain], compression="none"))
    blob = gzip.compress(plain[:1000]) + gzip.compress(plain[1000:])
    manifest = json.loads(layout.blob(layout.manifest_digest))
    manifest["layers"] = [builder.blob(blob, "application/vnd.oci.image.layer.v1.tar+gzip")]
    layout = builder.finish(builder.json(manifest, manifest["mediaType"]))
    asyncio.run(open_store().load(layout.path))
    assert (layer_directory(root, layout.diff_ids[0]) / "b").read_bytes() == b"b" * 3000
