"""Files and directories as blobs of an artifact."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard
from isal import igzip

from podkeep.base.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from podkeep.images.publish import directory_tar, packing
from podkeep.images.publish.packing import Blob, Compression, Source
from support.opening import never_opened


def ignore(_: int) -> None:
    """Count nothing."""


@contextmanager
def packed(
    path: Path, *, contents: bool = False, compression: Compression = "gzip", media_type: str = ""
) -> Iterator[Blob]:
    source = Source(path=path, media_type=media_type)
    blob = packing.pack(source, contents=contents, compression=compression, mtime=0, count=ignore)
    try:
        yield blob
    finally:
        blob.close()


def members(blob: Blob) -> list[tarfile.TarInfo]:
    data = igzip.decompress(b"".join(blob.pieces()))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getmembers()


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A directory with a bit of everything an artifact may hold."""
    top = tmp_path / "conf"
    (top / "sub/empty").mkdir(parents=True)
    (top / "b.yaml").write_text("b: 1\n")
    (top / "a.yaml").write_text("a: 1\n")
    (top / "a.yaml").chmod(0o4755)
    (top / "sub/ä").write_bytes(b"x" * 1000)
    os.link(top / "b.yaml", top / "sub/same")
    (top / "link").symlink_to("../outside")
    return top


def test_a_file_is_a_blob_as_it_is(tmp_path: Path) -> None:
    data = os.urandom(600_000)
    (tmp_path / "model.bin").write_bytes(data)
    with packed(tmp_path / "model.bin") as blob:
        assert b"".join(blob.pieces()) == data
        assert (blob.digest, blob.size) == (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
        assert blob.media_type == "application/octet-stream"
        assert blob.annotations == {"org.opencontainers.image.title": "model.bin"}
        for start in (1, 262144, 262145, 599_999, 600_000):
            assert b"".join(blob.pieces(start)) == data[start:]


def test_an_empty_file_is_a_blob(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with packed(tmp_path / "empty") as blob:
        assert (list(blob.pieces()), blob.size) == ([], 0)


def test_a_directory_is_an_archive_of_it(conf: Path) -> None:
    with packed(conf) as blob:
        found = members(blob)
        assert [item.name for item in found] == [
            "conf",
            "conf/a.yaml",
            "conf/b.yaml",
            "conf/link",
            "conf/sub",
            "conf/sub/empty",
            "conf/sub/same",
            "conf/sub/ä",
        ]
        assert blob.media_type == "application/vnd.oci.image.layer.v1.tar+gzip"
        plain = igzip.decompress(b"".join(blob.pieces()))
        assert blob.annotations == {
            "org.opencontainers.image.title": "conf",
            "io.deis.oras.content.digest": f"sha256:{hashlib.sha256(plain).hexdigest()}",
            "io.deis.oras.content.unpack": "true",
        }
    assert {(item.uid, item.gid, item.uname, item.gname, item.mtime) for item in found} == {(0, 0, "", "", 0)}
    by_name = {item.name: item for item in found}
    assert by_name["conf/a.yaml"].mode == 0o755  # without setuid
    assert (by_name["conf/link"].type, by_name["conf/link"].linkname) == (tarfile.SYMTYPE, "../outside")
    assert by_name["conf/sub/same"].isreg()
    assert by_name["conf/sub/same"].size == 5


def test_contents_stand_at_the_root(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with packed(conf, contents=True) as blob:
        assert [item.name for item in members(blob)][:3] == ["a.yaml", "b.yaml", "link"]
        digest = blob.digest
    monkeypatch.chdir(conf)
    with packed(Path(".")) as blob:
        assert blob.digest == digest
        assert blob.annotations["org.opencontainers.image.title"] == "."


def test_an_archive_depends_on_the_content_only(conf: Path, tmp_path: Path) -> None:
    with packed(conf) as blob:
        digest = blob.digest
    other = tmp_path / "other" / "conf"
    (other / "sub/empty").mkdir(parents=True)
    for name in ("sub/ä", "sub/same", "b.yaml", "a.yaml"):
        (other / name).write_bytes((conf / name).read_bytes())
        os.utime(other / name, (5, 5))
    (other / "a.yaml").chmod(0o755)
    (other / "link").symlink_to("../outside")
    with packed(other) as blob:
        assert blob.digest == digest


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_archives_may_be_compressed_otherwise(conf: Path, compression: Compression) -> None:
    with packed(conf, compression=compression) as blob:
        data = b"".join(blob.pieces())
        plain = data if compression == "none" else zstandard.ZstdDecompressor().decompressobj().decompress(data)
        with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
            assert "conf/sub/ä" in archive.getnames()
        suffix = "" if compression == "none" else "+zstd"
        assert blob.media_type == f"application/vnd.oci.image.layer.v1.tar{suffix}"


@pytest.mark.slow
def test_a_tree_may_be_deep(tmp_path: Path) -> None:
    top = tmp_path / "top"
    path = top
    for _ in range(300):
        path = path / "d"
    path.mkdir(parents=True)
    with packed(top) as blob:
        assert len(members(blob)) == 301


@pytest.mark.parametrize("kind", ["named pipe", "socket", "device"])
def test_what_an_artifact_cannot_hold_is_refused(tmp_path: Path, kind: str) -> None:
    top = tmp_path / "top"
    top.mkdir()
    if kind == "named pipe":
        os.mkfifo(top / "x")
    elif kind == "device":
        os.mknod(top / "x", 0o600 | 0o020000, os.makedev(1, 3))
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(top / "x"))
    with pytest.raises(InvalidArgument, match=rf"top/x is a {kind}, which an artifact cannot hold"), packed(top):
        pass
    with never_opened(top / "x"), pytest.raises((InvalidArgument, packing.PodkeepError)), packed(top / "x"):
        pass


@pytest.mark.parametrize("name", [".wh.x", ".wh..wh..opq", "a\nb", "\x7f"])
def test_names_that_a_pull_would_refuse_are_refused(tmp_path: Path, name: str) -> None:
    top = tmp_path / "top"
    (top / name).mkdir(parents=True)
    with pytest.raises(InvalidArgument, match=r"the name .* (is that of a whiteout|has a control character)"):
        packing.name_of(top / name)
    if name.startswith(".wh."):
        with pytest.raises(InvalidArgument, match="means in an archive that a file is gone"), packed(top):
            pass
    else:
        with packed(top) as blob:
            assert f"top/{name}" in [member.name for member in members(blob)]


def test_paths_that_a_pull_would_refuse_are_refused(tmp_path: Path) -> None:
    top = tmp_path / ("t" * 200)
    top.mkdir()
    fd = os.open(top, os.O_DIRECTORY)
    for _ in range(20):
        os.mkdir("d" * 200, dir_fd=fd)
        inner = os.open("d" * 200, os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    with pytest.raises(InvalidArgument, match="the path is longer than the 4095 bytes"), packed(top):
        pass
    with packed(top, contents=True) as blob:
        assert len(members(blob)) == 20


@pytest.mark.parametrize("swapped", ["file", "directory"])
def test_nothing_outside_is_read_when_a_link_takes_the_place_of_something(tmp_path: Path, swapped: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("secret")
    top = tmp_path / "top"
    (top / "directory").mkdir(parents=True)
    (top / "directory/file").write_text("public")
    (top / "before").write_text("read first, and what is beside it is known then")

    def meddle(_: int) -> None:
        place = top / "directory"
        if swapped == "directory":
            place.rename(tmp_path / "aside")
            place.symlink_to(secret)
        else:
            (place / "file").unlink()
            (place / "file").symlink_to(secret / "file")

    archive = directory_tar.tar_of(top, top="", mtime=0, count=meddle)
    if swapped == "directory":
        with pytest.raises(FailedPrecondition, match="top/directory changed while it was being pushed"):
            list(archive)
    else:
        data = b"".join(archive)
        assert b"secret/file" in data  # a link, as it is then
        assert b"public" not in data


def test_what_is_gone_when_its_turn_comes_is_an_error(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    for name in ("a", "b"):
        (top / name).write_text(name)
    with pytest.raises(FailedPrecondition, match="top/b changed while it was being pushed"):
        list(directory_tar.tar_of(top, top="", mtime=0, count=lambda _: (top / "b").unlink()))


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / os.fsdecode(b"\xff")).touch()
    with pytest.raises(InvalidArgument, match="not UTF-8"), packed(top):
        pass
    with pytest.raises(InvalidArgument, match="not UTF-8"), packed(top / os.fsdecode(b"\xff")):
        pass


def test_a_file_that_changes_is_noticed_before_its_last_byte_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 1_000_000)
    with packed(path) as blob:
        with path.open("r+b") as file:
            file.write(b"b")
        sent: list[int] = []
        with pytest.raises(FailedPrecondition, match="file changed while it was being pushed"):
            sent.extend(map(len, blob.pieces()))
        assert 0 < sum(sent) < 1_000_000
        path.write_bytes(b"a" * 10)
        with pytest.raises(FailedPrecondition, match="changed"):
            list(blob.pieces())


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    path = top / "file"
    path.write_bytes(b"a" * 1_000_000)

    def meddle(_: int) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    for source in (Source(path=top), Source(path=path)):
        with pytest.raises(FailedPrecondition, match="changed while it was being pushed"):
            packing.pack(source, contents=False, compression="gzip", mtime=0, count=meddle)


@pytest.mark.parametrize(
    ("text", "path", "media_type"),
    [
        ("file", "file", ""),
        ("file:text/plain", "file", "text/plain"),
        ("a:b/c", "a:b/c", ""),
        ("file:application/vnd.x+json", "file", "application/vnd.x+json"),
    ],
)
def test_paths_may_end_in_a_media_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, path: str, media_type: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("a:b").mkdir()
    Path("a:b/c").touch()
    assert packing.parse_source(text) == Source(path=Path(path), media_type=media_type)


@pytest.mark.parametrize("text", ["none", "file:nothing", "none:text/plain"])
def test_a_path_without_anything_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(NotFound, match="there is no such file or directory"):
        packing.parse_source(text)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").touch()
    sources = [Source(path=tmp_path / "a/x"), Source(path=tmp_path / "b/x")]
    with pytest.raises(AlreadyExists, match="would both be 'x' in the artifact"):
        packing.check_sources(sources, contents=False)
    directories = [Source(path=tmp_path / "a"), Source(path=tmp_path / "b/../a")]
    with pytest.raises(AlreadyExists, match="would both be 'a'"):
        packing.check_sources(directories, contents=False)
    packing.check_sources(directories, contents=True)


def test_more_files_than_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="501 files and directories, more than the 500"):
        packing.check_sources([Source(path=tmp_path)] * 501, contents=False)


@pytest.mark.parametrize(("path", "name"), [("/a/b/", "b"), ("a/../c", "c"), ("x", "x")])
def test_names_are_the_last_part(path: str, name: str) -> None:
    assert packing.name_of(Path(path)) == name


def test_dots_stand_for_the_directory_they_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here/below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here/below")
    assert packing.name_of(Path("..")) == "here"
    assert packing.name_of(Path(".")) == "below"
