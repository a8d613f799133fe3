"""``[streaming]``: idle timeout, TLS, a port that is taken; and terminals of an OCI runtime that sends none."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from podkeep.base.errors import Unavailable
from podkeep.cli.pods.stream_client import CommandClient
from support import streams
from support.cri import Pods
from support.daemon import Daemon
from support.mortal import Mortal
from support.streams import TRANSPORTS, Transport
from support.waiting import wait_for


def configure(daemon: Daemon, text: str) -> None:
    daemon.config.write_text(daemon.config.read_text() + text)


def count(pods: Pods, container: str, pattern: str) -> int:
    return int(pods.exec(container, "sh", "-c", f"ps -o args | grep -c '{pattern}'").stdout)


def test_an_idle_session_is_ended(mortal: Mortal) -> None:
    configure(mortal.daemon, "[streaming]\nidle_timeout = 1\n")
    pods = mortal.start()
    container = pods.launch(pods.run())
    for transport in TRANSPORTS:
        started = time.monotonic()
        client = pods.wait(streams.connect(transport, streams.exec_url(pods, container, "sleep", "991")))
        pods.wait(streams.collect(client))
        assert time.monotonic() - started >= 1
        with pytest.raises(Unavailable, match="without a status"):
            client.exit_code()
        wait_for(lambda: count(pods, container, "[s]leep 991") == 0, "the command's end")
        busy = pods.wait(
            streams.connect(
                transport,
                streams.exec_url(pods, container, "sh", "-c", "for i in 1 2 3 4 5 6; do sleep 0.4; echo; done"),
            )
        )
        assert pods.wait(streams.collect(busy)) == (b"\n" * 6, b"")
        assert busy.exit_code() == 0


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-subj", "/CN=podkeep", "-days", "1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(argv, check=True, capture_output=True)
    return cert, key


def test_tls(mortal: Mortal, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    configure(mortal.daemon, f'[streaming]\ntls_cert = "{cert}"\ntls_key = "{key}"\n')
    pods = mortal.start()
    container = pods.launch(pods.run())

    async def go(request: str) -> tuple[bytes, int]:
        client = await CommandClient.connect(request, str(cert))
        out, _ = await streams.converse(client, b"x" * 3_000_000)
        return out, client.exit_code()

    request = streams.exec_url(pods, container, "wc", "-c", stdin=True)
    assert request.startswith("https://127.0.0.1:")
    assert pods.wait(go(request)) == (b"3000000\n", 0)
    # Without the certificate nobody is trusted.
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        pods.wait(CommandClient.connect(request))
    host, port = request.split("/")[2].split(":")
    with socket.create_connection((host, int(port))) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert plain.recv(100) == b""
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((host, int(port))) as sock, context.wrap_socket(sock) as old:
        assert old.version() == "TLSv1.2"


@pytest.mark.parametrize("missing", [False, True])
def test_what_cannot_be_listened_on_is_said_at_the_start(own_daemon: Daemon, missing: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        tls = 'tls_cert = "/no/cert"\ntls_key = "/no/key"\n' if missing else ""
        configure(own_daemon, f"[streaming]\nport = {port}\n{tls}")
        done = own_daemon.run("runtime")
    assert done.returncode == 1
    assert ("/no/cert" if missing else f"127.0.0.1 port {port}") in done.stderr


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_terminal_with_an_oci_runtime_that_sends_none(mortal: Mortal, transport: Transport) -> None:
    if shutil.which("runc") is None:
        pytest.skip("runc is not installed")
    configure(
        mortal.daemon,
        '[runtime.handlers.crun]\npath = "/usr/bin/crun"\n[runtime.handlers.runc]\npath = "/usr/sbin/runc"\n'.replace(
            "/usr/sbin/runc", shutil.which("runc") or ""
        ),
    )
    pods = mortal.start()
    container = pods.launch(pods.run(handler="runc"))

    async def go() -> int:
        client = await streams.connect(transport, request, stdin=True, tty=True)
        await client.resize(111, 44)
        await client.send_input(b"while ! stty size | grep '44 111'; do :; done\n")
        await streams.read_until(client, b"44 111\r\n")
        await client.resize(66, 22)
        await client.send_input(b"while ! stty size | grep '22 66'; do :; done; tty\n")
        await streams.read_until(client, b"/dev/pts/0\r\n")
        await client.send_input(b"exit 9\n")
        await streams.collect(client)
        return client.exit_code()

    request = streams.exec_url(pods, container, "sh", "-c", streams.LINES, stdin=True, tty=True)
    assert pods.wait(go()) == 9

    async def look(url: str) -> bytes:
        client = await streams.connect(transport, url, stdin=True, tty=True)
        await client.resize(132, 43)
        return (await streams.collect(client))[0]

    urls = (streams.exec_url(pods, container, "stty", "size", stdin=True, tty=True) for _ in range(10))
    # How a line ends is for runc to say, which does so beside the command.
    assert [pods.wait(look(url)).split() for url in urls] == [[b"43", b"132"]] * 10
