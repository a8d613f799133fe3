"""Streams that end too early, go on too long, or ask for too much."""

from __future__ import annotations

import gzip
import io
import struct
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeep.images.layers import unpack
from podkeep.images.layers.decompress import CompressionError, decompressor
from podkeep.images.layers.messages import UnpackRequest
from podkeep.images.layers.tarstream import TarError
from podkeep.images.layers.zstdframes import FrameWatcher

PLAIN = b"hello" * 1000
GZIP = gzip.compress(PLAIN, mtime=0)
ZSTD = zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN)
SKIPPABLE = struct.pack("<II", 0x184D2A57, 300) + bytes(300)


def plain(kind: str, data: bytes, piece: int = 1 << 18) -> bytes:
    """Decompress ``data`` that arrives in pieces."""
    stream = io.BytesIO(data)
    pull = decompressor(kind, lambda count: stream.read(min(count, piece)))
    return b"".join(iter(pull, b""))


def _member(flags: int, more: bytes) -> bytes:
    raw = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = raw.compress(PLAIN) + raw.flush()
    return b"\x1f\x8b\x08" + bytes([flags]) + bytes(6) + more + body + struct.pack("<II", zlib.crc32(PLAIN), len(PLAIN))


@pytest.mark.slow
@pytest.mark.parametrize("piece", [1, 7, 1 << 18])
@pytest.mark.parametrize(
    ("kind", "data", "times"),
    [
        ("gzip", GZIP + GZIP, 2),
        ("gzip", gzip.compress(b"", mtime=0) + GZIP + gzip.compress(b"", mtime=0), 1),  # as eStargz ends
        ("gzip", _member(4, struct.pack("<H", 60_000) + bytes(60_000)), 1),
        ("gzip", _member(8, b"n" * 100_000 + b"\0"), 1),
        ("zstd", ZSTD + ZSTD, 2),
        ("zstd", SKIPPABLE + ZSTD + SKIPPABLE, 1),  # as zstd:chunked ends
        ("zstd", zstandard.ZstdCompressor().compress(b"") + ZSTD, 1),
    ],
    ids=["members", "empty members", "extra field", "long name", "frames", "skippable frames", "empty frame"],
)
def test_what_a_stream_may_be_made_of(kind: str, data: bytes, times: int, piece: int) -> None:
    assert plain(kind, data, piece) == PLAIN * times


@pytest.mark.parametrize(("kind", "data"), [("gzip", GZIP), ("zstd", ZSTD), ("zstd", ZSTD + SKIPPABLE)])
def test_a_stream_that_was_cut_off_anywhere_is_told(kind: str, data: bytes) -> None:
    whole = {0, len(data), len(ZSTD)} if kind == "zstd" else {0, len(data)}
    for cut in set(range(len(data))) - whole:
        with pytest.raises(CompressionError, match=f"the {kind} stream ends too early"):
            plain(kind, data[:cut])


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("gzip", GZIP + b"garbage"),
        ("gzip", GZIP + bytes(512)),
        ("gzip", GZIP[:-8] + b"abcd" + GZIP[-4:]),
        ("gzip", GZIP[:-1] + b"\1"),
        ("gzip", _member(2, b"zz")),
        ("zstd", ZSTD + b"garbage"),
        ("zstd", ZSTD + bytes(512)),
        ("zstd", ZSTD[:-1] + bytes([ZSTD[-1] ^ 1])),
        ("zstd", ZSTD + struct.pack("<II", 0x184D2A50, 0xFFFFFFFF) + bytes(100)),
    ],
)
def test_damage_and_what_follows_the_end_are_refused(kind: str, data: bytes) -> None:
    """As Go's readers do, with which images are unpacked elsewhere."""
    with pytest.raises(CompressionError):
        plain(kind, data)


def test_a_frame_that_asks_for_much_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(CompressionError, match="too much memory"):
        plain("zstd", frame.compress(PLAIN) + frame.flush())


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=400_000), st.booleans(), st.booleans()), max_size=3), st.data())
def test_ends_of_frames_are_found_in_any_frames(frames: list[tuple[bytes, bool, bool]], data: st.DataObject) -> None:
    stream, ends = b"", {0}
    for content, checksum, size in frames:
        compressor = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size)
        stream += compressor.compress(content * data.draw(st.integers(1, 3)))
        ends.add(len(stream))
    cut = data.draw(st.one_of(st.sampled_from(sorted(ends)), st.integers(0, len(stream))))
    watcher = FrameWatcher()
    step = data.draw(st.integers(1, 100_000))
    for start in range(0, cut, step):
        watcher.feed(stream[start : min(start + step, cut)])
    assert watcher.between_frames == (cut in ends)


@pytest.mark.slow
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("size", [0, 200, 300, 70_000, 40 << 20])
@pytest.mark.parametrize("log", [10, 20, 27])
def test_what_a_frame_takes_of_memory_is_told_before_it_does(log: int, size: int, sized: bool) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=log, write_content_size=sized)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    pieces = compressor.compressobj()
    frame = compressor.compress(bytes(size)) if sized else pieces.compress(bytes(size)) + pieces.flush()
    told: list[int] = []
    stream = io.BytesIO(frame)
    pull = decompressor("zstd", stream.read, lambda: told.append(stream.tell()))
    while pull():
        pass
    window = zstandard.get_frame_parameters(frame).window_size
    watcher = FrameWatcher()
    watcher.feed(frame)
    assert watcher.window == window
    assert len(told) == (window > 8 << 20)


EMPTY_MEMBER = b"\x1f\x8b\x08\x04" + bytes(6) + struct.pack("<H", 65_000) + bytes(65_000) + b"\x03\x00" + bytes(8)
SKIPPED = struct.pack("<II", 0x184D2A50, 1 << 20) + bytes(1 << 20)


@pytest.mark.parametrize(("kind", "nothing"), [("gzip", EMPTY_MEMBER), ("zstd", SKIPPED)])
def test_a_stream_that_comes_to_nothing_has_an_end(kind: str, nothing: bytes) -> None:
    request = UnpackRequest(
        root="/",
        driver="directories",
        compression=kind,
        algorithm="sha256",
        max_bytes=64 << 30,
        max_inodes=1,
        max_ratio=500,
        max_memory=1,
    )
    sent = 0

    def read(count: int) -> bytes:
        nonlocal sent
        assert sent < 80 << 20, "nobody gave it up"
        piece = nothing[sent % len(nothing) :][:count]
        sent += len(piece)
        return piece

    with pytest.raises(TarError, match="bytes of it come to 0"):
        unpack._measured(read, request)()
