"""Hostile clients of the streaming server, made of a seed: broken requests, frames, resets and ends at every stage.

Each client is made of a random number generator and a URL alone, so that one can be repeated without those before it.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage

from podkeep.http import spdy
from podkeep.runtime.streaming.port_forward import PROTOCOL as FORWARD

COMMAND_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "", "v9")
WEBSOCKET_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "v9")
STREAM_TYPES = ("error", "stdin", "stdout", "stderr", "resize", "data", "", "no such")
SIZES = (b'{"Width": 80, "Height": 24}\n', b'{"Width": -1, "Height": 99999999999}\n', b"[" * 5000, b"\n" * 5000)


@dataclass(frozen=True)
class Attack:
    """What one client says, portion by portion, and how it goes."""

    name: str
    portions: tuple[bytes, ...]
    aborts: bool
    """Whether it ends with a reset of the connection, and not in good order."""
    reads: bool
    """Whether it takes what the server answers."""


def attack(url: str, rng: random.Random, *, forward: bool) -> Attack:
    """Return one client of a session of a port-forward, or of a command."""
    kinds = {"head": _broken_head, "spdy": _spdy, "websocket": _websocket}
    name = rng.choices(list(kinds), weights=(1, 3, 2))[0]
    data = b"".join(kinds[name](url, rng, forward))
    if rng.random() < 0.3:
        data = _mutated(data, rng)
    if rng.random() < 0.3:
        data = data[: rng.randrange(len(data) + 1)]
    portions = []
    while data:
        size = rng.choice((1, 7, 100, 4096, 65536)) if len(data) < 2000 else rng.choice((1000, 65536))
        portions.append(data[:size])
        data = data[size:]
    return Attack(name, tuple(portions), aborts=rng.random() < 0.5, reads=rng.random() < 0.7)


async def carry_out(url: str, planned: Attack, timeout: float = 10.0) -> None:
    """Be that client; whatever the server does is taken, but not that it goes on for ever."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    reading = asyncio.get_running_loop().create_task(_drain(reader)) if planned.reads else None
    try:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(timeout):
                for portion in planned.portions:
                    writer.write(portion)
                    await writer.drain()
                    await asyncio.sleep(0)
                if not planned.aborts:
                    writer.write_eof()
                    if reading is not None:
                        await reading
    finally:
        if planned.aborts:
            sock: socket.socket = writer.get_extra_info("socket")
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


def _mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        if changed:
            place = rng.randrange(len(changed))
            match rng.randrange(3):
                case 0:
                    changed[place] ^= 1 << rng.randrange(8)
                case 1:
                    del changed[place : place + rng.randrange(1, 20)]
                case _:
                    changed[place:place] = rng.randbytes(rng.randrange(1, 20))
    return bytes(changed)


def _head(url: str, rng: random.Random, headers: dict[str, str]) -> bytes:
    target = urlsplit(url).path
    if rng.random() < 0.1:
        target = rng.choice(
            ("/", "//[", "*", "/exec/", "/exec/" + "x" * 20_000, target + "?x=%ff#y", "http://[::/x", "\\")
        )
    method = "POST" if rng.random() < 0.5 and "sec-websocket-key" not in headers else "GET"
    lines = [f"{method} {target} HTTP/1.1", "host: x", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _broken_head(url: str, rng: random.Random, forward: bool) -> Iterator[bytes]:
    del forward
    yield rng.choice(
        (
            b"\x16\x03\x01\x02\x00\x01\x00" + rng.randbytes(100),
            b"GET " + b"/" * 30_000,
            b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
            b"GET / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 99999999999999999999\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            _head(url, rng, {"connection": "Upgrade", "upgrade": rng.choice((",", "h2c", "SPDY/3.1, websocket", ""))}),
            rng.randbytes(rng.randrange(2000)),
        )
    )


def _spdy(url: str, rng: random.Random, forward: bool) -> Iterator[bytes]:
    protocol = FORWARD if forward else rng.choice(COMMAND_PROTOCOLS)
    yield _head(url, rng, {"connection": "Upgrade", "upgrade": "SPDY/3.1", "x-stream-protocol-version": protocol})
    yield from _frames(rng, forward)


def _frames(rng: random.Random, forward: bool) -> Iterator[bytes]:
    encoder, number = spdy.Encoder(), -1
    if rng.random() < 0.7:
        for kind in ("error", "data") if forward else ("error", "stdin", "stdout", "stderr", "resize"):
            number += 2
            fields = {"streamtype": kind, "port": "80", "requestid": "0"}
            yield encoder.encode(spdy.SynStream(stream_id=number, headers=fields))
    for _ in range(rng.randrange(1, 60)):
        target = rng.choice((1, 3, 5, 7, 9, max(number, 1), rng.randrange(1, 1 << 31)))
        match rng.randrange(10):
            case 0 | 1:
                number += 2
                fields = {
                    "streamtype": rng.choice(STREAM_TYPES),
                    "port": rng.choice(("80", "81", "0", "-1", "x")),
                    "requestid": rng.choice(("", "1", "2", "x" * rng.choice((1, 3000, 5000)))),
                }
                flags = rng.choice((spdy.Flag.NONE, spdy.Flag.FIN))
                yield encoder.encode(spdy.SynStream(stream_id=number, headers=fields, flags=flags))
            case 2 | 3 | 4:
                data = rng.choice((b"", *SIZES, rng.randbytes(100), bytes(rng.randrange(200_000))))
                yield encoder.encode(spdy.Data(stream_id=target, data=data, fin=rng.random() < 0.2))
            case 5 | 6:
                yield encoder.encode(spdy.RstStream(stream_id=target, status=rng.randrange(12)))
            case 7:
                yield encoder.encode(spdy.Ping(ping_id=rng.randrange(1 << 32))) * rng.choice((1, 500))
            case 8:
                yield encoder.encode(spdy.Headers(stream_id=target, headers={"x": "y"}, flags=spdy.Flag.FIN))
            case _:
                frames = (
                    spdy.GoAway(last_stream_id=0),
                    spdy.Settings(entries=((0, 4, 1 << 31),) * 100),
                    spdy.WindowUpdate(stream_id=target, delta=1),
                    spdy.SynReply(stream_id=target),
                )
                yield encoder.encode(rng.choice(frames))


def _websocket(url: str, rng: random.Random, forward: bool) -> Iterator[bytes]:
    tunnel = forward and rng.random() < 0.7
    protocol = f"SPDY/3.1+{FORWARD}" if tunnel else rng.choice(WEBSOCKET_PROTOCOLS)
    yield _head(
        url,
        rng,
        {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(),
            "sec-websocket-protocol": protocol,
        },
    )
    client = Connection(ConnectionType.CLIENT)
    payloads = _frames(rng, forward) if tunnel else (_message(rng) for _ in range(rng.randrange(1, 60)))
    for payload in payloads:
        event: Event
        match rng.randrange(12):
            case 0:
                event = Ping(payload=rng.randbytes(rng.randrange(125)))
            case 1:
                event = TextMessage(data=base64.b64encode(payload).decode())
            case 2 if rng.random() < 0.2:
                event = CloseConnection(code=1000, reason="x" * rng.randrange(100))
            case _:
                event = BytesMessage(data=payload, message_finished=rng.random() < 0.8)
        try:
            frame = client.send(event)
        except Exception:  # noqa: BLE001 - wsproto refuses what a client must not say; raw bytes say it
            frame = rng.randbytes(20)
        yield frame * (rng.choice((1, 300)) if isinstance(event, Ping) else 1)


def _message(rng: random.Random) -> bytes:
    channel = rng.choice((0, 0, 0, 4, 1, 255, rng.randrange(256)))
    data = rng.choice((b"", *SIZES, bytes((rng.randrange(6),)), rng.randbytes(50), bytes(rng.randrange(100_000))))
    return bytes((channel,)) + data
