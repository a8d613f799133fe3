"""The authorities of clients' certificates: the kubelet's server follows their file while it serves."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from podkeep.agent.node import this_node
from podkeep.agent.server.server import KubeletServer
from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus
from podkeep.base import config
from podkeep.cri.client import CriClient
from support.waiting import TIMEOUT_S


class NoPods:
    """A node without pods."""

    def pods(self) -> list[tuple[Pod, PodStatus]]:
        return []

    def find(self, namespace: str, name: str) -> None:
        return None


class User:
    """Somebody with a certificate that signs itself, so that it is its own authority."""

    def __init__(self, directory: Path, name: str) -> None:
        self.certificate, self.key = directory / f"{name}.crt", directory / f"{name}.key"
        argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        argv += ["-subj", f"/O=system:masters/CN={name}", "-days", "1"]
        subprocess.run([*argv, "-keyout", self.key, "-out", self.certificate], check=True, capture_output=True)
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.context.load_cert_chain(self.certificate, self.key)

    async def ask(self, port: int) -> str:
        """Return the first line of the answer; empty: the server does not take the certificate."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=self.context)
        except OSError:
            return ""
        try:
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n")
            return (await reader.readline()).decode().strip()
        except OSError:
            return ""
        finally:
            writer.transport.abort()


@asynccontextmanager
async def serving(tmp_path: Path, authorities: Path) -> AsyncIterator[KubeletServer]:
    socket = tmp_path / "none.sock"
    settings = [f'agent.root="{tmp_path}/agent"', f'runtime.socket="{socket}"', 'agent.address="127.0.0.1"']
    settings += [
        "agent.port=0",
        'agent.authorization.mode="AlwaysAllow"',
        "agent.authentication.anonymous.enabled=false",
    ]
    settings += [f'agent.authentication.x509.client_ca_file="{authorities}"']
    async with asyncio.timeout(TIMEOUT_S), CriClient(str(socket)) as client:
        node = this_node(client, config.load(None, settings))
        async with KubeletServer(node, None, NoPods(), configuration=dict) as server:
            yield server


def give(path: Path, user: User, time_s: int) -> None:
    path.write_bytes(user.certificate.read_bytes())
    os.utime(path, (time_s, time_s))


@pytest.mark.slow
def test_an_authority_that_is_removed_is_not_trusted_any_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """OpenSSL only adds authorities to settings that are there: somebody of a removed one could go on as before."""
    old, new = User(tmp_path, "old"), User(tmp_path, "new")
    authorities = tmp_path / "ca.crt"
    give(authorities, old, 1)

    async def main() -> None:
        async with serving(tmp_path, authorities) as server:
            assert ((await old.ask(server.port))[:12], await new.ask(server.port)) == ("HTTP/1.1 200", "")
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=old.context)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: n\r\n\r\n")
            assert (await reader.readline())[:12] == b"HTTP/1.1 200"
            give(authorities, new, 2)
            server.look()
            assert ((await new.ask(server.port))[:12], await old.ask(server.port)) == ("HTTP/1.1 200", "")
            assert (await reader.read()).endswith(b"\r\n\r\nok")  # and nothing more
            writer.transport.abort()
            # What cannot be read, as half of a file, leaves it with those that it has.
            authorities.write_text("half of a file")
            server.look()
            assert ((await new.ask(server.port))[:12], await old.ask(server.port)) == ("HTTP/1.1 200", "")

    asyncio.run(main())
    assert f"authorities for clients in {authorities} cannot be used" in caplog.text
