"""Attach over SPDY and WebSocket: what a container writes and reads itself, its terminal, and leaving it."""

from __future__ import annotations

import asyncio

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from support import streams
from support.cri import BLOCK, Pods, error_of, namespaces, pod
from support.streams import TRANSPORTS, Command, Transport
from support.waiting import wait_for

ECHO = ("sh", "-c", "while read -r line; do echo got $line; echo err $line >&2; done; echo end")


def attach(pods: Pods, transport: Transport, container: str, *, stdin: bool = True, tty: bool = False) -> Command:
    request = api.AttachRequest(container_id=container, stdin=stdin, stdout=True, stderr=not tty, tty=tty)
    return pods.wait(streams.connect(transport, pods.call("Attach", request).url, stdin=stdin, tty=tty))


def say(pods: Pods, client: Command, text: bytes, answer: bytes) -> bytes:
    async def go() -> bytes:
        await client.send_input(text)
        return await streams.read_until(client, answer)

    return pods.wait(go())


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("user", [None, BLOCK])
def test_input_and_outputs(pods: Pods, transport: Transport, user: tuple[int, int, int] | None) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=user))), *ECHO, stdin=True, stdin_once=True)
    client = attach(pods, transport, container)

    async def go() -> tuple[bytes, bytes]:
        return await streams.converse(client, b"one\ntwo\n")

    out, err = pods.wait(go())
    assert (out, err) == (b"got one\ngot two\nend\n", b"err one\nerr two\n")
    assert client.exit_code() == 0
    assert pods.exited(container).exit_code == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_leaving_only_detaches(pods: Pods, transport: Transport) -> None:
    container = pods.launch(pods.run(), *ECHO, stdin=True)
    for number in range(3):
        client = attach(pods, transport, container)
        word = b"word%d" % number
        assert b"got " + word in say(pods, client, word + b"\n", b"got " + word)
        streams.abort(client)
    assert pods.status(container).state == api.CONTAINER_RUNNING


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_end_of_input_ends_that_of_a_container_with_stdin_once(pods: Pods, transport: Transport) -> None:
    once = pods.launch(pods.run(pod("once")), "cat", stdin=True, stdin_once=True)
    client = attach(pods, transport, once)
    say(pods, client, b"x\n", b"x\n")
    streams.abort(client)
    assert pods.exited(once).exit_code == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_clients_see_the_same(pods: Pods, transport: Transport) -> None:
    container = pods.launch(pods.run(), *ECHO, stdin=True)
    first, second = attach(pods, transport, container), attach(pods, transport, container, stdin=False)

    async def go() -> bytes:
        seen = asyncio.ensure_future(streams.read_until(second, b"got again"))
        while not seen.done():  # what is said before conmon has taken the second connection, only the first is shown
            await first.send_input(b"again\n")
            await streams.read_until(first, b"got again")
        return await seen

    assert b"got again" in pods.wait(go())
    for client in (first, second):
        streams.abort(client)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_much_output_is_complete(pods: Pods, transport: Transport) -> None:
    script = "read -r line; yes | head -c 3000000; echo; echo end"
    container = pods.launch(pods.run(), "sh", "-c", script, stdin=True, stdin_once=True)
    client = attach(pods, transport, container)

    async def go() -> bytes:
        out, _ = await streams.converse(client, b"go\n")
        return out

    out = pods.wait(go())
    assert out.endswith(b"\nend\n")
    assert len(out) == 3_000_000 + 5


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_terminal(pods: Pods, transport: Transport) -> None:
    container = pods.launch(pods.run(), "sh", "-c", streams.LINES, stdin=True, tty=True)
    client = attach(pods, transport, container, tty=True)

    async def go() -> None:
        await client.resize(99, 33)
        await client.send_input(b"while ! stty size | grep '33 99'; do :; done; tty\n")
        await streams.read_until(client, b"/dev/pts/0\r\n")
        await client.send_input(b"exit 4\n")
        await streams.collect(client)

    pods.wait(go())
    assert client.exit_code() == 0
    assert pods.exited(container).exit_code == 4


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_last_of_two_sizes_is_that_of_the_terminal_before_what_comes_next(pods: Pods, transport: Transport) -> None:
    """As kubectl sends them: one column and row too many, so that a program draws anew, and then what is right."""
    container = pods.launch(pods.run(), "sh", "-c", streams.LINES, stdin=True, tty=True)

    async def go(client: Command, width: int) -> bytes:
        await client.resize(width + 1, 34)
        await client.resize(width, 33)
        await client.send_input(b"stty size; echo do''ne\n")
        return await streams.read_until(client, b"done\r\n")

    for width in range(100, 120):
        client = attach(pods, transport, container, tty=True)
        assert b"\r\n33 %d\r\n" % width in pods.wait(go(client, width))
        streams.abort(client)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_container_that_is_stopped_ends_the_session(pods: Pods, transport: Transport) -> None:
    container = pods.launch(pods.run(), *ECHO, stdin=True)
    client = attach(pods, transport, container)
    say(pods, client, b"x\n", b"got x")
    pods.stop(container)
    pods.wait(streams.collect(client))
    assert client.exit_code() == 0


def test_20_clients_at_once(pods: Pods) -> None:
    container = pods.launch(pods.run(), *ECHO, stdin=True)
    request = api.AttachRequest(container_id=container, stdin=True, stdout=True, stderr=True)
    urls = [pods.call("Attach", request).url for _ in range(20)]

    async def go() -> list[bytes]:
        clients = await asyncio.gather(*(streams.connect("websocket", url, stdin=True) for url in urls))
        for number, client in enumerate(clients):
            await client.send_input(b"n%d\n" % number)
        seen = await asyncio.gather(
            *(streams.read_until(client, b"got n%d\n" % number) for number, client in enumerate(clients))
        )
        for client in clients:
            streams.abort(client)
        return seen

    assert len(pods.wait(go())) == 20


def test_what_cannot_be_is_refused_at_once(pods: Pods) -> None:
    container = pods.create(pods.run())

    def attach_error(kind: type[FailedPrecondition | InvalidArgument], **fields: bool) -> str:
        request = api.AttachRequest(container_id=container, **fields)
        return error_of(lambda: pods.call("Attach", request), kind)

    assert "stdin, stdout and stderr" in attach_error(InvalidArgument)
    assert "tty and stderr" in attach_error(InvalidArgument, tty=True, stderr=True)
    assert "created, not running" in attach_error(FailedPrecondition, stdout=True)


def test_logs_go_on_beside_a_client(pods: Pods, tmp_path_factory: pytest.TempPathFactory) -> None:
    logs = tmp_path_factory.mktemp("logs")
    sandbox = pods.run(pod(log_directory=str(logs)))
    container = pods.launch(sandbox, *ECHO, stdin=True, log_path="0.log")
    client = attach(pods, "spdy", container)
    say(pods, client, b"both\n", b"got both")
    streams.abort(client)
    wait_for(lambda: "stdout F got both" in (logs / "0.log").read_text(), "the line in the log")
