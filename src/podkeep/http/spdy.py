"""SPDY/3.1 framing without input or output: bytes to frames and frames to bytes.

Owns: the form of frames, the compression of header blocks, limits on what a peer may send. Does not own: streams and
what frames mean (``spdy_connection.py``). A :class:`Decoder` takes bytes as they come, in any portions, and keeps no
more of them than one control frame; the data of a stream is passed on in the portions in which it came.

Source: SPDY Protocol draft 3.1. Kubernetes' clients and servers use a part of it: there is no flow control (neither
side sends window updates or waits for any), no credentials, no priorities.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.http.spdy_dictionary import DICTIONARY

VERSION = 3
MAX_CONTROL_BYTES = 8 * 1024
"""Payload of a control frame as it comes."""
MAX_HEADER_BYTES = 4 * 1024
"""A header block as it unfolds. Kubernetes' clients send three short headers with a stream."""
MAX_HEADERS = 32
MAX_DATA_BYTES = (1 << 24) - 1
"""What the length of a frame can say."""
MAX_STREAM_ID = (1 << 31) - 1
_HEADER_BYTES = 8
_CONTROL = 1 << 31


class SpdyError(InvalidArgument):
    """The peer broke the protocol; the connection cannot go on, because header blocks depend on all before them."""


class FrameType(enum.IntEnum):
    """Types of control frames."""

    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    HEADERS = 8
    WINDOW_UPDATE = 9


class Flag(enum.IntFlag):
    """Flags of frames that open or carry a stream."""

    NONE = 0
    FIN = 1
    UNIDIRECTIONAL = 2


class ResetStatus(enum.IntEnum):
    """Why a stream ends at once."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    UNSUPPORTED_VERSION = 4
    CANCEL = 5
    INTERNAL_ERROR = 6
    FLOW_CONTROL_ERROR = 7


class GoAwayStatus(enum.IntEnum):
    """Why a connection ends."""

    OK = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2


class SynStream(FrozenStruct, kw_only=True):
    """Opens a stream; ``fin``: its opener sends no data."""

    stream_id: int
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    associated: int = 0
    priority: int = 0
    flags: Flag = Flag.NONE


class SynReply(FrozenStruct, kw_only=True):
    """Accepts a stream."""

    stream_id: int
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    flags: Flag = Flag.NONE


class RstStream(FrozenStruct, kw_only=True):
    """Ends a stream at once, in both directions. ``status``: usually a :class:`ResetStatus`."""

    stream_id: int
    status: int


class Settings(FrozenStruct, kw_only=True):
    """``entries``: flags, number and value of each setting."""

    entries: tuple[tuple[int, int, int], ...] = ()


class Ping(FrozenStruct, kw_only=True):
    """Answered with the same frame, if the number is the peer's: odd of a client, even of a server."""

    ping_id: int


class GoAway(FrozenStruct, kw_only=True):
    """Ends the connection; ``status``: usually a :class:`GoAwayStatus`."""

    last_stream_id: int
    status: int = GoAwayStatus.OK


class Headers(FrozenStruct, kw_only=True):
    """Further headers of a stream."""

    stream_id: int
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    flags: Flag = Flag.NONE


class WindowUpdate(FrozenStruct, kw_only=True):
    """Allows the peer so many bytes more."""

    stream_id: int
    delta: int


class Data(FrozenStruct, kw_only=True):
    """Data of a stream; ``fin``: its last. A decoder may pass one frame on as several of these."""

    stream_id: int
    data: bytes
    fin: bool = False


class Unknown(FrozenStruct):
    """A frame of a type that is not known, which is passed over (section 2.2.1): taking it is work all the same."""


Frame: TypeAlias = SynStream | SynReply | RstStream | Settings | Ping | GoAway | Headers | WindowUpdate | Data


class Decoder:
    """Turns a peer's bytes into frames."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._buffer = bytearray()
        self._data: Data | None = None
        """The data frame that is being received: its stream and whether it is the last; ``data`` is unused."""
        self._data_left = 0

    def feed(self, received: bytes) -> Iterator[Frame | Unknown]:
        """Yield the frames that are complete with ``received``, and the data that came of one that is not.

        All of them must be taken before more is fed.

        :raises SpdyError: if the peer broke the protocol; the decoder is of no use then.
        """
        self._buffer += received
        while True:
            if self._data is not None:
                part = self._take_data(self._data)
                if part is None:
                    return
                yield part
                continue
            if len(self._buffer) < _HEADER_BYTES:
                return
            first, second = struct.unpack_from(">II", self._buffer)
            flags, length = second >> 24, second & MAX_DATA_BYTES
            if not first & _CONTROL:
                if not first:
                    raise SpdyError("SPDY: data of stream 0")
                del self._buffer[:_HEADER_BYTES]
                self._data, self._data_left = Data(stream_id=first, data=b"", fin=bool(flags & Flag.FIN)), length
                continue
            # Before the payload has come: what is too long is not waited for.
            _check_control(first, length)
            if len(self._buffer) < _HEADER_BYTES + length:
                return
            payload = bytes(self._buffer[_HEADER_BYTES : _HEADER_BYTES + length])
            del self._buffer[: _HEADER_BYTES + length]
            yield self._control(first & 0xFFFF, Flag(flags & 3), payload)

    def _take_data(self, frame: Data) -> Data | None:
        if not self._buffer and self._data_left:
            return None
        part = bytes(self._buffer[: self._data_left])
        del self._buffer[: self._data_left]
        self._data_left -= len(part)
        if self._data_left:
            return Data(stream_id=frame.stream_id, data=part)
        self._data = None
        return Data(stream_id=frame.stream_id, data=part, fin=frame.fin)

    def _control(self, number: int, flags: Flag, payload: bytes) -> Frame | Unknown:
        try:
            kind = FrameType(number)
        except ValueError:
            return Unknown()
        try:
            return self._parse(kind, flags, payload)
        except struct.error as error:
            raise SpdyError(f"SPDY: a {kind.name} frame of {len(payload)} bytes is too short") from error

    def _parse(self, kind: FrameType, flags: Flag, payload: bytes) -> Frame:
        if kind is FrameType.SETTINGS:
            return _settings(payload)
        (first,) = struct.unpack_from(">I", payload)
        if kind is FrameType.PING:
            return Ping(ping_id=first)
        stream_id = first & MAX_STREAM_ID
        if kind is FrameType.GOAWAY:
            return GoAway(last_stream_id=stream_id, status=struct.unpack_from(">I", payload, 4)[0])
        if not stream_id:
            raise SpdyError(f"SPDY: a {kind.name} frame of stream 0")
        if kind is FrameType.RST_STREAM:
            return RstStream(stream_id=stream_id, status=struct.unpack_from(">I", payload, 4)[0])
        if kind is FrameType.WINDOW_UPDATE:
            return WindowUpdate(stream_id=stream_id, delta=struct.unpack_from(">I", payload, 4)[0] & MAX_STREAM_ID)
        if kind is FrameType.SYN_REPLY:
            return SynReply(stream_id=stream_id, headers=self._header_block(payload[4:]), flags=flags)
        if kind is FrameType.HEADERS:
            return Headers(stream_id=stream_id, headers=self._header_block(payload[4:]), flags=flags)
        associated, priority = struct.unpack_from(">IBx", payload, 4)
        return SynStream(
            stream_id=stream_id,
            headers=self._header_block(payload[10:]),
            associated=associated & MAX_STREAM_ID,
            priority=priority >> 5,
            flags=flags,
        )

    def _header_block(self, compressed: bytes) -> dict[str, str]:
        try:
            # Deflate makes up to 1,032 bytes of one: of 8 KiB no more is unfolded than tells that it is too much.
            block = self._inflate.decompress(compressed, MAX_HEADER_BYTES + 1)
        except zlib.error as error:
            raise SpdyError(f"SPDY: a header block cannot be decompressed: {error}") from error
        if len(block) > MAX_HEADER_BYTES or self._inflate.unconsumed_tail:
            raise SpdyError(f"SPDY: a header block has more than {MAX_HEADER_BYTES} bytes")
        # zlib decompresses nothing behind the end of its stream, which lasts as long as the connection.
        if self._inflate.eof:
            raise SpdyError("SPDY: the compression of header blocks was ended")
        return _headers(block)


class Encoder:
    """Turns our frames into bytes; header blocks depend on all before them, so each must be sent, in order."""

    def __init__(self) -> None:
        # Small windows: a header block is short, and a daemon has many connections.
        self._deflate = zlib.compressobj(wbits=11, memLevel=5, zdict=DICTIONARY)

    def encode(self, frame: Frame) -> bytes:
        match frame:
            case Data():
                assert len(frame.data) <= MAX_DATA_BYTES
                flags = Flag.FIN if frame.fin else 0
                return struct.pack(">II", frame.stream_id, flags << 24 | len(frame.data)) + frame.data
            case SynStream():
                fixed = struct.pack(">IIBx", frame.stream_id, frame.associated, frame.priority << 5)
                return _frame(FrameType.SYN_STREAM, fixed + self._header_block(frame.headers), frame.flags)
            case SynReply():
                block = self._header_block(frame.headers)
                return _frame(FrameType.SYN_REPLY, struct.pack(">I", frame.stream_id) + block, frame.flags)
            case Headers():
                block = self._header_block(frame.headers)
                return _frame(FrameType.HEADERS, struct.pack(">I", frame.stream_id) + block, frame.flags)
            case RstStream():
                return _frame(FrameType.RST_STREAM, struct.pack(">II", frame.stream_id, frame.status))
            case Settings():
                values = (
                    struct.pack(">BBHI", flags, name >> 16, name & 0xFFFF, value)
                    for flags, name, value in frame.entries
                )
                return _frame(FrameType.SETTINGS, struct.pack(">I", len(frame.entries)) + b"".join(values))
            case Ping():
                return _frame(FrameType.PING, struct.pack(">I", frame.ping_id))
            case GoAway():
                return _frame(FrameType.GOAWAY, struct.pack(">II", frame.last_stream_id, frame.status))
            case WindowUpdate():
                return _frame(FrameType.WINDOW_UPDATE, struct.pack(">II", frame.stream_id, frame.delta))

    def _header_block(self, headers: Mapping[str, str]) -> bytes:
        parts = [len(headers).to_bytes(4, "big")]
        for text in (text for item in headers.items() for text in item):
            encoded = text.encode("latin-1")
            parts += (len(encoded).to_bytes(4, "big"), encoded)
        return self._deflate.compress(b"".join(parts)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def _frame(kind: FrameType, payload: bytes, flags: Flag = Flag.NONE) -> bytes:
    return struct.pack(">HHI", 0x8000 | VERSION, kind, flags << 24 | len(payload)) + payload


def _check_control(first: int, length: int) -> None:
    version = first >> 16 & 0x7FFF
    if version != VERSION:
        raise SpdyError(f"SPDY: version {version} in a frame; only {VERSION} is spoken here")
    if length > MAX_CONTROL_BYTES:
        raise SpdyError(f"SPDY: a control frame of {length} bytes; at most {MAX_CONTROL_BYTES} are taken")


def _settings(payload: bytes) -> Settings:
    (count,) = struct.unpack_from(">I", payload)
    if count * 8 != len(payload) - 4:
        raise SpdyError(f"SPDY: {count} settings in a frame of {len(payload)} bytes")
    words = struct.iter_unpack(">II", payload[4:])
    return Settings(entries=tuple((first >> 24, first & 0xFFFFFF, value) for first, value in words))


def _headers(block: bytes) -> dict[str, str]:
    texts, offset = [], 4
    count = int.from_bytes(block[:4], "big")
    if len(block) < 4 or count > MAX_HEADERS:
        raise SpdyError(f"SPDY: {count} headers in a block of {len(block)} bytes; at most {MAX_HEADERS} are taken")
    for _ in range(2 * count):
        length = int.from_bytes(block[offset : offset + 4], "big")
        text = block[offset + 4 : offset + 4 + length]
        offset += 4 + length
        if offset > len(block):
            raise SpdyError("SPDY: a header is longer than its block")
        texts.append(text.decode("latin-1"))
    if offset != len(block):
        raise SpdyError("SPDY: a header block is longer than its headers")
    names = [name.lower() for name in texts[::2]]
    # Both are errors of the protocol (section 2.6.10).
    if len(set(names)) != len(names) or "" in names:
        raise SpdyError("SPDY: a header block has an empty name, or one name twice")
    return dict(zip(names, texts[1::2], strict=True))
