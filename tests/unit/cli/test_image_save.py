"""Where ``podkeep image save`` writes: in directories where others make files and links, too, as /tmp."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from podkeep.base.errors import AlreadyExists, FailedPrecondition
from podkeep.cli.images.save import _target

NOBODY = 65534


def archive(target: Path) -> AbstractContextManager[int]:
    return _target(target, "oci-archive")


def save(target: Path, data: bytes = b"an image") -> None:
    with archive(target) as fd:
        os.write(fd, data)


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A directory as /tmp; afterwards there is nothing in it that podkeep only needed meanwhile."""
    path = tmp_path / "public"
    path.mkdir()
    path.chmod(0o1777)
    descriptors = len(os.listdir("/proc/self/fd"))
    yield path
    assert [item for item in path.iterdir() if item.name.startswith(".")] == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("of root")
    path.chmod(0o600)
    return path


def test_a_link_is_replaced_and_never_followed(public: Path, victim: Path) -> None:
    target = public / "app.tar"
    target.symlink_to(victim)
    os.chown(target, NOBODY, NOBODY, follow_symlinks=False)
    save(target)
    assert victim.read_text() == "of root"
    assert (target.is_symlink(), target.read_bytes(), target.stat().st_uid) == (False, b"an image", os.getuid())


def test_a_link_to_nothing_makes_nothing_elsewhere(public: Path, tmp_path: Path) -> None:
    target = public / "app.tar"
    target.symlink_to(tmp_path / "made")
    save(target)
    assert not (tmp_path / "made").exists()
    assert not target.is_symlink()


def test_a_link_to_a_directory_is_replaced_by_an_archive_and_refused_for_a_layout(public: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = public / "app"
    target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AlreadyExists), _target(target, "oci-dir"):
        pass
    assert target.is_symlink()
    save(target)
    assert target.is_file()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("owner", [0, NOBODY])
def test_a_pipe_is_written_only_if_root_or_the_caller_owns_it(public: Path, owner: int) -> None:
    target = public / "app.tar"
    os.mkfifo(target, 0o666)
    os.chown(target, owner, owner)
    reader = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if owner:
            with pytest.raises(FailedPrecondition, match="of another user"), archive(target):
                pass
        else:
            save(target)
        assert os.read(reader, 100) == (b"" if owner else b"an image")
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(target.lstat().st_mode)


def test_a_device_is_written_as_it_is(public: Path) -> None:
    with archive(Path("/dev/null")) as fd:
        assert os.fstat(fd).st_rdev == os.makedev(1, 3)
    target = public / "device"
    os.mknod(target, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.chown(target, NOBODY, NOBODY)
    with pytest.raises(FailedPrecondition, match="of another user"), archive(target):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output_has_two_names(name: str, tmp_path: Path) -> None:
    code = (
        f"import os; from pathlib import Path; from podkeep.cli.images.save import _target\n"
        f"with _target(Path({name!r}), 'oci-archive') as fd: os.write(fd, b'an image')"
    )
    written = tmp_path / "written"
    for shown in ("cat", f"cat >>{written}"):
        command = ["bash", "-o", "pipefail", "-c", f'"$0" -c "$1" | {shown}', sys.executable, code]
        subprocess.run(command, check=True, timeout=60)
    with written.open("ab") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, timeout=60)
    assert written.read_bytes() == b"an image" * 2


def test_a_file_appears_at_the_end(public: Path) -> None:
    target = public / "app.tar"
    target.write_text("before")
    with archive(target) as fd:
        os.write(fd, b"an image")
        assert target.read_text() == "before"
    assert target.read_bytes() == b"an image"
    with pytest.raises(RuntimeError), archive(target):
        raise RuntimeError
    assert target.read_bytes() == b"an image"


def test_a_directory_appears_at_the_end(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _target(public / "layout", "oci-dir") as fd:
        assert not (public / "layout").exists()
        os.mkdir("blobs", dir_fd=fd)
    assert [item.name for item in (public / "layout").iterdir()] == ["blobs"]
    with pytest.raises(AlreadyExists), _target(public / "layout", "oci-dir"):
        pass
    (public / "empty").mkdir()
    monkeypatch.chdir(public / "empty")
    with _target(Path(), "oci-dir") as fd:
        os.mkdir("blobs", dir_fd=fd)
    assert [item.name for item in (public / "empty").iterdir()] == ["blobs"]
    with pytest.raises(RuntimeError), _target(public / "other", "oci-dir"):
        raise RuntimeError
    assert not (public / "other").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "/", "inner"])
def test_a_directory_is_no_place_for_an_archive(public: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (public / "inner").mkdir()
    monkeypatch.chdir(public)
    with pytest.raises(FailedPrecondition, match="is a directory"), archive(Path(name)):
        pass
