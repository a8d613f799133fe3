"""The connection to systemd-logind, against a real bus with a stand-in for logind on it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from podkeep.agent.eviction.logind import Logind
from podkeep.base.errors import PodkeepError, Unavailable
from support.descriptors import open_descriptors

ANNOUNCE = Path(__file__).with_name("programs") / "announce_shutdown.py"
FORGE = Path(__file__).with_name("programs") / "forge_shutdown.py"
CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>custom</type><listen>unix:path={path}</listen>
<policy context="default">
<allow user="*"/><deny own="*"/><deny send_type="method_call"/>
<allow send_type="signal"/>
<allow send_requested_reply="true" send_type="method_return"/><allow send_requested_reply="true" send_type="error"/>
<allow receive_type="method_call"/><allow receive_type="method_return"/>
<allow receive_type="error"/><allow receive_type="signal"/>
<allow send_destination="org.freedesktop.DBus"/>
</policy>
<policy user="root"><allow own="org.freedesktop.login1"/><allow send_destination="org.freedesktop.login1"/></policy>
</busconfig>"""
"""Who may do what as on the system bus (/usr/share/dbus-1/system.conf)."""
AGENT = ":1.0"
"""The name of the first connection to a bus."""


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Path]:
    """A bus of the test's own."""
    path, config = tmp_path / "bus", tmp_path / "bus.conf"
    config.write_text(CONFIG.format(path=path))
    command = ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline().startswith("unix:path=")
        yield path
        daemon.terminate()


def test_a_bus_without_logind(bus: Path) -> None:
    """The connection is made; what logind is asked for is refused, by the bus."""

    async def ask() -> None:
        async with Logind(bus) as logind:
            with pytest.raises(Unavailable, match=r"refuses Get: .*ServiceUnknown"):
                await logind.require_delay(10)
            with pytest.raises(Unavailable, match="refuses Inhibit"):
                await logind.inhibit()

    before = len(open_descriptors())
    asyncio.run(ask())
    assert len(open_descriptors()) == before


def test_there_is_no_bus(tmp_path: Path) -> None:
    async def ask() -> None:
        async with Logind(tmp_path / "nothing"):
            raise AssertionError("connected to nothing")

    with pytest.raises(Unavailable, match="No such file or directory"):
        asyncio.run(ask())


def test_a_shutdown_that_begins_and_is_called_off(bus: Path) -> None:
    """Signals of the one who has logind's name are told, those of others are not."""
    address = f"unix:path={bus}"

    async def follow() -> list[bool]:
        async with Logind(bus) as logind:
            with pytest.raises(Unavailable, match="refuses Get"):  # the stand-in answers nothing
                await logind.follow()
            found: list[bool] = []

            async def read() -> None:
                async for begins in logind.shutdowns():
                    found.append(begins)
                    if len(found) == 2:
                        return

            reading = asyncio.ensure_future(read())
            while not reading.done():  # the match may not be there yet
                emit = await asyncio.create_subprocess_exec(sys.executable, ANNOUNCE, address)
                assert await emit.wait() == 0
            await reading
            return found[:2]

    assert asyncio.run(follow()) == [True, False]


@pytest.mark.parametrize("how", ["signal", "descriptors", "big-endian", "long", "unknown-field"])
def test_a_user_of_the_machine_does_not_end_its_pods(how: str, bus: Path) -> None:
    """Everybody may send a signal to a single client of the system bus, and no match keeps it away from there."""
    address = f"unix:path={bus}"
    bus.chmod(0o666)
    bus.parent.chmod(0o755)

    async def follow() -> None:
        async with Logind(bus) as logind:
            with pytest.raises(Unavailable, match="refuses Get"):
                await logind.follow()
            before = open_descriptors()
            for program, arguments in ((FORGE, (AGENT, how)), (ANNOUNCE, ())):
                process = await asyncio.create_subprocess_exec(sys.executable, program, address, *arguments)
                assert await process.wait() == 0
            told = logind.shutdowns()
            assert [await anext(told), await anext(told)] == [True, False]
            assert len(open_descriptors()) == len(before)

    asyncio.run(follow())


def test_what_is_no_bus(tmp_path: Path) -> None:
    """Something that listens and does not speak D-Bus is said so."""
    path = tmp_path / "other"

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()

    async def ask() -> None:
        async with await asyncio.start_unix_server(answer, path), Logind(path):
            raise AssertionError("connected to nothing")

    with pytest.raises(PodkeepError, match="the system bus refuses: HTTP"):
        asyncio.run(ask())
