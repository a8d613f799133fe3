from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.agent.logs import files as log_files
from podkeep.agent.logs import reader as log_reader
from podkeep.base.errors import DataLoss, FailedPrecondition, NotFound
from podkeep.cli.pods.crilog import Printer
from podkeep.cli.pods.logs import previous_attempt
from support.exchanged import ExchangedLog

TIME = b"2026-01-02T03:04:05.000000006Z"


def line(text: bytes, *, stream: bytes = b"stdout", tag: bytes = b"F") -> bytes:
    return b" ".join((TIME, stream, tag, text)) + b"\n"


def printed(records: list[log_reader.Record], *, timestamps: bool = False) -> tuple[bytes, bytes]:
    out, err = io.BytesIO(), io.BytesIO()
    printer = Printer(out, err, timestamps=timestamps)
    for record in records:
        printer.write(record)
    return out.getvalue(), err.getvalue()


def test_streams_are_kept_apart_and_partial_records_joined(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(line(b"one ", tag=b"P") + line(b"oops", stream=b"stderr") + line(b"line") + line(b""))
    reader = log_reader.LogReader(path)
    records = list(reader.read())
    assert printed(records) == (b"one line\n\n", b"oops\n")
    assert printed(records, timestamps=True) == (TIME + b" one line\n" + TIME + b" \n", TIME + b" oops\n")
    reader.close()


def test_a_log_that_somebody_cut_is_read_from_its_start_again(tmp_path: Path) -> None:
    """As logrotate does with ``copytruncate``; conmon goes on at the end of the file, wherever that is."""
    path = tmp_path / "0.log"
    path.write_bytes(line(b"one") + line(b"two") + line(b"thr", tag=b"P")[:-3])
    reader = log_reader.LogReader(path)
    assert printed(list(reader.read()))[0] == b"one\ntwo\n"
    os.truncate(path, 0)
    assert list(reader.read()) == []
    with path.open("ab") as log:
        log.write(line(b"new"))
    assert printed(list(reader.read()))[0] == b"new\n"
    assert len(reader.left_out()) == 1
    assert reader.left_out() == []
    reader.close()


def test_what_is_not_a_log_is_refused() -> None:
    with pytest.raises(DataLoss, match="CRI logging format"):
        log_reader.parse(b"just some text\n")


TORN = TIME + b" std" + line(b"lost")
"""What a full disk leaves: the start of one record, and the next one behind it."""


@pytest.mark.parametrize("damage", [TORN, b"\n", b"\0" * 5000 + b"\n", b"\0" * (3 * log_reader.MAX_RECORD) + b"\n"])
def test_what_is_no_record_is_left_out_and_told_once(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(line(b"one") + damage + line(b"two"))
    reader = log_reader.LogReader(path)
    assert reader.left_out() == []
    read: list[log_reader.Record] = []
    for _ in range(20):
        read += reader.read()
    assert [record.text for record in read] == [b"one\n", b"two\n"]
    assert reader.left_out() == [f"output is left out: the log {path} is damaged"]
    with path.open("ab") as file:
        file.write(damage + line(b"three"))
    for _ in range(20):
        read += reader.read()
    assert read[-1].text == b"three\n"
    assert reader.left_out() == []
    reader.close()


def test_tail_counts_no_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(line(b"one") + TORN + line(b"two") + TORN + line(b"three"))
    reader = log_reader.LogReader(path, tail=2)
    assert [record.text for record in reader.read()] == [b"two\n", b"three\n"]
    reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "changed", "not compressed", "empty"])
@pytest.mark.parametrize("tail", [None, 5])
def test_a_damaged_compressed_log_is_read_as_far_as_it_goes(tmp_path: Path, damage: str, tail: int | None) -> None:
    data = bytearray(gzip.compress(b"".join(line(os.urandom(40).hex().encode()) for _ in range(5000)), 1))
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "changed":
        data[len(data) // 2 : len(data) // 2 + 100] = b"\xff" * 100
    else:
        data[:] = line(b"x") if damage == "not compressed" else b""
    (tmp_path / "0.log.20260101-000000.gz").write_bytes(data)
    if tail is None:
        (tmp_path / "0.log").write_bytes(line(b"next"))
    reader = log_reader.LogReader(tmp_path / "0.log", tail=tail, rotated=True)
    (tmp_path / "0.log").write_bytes(line(b"next"))
    records: list[log_reader.Record] = []
    while not records or reader.behind:
        records += reader.read()
    assert records[-1].text == b"next\n"
    assert (len(records) > 1000) == (damage in {"cut", "changed"})
    assert len(reader.left_out()) == (damage != "empty")
    reader.close()


@pytest.mark.slow
def test_the_end_of_a_compressed_log_is_not_looked_for(tmp_path: Path) -> None:
    """Each block before the one that was looked at had all before it unpacked again, which never ended."""
    with gzip.open(tmp_path / "0.log.20260101-000000.gz", "wb") as file:
        file.write(line(b"first"))
        for _ in range(64):
            file.write(b"\n" * (1 << 20))
    reader = log_reader.LogReader(tmp_path / "0.log", tail=10)
    assert [record.text for record in reader.read(log_reader.READ_BYTES)] == [b"first\n"]
    assert reader.behind
    reader.close()


@pytest.mark.parametrize("filling", ["zeros", "empty members", "no end of a name", "empty blocks"])
def test_a_compressed_log_that_yields_nothing_is_read_in_bounded_turns(tmp_path: Path, filling: str) -> None:
    """Whoever writes beside a log had one turn read a file to its end: one of zeros needs no disk."""
    size, path = 1 << 20, tmp_path / "0.log.20260101-000000.gz"
    head = b"\x1f\x8b\x08\x08" + bytes(6) if filling == "no end of a name" else b""
    if filling == "empty blocks":
        head = b"\x1f\x8b\x08\x00" + bytes(6)
    once = {
        "zeros": b"\0",
        "empty members": gzip.compress(b""),
        "no end of a name": b"x",
        "empty blocks": b"\0\0\0\xff\xff",
    }[filling]
    path.write_bytes(gzip.compress(line(b"first")) + head + once * (size // len(once)))
    (tmp_path / "0.log").write_bytes(line(b"next"))
    reader = log_reader.LogReader(tmp_path / "0.log", rotated=True)
    records: list[log_reader.Record] = []
    turns, most = 0, 0
    while not turns or reader.behind:
        before = bytes_read()
        records += reader.read(log_reader.READ_BYTES)
        most = max(most, bytes_read() - before)
        turns += 1
    assert [record.text for record in records] == [b"first\n", b"next\n"]
    assert most < 2 * log_reader.READ_BYTES
    if filling == "zeros":
        assert turns == 1, "what is no member ends the file"
    reader.close()


def bytes_read() -> int:
    """Return how many bytes this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_record_that_is_still_being_written_is_read_once_complete(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    whole = line(b"hello")
    path.write_bytes(whole[:-3])
    reader = log_reader.LogReader(path)
    assert list(reader.read()) == []
    with path.open("ab") as file:
        file.write(whole[-3:])
    assert [record.text for record in reader.read()] == [b"hello\n"]
    assert list(reader.read()) == []
    reader.close()


def test_reading_goes_on_in_the_new_file_after_rotation(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(line(b"first"))
    reader = log_reader.LogReader(path)
    assert [record.text for record in reader.read()] == [b"first\n"]
    with path.open("ab") as file:
        file.write(line(b"second"))
    path.rename(tmp_path / "0.log.old")
    assert [record.text for record in reader.read()] == [b"second\n"]
    path.write_bytes(line(b"third"))
    assert [record.text for record in reader.read()] == [b"third\n"]
    reader.close()


def test_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=str(tmp_path / "0.log")):
        log_reader.LogReader(tmp_path / "0.log")


def test_between_the_rename_of_a_log_and_the_new_one_the_renamed_one_is_the_newest(tmp_path: Path) -> None:
    for name, text in (("0.log.20260101-000000", b"old"), ("0.log.20260101-000001", b"new")):
        (tmp_path / name).write_bytes(line(text))
    reader = log_reader.LogReader(tmp_path / "0.log", tail=1)
    assert [record.text for record in reader.read()] == [b"new\n"]
    (tmp_path / "0.log").write_bytes(line(b"next"))
    assert [record.text for record in reader.read()] == [b"next\n"]
    reader.close()


@pytest.mark.slow
@given(
    texts=st.lists(st.tuples(st.binary(max_size=9).map(lambda text: text.replace(b"\n", b"")), st.booleans())),
    count=st.integers(min_value=0, max_value=12),
    block=st.integers(min_value=1, max_value=90),
)
def test_tail_is_the_end_of_the_whole(texts: list[tuple[bytes, bool]], count: int, block: int) -> None:
    data = b"".join(line(text, tag=b"P" if partial else b"F") for text, partial in texts)
    file = io.BytesIO(data)
    start = log_reader.tail_offset(file, count, block=block)
    everything = [log_reader.parse(item + b"\n") for item in data.split(b"\n")[:-1]]
    tail = [log_reader.parse(item + b"\n") for item in data[start:].split(b"\n")[:-1]]
    assert everything[len(everything) - len(tail) :] == tail
    full = sum(1 for record in everything if not record.partial)
    unfinished = everything[-1].partial if everything and count else False
    assert sum(1 for record in tail if not record.partial) == min(count - unfinished, full)


def test_a_last_line_without_an_end_is_one_of_the_tail(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(line(b"a") + line(b"b") + line(b"c", tag=b"P") + line(b"d", tag=b"P"))
    for count, expected in ((1, [b"c", b"d"]), (2, [b"b\n", b"c", b"d"])):
        reader = log_reader.LogReader(path, tail=count)
        assert [record.text for record in reader.read()] == expected
        reader.close()


def test_tail_of_an_open_reader(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"".join(line(b"%d" % number) for number in range(5000)))
    reader = log_reader.LogReader(path, tail=2)
    assert [record.text for record in reader.read()] == [b"4998\n", b"4999\n"]
    reader.close()


def test_previous_attempt() -> None:
    assert previous_attempt(Path("/logs/c/10.log")) == Path("/logs/c/9.log")
    for path in ("/logs/c/0.log", "/logs/c/named.log"):
        with pytest.raises(NotFound):
            previous_attempt(Path(path))


@pytest.mark.parametrize("what", ["container", "pod"])
def test_a_link_on_the_way_to_a_log_is_not_followed(tmp_path: Path, what: str) -> None:
    """A pod with a hostPath there exchanges a directory for it."""
    log = ExchangedLog(tmp_path)
    log.path.write_bytes(line(b"own"))
    reader = log_reader.LogReader(log.path)
    assert [record.text for record in reader.read()] == [b"own\n"]
    log.exchange(what)
    with pytest.raises(FailedPrecondition, match="cannot be entered"):
        list(reader.read())
    reader.close()
    for rotated in (False, True):
        with pytest.raises(FailedPrecondition, match="cannot be entered"):
            log_reader.LogReader(log.path, rotated=rotated)
    assert log_files.exists(log.path), "who waits for the log is told by opening it"


def test_links_of_the_machine_are_followed_and_a_directory_that_is_made_anew_is_found(tmp_path: Path) -> None:
    log = ExchangedLog(tmp_path)
    log.path.write_bytes(line(b"old"))
    (tmp_path / "machine").symlink_to(tmp_path / "logs")
    path = tmp_path / "machine" / log.path.relative_to(tmp_path / "logs")
    reader = log_reader.LogReader(path)
    assert [record.text for record in reader.read()] == [b"old\n"]
    log.path.parent.rename(tmp_path / "removed")
    assert not log_files.exists(path)
    assert list(reader.read()) == []
    with pytest.raises(NotFound):
        log_reader.LogReader(path)
    log.path.parent.mkdir()
    log.path.write_bytes(line(b"new"))
    assert [record.text for record in reader.read()] == [b"new\n"]
    reader.close()
