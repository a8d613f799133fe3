from __future__ import annotations

import asyncio
import gzip
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from podkeep.agent.logs import rotation as rotation_module
from podkeep.agent.logs.reader import MAX_RECORD, LogReader
from podkeep.agent.logs.rotation import LogRotation, next_name, remove, rotated
from podkeep.base.errors import FailedPrecondition
from support import unanswering
from support.beside import leased
from support.exchanged import ExchangedLog
from support.waiting import TIMEOUT_S
from unit.kernel.isolation import in_new_namespaces

NOW = datetime(2026, 1, 31, 8, 0, 0, tzinfo=UTC)


def record(number: int) -> bytes:
    return b"2026-01-02T03:04:05.%09dZ stdout F line %d\n" % (number, number)


class Log:
    """A log that a runtime writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self.path.touch()

    def write(self, count: int) -> None:
        with self.path.open("ab") as file:
            for _ in range(count):
                self.written += 1
                file.write(record(self.written))

    async def reopen(self, container: str) -> None:
        assert container == "id"
        self.path.touch()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "0.log")


@pytest.fixture
def rotation(log: Log) -> LogRotation:
    return LogRotation(log.reopen, max_size=100, max_files=4)


async def rotate(rotation: LogRotation, log: Log, count: int = 10) -> None:
    """Write more than fits, and have it rotated and compressed."""
    log.write(count)
    await rotation.look("id", log.path)
    await asyncio.gather(*rotation._tasks._tasks)


def test_small_log_is_left_alone(log: Log, rotation: LogRotation) -> None:
    asyncio.run(rotate(rotation, log, 1))
    assert [path.name for path in log.path.parent.iterdir()] == ["0.log"]


def test_number_of_files_is_bounded_and_older_ones_are_compressed(log: Log, rotation: LogRotation) -> None:
    async def work() -> None:
        for _ in range(6):
            await rotate(rotation, log)

    asyncio.run(work())
    files = rotated(log.path)
    assert [file.compressed for file in files] == [True, True, False]
    assert len(list(log.path.parent.iterdir())) == 4
    assert log.path.read_bytes() == b""
    oldest = gzip.decompress(log.path.with_name(files[0].name).read_bytes())
    assert oldest == b"".join(record(number) for number in range(31, 41))


def test_files_without_end_are_removed_little_by_little(
    log: Log, rotation: LogRotation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes to the directory may make millions of them."""
    monkeypatch.setattr(rotation_module, "_MOST", 10)
    for number in range(60):
        log.path.with_name(f"0.log.20200131-0800{number:02}").touch()
    assert len(rotated(log.path)) == 10

    async def work() -> None:
        for _ in range(10):
            await rotate(rotation, log)

    asyncio.run(work())
    assert len(list(log.path.parent.iterdir())) == 4


@in_new_namespaces()
def test_a_directory_that_does_not_answer_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    log = tmp_path / "pod" / "0.log"
    hanging = unanswering.Hanging(log.parent)
    last = threading.Timer(TIMEOUT_S, hanging.close)
    last.start()

    async def reopen(_container: str) -> None:
        raise AssertionError

    async def work() -> None:
        rotating = asyncio.create_task(LogRotation(reopen, max_size=100, max_files=4)._rotate("id", log))
        await hanging.asked()
        last.cancel()
        hanging.close()
        with pytest.raises(OSError):
            await rotating

    try:
        asyncio.run(work())
    finally:
        last.cancel()
        hanging.close()


def test_log_is_put_back_if_the_runtime_does_not_reopen_it(log: Log) -> None:
    async def refuse(container: str) -> None:
        raise FailedPrecondition(f"container {container} is exited, not running")

    asyncio.run(rotate(LogRotation(refuse, max_size=100, max_files=4), log))
    assert [path.name for path in log.path.parent.iterdir()] == ["0.log"]
    assert log.path.stat().st_size > 100


def test_log_is_put_back_if_the_pod_ends_meanwhile(log: Log) -> None:
    async def work() -> None:
        asked = asyncio.Event()

        async def never(container: str) -> None:
            asked.set()
            await asyncio.Event().wait()

        log.write(10)
        rotating = asyncio.ensure_future(LogRotation(never, max_size=100, max_files=4).look("id", log.path))
        await asked.wait()
        assert not log.path.exists()
        rotating.cancel()
        await asyncio.gather(rotating, return_exceptions=True)

    asyncio.run(work())
    assert [path.name for path in log.path.parent.iterdir()] == ["0.log"]


def test_names_go_on_whatever_is_done_to_the_clock(log: Log) -> None:
    names: list[str] = []
    for moment in (NOW, NOW, NOW, NOW.replace(hour=7), NOW.replace(second=1)):
        names.append(next_name(log.path, rotated(log.path), moment))
        log.path.with_name(names[-1]).touch()
    assert names == sorted(names)
    assert names[0] == "0.log.20260131-080000"
    assert names[-1] == "0.log.20260131-080001"
    assert [file.name for file in rotated(log.path)] == names


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_no_file_is_not_taken_for_a_rotated_one(log: Log, kind: str, suffix: str) -> None:
    """A pod that can write to the directory of logs gives it such a name; a reader would look for it for ever."""
    log.write(1)
    reader = LogReader(log.path)
    assert len(list(reader.read())) == 1
    log.path.rename(log.path.with_name("0.log.20260131-080000"))
    for moment in ("20260130-080000", "20260131-090000"):
        path = log.path.with_name(f"0.log.{moment}{suffix}")
        if kind == "link":
            path.symlink_to(log.path)
        else:
            os.mkdir(path) if kind == "directory" else os.mkfifo(path)
    log.write(1)
    assert [file.name for file in rotated(log.path)] == ["0.log.20260131-080000"]
    assert [record.text for record in reader.read()] == [b"line 2\n"]
    assert not reader.gap
    reader.close()
    reader = LogReader(log.path, rotated=True)
    assert [record.text for record in reader.read()] == [b"line 1\n", b"line 2\n"]
    reader.close()


@pytest.mark.slow
def test_times_of_another_file_are_not_changed_by_a_link(log: Log, rotation: LogRotation, tmp_path: Path) -> None:
    """Whoever may write to the directory of logs puts one there while a log is compressed."""
    other = tmp_path / "other"
    other.touch()
    os.utime(other, (1, 1))
    old = log.path.with_name("0.log.20260131-080000")
    old.write_bytes(os.urandom(1 << 20) * 16)
    log.path.with_name("0.log.20260131-080001").touch()
    unfinished = log.path.with_name(f"{old.name}.tmp")
    (tmp_path / "link").symlink_to(other)

    def exchange() -> bool:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if unfinished.exists():
                (tmp_path / "link").rename(unfinished)
                return True
        return False

    async def work() -> bool:
        exchanged = asyncio.ensure_future(asyncio.to_thread(exchange))
        await rotate(rotation, log)
        return await exchanged

    assert asyncio.run(work())
    assert other.stat().st_mtime == 1


def test_a_rotated_log_that_cannot_be_opened_is_passed(log: Log) -> None:
    log.write(1)
    reader = LogReader(log.path)
    assert len(list(reader.read())) == 1
    for moment in ("20260131-080000", "20260131-090000"):
        log.path.rename(log.path.with_name(f"0.log.{moment}"))
        log.write(1)
    with leased(log.path.with_name("0.log.20260131-090000")):
        assert [record.text for record in reader.read()] == [b"line 3\n"]
    assert reader.gap
    reader.close()
    with leased(log.path.with_name("0.log.20260131-080000")):
        reader = LogReader(log.path, rotated=True)
    assert [record.text for record in reader.read()] == [b"line 2\n", b"line 3\n"]
    reader.close()


def test_other_files_are_not_taken_for_rotated_ones(log: Log) -> None:
    for name in ("1.log.20260131-080000", "0.log.old", "0.log.20260131-080000.tmp", "0.log.20260131-080000.gz.tmp"):
        log.path.with_name(name).touch()
    assert rotated(log.path) == []


def numbers(reader: LogReader, limit: int = 1 << 20) -> Iterator[int]:
    return (int(item.text.split()[1]) for item in reader.read(limit))


def test_reader_goes_through_all_files_that_were_rotated_since_it_looked(log: Log, rotation: LogRotation) -> None:
    async def work() -> None:
        log.write(3)
        reader = LogReader(log.path)
        assert list(numbers(reader)) == [1, 2, 3]
        for _ in range(3):
            await rotate(rotation, log)
        log.write(1)
        assert list(numbers(reader)) == list(range(4, log.written + 1))
        assert not reader.gap
        reader.close()

    asyncio.run(work())


def test_reader_says_what_it_missed(log: Log, rotation: LogRotation) -> None:
    async def work() -> None:
        log.write(3)
        reader = LogReader(log.path)
        assert list(numbers(reader)) == [1, 2, 3]
        for _ in range(6):
            await rotate(rotation, log)
        # The file that it had open is read to its end, the next two are gone.
        assert list(numbers(reader)) == [*range(4, 14), *range(34, 64)]
        assert reader.gap
        reader.close()

    asyncio.run(work())


def test_reader_may_begin_with_the_oldest_file(log: Log, rotation: LogRotation) -> None:
    async def work() -> None:
        for _ in range(3):
            await rotate(rotation, log)
        log.write(2)
        reader = LogReader(log.path, rotated=True)
        assert list(numbers(reader)) == list(range(1, log.written + 1))
        reader.close()

    asyncio.run(work())


def test_reader_stops_at_its_limit_and_goes_on(log: Log) -> None:
    log.write(100)
    reader = LogReader(log.path)
    found: list[int] = []
    turns = 0
    while not turns or reader.behind:
        found += numbers(reader, 500)
        turns += 1
    assert found == list(range(1, 101))
    assert turns > 5
    reader.close()


def test_record_without_an_end_is_read_in_pieces(log: Log) -> None:
    size = 3 * MAX_RECORD
    with log.path.open("wb") as file:
        file.write(record(1)[:-1] + b"x" * size + b"\n" + record(2))
    reader = LogReader(log.path)
    pieces = list(reader.read(2 * size))
    assert max(len(piece.text) for piece in pieces) < 2 * MAX_RECORD
    assert [piece.partial for piece in pieces] == [True] * (len(pieces) - 2) + [False, False]
    assert b"".join(piece.text for piece in pieces) == b"line 1" + b"x" * size + b"\nline 2\n"
    reader.close()


def test_links_are_not_followed(log: Log, rotation: LogRotation, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    target = other / "file"
    target.write_bytes(b"x" * 200)
    for stem in ("20260131-080000", "20260131-080001"):
        os.symlink(target, f"{log.path}.{stem}")
    asyncio.run(rotate(rotation, log))
    assert target.read_bytes() == b"x" * 200
    assert [path.name for path in tmp_path.glob("*.gz")] == []


@pytest.mark.parametrize("step", ["size", "rename", "put back", "compress", "remove", "excess"])
@pytest.mark.parametrize("what", ["container", "pod"])
def test_nothing_is_done_behind_a_link_on_the_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str, step: str
) -> None:
    """A pod with a hostPath there exchanges a directory for it, before a step of a rotation."""
    log = ExchangedLog(tmp_path)
    log.path.write_bytes(b"x" * 200)

    async def reopen(_container: str) -> None:
        if step == "put back":
            log.exchange(what)

    async def work() -> None:
        rotation = LogRotation(reopen, max_size=100, max_files=2)
        if step != "put back":
            log.exchange(what)
        if step in {"size", "put back"}:
            await rotation.look("id", log.path)
        elif step == "compress":
            await rotation._compress_beside(log.path)
        elif step == "remove":
            await remove(log.path)
        else:
            with pytest.raises(FailedPrecondition):
                await rotation._rotate("id", log.path) if step == "rename" else rotation._remove_excess(log.path)
        await rotation.close()

    asyncio.run(work())
    assert log.is_other_untouched()
    assert len(caplog.records) == (step not in {"rename", "excess"})
    assert all("cannot be entered" in record.getMessage() for record in caplog.records)
