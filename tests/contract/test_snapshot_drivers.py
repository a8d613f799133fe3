"""Both snapshot drivers, one contract: the same tar gives the same tree, alone, in an overlay and in a user namespace.

The layers are made by the real unpack process and looked at through real mounts, entry by entry.
"""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podkeep.base.errors import DataLoss
from podkeep.base.ids import Digest
from podkeep.kernel.mount import mountinfo, mounts, overlay
from podkeep.kernel.namespace.idmap import block
from podkeep.kernel.namespace.namespaces import NamespaceHelper
from support.drivers import NAMES, Layers
from support.images import Member, directory, file, hardlink, symlink, tar
from support.tarmaker import END, old_sparse
from support.unpacking import census

CAPABILITY = (b"\x01\0\0\x02" + bytes([0, 4, 0, 0]) + bytes(12)).decode("latin-1")
Census = dict[str, tuple[object, ...]]


def acl(*entries: tuple[int, int, int]) -> str:
    """Return an access control list as setxattr(2) takes it, as text for a PAX header."""
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    return packed.decode("utf-8", "surrogateescape")


NOBODY = 0xFFFFFFFF
NAMED_ACL = acl((1, 6, NOBODY), (2, 4, 1000), (4, 4, NOBODY), (16, 5, NOBODY), (32, 0, NOBODY))
MODE_ACL = acl((1, 7, NOBODY), (4, 5, NOBODY), (32, 1, NOBODY))

TREES: dict[str, list[Member]] = {
    "nothing": [],
    "files": [
        file("empty"),
        file("one", "x"),
        file("block", b"b" * 512),
        file("more", b"m" * 513),
        file("page", os.urandom(4096)),
        file("large", os.urandom(3_000_001)),
    ],
    "modes and owners": [
        file("su", "x", 0o4755),
        file("wall", "x", 0o2755, gid=5),
        file("none", "x", 0),
        file("owner", uid=4_000_000_000, gid=100_000),
        directory("sticky", 0o3777, gid=7),
        file("sticky/x"),
        directory("./", 0o711, uid=3, gid=4, mtime=5),
    ],
    "times": [
        file("fraction", mtime=1_600_000_000.123456789),
        file("old", mtime=0),
        directory("directory", mtime=1_000_000_000.25),
        file("directory/later", mtime=1_700_000_000),
        symlink("link", "fraction", mtime=1_500_000_000.5),
        file("a/b/implied"),
    ],
    "names": [
        file("n" * 255),
        directory("ünï"),
        file("ünï/\udcff\udcfe"),
        file(".hidden"),
        file("!first"),
        file("..more"),
        *(file(f"many/{number}") for number in range(400)),
        directory("slash/at/its/end/"),
        file("slash/at/its/end/x"),
        file("./slash//at/./its/y"),
        file("/slash/z"),
        file("slash/z/"),
    ],
    "links": [
        file("a", "content"),
        hardlink("b", "a"),
        directory("d"),
        hardlink("d/c", "b"),
        symlink("s", "a"),
        hardlink("t", "s"),
        symlink("long", "x" * 449),
        symlink("longest", "y/" * 2047 + "z"),
        symlink("inline", "x" * 448),
        symlink("absolute", "/etc/passwd"),
    ],
    "devices": [
        Member(name="null", kind=tarfile.CHRTYPE, device=(1, 3), mode=0o666),
        Member(name="ptmx", kind=tarfile.CHRTYPE, device=(5, 2), mode=0o620, uid=1, gid=5),
        Member(name="pipe", kind=tarfile.FIFOTYPE, mode=0o600, uid=7),
    ],
    "attributes": [
        file("ping", "x", 0o755, pax={"SCHILY.xattr.security.capability": CAPABILITY}),
        file("label", "x", pax={"SCHILY.xattr.security.selinux": "system_u:object_r:bin_t:s0"}),
        file("note", pax={"SCHILY.xattr.user.note": "kept", "SCHILY.xattr.user.empty": ""}),
        file("acl", "x", 0o640, pax={"SCHILY.xattr.system.posix_acl_access": NAMED_ACL}),
        file("plain-acl", "x", 0o600, pax={"SCHILY.xattr.system.posix_acl_access": MODE_ACL}),
        directory("handed-down", pax={"SCHILY.xattr.system.posix_acl_default": NAMED_ACL}),
        file("handed-down/not", "x", 0o604),
        directory("d", pax={"SCHILY.xattr.user.a": "1"}),
        directory("d", 0o700, pax={"SCHILY.xattr.user.b": "2" * 1000}),
    ],
    "replaced": [
        file("twice", "first"),
        file("twice", "last"),
        directory("was-a-directory"),
        file("was-a-directory/x"),
        file("was-a-directory", "now a file"),
        file("was-a-file"),
        directory("was-a-file", 0o700),
        file("was-a-file/x"),
        hardlink("kept", "was-a-file/x"),
        symlink("was-a-file", "twice"),
        file("source", "linked"),
        file("target", "gone"),
        hardlink("target", "source"),
    ],
    "through links": [
        symlink("lib", "usr/lib"),
        directory("usr/lib"),
        file("lib/through", "x"),
        symlink("usr/lib/up", "../.."),
        file("lib/up/at-the-top", "y"),
        file("lib/.wh.gone"),
    ],
    "whiteouts": [
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
        file(".wh.then-file"),
        file("then-file", "back"),
        file(".wh.then-directory"),
        directory("then-directory", 0o700),
    ],
    "opaque root": [file(".wh..wh..opq"), file("only")],
}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], Layers]]:
    """Open one driver's layers below an own root; in the end nothing is mounted."""
    found: list[Layers] = []

    def open_(name: str) -> Layers:
        found.append(Layers(tmp_path / f"{name}-{len(found)}", name))
        return found[-1]

    yield open_
    for layers in found:
        layers.close()
    assert mountinfo.under(tmp_path) == []


@pytest.fixture
def both(opened: Callable[[str], Layers]) -> tuple[Layers, Layers]:
    """Both drivers: what the kernel makes of files, and what is to be the same."""
    directories, erofs = map(opened, NAMES)
    return directories, erofs


def everything(top: Path) -> list[Path]:
    """Return ``top`` and all below; ``Path.rglob`` of Python 3.11.2 fails at links longer than a path may be."""
    below = [Path(at, name) for at, directories, files in os.walk(top) for name in (*directories, *files)]
    return [top, *below]


def seen(layers: Layers, layer: Digest, *, userns: int | None = None) -> Census:
    """Return a layer's tree."""
    with layers.tree(layer, userns=userns) as top:
        return census(top)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.slow
def test_the_same_tar_gives_the_same_tree(name: str, both: tuple[Layers, Layers]) -> None:
    archive = tar(TREES[name])
    trees = [seen(layers, layers.keep(archive)) for layers in both]
    assert trees[0] == trees[1]
    assert len(trees[0]) >= 1 + (name != "nothing")
    assert set(both[1].keeper.values()) == {"erofs"}


@pytest.mark.slow
def test_directories_list_themselves_and_where_they_are_in(both: tuple[Layers, Layers]) -> None:
    archive = tar([file("directory/file"), file("other")])
    for layers in both:
        with layers.tree(layers.keep(archive)) as top:
            for listed in (top, top / "directory"):
                # Programs pass over what has the inode number 0.
                shown = subprocess.run(["ls", "-a", listed], check=True, capture_output=True, text=True).stdout.split()
                assert shown == sorted([".", "..", *os.listdir(listed)])
            assert all(path.stat().st_ino for path in (top, *top.rglob("*")))


@pytest.mark.slow
def test_links_are_counted(both: tuple[Layers, Layers]) -> None:
    archive = tar([*TREES["links"], *TREES["replaced"], directory("e/f"), directory("e/g")])
    counts = []
    for layers in both:
        with layers.tree(layers.keep(archive)) as top:
            counts.append({str(path.relative_to(top)): path.lstat().st_nlink for path in everything(top)})
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("parts", "real", "keeper"),
    [
        ([(0, 512), (1 << 20, 1024)], (1 << 20) + 1024, "erofs"),
        ([(4096, 512), (3 << 30, 100)], (3 << 30) + 100, "directories"),
        ([(65536, 65536)], 1 << 20, "erofs"),
        ([], 1 << 30, "erofs"),
        ([(100, 50), (1000, 20)], 2000, "directories"),
        ([(0, 700)], 10_000, "directories"),
    ],
    ids=["aligned", "far apart", "in the middle", "only a hole", "odd places", "odd end"],
)
@pytest.mark.slow
def test_sparse_files(parts: list[tuple[int, int]], real: int, keeper: str, both: tuple[Layers, Layers]) -> None:
    data = os.urandom(sum(length for _, length in parts))
    archive = old_sparse(b"sparse", parts, real, data) + END
    found = []
    for layers in both:
        layer = layers.keep(archive)
        with layers.tree(layer) as top, (top / "sparse").open("rb") as sparse:
            pieces = []
            for offset, length in [*parts, (real // 2, 100), (real - 1, 10)]:
                sparse.seek(offset)
                pieces.append(sparse.read(length))
            found.append(((top / "sparse").stat().st_size, pieces))
    assert found[0] == found[1]
    assert b"".join(found[1][1][: len(parts)]) == data
    assert both[1].keeper[layer] == keeper


@pytest.mark.slow
def test_a_layer_too_large_for_memory_is_kept_as_a_directory(opened: Callable[[str], Layers]) -> None:
    erofs = opened("erofs")
    members = [file(f"d{number % 7}/{number}", str(number)) for number in range(2000)]
    members += [file(".wh.gone"), file("d1/.wh..wh..opq")]
    small, large = erofs.keep(tar(members[:10])), erofs.keep(tar(members), max_memory=100_000)
    assert (erofs.keeper[small], erofs.keeper[large]) == ("erofs", "directories")
    with erofs.tree(large) as top:
        assert (top / "d3/1004").read_text() == "1004"
        assert "trusted.overlay.opaque" in os.listxattr(top / "d1")
        assert stat.S_ISCHR((top / "gone").lstat().st_mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, 512, 5000, 4 << 20])
def test_a_layer_that_is_one_file(name: str, size: int, opened: Callable[[str], Layers]) -> None:
    layers, content = opened(name), os.urandom(size)
    layer = layers.keep_file(content, "model.bin")
    with layers.tree(layer) as top:
        assert os.listdir(top) == ["model.bin"]
        about = (top / "model.bin").stat()
        assert (about.st_size, about.st_mtime_ns, about.st_uid, about.st_mode) == (size, 0, 0, 0o100644)
        assert (top / "model.bin").read_bytes() == content
    assert b"".join(layers.of(layer).tar(layer)) == content
    staged = layers.driver.stage()
    other = Digest("sha256:" + "1" * 64)
    metadata = layers.driver.link(layer, "other name", staged / "0")
    layers.driver.commit(staged / "0", other)
    assert layers.driver.metadata_digest(other) == metadata
    assert layers.driver.inodes(other) == layers.driver.inodes(layer)
    layers.driver.discard(staged)
    layers.keeper[other] = name
    layers.driver.discard(layers.driver.retire(layer))
    with layers.tree(other) as top:
        assert os.listdir(top) == ["other name"]
        assert (top / "other name").read_bytes() == content
    assert b"".join(layers.of(other).tar(other)) == content


BASE = [
    file("kept", "base"),
    file("changed", "base"),
    file("gone", "base"),
    directory("hidden"),
    file("hidden/x"),
    directory("merged", 0o750, uid=5),
    file("merged/base"),
    directory("turned"),
    file("turned/x"),
    symlink("link", "kept"),
    hardlink("twin", "kept"),
]
TOP = [
    file("changed", "top", 0o600),
    file(".wh.gone"),
    file("hidden/.wh..wh..opq"),
    file("hidden/y"),
    directory("merged", 0o755),
    file("merged/top"),
    file("merged/.wh.nothing"),
    file("turned", "now a file"),
]


@contextmanager
def merged(layers: Layers, archives: list[list[Member]], at: Path, *, userns: int | None = None) -> Iterator[Path]:
    """Yield a writable overlay of layers, base first."""
    for name in ("upper", "work", "merged"):
        (at / name).mkdir(parents=True)
    kept = [layers.keep(tar(members)) for members in archives]
    with ExitStack() as closing:
        lowers = layers.driver.lowers(kept, userns=userns)
        for fd in lowers:
            closing.callback(os.close, fd)
        os.utime(at / "upper", (0, 0))
        overlay.mount_overlay(lowers, upper=at / "upper", work=at / "work", target=at / "merged")
        closing.callback(mounts.unmount, at / "merged", lazy=True)
        yield at / "merged"


def changed(top: Path) -> None:
    """Change a tree in every way that copies something up."""
    (top / "kept").write_text("changed in the container")
    (top / "merged/base").chmod(0o640)
    os.chown(top / "changed", 7, 8)
    os.setxattr(top / "merged", "user.new", b"1")
    (top / "hidden/y").unlink()
    (top / "turned").rename(top / "moved")
    os.link(top / "link", top / "merged/linked", follow_symlinks=False)
    (top / "merged/top").write_text("more")


@pytest.mark.requirement("U25")
@pytest.mark.parametrize("mapped", [False, True], ids=["host users", "own users"])
@pytest.mark.slow
def test_overlays_look_and_change_the_same(mapped: bool, both: tuple[Layers, Layers], tmp_path: Path) -> None:
    found: list[tuple[Census, Census]] = []
    with NamespaceHelper() as helper, ExitStack() as closing:
        userns = helper.user_namespace(block(131072, 65536)) if mapped else None
        if userns is not None:
            closing.callback(os.close, userns)
        for layers in both:
            with merged(layers, [BASE, TOP], tmp_path / layers.driver.name, userns=userns) as top:
                before = census(top)
                changed(top)
                found.append((before, _timeless(census(top))))
    assert found[0] == found[1]
    assert found[1][0]["changed"][1] == (131072 if mapped else 0)
    assert "gone" not in found[1][0]
    assert "hidden/x" not in found[1][0]


def _timeless(found: Census) -> Census:
    """Return a census without times, and without which names are one file: a file that is copied up from another file
    system gets another number (kernel, overlayfs.rst, "Inode properties")."""
    return {name: (*about[:4], about[5]) for name, about in found.items()}


@pytest.mark.slow
def test_in_a_user_namespace_the_pod_owns_the_files(both: tuple[Layers, Layers]) -> None:
    archive = tar([file("a", uid=0), file("b", uid=1000, gid=50), *TREES["attributes"]])
    with NamespaceHelper() as helper, ExitStack() as closing:
        userns = helper.user_namespace(block(131072, 65536))
        closing.callback(os.close, userns)
        trees = [seen(layers, layers.keep(archive), userns=userns) for layers in both]
    assert trees[0] == trees[1]
    assert trees[1]["b"][1:3] == (132072, 131122)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_the_tar_comes_out_again(name: str, opened: Callable[[str], Layers]) -> None:
    layers = opened(name)
    for archive in (tar(TREES["files"]), tar(TREES["attributes"]), tar([]) + b"what follows the end"):
        layer = layers.keep(archive)
        assert b"".join(layers.of(layer).tar(layer)) == archive


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_a_layer_that_is_gone_is_named(name: str, opened: Callable[[str], Layers]) -> None:
    layers = opened(name)
    layer = layers.keep(tar([file("x")]))
    assert layers.driver.has(layer)
    assert layers.driver.kept() == {layer}
    layers.driver.discard(layers.driver.retire(layer))
    assert not layers.driver.has(layer)
    assert layers.driver.kept() == frozenset()
    layers.driver.discard(layers.driver.retire(layer))
    with pytest.raises(DataLoss, match="the layer is gone from disk"):
        layers.driver.lowers([layer], userns=None)


NAME = st.sampled_from(["a", "b", "c", "d", "e"])
PATH = st.lists(NAME, min_size=1, max_size=3).map("/".join)
MODE = st.sampled_from([0o644, 0o755, 0o4755, 0o1777, 0o2775, 0])
OWNER = st.sampled_from([0, 1, 65536, 4_000_000_000])
WHEN = st.sampled_from([0, 1.5, 1_700_000_000.123456789])
XATTRS = st.dictionaries(
    st.sampled_from(["SCHILY.xattr.user.a", "SCHILY.xattr.user.b", "SCHILY.xattr.security.selinux"]),
    st.text("xyz", max_size=5),
    max_size=2,
)
ABOUT = st.fixed_dictionaries({"mode": MODE, "uid": OWNER, "gid": OWNER, "mtime": WHEN})
MEMBER = st.one_of(
    st.builds(lambda name, size, about, pax: file(name, b"x" * size, pax=pax, **about), PATH,
              st.sampled_from([0, 1, 511, 512, 513, 5000]), ABOUT, XATTRS),
    st.builds(lambda name, about, pax: directory(name, pax=pax, **about), PATH | st.just("./"), ABOUT, XATTRS),
    st.builds(symlink, PATH, PATH | st.sampled_from([".", "a/./b//", "b/../a", "..", "/a", "x" * 500])),
    st.builds(hardlink, PATH, PATH),
    st.builds(lambda name: Member(name=name, kind=tarfile.FIFOTYPE), PATH),
    st.builds(lambda path, name: file("/".join([*path, name])), st.lists(NAME, max_size=2),
              st.sampled_from([".wh.a", ".wh.b", ".wh..wh..opq", ".wh..wh.aufs"])),
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members=st.lists(MEMBER, max_size=12))
@pytest.mark.slow
def test_random_archives(members: list[Member], opened: Callable[[str], Layers]) -> None:
    """What one driver refuses the other refuses with the same words."""
    archive = tar(members)
    verdicts: list[Census | str] = []
    for layers in map(opened, NAMES):
        try:
            verdicts.append(seen(layers, layers.keep(archive)))
        except ValueError as error:
            verdicts.append(str(error))
    assert verdicts[0] == verdicts[1]


@pytest.mark.slow
def test_a_layer_that_somebody_else_unmounted_is_mounted_again(opened: Callable[[str], Layers]) -> None:
    layers = opened("erofs")
    one, two = layers.keep(tar([file("a")])), layers.keep(tar([file("b")]))
    for spoiled in ("the layer", "everything"):
        assert [path for path in seen(layers, one) if path != "."] == ["a"]
        entries = mountinfo.under(layers.mounted)
        assert len(entries) == 2
        for entry in entries if spoiled == "everything" else entries[:1]:
            mounts.unmount(entry.mount_point)
        assert [path for path in seen(layers, one) if path != "."] == ["a"]
        assert [path for path in seen(layers, two) if path != "."] == ["b"]
        entries = mountinfo.under(layers.mounted)
        assert [entry.fs_type for entry in entries][:2] == ["erofs", "erofs"]
        assert entries[-1].mount_point == str(layers.mounted)
        mounts.unmount(entries[0].mount_point)
        layers.driver.release(frozenset())
        assert mountinfo.under(layers.mounted) == []
