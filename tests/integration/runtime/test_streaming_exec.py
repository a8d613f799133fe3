"""Exec over SPDY and WebSocket: streams, terminals, exit codes, back-pressure, and clients that vanish."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, Internal, InvalidArgument, NotFound
from podkeep.cli.pods.stream_client import CommandClient
from podkeep.cri.v1 import api_pb2 as api
from support import streams
from support.cri import BLOCK, Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.streams import TRANSPORTS, SpdyCommand, Transport
from support.waiting import wait_for

MEGABYTE = 1 << 20


def descriptors(daemon: Daemon) -> int:
    assert daemon.process is not None
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def resident(daemon: Daemon) -> int:
    """Return the daemon's memory in bytes."""
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


@pytest.fixture
def container(pods: Pods, daemon: Daemon) -> Iterator[str]:
    """A container that sleeps; afterwards the daemon has no more descriptors than before."""
    running = pods.launch(pods.run(), working_dir="/home")
    # The first command starts threads and loads what the next ones use.
    pods.wait(run(pods, running, "websocket", "true"))
    before = descriptors(daemon)
    yield running
    wait_for(lambda: descriptors(daemon) <= before, "the daemon's descriptors to be closed")


async def run(pods: Pods, container: str, transport: Transport, *command: str) -> tuple[bytes, bytes, int]:
    """Run a command without input; its URL is asked for on a thread, because the caller owns the loop."""
    client = await streams.connect(transport, await ask(pods, container, *command))
    out, err = await streams.collect(client)
    return out, err, client.exit_code()


async def ask(pods: Pods, container: str, *command: str, stdin: bool = False, tty: bool = False) -> str:
    request = api.ExecRequest(container_id=container, cmd=command, stdin=stdin, stdout=True, stderr=not tty, tty=tty)
    return str((await pods._client.runtime.Exec(request)).url)


def commands(pods: Pods, container: str, pattern: str) -> int:
    """Return how many processes in a container match."""
    answer = pods.exec(container, "sh", "-c", f"ps -o args | grep -c '{pattern}'")
    return int(answer.stdout)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("user", [None, BLOCK])
def test_outputs_and_exit_code(pods: Pods, transport: Transport, user: tuple[int, int, int] | None) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=user))))
    script = "echo out; echo err >&2; exit 3"
    assert pods.wait(run(pods, container, transport, "sh", "-c", script)) == (b"out\n", b"err\n", 3)
    assert pods.wait(run(pods, container, transport, "true")) == (b"", b"", 0)
    assert pods.wait(run(pods, container, transport, "sh", "-c", "kill -9 $$")) == (b"", b"", 137)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_command_runs_as_the_container_does(pods: Pods, transport: Transport) -> None:
    security = {"run_as_user": api.Int64Value(value=1000), "run_as_group": api.Int64Value(value=50)}
    container = pods.launch(pods.run(), security=security, working_dir="/tmp", envs=[api.KeyValue(key="A", value=b"1")])
    out, _, _ = pods.wait(run(pods, container, transport, "sh", "-c", "id -u; id -g; pwd; echo $A"))
    assert out == b"1000\n50\n/tmp\n1\n"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_end_of_input_is_passed_on(pods: Pods, container: str, transport: Transport) -> None:
    async def go() -> tuple[bytes, int]:
        client = await streams.connect(transport, await ask(pods, container, "wc", "-c", stdin=True), stdin=True)
        out, _ = await streams.converse(client, b"x" * 100_000)
        return out, client.exit_code()

    assert pods.wait(go()) == (b"100000\n", 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_64_megabytes_both_ways(pods: Pods, daemon: Daemon, container: str, transport: Transport) -> None:
    data = os.urandom(MEGABYTE) * 64

    async def go() -> tuple[str, int]:
        client = await streams.connect(transport, await ask(pods, container, "cat", stdin=True), stdin=True)
        out, _ = await streams.converse(client, data)
        return hashlib.sha256(out).hexdigest(), client.exit_code()

    before = resident(daemon)
    assert pods.wait(go()) == (hashlib.sha256(data).hexdigest(), 0)
    assert resident(daemon) - before < 24 * MEGABYTE


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_slow_reader_stops_the_command(pods: Pods, daemon: Daemon, container: str, transport: Transport) -> None:
    total = 200 * MEGABYTE
    client = pods.wait(
        streams.connect(transport, streams.exec_url(pods, container, "head", "-c", str(total), "/dev/zero"))
    )
    before = resident(daemon)
    written: list[str] = [""]

    def stopped() -> bool:
        found = pods.read(container, "cat /proc/$(pidof head)/io | grep wchar || true")
        same = bool(found) and found == written[0]
        written[0] = found
        return same

    wait_for(stopped, "the command to stand still")
    # What it wrote is in the kernel's buffers and in the daemon's bounded ones.
    assert int(written[0].split()[1]) < 64 * MEGABYTE
    assert resident(daemon) - before < 16 * MEGABYTE
    out, _ = pods.wait(streams.collect(client))
    assert len(out) == total
    assert client.exit_code() == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_input_nobody_reads_stops_the_client(pods: Pods, daemon: Daemon, container: str, transport: Transport) -> None:
    async def go() -> int:
        client = await streams.connect(transport, await ask(pods, container, "sleep", "3", stdin=True), stdin=True)
        before = resident(daemon)
        sending = asyncio.ensure_future(client.send_input(bytes(64 * MEGABYTE)))
        await streams.collect(client)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert resident(daemon) - before < 16 * MEGABYTE
        return client.exit_code()

    assert pods.wait(go()) == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_command_that_closes_its_input_is_not_disturbed(pods: Pods, container: str, transport: Transport) -> None:
    async def go() -> tuple[bytes, int]:
        request = await ask(pods, container, "sh", "-c", "head -c 3; exec 0<&-; sleep 0.2; echo end", stdin=True)
        client = await streams.connect(transport, request, stdin=True)
        out, _ = await streams.converse(client, b"abc" + bytes(2 * MEGABYTE))
        return out, client.exit_code()

    assert pods.wait(go()) == (b"abcend\n", 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("user", [None, BLOCK])
def test_terminal(pods: Pods, transport: Transport, user: tuple[int, int, int] | None) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=user))), working_dir="/home")

    async def go() -> int:
        request = await ask(pods, container, "sh", "-c", streams.LINES, stdin=True, tty=True)
        client = await streams.connect(transport, request, stdin=True, tty=True)
        await client.resize(111, 44)
        await client.send_input(b"while ! stty size | grep '44 111'; do :; done\n")
        await streams.read_until(client, b"44 111\r\n")
        await client.resize(66, 22)
        await client.send_input(b"while ! stty size | grep '22 66'; do :; done; pwd; tty\n")
        await streams.read_until(client, b"/home\r\n/dev/pts/0\r\n")
        await client.send_input(b"echo terminal=$TERM\n")
        await streams.read_until(client, b"terminal=xterm\r\n")
        await client.send_input(b"sleep 1000; echo code=$?\n")
        while True:
            # One is the container's own.
            count = ["sh", "-c", "ps -o args | grep -c '^[s]leep 1000$'"]
            answer = await pods._client.runtime.ExecSync(api.ExecSyncRequest(container_id=container, cmd=count))
            if answer.stdout == b"2\n":
                break
        await client.send_input(b"\x03")
        await streams.read_until(client, b"code=130\r\n")
        await client.send_input(b"exit 9\n")
        await streams.collect(client)
        return client.exit_code()

    assert pods.wait(go()) == 9


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_command_sees_the_size_of_its_terminal_from_the_beginning(
    pods: Pods, container: str, transport: Transport
) -> None:
    """crun sets it beside the command that runs already: without the wait every third one was earlier."""

    async def go() -> bytes:
        request = await ask(pods, container, "stty", "size", stdin=True, tty=True)
        client = await streams.connect(transport, request, stdin=True, tty=True)
        await client.resize(132, 43)
        return (await streams.collect(client))[0]

    assert [pods.wait(go()) for _ in range(20)] == [b"43 132\r\n"] * 20


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_first_size_of_a_client_far_away_is_waited_for(pods: Pods, container: str, transport: Transport) -> None:
    async def go() -> bytes:
        request = await ask(pods, container, "stty", "size", stdin=True, tty=True)
        client = await streams.connect(transport, request, stdin=True, tty=True)
        await asyncio.sleep(0.2)  # a round trip to it
        await client.resize(132, 43)
        return (await streams.collect(client))[0]

    # On a machine with too much to do its answer may come later still.
    assert any(pods.wait(go()) == b"43 132\r\n" for _ in range(10))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("tty", [False, True])
def test_a_command_whose_client_vanishes_is_killed_with_all_it_started(
    pods: Pods, container: str, transport: Transport, tty: bool
) -> None:
    script = "trap '' HUP TERM; (trap '' HUP; sleep 997) & echo ready; sleep 998; sleep 999"

    async def go() -> None:
        request = await ask(pods, container, "sh", "-c", script, stdin=True, tty=tty)
        client = await streams.connect(transport, request, stdin=True, tty=tty)
        await streams.read_until(client, b"ready")
        streams.abort(client)

    pods.wait(go())
    wait_for(lambda: commands(pods, container, "[s]leep 99") == 0, "the command's end")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_command_is_killed_when_its_client_vanishes_with_input_unread(
    pods: Pods, container: str, transport: Transport
) -> None:
    """The connection is not read while the queue is full; that the client is gone must be noticed all the same."""

    async def go() -> None:
        client = await streams.connect(transport, await ask(pods, container, "sleep", "996", stdin=True), stdin=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.send_input(bytes(64 * MEGABYTE))
        streams.abort(client)

    pods.wait(go())
    wait_for(lambda: commands(pods, container, "[s]leep 996") == 0, "the command's end")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_a_command_leaves_behind_is_not_waited_for(pods: Pods, container: str, transport: Transport) -> None:
    out, _, code = pods.wait(run(pods, container, transport, "sh", "-c", "sleep 995 & echo started"))
    assert (out, code) == (b"started\n", 0)
    assert commands(pods, container, "[s]leep 995") == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("tty", [False, True])
def test_a_program_that_is_not_there(pods: Pods, container: str, transport: Transport, tty: bool) -> None:
    async def go() -> None:
        client = await streams.connect(transport, await ask(pods, container, "/no/such", tty=tty), tty=tty)
        await streams.collect(client)
        client.exit_code()

    with pytest.raises(Internal, match="/no/such"):
        pods.wait(go())


def test_50_sessions_at_once(pods: Pods, container: str) -> None:
    async def one(number: int) -> tuple[bytes, int]:
        transport = TRANSPORTS[number % 2]
        request = await ask(pods, container, "sh", "-c", f"cat; exit {number}", stdin=True)
        client = await streams.connect(transport, request, stdin=True)
        out, _ = await streams.converse(client, b"%d" % number)
        return out, client.exit_code()

    async def go() -> list[tuple[bytes, int]]:
        return await asyncio.gather(*(one(number) for number in range(50)))

    assert pods.wait(go()) == [(b"%d" % number, number) for number in range(50)]


@pytest.mark.parametrize(
    ("asked", "spoken", "status"),
    [
        ("v9.channel.k8s.io, v4.channel.k8s.io", "v4.channel.k8s.io", b'"ExitCode"'),
        ("v5.channel.k8s.io", "v5.channel.k8s.io", b'"ExitCode"'),
        ("v3.channel.k8s.io", "v3.channel.k8s.io", b"command terminated with non-zero exit code: exit status 3"),
        ("v2.channel.k8s.io", "v2.channel.k8s.io", b"command terminated with non-zero exit code: exit status 3"),
        ("channel.k8s.io", "channel.k8s.io", b"command terminated with non-zero exit code: exit status 3"),
        ("", "", b"command terminated with non-zero exit code: exit status 3"),
    ],
)
def test_versions_of_the_protocol_over_spdy(pods: Pods, container: str, asked: str, spoken: str, status: bytes) -> None:
    async def go() -> None:
        request = await ask(pods, container, "sh", "-c", "echo $0; exit 3")
        client = await SpdyCommand.connect(request, ("stdout", "stderr"), asked)
        assert client.protocol == spoken
        assert await streams.collect(client) == (b"sh\n", b"")
        assert status in client.status

    pods.wait(go())


@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v5.channel.k8s.io"])
def test_versions_of_the_protocol_over_websocket(pods: Pods, container: str, protocol: str) -> None:
    async def go() -> int:
        client = await CommandClient.connect(await ask(pods, container, "sh", "-c", "exit 3"), protocol=protocol)
        await streams.collect(client)
        return client.exit_code()

    assert pods.wait(go()) == 3


def test_a_url_works_once(pods: Pods, container: str) -> None:
    async def go() -> None:
        request = await ask(pods, container, "true")
        assert "404" in await streams.refusal(CommandClient.connect(request.replace("/exec/", "/attach/")))
        assert "404" in await streams.refusal(CommandClient.connect(request))
        again = await ask(pods, container, "true")
        await streams.collect(await CommandClient.connect(again))
        assert "404" in await streams.refusal(CommandClient.connect(again))
        assert "404" in await streams.refusal(CommandClient.connect(again[:-1]))

    pods.wait(go())


def test_urls_lead_to_loopback_and_are_long(pods: Pods, container: str) -> None:
    found = {streams.exec_url(pods, container, "true") for _ in range(20)}
    assert len(found) == 20
    assert all(re.fullmatch(r"http://127\.0\.0\.1:\d+/exec/[A-Za-z0-9_-]{43}", item) for item in found)


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"PUT / HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00" + bytes(600), b"400"),
        (b"GET /" + b"x" * 100_000, b"431"),
        (os.urandom(4000), b"400"),
    ],
)
def test_garbage_on_the_port(pods: Pods, container: str, head: bytes, answer: bytes) -> None:
    async def go() -> bytes:
        return await streams.raw(await ask(pods, container, "true"), head)

    received = pods.wait(go())
    assert received == b"" or answer in received.split(b"\r\n")[0]
    assert pods.wait(run(pods, container, "spdy", "true")) == (b"", b"", 0)


def test_a_request_without_upgrade_is_refused(pods: Pods, container: str) -> None:
    async def go(headers: bytes) -> bytes:
        request = await ask(pods, container, "true")
        path = "/" + request.split("/", 3)[3]
        return await streams.raw(request, b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n" % (path.encode(), headers))

    assert b" 400 " in pods.wait(go(b""))
    assert b" 400 " in pods.wait(go(b"Connection: Upgrade\r\nUpgrade: h2c\r\n"))
    assert b" 400 " in pods.wait(go(b"Connection: Upgrade\r\nUpgrade: websocket\r\n"))
    spdy_asked = b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v9.channel.k8s.io\r\n"
    refused = pods.wait(go(spdy_asked))
    assert b" 403 " in refused
    assert b"v4.channel.k8s.io" in refused


def test_garbage_after_the_upgrade_kills_the_command(pods: Pods, container: str) -> None:
    async def go() -> None:
        client = await streams.connect("spdy", await ask(pods, container, "sleep", "994"))
        assert isinstance(client, SpdyCommand)
        await client.connection.send(b"\x80\x09" * 1000)
        await streams.collect(client)
        assert client.status == b""

    pods.wait(go())
    wait_for(lambda: commands(pods, container, "[s]leep 994") == 0, "the command's end")


def test_what_cannot_be_is_refused_at_once(pods: Pods, container: str) -> None:
    def exec_error(kind: type[Exception], **fields: object) -> str:
        request = api.ExecRequest(**({"container_id": container, "cmd": ["true"], "stdout": True} | fields))  # type: ignore[arg-type]
        return error_of(lambda: pods.call("Exec", request), kind)  # type: ignore[arg-type]

    assert "no command" in exec_error(InvalidArgument, cmd=[])
    assert "stdin, stdout and stderr" in exec_error(InvalidArgument, stdout=False)
    assert "tty and stderr" in exec_error(InvalidArgument, tty=True, stderr=True)
    assert "container_id" in exec_error(InvalidArgument, container_id="")
    exec_error(NotFound, container_id="f" * 64)
    pods.stop(container)
    assert "not running" in exec_error(FailedPrecondition)


def test_a_container_that_ended_before_its_client_came(pods: Pods, container: str) -> None:
    request = streams.exec_url(pods, container, "true")
    pods.stop(container)

    async def go() -> None:
        client = await streams.connect("websocket", request)
        await streams.collect(client)
        client.exit_code()

    with pytest.raises(Internal, match="not running"):
        pods.wait(go())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_container_that_ends_ends_its_commands(pods: Pods, container: str, transport: Transport) -> None:
    client = pods.wait(
        streams.connect(transport, streams.exec_url(pods, container, "sh", "-c", "echo ready; sleep 993"))
    )
    pods.wait(streams.read_until(client, b"ready"))
    pods.stop(container)
    pods.wait(streams.collect(client))
    assert client.exit_code() == 137


def test_a_daemon_that_stops_ends_sessions_and_their_commands(mortal: Mortal) -> None:
    pods = mortal.start()
    container = pods.launch(pods.run())
    pid = pods.host_pid(container)
    clients = [
        pods.wait(streams.connect(transport, streams.exec_url(pods, container, "sh", "-c", "echo ready; sleep 992")))
        for transport in TRANSPORTS
    ]
    for client in clients:
        pods.wait(streams.read_until(client, b"ready"))
    mortal.daemon.stop()
    for client in clients:
        pods.wait(streams.collect(client))
    namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino

    def left() -> list[int]:
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                try:
                    if os.stat(f"/proc/{entry}/ns/pid").st_ino == namespace:
                        found.append(int(entry))
                except OSError:
                    continue
        return found

    wait_for(lambda: left() == [pid], "the commands' end")
