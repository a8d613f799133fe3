"""systemd-logind on the system bus: how long a shutdown waits, keeping it from going on, being told of one.

Source: org.freedesktop.login1(5), "Inhibitor Locks" (systemd.io/INHIBITOR_LOCKS). A lock is a descriptor; the machine
shuts down once it is closed, or its delay is over.

Every user of the machine may send a signal to a single client of the bus, with any content and with descriptors, and
no match keeps it away from there. So a signal counts if it is of who has logind's name now, and descriptors that come
with anything else are closed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from podkeep.agent.eviction import dbus_messages as dbus
from podkeep.agent.eviction.dbus_messages import Message
from podkeep.base import atomicfile
from podkeep.base.errors import FailedPrecondition, Internal, Unavailable
from podkeep.kernel.cgroup import systemd

DROP_IN = Path("/etc/systemd/logind.conf.d/99-podkeep.conf")
_TIMEOUT_S = 10.0
_MAX_LINE = 4096
_MAX_MESSAGE = 1 << 20
"""Bytes of a message that is read; those of logind have a few hundred."""
_MAX_DESCRIPTORS = 253
"""In one message to a socket (unix(7), SCM_RIGHTS)."""
_PIECE = 1 << 16
_BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
_LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
_SYSTEMD = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_SIGNAL = "PrepareForShutdown"
_OWNER = "NameOwnerChanged"


class Logind:
    """A connection to the bus; use it as a context manager.

    :param bus: the bus's socket.
    """

    def __init__(self, bus: Path = systemd.BUS) -> None:
        self._bus = bus
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._data = bytearray()
        self._fds: list[int] = []
        """Descriptors that came with the last message; they are closed before the next one is read."""
        self._signals: deque[Message] = deque()
        self._serial = 0
        self._logind = ""
        """Who has logind's name."""
        self._lock: int | None = None

    async def __aenter__(self) -> Logind:
        """Connect.

        :raises Unavailable: if there is no bus, or it does not let us in.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._connect()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the machine shut down, and end the connection."""
        self.release()
        self._forget_descriptors()
        self._socket.close()

    async def require_delay(self, seconds: float) -> None:
        """Have logind wait for so long at least, by a file of its configuration if it does not.

        :raises FailedPrecondition: if it still does not.
        """
        if await self._delay() >= seconds:
            return
        text = f"# Written by podkeep: [agent] shutdown_grace_period.\n[Login]\nInhibitDelayMaxSec={seconds:.0f}\n"
        await asyncio.to_thread(_write_drop_in, text)
        # As a kubelet does (ReloadLogindConf): logind has no call to read its configuration anew, and does not say when
        # it is done.
        await self._call(_SYSTEMD, "KillUnit", "systemd-logind.service", "all", int(signal.SIGHUP))
        for attempt in range(6):
            if await self._delay() >= seconds:
                return
            await asyncio.sleep(0.1 * 2**attempt)
        raise FailedPrecondition(
            f"logind waits {await self._delay():g} s for a shutdown, and {seconds:g} s are needed",
            hint=f"raise InhibitDelayMaxSec in {DROP_IN.parent}",
        )

    async def inhibit(self) -> None:
        """Have a shutdown wait until :meth:`release`.

        :raises PodkeepError: if logind refuses.
        """
        why = "Pods have to end before the machine shuts down"
        await self._call(_LOGIND, "Inhibit", "shutdown", "podkeep", why, "delay")
        if not self._fds:
            raise Internal("logind gave no lock")
        # The new lock is taken before the old one is let go, so that there is no moment in which a shutdown goes on.
        lock = self._fds.pop(0)
        self.release()
        self._lock = lock

    def release(self) -> None:
        """Let a shutdown go on."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def follow(self) -> bool:
        """Have shutdowns told from now on; return whether one goes on already."""
        for rule in (
            f"type='signal',sender='{_BUS[0]}',interface='{_BUS[2]}',member='{_OWNER}',arg0='{_LOGIND[0]}'",
            f"type='signal',sender='{_LOGIND[0]}',interface='{_LOGIND[2]}',member='{_SIGNAL}'",
        ):
            await self._call(_BUS, "AddMatch", rule)
        answer = await self._get("PreparingForShutdown")
        self._logind = answer.sender  # if it is another one by now, that is told after its answer
        return bool(dbus.number(answer))

    async def shutdowns(self) -> AsyncIterator[bool]:
        """Yield whenever a shutdown begins (True), or is called off (False), since :meth:`follow`.

        :raises Unavailable: when the connection ends.
        """
        while True:
            while self._signals:
                yield bool(dbus.number(self._signals.popleft()))
            self._take(await self._message())
            # Messages may come as fast as they are read.
            await asyncio.sleep(0)

    async def _delay(self) -> float:
        return dbus.number(await self._get("InhibitDelayMaxUSec")) / 1e6

    async def _get(self, name: str) -> Message:
        properties = (*_LOGIND[:2], "org.freedesktop.DBus.Properties")
        return await self._call(properties, "Get", _LOGIND[2], name)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(self._socket, str(self._bus))
        except OSError as error:
            raise Unavailable(f"the system bus {self._bus}: {error.strerror}") from error
        # The first byte of a connection is NUL and carries the credentials (D-Bus Specification, "Authentication
        # Protocol").
        await loop.sock_sendall(self._socket, b"\0")
        for line, expected in (
            (f"AUTH EXTERNAL {str(os.geteuid()).encode().hex()}", b"OK "),
            ("NEGOTIATE_UNIX_FD", b"AGREE_UNIX_FD"),
        ):
            await loop.sock_sendall(self._socket, f"{line}\r\n".encode())
            answer = await self._line()
            if not answer.startswith(expected):
                raise Unavailable(f"the system bus refuses: {answer.decode(errors='replace')}")
        await loop.sock_sendall(self._socket, b"BEGIN\r\n")
        await self._call(_BUS, "Hello")

    async def _line(self) -> bytes:
        while (end := self._data.find(b"\r\n")) < 0:
            if len(self._data) > _MAX_LINE:
                raise Unavailable("the system bus does not speak D-Bus")
            self._data += await self._receive(_MAX_LINE)
        line = bytes(self._data[:end])
        del self._data[: end + 2]
        return line

    async def _call(self, target: tuple[str, str, str], member: str, *arguments: str | int) -> Message:
        self._serial += 1
        serial = self._serial
        async with asyncio.timeout(_TIMEOUT_S):
            data = dbus.call(serial, *target, member, *arguments)
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
            while True:
                message = await self._message()
                # To what is no answer anybody may write a number; for answers the bus sees that they were asked for.
                if message.type in (dbus.RETURN, dbus.ERROR) and message.reply_to == serial:
                    break
                self._take(message)
                await asyncio.sleep(0)
        if message.type == dbus.ERROR:
            raise Unavailable(f"{target[0]} refuses {member}: {message.error}")
        return message

    def _take(self, message: Message) -> None:
        if message.type != dbus.SIGNAL:
            return
        kind = (message.sender, message.interface, message.member)
        if kind == (_BUS[0], _BUS[2], _OWNER):
            name, _, owner = dbus.texts(message)
            if name == _LOGIND[0]:
                self._logind = owner
        elif self._logind and kind == (self._logind, _LOGIND[2], _SIGNAL):
            self._signals.append(message)

    async def _message(self) -> Message:
        while True:
            self._forget_descriptors()
            # Not a byte of the next one, so that descriptors are of the message that they come with.
            head = await self._exactly(dbus.HEAD_BYTES)
            rest = dbus.size(head) - len(head)
            if rest <= _MAX_MESSAGE:
                return dbus.parse(head + await self._exactly(rest))
            while rest:
                rest -= len(await self._receive(min(rest, _PIECE)))

    async def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += await self._receive(count - len(data))
        return data

    async def _receive(self, most: int) -> bytes:
        """Wait for bytes, and the descriptors with them.

        :raises Unavailable: if the bus closed the connection.
        """
        loop = asyncio.get_running_loop()
        while True:
            with suppress(BlockingIOError):
                data, fds, _, _ = socket.recv_fds(self._socket, most, _MAX_DESCRIPTORS)
                # Before anything can fail: a lock that is received and forgotten would hold up each shutdown.
                self._fds += fds
                if not data:
                    raise Unavailable("the system bus closed the connection")
                return data
            readable = asyncio.Event()
            loop.add_reader(self._socket, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._socket)

    def _forget_descriptors(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def _write_drop_in(text: str) -> None:
    DROP_IN.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    atomicfile.write(DROP_IN, text.encode(), mode=0o644)
