"""What TLS connections take of memory, while they wait and whatever their peer does."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import ssl
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from podkeep.client.connection import Connection, server_address
from podkeep.client.credentials import Credentials
from podkeep.client.settings import Pem, Settings
from podkeep.http import self_signed
from podkeep.http.tls import server_context
from support.waiting import TIMEOUT_S

CONNECTIONS = 10
MOST_BYTES = 100 << 10
"""Of one end of a connection; asyncio alone would take 256 KiB for it."""


@pytest.mark.slow
def test_a_connection_that_waits_takes_little(tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    self_signed.ensure(certificate, key, "localhost", ["localhost"], ["127.0.0.1"])

    async def steps() -> int:
        arrived: asyncio.Queue[None] = asyncio.Queue()
        done = asyncio.Event()

        async def wait(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived.put_nowait(None)
            await done.wait()
            writer.close()

        tls = server_context("the server", str(certificate), str(key))
        server = await asyncio.start_server(wait, "127.0.0.1", 0, ssl=tls)
        where = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        context = await Credentials(Settings(server=where, authority=Pem(path=str(certificate)))).context()
        async with server:
            opened = [await Connection.open(server_address(where), context)]  # whatever is made once
            await arrived.get()
            tracemalloc.start()
            for _ in range(CONNECTIONS):
                opened.append(await Connection.open(server_address(where), context))
                await arrived.get()
            taken, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            done.set()
            for connection in opened:
                await connection.close()
        return taken

    taken = asyncio.run(asyncio.wait_for(steps(), TIMEOUT_S))
    assert taken / (2 * CONNECTIONS) < MOST_BYTES


@pytest.mark.slow
def test_a_peer_that_asks_for_handshakes_and_takes_no_answer_is_left(tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    self_signed.ensure(certificate, key, "localhost", ["localhost"], ["127.0.0.1"])

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def steps() -> None:
        server = await asyncio.start_server(
            wait, "127.0.0.1", 0, ssl=server_context("the server", str(certificate), str(key))
        )
        async with server:
            server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            with pytest.raises(ConnectionError):
                await asyncio.to_thread(_ask_for_handshakes, server.sockets[0].getsockname(), certificate)

    asyncio.run(asyncio.wait_for(steps(), TIMEOUT_S))


def _ask_for_handshakes(address: tuple[str, int], certificate: Path) -> None:
    """Ask a server for 20,000 handshakes over one connection of TLS 1.2, and read no answer.

    :raises ConnectionError: if the server has enough of it.
    """
    log = certificate.with_name("keys")
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM+AES128")
    context.keylog_filename = str(log)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(address)
        received = b""
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                data = sock.recv(65536)
                received += data
                incoming.write(data)
        sock.sendall(outgoing.read())
        # RFC 5246, section 6.3: both directions' keys, then their fixed parts of nonces; the server's hello has its
        # random number behind two heads and a version.
        _, client_random, secret = log.read_text().split()[-3:]
        seed = b"key expansion" + received[11:43] + bytes.fromhex(client_random)
        keys = _expanded(bytes.fromhex(secret), seed)
        cipher, nonce = AESGCM(keys[:16]), keys[32:36]
        hello = b"\x01\0\0\0"
        # More than the kernel has room for: a server that is slow must come to read them.
        for number in range(1, 1_000_000):
            explicit = struct.pack(">Q", number)
            sealed = cipher.encrypt(nonce + explicit, hello, explicit + struct.pack(">BHH", 22, 0x303, len(hello)))
            sock.sendall(struct.pack(">BHH", 22, 0x303, 8 + len(sealed)) + explicit + sealed)


def _expanded(secret: bytes, seed: bytes) -> bytes:
    """Return 64 bytes of RFC 5246's pseudo-random function (section 5)."""
    first = hmac.digest(secret, seed, hashlib.sha256)
    second = hmac.digest(secret, first, hashlib.sha256)
    return b"".join(hmac.digest(secret, each + seed, hashlib.sha256) for each in (first, second))
