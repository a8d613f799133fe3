"""SPDY framing: every frame survives, however it is cut; whatever else comes is refused or waits, within bounds."""

from __future__ import annotations

import hashlib
import itertools
import struct
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeep.http import spdy
from podkeep.http.spdy_dictionary import DICTIONARY

stream_ids = st.integers(min_value=1, max_value=spdy.MAX_STREAM_ID)
words = st.integers(min_value=0, max_value=2**32 - 1)
names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30).map(str.lower)
headers = st.dictionaries(names, st.text(st.characters(max_codepoint=255), max_size=50), max_size=8)
flags = st.sampled_from(
    [spdy.Flag.NONE, spdy.Flag.FIN, spdy.Flag.UNIDIRECTIONAL, spdy.Flag.FIN | spdy.Flag.UNIDIRECTIONAL]
)
settings_entries = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**24 - 1), words), max_size=5).map(tuple)
frames = st.one_of(
    st.builds(
        spdy.SynStream,
        stream_id=stream_ids,
        headers=headers,
        associated=st.integers(0, spdy.MAX_STREAM_ID),
        priority=st.integers(0, 7),
        flags=flags,
    ),
    st.builds(spdy.SynReply, stream_id=stream_ids, headers=headers, flags=flags),
    st.builds(spdy.Headers, stream_id=stream_ids, headers=headers, flags=flags),
    st.builds(spdy.RstStream, stream_id=stream_ids, status=words),
    st.builds(spdy.Settings, entries=settings_entries),
    st.builds(spdy.Ping, ping_id=words),
    st.builds(spdy.GoAway, last_stream_id=st.integers(0, spdy.MAX_STREAM_ID), status=words),
    st.builds(spdy.WindowUpdate, stream_id=stream_ids, delta=st.integers(0, spdy.MAX_STREAM_ID)),
    st.builds(spdy.Data, stream_id=stream_ids, data=st.binary(max_size=200), fin=st.booleans()),
)


def joined(parts: Iterable[spdy.Frame]) -> list[spdy.Frame]:
    """Return frames with the parts of a data frame put together again; of streams that send several, too."""
    result: list[spdy.Frame] = []
    for part in parts:
        last = result[-1] if result else None
        if (
            isinstance(part, spdy.Data)
            and isinstance(last, spdy.Data)
            and last.stream_id == part.stream_id
            and not last.fin
        ):
            result[-1] = spdy.Data(stream_id=part.stream_id, data=last.data + part.data, fin=part.fin)
        else:
            result.append(part)
    return result


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def test_the_dictionary_is_that_of_the_protocol() -> None:
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2
    digest = "51d27341373f923f3cd88e1eb7162aeaa3723d7585ff2399201dc06498407f02"
    assert hashlib.sha256(DICTIONARY).hexdigest() == digest


@given(st.lists(frames, max_size=12), st.lists(st.integers(0, 10**6), max_size=20))
@pytest.mark.slow
def test_frames_survive_any_cut(sent: list[spdy.Frame], places: list[int]) -> None:
    encoder, decoder = spdy.Encoder(), spdy.Decoder()
    wire = b"".join(map(encoder.encode, sent))
    received = [frame for part in cut(wire, places) for frame in decoder.feed(part)]
    assert joined(received) == joined(sent)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(st.binary(max_size=300), max_size=10))
def test_garbage_is_refused_or_waits(parts: list[bytes]) -> None:
    decoder = spdy.Decoder()
    try:
        for part in parts:
            for frame in decoder.feed(part):
                assert not isinstance(frame, spdy.Data) or frame.stream_id
    except spdy.SpdyError:
        return
    assert len(decoder._buffer) <= spdy.MAX_CONTROL_BYTES + 8


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from(spdy.FrameType), st.integers(0, 255), st.binary(max_size=100))
def test_any_payload_of_a_control_frame_is_parsed_or_refused(kind: spdy.FrameType, flag: int, payload: bytes) -> None:
    wire = struct.pack(">HHI", 0x8003, kind, flag << 24 | len(payload)) + payload
    try:
        (frame,) = spdy.Decoder().feed(wire)
    except spdy.SpdyError:
        return
    assert type(frame).__name__.upper() == kind.name.replace("_", "")


@pytest.mark.slow
@given(st.binary(max_size=2000))
def test_any_header_block_is_parsed_or_refused(block: bytes) -> None:
    compressor = zlib.compressobj(zdict=DICTIONARY)
    payload = struct.pack(">I", 1) + compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)
    wire = struct.pack(">HHI", 0x8003, spdy.FrameType.SYN_REPLY, len(payload)) + payload
    try:
        (frame,) = spdy.Decoder().feed(wire)
    except spdy.SpdyError:
        return
    assert isinstance(frame, spdy.SynReply)


def test_a_header_block_that_unfolds_to_gigabytes_is_refused() -> None:
    compressor = zlib.compressobj(9, zdict=DICTIONARY)
    bomb = compressor.compress(bytes(5_000_000)) + compressor.flush(zlib.Z_SYNC_FLUSH)
    payload = struct.pack(">I", 1) + bomb
    assert len(payload) < spdy.MAX_CONTROL_BYTES
    with pytest.raises(spdy.SpdyError, match="more than"):
        list(spdy.Decoder().feed(struct.pack(">HHI", 0x8003, spdy.FrameType.SYN_REPLY, len(payload)) + payload))


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (struct.pack(">HHI", 0x8003, spdy.FrameType.SETTINGS, spdy.MAX_CONTROL_BYTES + 1), "at most"),
        (struct.pack(">HHI", 0x8002, spdy.FrameType.PING, 4), "version 2"),
        (struct.pack(">II", 0, 4), "stream 0"),
        (struct.pack(">HHIII", 0x8003, spdy.FrameType.RST_STREAM, 8, 0, 1), "stream 0"),
        (struct.pack(">HHIH", 0x8003, spdy.FrameType.PING, 2, 1), "too short"),
        (struct.pack(">HHII", 0x8003, spdy.FrameType.SETTINGS, 4, 7), "7 settings"),
    ],
)
def test_what_breaks_the_protocol_is_refused(wire: bytes, words: str) -> None:
    with pytest.raises(spdy.SpdyError, match=words):
        list(spdy.Decoder().feed(wire))


def test_unknown_control_frames_are_told_as_such() -> None:
    wire = struct.pack(">HHII", 0x8003, 10, 4, 1) + spdy.Encoder().encode(spdy.Ping(ping_id=1))
    assert list(spdy.Decoder().feed(wire)) == [spdy.Unknown(), spdy.Ping(ping_id=1)]


def test_data_is_passed_on_before_its_frame_is_complete() -> None:
    decoder = spdy.Decoder()
    assert list(decoder.feed(struct.pack(">II", 5, 1 << 24 | 1000) + b"ab")) == [spdy.Data(stream_id=5, data=b"ab")]
    assert list(decoder.feed(b"c" * 998)) == [spdy.Data(stream_id=5, data=b"c" * 998, fin=True)]


def test_two_headers_of_one_name_are_refused() -> None:
    block = struct.pack(">I", 2) + (struct.pack(">I", 1) + b"a" + struct.pack(">I", 1) + b"b") * 2
    compressor = zlib.compressobj(zdict=DICTIONARY)
    payload = struct.pack(">I", 1) + compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(spdy.SpdyError, match="twice"):
        list(spdy.Decoder().feed(struct.pack(">HHI", 0x8003, spdy.FrameType.SYN_REPLY, len(payload)) + payload))
