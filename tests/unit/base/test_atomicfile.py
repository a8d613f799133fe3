"""Files that are replaced as a whole, or not at all."""

from __future__ import annotations

import os
import resource
import signal
import stat
import threading
from pathlib import Path

import pytest

from podkeep.base import atomicfile


def test_a_file_is_made_with_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        atomicfile.write(tmp_path / "open", b"one", mode=0o644)
        atomicfile.write(tmp_path / "closed", b"two")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"open": 0o644, "closed": 0o600}
    assert (tmp_path / "open").read_bytes() == b"one"


def test_who_has_the_old_file_open_goes_on_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomicfile.write(path, b"old")
    with path.open("rb") as opened:
        atomicfile.write(path, b"new content")
        assert opened.read() == b"old"
    assert path.read_bytes() == b"new content"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("of somebody else")
    (tmp_path / "link").symlink_to("target")
    atomicfile.write(tmp_path / "link", b"ours")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "of somebody else"


def test_nothing_is_left_of_what_cannot_be_put_into_place(tmp_path: Path) -> None:
    path = tmp_path / "directory"
    (path / "inside").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        atomicfile.write(path, b"content")
    assert list(tmp_path.iterdir()) == [path]
    assert (path / "inside").is_dir()


def test_the_old_file_stays_when_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomicfile.write(path, b"old")
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            atomicfile.write(path, bytes(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomicfile.write(tmp_path / "missing" / "file", b"content")


@pytest.mark.slow
def test_a_reader_sees_one_content_or_the_other(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", (b"a" * 100_000, b"b" * 200_000)
    atomicfile.write(path, contents[0])
    ended = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not ended.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(50):
            atomicfile.write(path, contents[number % 2])
    finally:
        ended.set()
        reader.join()
    assert seen <= set(contents)
    assert seen


def test_only_a_directory_is_synced(tmp_path: Path) -> None:
    atomicfile.sync_directory(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        atomicfile.sync_directory(tmp_path / "file")
