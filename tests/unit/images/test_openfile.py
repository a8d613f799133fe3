from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from podkeep.base.errors import FailedPrecondition
from podkeep.images.formats import openfile


def test_a_nameless_file_is_opened_again(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b"content")
    again = openfile.open_again(openfile.describe(fd, "it"), os.O_RDONLY)
    assert os.read(again, 100) == b"content"
    os.close(again)
    os.close(fd)


def test_a_pipe_is_read_to_its_end_also_when_its_writer_has_gone() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"late")
    os.close(writing)
    again = openfile.open_again(openfile.describe(reading, "it"), os.O_RDONLY)
    assert os.get_blocking(again)
    assert [os.read(again, 100), os.read(again, 100)] == [b"late", b""]
    os.close(again)
    os.close(reading)


def test_what_a_process_has_open_instead_is_not_taken(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    described = openfile.describe(fd, "the name")
    os.close(fd)
    with pytest.raises(FailedPrecondition, match=r"^the name: cannot be opened"):
        openfile.open_again(structs.replace(described, descriptor=1 << 20), os.O_RDONLY)
    other = os.open("/", os.O_RDONLY)
    with pytest.raises(FailedPrecondition, match=r"^the name: .* is open on something else"):
        openfile.open_again(structs.replace(described, descriptor=other), os.O_RDONLY)
    os.close(other)


def test_a_process_that_has_ended_has_nothing_open() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    described = structs.replace(openfile.describe(0, "it"), pid=ended.pid)
    with pytest.raises(FailedPrecondition, match="No such file") as caught:
        openfile.open_again(described, os.O_RDONLY)
    assert "PID namespace" in caught.value.hint


def test_a_socket_cannot_be_opened_again() -> None:
    one, two = socket.socketpair()
    with one, two, pytest.raises(FailedPrecondition):
        openfile.open_again(openfile.describe(one.fileno(), "it"), os.O_RDONLY)


def test_a_directory_is_removed_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "before/deep").mkdir(parents=True)
    (tmp_path / "before/deep/file").write_text("x")
    fd = os.open(tmp_path / "before", os.O_RDONLY)
    directory = openfile.open_directory(openfile.describe(fd, "it"))
    assert directory is not None
    (tmp_path / "before").rename(tmp_path / "after")
    openfile.remove_directory(directory)
    openfile.remove_directory(directory)
    assert list(tmp_path.iterdir()) == []
    os.close(directory)
    os.close(fd)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    fd = os.open(path, os.O_RDONLY)
    assert openfile.open_directory(openfile.describe(fd, "it")) is None
    os.close(fd)
