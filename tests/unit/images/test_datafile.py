"""The large file of a layer: whatever way it is written, it holds what was given."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.images.layers.erofs import datafile
from podkeep.images.layers.erofs.datafile import DataFile

MIB = 1 << 20


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "tmpfs"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def write(path: Path, pieces: list[bytes]) -> int:
    fd = create(path)
    try:
        file = DataFile(fd)
        for piece in pieces:
            file.write(piece)
        file.finish()
        assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT  # who goes on with it need not align
        return file.size
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "size", [0, 1, datafile._CACHED - 1, datafile._CACHED, datafile._CACHED + 1, 35 * MIB, 40 * MIB + 12345]
)
@pytest.mark.slow
def test_it_holds_what_was_written_in_pieces_of_any_size(tmp_path: Path, size: int) -> None:
    generator = random.Random(size)
    content = generator.randbytes(size)
    pieces, position = [], 0
    while position < size:
        length = generator.choice([1, 511, 4096, 100_000, 262_144, 3 * MIB])
        pieces.append(content[position : position + length])
        position += length
    path = tmp_path / "data"

    assert write(path, pieces) == size

    assert path.read_bytes() == content


@pytest.mark.slow
def test_a_large_file_leaves_the_page_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datafile, "_SLOW", 0.0)  # whatever else the machine's disk has to do
    path = tmp_path / "data"
    write(path, [bytes([number]) * MIB for number in range(96)])

    assert cached_bytes(path) <= datafile._CACHED + 2 * MIB


@pytest.mark.slow
def test_a_slow_disk_is_written_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datafile, "_SLOW", 1e15)  # no disk is that fast
    monkeypatch.setattr(datafile, "_TRIAL", 4 * MIB)
    path = tmp_path / "data"
    content = random.Random(1).randbytes(64 * MIB)

    write(path, [content])

    assert cached_bytes(path) >= len(content) - 4 * MIB - MIB
    assert path.read_bytes() == content


@pytest.mark.slow
def test_a_disk_that_becomes_slow_is_not_waited_for_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datafile, "_SLOW", 0.0)
    path = tmp_path / "data"
    fd = create(path)
    try:
        file = DataFile(fd)
        for number in range(128):  # the first 96 MiB leave no account that the rest could live on
            if number == 96:
                monkeypatch.setattr(datafile, "_SLOW", 1e15)
            file.write(bytes([number]) * MIB)
        assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
        file.finish()
    finally:
        os.close(fd)
    assert path.stat().st_size == 128 * MIB


@pytest.mark.parametrize(
    ("mib", "seconds", "slow"),
    [(32, 0.16, False), (32, 0.33, True), (32, 0.01, False), (31, 5.0, False), (0, 0, False)],
)
def test_a_disk_is_slow_below_200_megabytes_per_second(mib: int, seconds: float, slow: bool) -> None:
    assert datafile.too_slow(mib * MIB, seconds) is slow


def test_a_file_system_that_runs_full_is_an_error(tmpfs: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        write(tmpfs / "data", [bytes(MIB)] * 16)


def cached_bytes(path: Path) -> int:
    """Bytes of ``path`` in the page cache (fincore(1))."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout or 0)
