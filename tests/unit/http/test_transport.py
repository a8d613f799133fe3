"""Breaking connections, whatever has become of them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import podkeep
from podkeep.http.transport import abort

MIB = 1 << 20


async def _connected() -> tuple[asyncio.StreamWriter, socket.socket]:
    """Return a connection with bytes that its socket does not take yet, and the peer's socket."""
    ours, peer = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    writer.write(bytes(8 * MIB))
    assert writer.transport.get_write_buffer_size()
    return writer, peer


def _read(peer: socket.socket) -> int:
    """Read to the end, and return how many bytes came."""
    count = 0
    try:
        while data := peer.recv(MIB):
            count += len(data)
    except ConnectionResetError:
        pass
    return count


def test_a_connection_that_was_closed_and_has_sent_all_stays_as_it_is() -> None:
    async def run() -> int:
        writer, peer = await _connected()
        with peer:
            writer.close()
            count = await asyncio.to_thread(_read, peer)
            await writer.wait_closed()
            abort(writer.transport)
            abort(writer.transport)
        return count

    assert asyncio.run(run(), debug=True) == 8 * MIB


def test_a_connection_that_was_closed_and_has_bytes_to_send_is_broken() -> None:
    async def run() -> int:
        writer, peer = await _connected()
        with peer:
            writer.close()
            abort(writer.transport)
            await writer.wait_closed()
            return await asyncio.to_thread(_read, peer)

    assert asyncio.run(run(), debug=True) < 8 * MIB


def test_an_open_connection_is_broken() -> None:
    async def run() -> int:
        writer, peer = await _connected()
        with peer:
            abort(writer.transport)
            await writer.wait_closed()
            return await asyncio.to_thread(_read, peer)

    assert asyncio.run(run(), debug=True) < 8 * MIB


def test_asyncio_is_asked_to_break_a_connection_in_one_place() -> None:
    source = Path(podkeep.__file__).parent
    asking = {path for path in source.rglob("*.py") if "transport.abort()" in path.read_text()}
    assert asking == {source / "http/transport.py"}
