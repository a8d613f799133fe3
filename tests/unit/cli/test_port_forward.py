"""``podkeep port-forward``: what is said of connections that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.cli.pods.port_forward import LOCAL, Forwarding, PortPair


def test_words_of_others_reach_the_terminal_as_printable_characters(capsys: pytest.CaptureFixture[str]) -> None:
    async def sandbox() -> str:
        raise FailedPrecondition("no \x1b[31mpod\r")

    async def main() -> None:
        unused: Any = None
        server = await Forwarding(unused, sandbox, "").listen(PortPair(0, 80))
        reader, writer = await asyncio.open_connection(LOCAL, server.sockets[0].getsockname()[1])
        try:
            await reader.read()
        except ConnectionResetError:
            pass
        finally:
            writer.transport.abort()
            server.close()

    asyncio.run(main())
    assert capsys.readouterr().err == "podkeep: port 80: no \\x1b[31mpod\\r\n"
