"""Copying out of a container: whatever is in its archive, nothing lands elsewhere."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from click.testing import CliRunner

from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.cli.core.invocation import Invocation
from podkeep.cli.pods.cp import LeftOut, Remote, command, nothing_of, remote, unpack
from podkeep.images.layers.tarstream import ByteSource, TarError, TarReader


def member(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"x", link: str = "", mode: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    """Return an entry of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def reader(*members: tuple[tarfile.TarInfo, bytes]) -> TarReader:
    """Return a reader of an archive of them."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    file.seek(0)
    return TarReader(ByteSource(lambda: file.read(1000)))


def test_files_and_directories(tmp_path: Path) -> None:
    left_out = LeftOut()
    members = (member("./d", tarfile.DIRTYPE), member("./d/e/f", data=b"deep", mode=0o4755), member("./d/g"))
    assert unpack(reader(*members), b"d", tmp_path / "there", left_out) == 3
    assert (tmp_path / "there/e/f").read_bytes() == b"deep"
    assert (tmp_path / "there/e/f").stat().st_mode & 0o7777 == 0o755, "no set-user-ID comes out"
    assert left_out == LeftOut()


def test_a_file_replaces_what_is_there_and_not_what_a_link_names(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "file").symlink_to(victim)
    unpack(reader(member("./f", data=b"new")), b"f", tmp_path / "file", LeftOut())
    assert victim.read_text() == "kept"
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("name", ["/etc/passwd", "./f/../../x", "../x", "./other", "..", "."])
def test_an_entry_that_belongs_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="belongs elsewhere"):
        unpack(reader(member(name)), b"f", tmp_path / "f", LeftOut())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_left_out(tmp_path: Path, kind: bytes) -> None:
    left_out = LeftOut()
    links = [member("./d/x", kind, link="/etc/passwd")] * 1_000
    unpack(reader(member("./d", tarfile.DIRTYPE), *links), b"d", tmp_path / "d", left_out)
    assert os.listdir(tmp_path / "d") == []
    assert left_out.count == 1_000
    assert left_out.first[0].startswith("d/x: a ")
    # There may be any number of them.
    assert len(left_out.first) == 20


def test_of_a_link_that_is_named_it_is_said_that_it_is_one() -> None:
    left_out = LeftOut()
    left_out.note("current: a symbolic link")
    error = nothing_of(PurePosixPath("/app/current"), left_out)
    assert (error.message, "name what it leads to" in error.hint) == ("/app/current is a symbolic link", True)
    assert nothing_of(PurePosixPath("/x"), LeftOut()).message == "the container's tar sent nothing for /x"


def test_nothing_is_written_through_a_link_that_is_there(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "d").mkdir()
    (tmp_path / "d/sub").symlink_to(outside)
    with pytest.raises(InvalidArgument, match="no directory"):
        unpack(reader(member("./d/sub/f")), b"d", tmp_path / "d", LeftOut())
    assert os.listdir(outside) == []


def test_what_is_no_archive(tmp_path: Path) -> None:
    pieces = [b"not an archive" * 100, b""]
    with pytest.raises(TarError):
        unpack(TarReader(ByteSource(lambda: pieces.pop(0))), b"f", tmp_path / "f", LeftOut())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("web:/a/b", Remote(pod="web", namespace="default", path=PurePosixPath("/a/b"), is_directory=False)),
        ("shop/web:/a/", Remote(pod="web", namespace="shop", path=PurePosixPath("/a"), is_directory=True)),
        ("web:a:b", Remote(pod="web", namespace="default", path=PurePosixPath("a:b"), is_directory=False)),
        ("./a:b", None),
        ("/a:b", None),
        ("plain", None),
    ],
)
def test_remote(text: str, expected: Remote | None) -> None:
    assert remote(text, "default") == expected


@pytest.mark.parametrize("arguments", [["web:/x", "-"], ["-", "web:/x"]])
def test_a_dash_is_no_file(arguments: list[str], tmp_path: Path) -> None:
    nothing = Invocation(config_path=None, debug=False, settings=(f"runtime.socket={tmp_path}/none",))
    result = CliRunner().invoke(command, arguments, obj=nothing)
    assert isinstance(result.exception, InvalidArgument)
    assert result.exception.message == "standard input and output are not copied"


def test_a_remote_needs_a_path() -> None:
    check: Callable[[], object] = lambda: remote("web:", "default")  # noqa: E731 - one call
    with pytest.raises(PodkeepError, match="the path in the container is missing"):
        check()
