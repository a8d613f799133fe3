"""The end of pods before a shutdown, with a stand-in for the system bus and for logind on it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from podkeep.agent.eviction import dbus_messages as dbus
from podkeep.agent.eviction import shutdown
from podkeep.agent.eviction.shutdown import GracefulShutdown
from podkeep.base.config import AgentConfig
from podkeep.base.metrics import Metrics
from support.evicted import PodsOfNode
from support.pods import pod
from support.waiting import TIMEOUT_S

_REPLY, _SENDER, _SIGNATURE, _FDS = 5, 7, 8, 9
LOGIND = b":1.1"


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value + b"\0"


def number(value: int) -> bytes:
    return struct.pack("<I", value)


def message(kind: int, fields: Sequence[tuple[int, bytes, bytes]], body: bytes) -> bytes:
    """Return a message (D-Bus Specification, "Message Format")."""
    header = bytearray()
    for code, sign, value in fields:
        header += bytes(-len(header) % 8) + bytes((code, 1)) + sign + b"\0" + value
    head = struct.pack("<cBBBIII", b"l", kind, 0, 1, len(body), 1, len(header)) + header
    return head + bytes(-len(head) % 8) + body


class Bus:
    """A bus on which logind says whether the machine shuts down."""

    def __init__(self) -> None:
        self.shutting_down = False
        self._clients: set[asyncio.StreamWriter] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            assert await reader.readexactly(1) == b"\0"
            for reply in (b"OK 0\r\n", b"AGREE_UNIX_FD\r\n", b""):  # to AUTH, NEGOTIATE_UNIX_FD, BEGIN
                await reader.readline()
                writer.write(reply)
            while True:
                head = await reader.readexactly(dbus.HEAD_BYTES)
                rest = await reader.readexactly(dbus.size(head) - len(head))
                self._reply(writer, dbus.parse(head + rest))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._clients.discard(writer)
            writer.close()

    def _reply(self, writer: asyncio.StreamWriter, call: dbus.Message) -> None:
        fields = [(_REPLY, b"u", number(call.serial)), (_SENDER, b"s", text(LOGIND))]
        if call.member == "Inhibit" and self.shutting_down:
            error = text(b"org.freedesktop.login1.OperationInProgress")
            writer.write(message(dbus.ERROR, [*fields, (4, b"s", error)], b""))
        elif call.member == "Inhibit":
            fields += [(_SIGNATURE, b"g", b"\x01h\0"), (_FDS, b"u", number(1))]
            descriptor = writer.get_extra_info("socket").fileno()
            lock, held = os.pipe()
            with socket.socket(fileno=os.dup(descriptor)) as channel:
                socket.send_fds(channel, [message(dbus.RETURN, fields, number(0))], [held])
            os.close(lock)
            os.close(held)
        elif call.member == "Get":
            if b"PreparingForShutdown" in call.body:
                value = b"\x01b\0\0" + number(self.shutting_down)
            else:
                value = b"\x01t\0" + bytes(5) + struct.pack("<Q", 3600 * 10**6)
            writer.write(message(dbus.RETURN, [*fields, (_SIGNATURE, b"g", b"\x01v\0")], value))
        else:
            writer.write(message(dbus.RETURN, fields, b""))

    def announce(self, *, begins: bool) -> None:
        """Have the machine begin to shut down, or not shut down after all."""
        self.shutting_down = begins
        fields = [
            (1, b"o", text(b"/org/freedesktop/login1")),
            (2, b"s", text(b"org.freedesktop.login1.Manager")),
            (3, b"s", text(b"PrepareForShutdown")),
            (_SENDER, b"s", text(LOGIND)),
            (_SIGNATURE, b"g", b"\x01b\0"),
        ]
        for client in self._clients:
            client.write(message(dbus.SIGNAL, fields, number(begins)))

    def hang_up(self) -> None:
        for client in self._clients:
            client.close()


class Node(PodsOfNode):
    """A node with one pod, and whether its status is to be reported."""

    def __init__(self) -> None:
        super().__init__([pod()])
        self.changed = asyncio.Event()


@asynccontextmanager
async def watching(tmp_path: Path, bus: Bus, node: Node) -> AsyncIterator[GracefulShutdown]:
    found = GracefulShutdown(
        agent=AgentConfig(root=str(tmp_path), shutdown_grace_period=30.0),
        pods=node,
        events=node,
        metrics=Metrics(),
        report_status=node.changed.set,
        bus=tmp_path / "bus",
    )
    async with asyncio.timeout(TIMEOUT_S), await asyncio.start_unix_server(bus.answer, tmp_path / "bus"):
        running = asyncio.ensure_future(found.run())
        try:
            yield found
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            bus.hang_up()


async def told(node: Node) -> None:
    await node.changed.wait()
    node.changed.clear()


def test_a_shutdown_that_is_called_off_while_nobody_listens_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bus was restarted meanwhile: the node stayed not ready, and took on no pods."""
    monkeypatch.setattr(shutdown, "_AGAIN_S", 0.01)

    async def work() -> None:
        bus, node = Bus(), Node()
        async with watching(tmp_path, bus, node) as found:
            while not node.changed.is_set():
                bus.announce(begins=True)  # the match may not be there yet
                await asyncio.sleep(0.01)
            await told(node)
            assert found.shutting_down
            bus.shutting_down = False
            bus.hang_up()
            await told(node)
            assert not found.shutting_down
        assert node.ended == ["web"]
        assert node.said[0] == "Shutdown manager detected shutdown event"
        assert node.said[-1] == "Shutdown manager detected shutdown cancellation"

    asyncio.run(work())


def test_a_shutdown_that_goes_on_already_ends_the_pods(tmp_path: Path) -> None:
    """The agent was restarted in the middle of it, or it began before the agent listened."""

    async def work() -> None:
        bus, node = Bus(), Node()
        bus.shutting_down = True
        async with watching(tmp_path, bus, node) as found:
            await told(node)
            assert found.shutting_down
            bus.announce(begins=False)
            await told(node)
            assert not found.shutting_down
        assert node.ended == ["web"]

    asyncio.run(work())
